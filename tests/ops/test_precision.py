import warnings
from functools import partial

import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_graphattn.numerics.precision import masked_softmax
from tests import reference
from tests.numerics import (
    BACKEND,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)


@given(
    mask=hnp.arrays(bool, st.sampled_from([(1, 1), (3, 1), (1, 5), (3, 5)])),
    axis=st.sampled_from([-1, 0]),
)
def test_masked_softmax_agrees_with_naive_twin(mask, axis):
    scores = np.random.default_rng(0).standard_normal((3, 5)).astype("float32") * 3
    weights = torch.tensor(np.broadcast_to(mask, scores.shape).copy())

    def naive(x):
        return reference.softmax(x, weights, dim=axis)

    value, gradients = value_and_gradients(lambda x: masked_softmax(x, mask, axis), scores)
    expected, expected_gradients = reference_value_and_gradients(naive, scores)
    assert_close(value, expected, 1e-6)
    assert_close(gradients[0], expected_gradients[0], 1e-5, floor=0.1, what="gradient")
    assert (value[~weights.numpy()] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_masked_softmax_survives_large_scores_in_every_precision(dtype, size):
    scores = keras.ops.cast(np.array([[size, -size, size], [-size, -size, size]]), dtype)
    mask = np.array([[True, True, True], [True, True, False]])
    value = masked_softmax(scores, mask)
    assert keras.backend.standardize_dtype(value.dtype) == dtype
    expected = reference.softmax(torch.tensor(to_numpy(scores)), torch.tensor(mask))
    np.testing.assert_allclose(to_numpy(value), expected.numpy(), atol=4e-3)


@pytest.mark.parametrize(
    "shape", [(2, 9, 3, 1), (2, 9, 3, 7), (1, 2, 5, 15), (3, 16), (0, 4), (4,)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_short_and_long_last_axes_give_the_same_softmax(shape, masked):
    generator = np.random.default_rng(1)
    scores = generator.standard_normal(shape).astype("float32") * 3
    mask = generator.random(shape) < 0.7 if masked else None

    def naive(x):
        weights = torch.ones(shape, dtype=bool) if mask is None else torch.tensor(mask)
        return reference.softmax(x, weights, dim=-1)

    expected, (expected_gradient,) = reference_value_and_gradients(naive, scores)
    for axis in (-1, len(shape) - 1):
        value, (gradient,) = value_and_gradients(
            partial(masked_softmax, mask=mask, axis=axis), scores
        )
        np.testing.assert_allclose(value, expected, atol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="exports of Keras trace torch at sizes of 1")
@pytest.mark.parametrize("axis", [-1, 1])
def test_masked_softmax_that_was_traced_at_one_token_holds_at_others(axis):
    one, other = (torch.randn(1, n, n, generator=torch.Generator().manual_seed(0)) for n in (1, 5))
    traced = torch.jit.trace(lambda x: masked_softmax(x, axis=axis), one, check_trace=False)
    np.testing.assert_allclose(traced(other), masked_softmax(other, axis=axis), rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_softmax_over_one_entry_is_one_without_a_warning(axis):
    scores = ops.convert_to_tensor(np.array([[[3.0]], [[-2.0]]], "float32"))
    with warnings.catch_warnings(action="error", category=UserWarning):
        weights = masked_softmax(scores, axis=axis)
    assert to_numpy(weights).ravel().tolist() == [1.0, 1.0]
