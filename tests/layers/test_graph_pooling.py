"""Pooling of nodes answers to loops over the nodes that exist."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import GraphMaxPooling, GraphMeanPooling, GraphSumPooling
from tests.numerics import (
    assert_all_close,
    assert_close,
    float64_on_jax,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

NAIVE = {
    GraphMeanPooling: lambda nodes: sum(nodes) / len(nodes),
    GraphSumPooling: sum,
    GraphMaxPooling: lambda nodes: torch.stack(nodes).max(dim=0).values,
}
KINDS = pytest.mark.parametrize("kind", NAIVE)
MASK = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]], bool)


def naive(kind, x, mask):
    """One graph and one node at a time; a graph without nodes gives 0."""
    rows = []
    for graph, known in zip(x, mask, strict=True):
        nodes = [node for node, is_node in zip(graph, known, strict=True) if is_node]
        rows.append(NAIVE[kind](nodes) if nodes else 0.0 * graph.sum(dim=0))
    return torch.stack(rows)


def nodes(shape=(3, 5, 4), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@KINDS
@settings(max_examples=5)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4)),
    part=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
@pytest.mark.slow_on("jax")
def test_equals_a_loop_over_nodes(kind, shape, part, seed):
    mask = np.random.default_rng(seed).random(shape[:2]) < part
    value, gradients = value_and_gradients(lambda x: kind()(x, mask=mask), nodes(shape, seed))
    expected, right = reference_value_and_gradients(
        lambda x: naive(kind, x, mask), nodes(shape, seed)
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, right, 1e-6)
    assert (gradients[0][~mask] == 0.0).all()


@KINDS
def test_masks_come_with_the_inputs_and_end_here(kind):
    x = nodes()
    x[~MASK] = -1.0
    masked = keras.layers.Masking(-1.0)(x)
    pooled = kind()(masked)
    assert getattr(pooled, "_keras_mask", None) is None
    np.testing.assert_array_equal(to_numpy(pooled), to_numpy(kind()(x, mask=MASK)))


@KINDS
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_nan_counts_in_nodes_and_not_in_padding(kind, way):
    x = nodes()
    layer = kind()
    inputs, mask = keras.Input((None, 4)), keras.Input((None,), dtype="bool")
    model = keras.Model([inputs, mask], layer(inputs, mask=mask))
    run = {
        "eager": lambda x: to_numpy(layer(x, mask=MASK)),
        "compiled": lambda x: model.predict([x, MASK], verbose=0),
    }[way]
    right = run(x)
    for bad in (np.nan, np.inf, -np.inf):
        found = run(np.where(MASK[..., None], x, np.float32(bad)))
        np.testing.assert_array_equal(found, right)
    x[0, 1, 2] = np.nan
    found = run(x)
    assert np.isnan(found[0, 2])
    found[0, 2] = right[0, 2]
    np.testing.assert_array_equal(found, right)


@KINDS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes(kind, dtype):
    with float64_on_jax():
        x = ops.cast(nodes((3, 4096, 2)), dtype)
        mask = np.random.default_rng(0).random((3, 4096)) < 0.5
        pooled = kind(dtype=dtype)(x, mask=mask)
        assert keras.backend.standardize_dtype(pooled.dtype) == dtype
        found, given = (
            np.asarray(ops.convert_to_numpy(ops.cast(t, "float64"))) for t in (pooled, x)
        )
    right = naive(kind, torch.tensor(given), mask).numpy()
    # rounding of the result only
    bound = {"bfloat16": 4e-3, "float16": 5e-4, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found, right, rtol=bound, atol=bound * 1e-2)


@KINDS
def test_what_is_refused(kind):
    with pytest.raises(ValueError, match="inputs"):
        kind()(nodes()[0])
    with pytest.raises(ValueError, match="mask"):
        kind()(nodes(), mask=MASK[:, :3])
