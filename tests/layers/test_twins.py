"""Each form of each attention layer against its naive twin: values, gradients, masks, scores."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn import layers
from tests import reference
from tests.layers.twins import CHANNELS, FIRST, FORMS, HEADS, LENGTH, built, tokens
from tests.numerics import (
    as_seen,
    assert_all_close,
    assert_close,
    called_with,
    cotangent,
    dtype_policy,
    float64_on_jax,
    layer_reference,
    layer_value_and_gradients,
    reference_weights,
    to_numpy,
    value_and_gradients,
)
from tests.random_masks import draw_masks

CASES = [
    (name, length)
    for name, form in FORMS.items()
    for length in ((LENGTH,) if form.is_bound else (1, 67))
]
COSTLY = [pytest.param(n, marks=[] if n in FIRST else [pytest.mark.slow]) for n in FORMS]
TOKEN_MASKS = ("query_mask", "value_mask", "key_mask")
NEAR = {"bfloat16": 3e-2, "float16": 4e-3}


def test_every_attention_layer_has_a_form():
    public = {getattr(layers, name) for name in layers.__all__}
    attention = {kind for kind in public if issubclass(kind, keras.layers.MultiHeadAttention)}
    assert {type(form.make()) for form in FORMS.values()} == attention


def check(name, length, floor=0.0, **call):
    form = FORMS[name]
    layer, x = built(form.make), tokens(length)
    value, gradients = layer_value_and_gradients(layer, x, **form.call, **call)
    expected, slopes = layer_reference(layer, lambda x, w: form.twin(layer, x, w, call)[0], x)
    assert_close(value, expected, form.tolerance[0], floor)
    if np.abs(expected).max() > 0:
        assert_all_close(gradients, slopes, form.tolerance[1])


@pytest.mark.parametrize(("name", "length"), CASES)
def test_values_and_gradients(name, length):
    check(name, length)


LONG = ("order 2", "monomial", "chebyshev", "jacobi", "blockwise", "fused")
LONG += ("blockwise, Legendre, groups", "fused, Legendre, groups")


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"graph filter, {form}" for form in LONG])
def test_at_length(name):
    length = 1000 if "order" in name else 500
    seen = np.random.default_rng(1).random((2, length)) > 0.2
    check(name, length, key_mask=seen, use_causal_mask=True)


@pytest.mark.slow_on("jax")
@settings(max_examples=4)
@pytest.mark.parametrize("name", COSTLY)
@given(data=st.data(), length=st.sampled_from([1, 7]))
def test_under_masks(name, data, length):
    length = LENGTH if FORMS[name].is_bound else length
    call = draw_masks(data, batch=2, length=length, heads=HEADS)
    if FORMS[name].masks == "tokens":
        call = {key: call[key] for key in TOKEN_MASKS if key in call}
    if FORMS[name].masks == "padding":
        seen = np.arange(length) < data.draw(st.integers(1, length))
        call = dict.fromkeys(TOKEN_MASKS[:2], np.stack([seen, ~np.roll(seen, 2) | seen]))
    check(name, length, 1e-3, **call)


@pytest.mark.parametrize("name", COSTLY)
def test_gradients_are_differences_in_float64(name):
    """Along one direction of the tokens and of all weights at once, without a twin."""
    form, step = FORMS[name], 1e-6
    with float64_on_jax(), dtype_policy("float64"):  # the mask, too
        layer = built(form.make)
        arrays = [tokens(), *map(to_numpy, layer.trainable_variables)]
        generator = np.random.default_rng(3)
        lines = [(array.astype("float64"), generator.normal(size=array.shape)) for array in arrays]

        def outputs(distance):
            distance = ops.convert_to_tensor(distance, "float64")
            x, *weights = (
                ops.convert_to_tensor(start, "float64")
                + distance * ops.convert_to_tensor(way, "float64")
                for start, way in lines
            )
            return called_with(layer, weights, x, x, **form.call)

        value, gradients = value_and_gradients(outputs, 0.0, dtype="float64")
        after, before = (
            np.asarray(ops.convert_to_numpy(ops.stop_gradient(outputs(s)))) for s in (step, -step)
        )
    difference = np.sum((after - before) / (2 * step) * cotangent(value.shape))
    np.testing.assert_allclose(gradients[0], difference, rtol=1e-6, atol=1e-6)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", COSTLY)
def test_half_precision_stays_close(name, dtype):
    form = FORMS[name]
    layer, x = built(form.make, 0.1, dtype=f"mixed_{dtype}"), tokens()
    expected, _ = form.twin(layer, *as_seen(layer, x), {})
    outputs = layer(x, **form.call)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert_close(to_numpy(outputs), expected.numpy(), NEAR[dtype])


@pytest.mark.parametrize("name", [n for n in FORMS if "filter" not in n])
def test_scores_are_the_matrix(name):
    form = FORMS[name]
    layer, x = built(form.make), tokens()
    twin = form.twin(layer, *as_seen(layer, x), {})[1]
    if twin is None or getattr(layer, "attention_path", None) == "blockwise":
        pytest.skip("the layer or its twin shows no matrix")
    outputs, scores = layer(x, return_attention_scores=True, **form.call)
    np.testing.assert_allclose(to_numpy(scores), np.broadcast_to(twin, scores.shape), atol=1e-5)
    assert_close(to_numpy(outputs), to_numpy(layer(x, **form.call)), 1e-6)
    if not form.call:
        symbolic = layer(keras.Input((LENGTH, CHANNELS)), return_attention_scores=True)
        shapes = [tuple(s.shape) for s in symbolic]
        assert shapes == [(None, LENGTH, CHANNELS), (None, HEADS, LENGTH, LENGTH)]


@pytest.mark.parametrize("name", ["AGF, causal=False, default", "kernel, relu"])
def test_cross_attention_reads_another_sequence(name):
    layer, x, source = built(FORMS[name].make), tokens(7), tokens(5, seed=1)
    outputs, matrix = layer(x, source, return_attention_scores=True)
    assert tuple(matrix.shape) == (2, HEADS, 7, 5)
    weights = reference_weights(layer)
    _, _, values = reference.projections(torch.tensor(source).double(), weights)
    heads = reference.apply_matrix(torch.tensor(to_numpy(matrix)), values)
    assert_close(to_numpy(outputs), reference.project_out(heads, weights).numpy(), 1e-6)
    if "kernel" in name:
        np.testing.assert_allclose(to_numpy(matrix).sum(axis=-1), 1.0, atol=1e-6)
