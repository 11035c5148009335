"""p-Laplacian weights of coincident, nearly coincident and far-off tokens, entry by entry.

`test_operators.py` has the values and gradients of random tokens, under all masks.
"""

import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.layers import PLaplacianAttention
from keras_graphattn.operators import Visibility
from keras_graphattn.operators.p_laplacian import PLaplacian, re_weighted
from keras_graphattn.ops import p_laplacian_attention
from tests import reference
from tests.numerics import (
    BACKEND,
    assert_close,
    cotangent,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

BATCH, LENGTH, SIZE = 2, 12, 16
P = [1.0, 1.5, 2.0, 2.5, 4.0]
SHAPE = (BATCH, LENGTH, len(P), SIZE)


def twice(values, relative):
    """Every token twice, the second a little off."""
    noise = np.random.default_rng(3).standard_normal(values.shape)
    values[:, LENGTH // 2 :] = values[:, : LENGTH // 2]
    values[:, LENGTH // 2 :] *= 1 + relative * noise[:, LENGTH // 2 :]
    return values


TOKENS = {
    "random": lambda values: values,
    "every token twice": lambda values: twice(values, 0.0),
    "1e-2 apart": lambda values: twice(values, 1e-2),
    "1e-4 apart": lambda values: twice(values, 1e-4),
    "1e-6 apart": lambda values: twice(values, 1e-6),
    "offset": lambda values: values + 300.0,
    "offset and twice": lambda values: twice(values, 1e-4) + 300.0,
    "one far off": lambda values: values * np.where(np.arange(LENGTH) == 2, 1e6, 1)[:, None, None],
}


def arrays(tokens, scale):
    generator = np.random.default_rng(0)
    query, key, values = (generator.standard_normal(SHAPE) for _ in range(3))
    return [x.astype("float32") for x in (query, key, TOKENS[tokens](values) * scale)]


def naive(query, key, values, epsilon, mask=None):
    inputs = (torch.tensor(x.astype("float64")) for x in (query, key, values))
    return reference.p_laplacian_matrix(*inputs, P, epsilon, mask).numpy()


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize("epsilon", [0.1, 0.01])
def test_every_entry_is_right(tokens, scale, epsilon):
    query, key, values = arrays(tokens, scale)
    expected = naive(query, key, values, epsilon)
    scores = ops.einsum("btnh,bsnh->bnts", ops.convert_to_tensor(query) / SIZE**0.5, key)
    pair = (ops.convert_to_tensor(values), ops.convert_to_tensor(values))
    for centre in (None, ops.mean(pair[0], 1, keepdims=True)):
        weights = re_weighted(
            scores, pair, PLaplacian(tuple(P), epsilon), None, np.eye(LENGTH, dtype=bool), centre
        )
        np.testing.assert_allclose(to_numpy(weights), expected, rtol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("causal", [False, True])
def test_every_row_of_the_output_and_of_its_gradients_is_right(causal):
    """One call for all tokens and sizes, as so many examples of a batch."""
    cases = [arrays(tokens, scale) for tokens in TOKENS for scale in (1.0, 10.0, 1000.0)]
    query, key, values = (np.concatenate(x) for x in zip(*cases, strict=True))
    mask = Visibility(causal=causal)
    tri = torch.tensor(np.tri(LENGTH) if causal else np.ones((LENGTH, LENGTH)))
    tri = tri.expand(len(query), len(P), LENGTH, LENGTH)

    def twin(query, key, values):
        matrix = reference.p_laplacian_matrix(query, key, values, P, 0.01, tri)
        return reference.apply_matrix(matrix, values)

    value, gradients = value_and_gradients(
        lambda q, k, v: p_laplacian_attention(q, k, v, P, mask, epsilon=0.01, block_size=5),
        *(query, key, values),
    )
    expected, expected_gradients = reference_value_and_gradients(twin, query, key, values)
    assert_rows_close(value, expected, 1e-5)
    for name in expected_gradients:  # sums over rows that cancel: beside the largest of the head
        size = np.abs(expected_gradients[name]).max((1, 3), keepdims=True) + 1e-30
        error = np.abs(gradients[name] - expected_gradients[name]) / size
        assert error.max() < 3e-4, (name, error.max((1, 2, 3)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="jax and torch know the length of a call")
@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_an_open_length_changes_nothing(path):
    import tensorflow as tf

    layer = PLaplacianAttention(4, 8, epsilon=0.01, attention_path=path, block_size=5)
    tokens = TOKENS["every token twice"](np.random.default_rng(0).standard_normal((2, LENGTH, 16)))
    tokens = tf.constant(tokens, "float32")
    layer.build(tokens.shape)

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
            total = tf.reduce_sum(outputs * cotangent((2, LENGTH, 16)))
        return outputs, *tape.gradient(total, [x, *(v.value for v in layer.trainable_variables)])

    compiled = tf.function(both, input_signature=[tf.TensorSpec((None, None, 16))])
    for found, expected in zip(compiled(tokens), both(tokens), strict=True):
        size = np.abs(to_numpy(expected)).max() + 1.0
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-5 * size)


def assert_rows_close(actual, expected, tolerance):
    """Each row, (..., D), beside its own largest entry."""
    size = np.abs(expected).max(-1, keepdims=True) + 1e-30
    assert (np.abs(actual - expected) / size).max() < tolerance


def test_a_pair_counts_for_itself():
    """Whether other pairs are near changes no weight by a single bit."""
    query, key, values = arrays("random", 1.0)
    weights = []
    for near in (False, True):
        tokens = values.copy()
        if near:
            tokens[:, 7] = tokens[:, 9]
        scores = ops.einsum("btnh,bsnh->bnts", query, key)
        weights.append(
            to_numpy(
                re_weighted(
                    scores,
                    (ops.convert_to_tensor(tokens), ops.convert_to_tensor(tokens)),
                    PLaplacian(tuple(P)),
                    None,
                    np.eye(LENGTH, dtype=bool),
                )
            )
        )
    others = [i for i in range(LENGTH) if i != 7]
    np.testing.assert_array_equal(*(x[:, :, others][..., others] for x in weights))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("epsilon", [0.1, 1e-3])
@pytest.mark.parametrize("drop", [False, True])
def test_duplicate_tokens_have_finite_values_and_gradients(dtype, epsilon, drop):
    tokens = arrays("random", 1.0)
    for x in tokens:
        x[:, 3] = x[:, 1]
    tokens[2][1] = 0.0  # a sequence of equal tokens
    options = {"epsilon": epsilon, "drop_diagonal": drop}
    for block_size in (LENGTH, 4):
        value, gradients = value_and_gradients(
            lambda *x, size=block_size: p_laplacian_attention(*x, P, block_size=size, **options),
            *tokens,
            dtype=dtype,
        )
        assert np.isfinite(value).all()
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("block_size", [3, LENGTH])
def test_scores_beyond_float16_are_finite_and_right(block_size):
    """Scores of up to 1e6, on queries and keys that float16 holds as they are."""
    query, key, values = (np.float16(x) for x in arrays("random", 1.0))
    query, key = (np.round(200 * x.astype("float32")) for x in (query, key))
    value, gradients = value_and_gradients(
        lambda *x: p_laplacian_attention(*x, P, epsilon=0.1, block_size=block_size),
        *(query, key, values),
        dtype="float16",
    )
    assert np.abs(np.einsum("btnh,bsnh->bnts", query, key)).max() > 3e5
    matrix = torch.tensor(naive(query, key, values, 0.1))
    expected = reference.apply_matrix(matrix, torch.tensor(values).double())
    assert_close(value, expected.numpy(), 1e-3)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("block_size", [5, LENGTH])
def test_padding_of_any_kind_changes_nothing(block_size):
    """Without a mask of queries: the padding's own rows are finite too."""
    tokens = [np.repeat(x[:1], 3, axis=0) for x in arrays("random", 1.0)]
    hidden = np.arange(LENGTH) >= LENGTH - 2
    for x, last in zip(tokens[1:], (np.inf, np.nan), strict=True):
        x[1][hidden], x[2][hidden] = 1e15, last
    mask = Visibility(keys=ops.convert_to_tensor(np.repeat(~hidden[None], 3, axis=0)))

    def function(*x):
        outputs = p_laplacian_attention(*x, P, mask, block_size=block_size)
        return ops.sum(outputs, axis=0)[None] * (1 / 3) + 0 * outputs

    value, gradients = value_and_gradients(function, *tokens)
    assert np.isfinite(value).all()
    for place, gradient in gradients.items():
        first = np.broadcast_to(gradient[:1], gradient.shape)
        np.testing.assert_allclose(gradient, first, rtol=0, atol=1e-6 * np.abs(first).max())
        assert place == 0 or (gradient[:, hidden] == 0).all()
