import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.operators import Visibility
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of
from keras_graphattn.ops import p_laplacian_attention
from tests import random_masks, reference_dense
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

BATCH, SIZE = 2, 4
P = [1.5, 2.0, 2.5]


def arrays(length, seed=0):
    generator = np.random.default_rng(seed)
    shape = (BATCH, length, len(P), SIZE)
    return [generator.standard_normal(shape).astype("float32") for _ in range(3)]


def naive(mask=None, epsilon=0.1, drop=False, keys=None):
    mask = None if mask is None else torch.tensor(mask, dtype=torch.float64)

    def function(query, key, value):
        matrix = reference_dense.p_laplacian_matrix(query, key, value, P, epsilon, mask, drop, keys)
        return reference_dense.apply_matrix(matrix, value)

    return function


def check(length, mask=None, meaning=None, *, drop=False, epsilon=0.1, block_size=32, loose=1):
    inputs = arrays(length)
    value, gradients = value_and_gradients(
        lambda q, k, v: p_laplacian_attention(
            q, k, v, P, mask, epsilon=epsilon, drop_diagonal=drop, block_size=block_size
        ),
        *inputs,
    )
    keys = None if mask is None or mask.keys is None else to_numpy(mask.keys)
    expected, expected_gradients = reference_value_and_gradients(
        naive(meaning, epsilon, drop, keys), *inputs
    )
    assert_close(value, expected, 1e-6, floor=1e-3)
    assert_all_close(gradients, expected_gradients, loose * 1e-5)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("drop", [False, True])
def test_agrees_with_naive_twin_in_values_and_gradients(length, drop):
    check(length, drop=drop)
    causal = np.broadcast_to(np.tri(length), (BATCH, len(P), length, length))
    check(length, Visibility(causal=True), causal, drop=drop, block_size=1000)


@given(
    data=st.data(),
    length=st.sampled_from([1, 2, 7, 12]),
    drop=st.booleans(),
    block_size=st.sampled_from([1, 3, 5, 12]),
)
def test_agrees_with_naive_twin_under_masks(data, length, drop, block_size):
    sizes = {"batch": BATCH, "length": length, "heads": len(P)}
    drawn = random_masks.draw_masks(data, **sizes)
    mask = Visibility(
        *(
            None if m is None else ops.convert_to_tensor(m)
            for m in (
                drawn.get("attention_mask"),
                drawn.get("query_mask"),
                random_masks.visible_keys(drawn),
            )
        ),
        causal=drawn["use_causal_mask"],
    )
    check(
        length,
        mask,
        random_masks.joined_mask(drawn, **sizes),
        drop=drop,
        block_size=block_size,
        loose=3,
    )


def test_p_two_is_softmax_attention():
    query, key, values = arrays(63)
    for drop in (False, True):
        outputs = p_laplacian_attention(query, key, values, [2.0] * 3, drop_diagonal=drop)
        assert_close(
            to_numpy(outputs), to_numpy(SoftmaxOperator(scores_of(query, key))(values)), 1e-6
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("epsilon", [0.1, 1e-3])
@pytest.mark.parametrize("drop", [False, True])
def test_duplicate_tokens_have_finite_values_and_gradients(dtype, epsilon, drop):
    query, key, values = arrays(6)
    query[:, 3], key[:, 3], values[:, 3] = query[:, 1], key[:, 1], values[:, 1]
    values[1] = 0.0  # a sequence of equal tokens
    value, gradients = value_and_gradients(
        lambda q, k, v: p_laplacian_attention(
            q, k, v, [1.0, 1.5, 3.0], epsilon=epsilon, drop_diagonal=drop, block_size=4
        ),
        query,
        key,
        values,
        dtype=dtype,
    )
    assert np.isfinite(value).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_one_token_weighs_itself_by_epsilon():
    query, key, values = arrays(1)
    outputs = to_numpy(p_laplacian_attention(query, key, values, P, epsilon=0.01))
    weights = 0.01 ** (np.array(P) - 2)
    np.testing.assert_allclose(outputs, values * weights[:, None], rtol=1e-5)
    dropped = to_numpy(p_laplacian_attention(query, key, values, P, drop_diagonal=True))
    np.testing.assert_allclose(dropped, values * np.array([0, 1, 0])[:, None], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
def test_half_precision_stays_close(dtype, tolerance):
    inputs = [ops.cast(x, dtype) for x in arrays(63)]
    outputs = p_laplacian_attention(*inputs, P, block_size=16)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    expected = naive()(*(torch.tensor(to_numpy(x)) for x in inputs))
    assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.parametrize("block_size", [3, 7])
def test_scores_beyond_float16_are_finite_and_right(block_size):
    """Scores of up to 1e6, on queries and keys that float16 holds as they are."""
    query, key, values = (np.float16(x) for x in arrays(7))
    query, key = (np.round(200 * x.astype("float32")) for x in (query, key))
    value, gradients = value_and_gradients(
        lambda q, k, v: p_laplacian_attention(q, k, v, P, block_size=block_size),
        query,
        key,
        values,
        dtype="float16",
    )
    expected = naive()(*(torch.tensor(x.astype("float64")) for x in (query, key, values)))
    assert np.abs(np.einsum("btnh,bsnh->bnts", query, key)).max() > 3e5
    assert_close(value, expected.numpy(), 1e-3)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_gradient_is_the_finite_difference():
    query, key, values = arrays(5)
    _, gradients = value_and_gradients(
        lambda q, k, v: p_laplacian_attention(q, k, v, P, block_size=2), query, key, values
    )
    cotangent = np.random.default_rng(7).standard_normal(values.shape).astype("float32")
    generator = np.random.default_rng(5)
    start, step = np.stack([query, key, values]).astype("float64"), 1e-5
    for _ in range(5):
        direction = generator.standard_normal(start.shape)
        up, down = (naive()(*torch.tensor(start + s * step * direction)).numpy() for s in (1, -1))
        slope = ((up - down) * cotangent).sum() / (2 * step)
        expected = sum((gradients[i] * direction[i]).sum() for i in range(3))
        np.testing.assert_allclose(expected, slope, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="XLA of TensorFlow is its own compiler")
def test_gradients_under_xla():
    import tensorflow as tf

    inputs = [tf.constant(x) for x in arrays(63)]

    @tf.function(jit_compile=True)
    def gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(p_laplacian_attention(*inputs, P, block_size=16) ** 2)
        return tape.gradient(loss, inputs)

    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays(63)]
    expected = torch.autograd.grad((naive()(*tensors) ** 2).sum(), tensors)
    for actual, twin in zip(gradients(*inputs), expected, strict=True):
        assert_close(to_numpy(actual), twin.numpy(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("length", [500, 1000])
def test_agrees_with_naive_twin_at_length(length):
    check(length, block_size=128)
