"""GraphKernelAttention beyond its twins: scores, features, walks."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn import ops as our_ops
from keras_graphattn.feature_maps import Favor
from keras_graphattn.graphs import Graph
from keras_graphattn.layers import GraphKernelAttention
from keras_graphattn.masks import Causal, RandomWalk
from tests.layers.twins import (
    CHANNELS,
    EDGES,
    HEADS,
    LENGTH,
    PER_EXAMPLE,
    SIZE,
    WALKS,
    additive,
    built,
    tokens,
)
from tests.layers.unseen_cases import WEIGHTS
from tests.numerics import (
    assert_all_close,
    assert_close,
    layer_value_and_gradients,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

KINDS = {
    "dot product": {},
    "additive": {"score": "additive"},
    "FAVOR+": {"feature_map": Favor(8, seed=0)},
    "ReLU, in chunks": {"feature_map": "relu", "feature_chunk": 3},
    "dynamic walks": {"dynamic_walks": True},
}


def layer_of(mask, scale=0.3, **options):
    return built(lambda: GraphKernelAttention(HEADS, SIZE, mask=mask, **options), scale)


@pytest.mark.slow_on("jax")
@settings(max_examples=5)
@given(
    sizes=st.tuples(*[st.integers(1, 7)] * 5), slope=st.floats(0.0, 1.0), seed=st.integers(0, 1000)
)
def test_additive_scores(sizes, slope, seed):
    batch, rows, columns, heads, size = sizes
    generator = np.random.default_rng(seed)
    shapes = (batch, rows, heads, size), (batch, columns, heads, size), (heads, size), (heads, size)
    arrays = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    value, gradients = value_and_gradients(
        lambda *x: our_ops.additive_scores(*x, negative_slope=slope), *arrays
    )
    expected, slopes = reference_value_and_gradients(lambda *x: additive(*x, slope=slope), *arrays)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, slopes, 1e-4)


@pytest.mark.slow_on("jax", "tensorflow")
def test_features_estimate_the_dense_form():
    mask = RandomWalk(EDGES, num_nodes=LENGTH)
    dense, x = layer_of(mask), 0.2 * tokens()  # the estimate is good for short queries
    right, errors = to_numpy(dense(x)), []
    for count in (16, 4096):
        layer = layer_of(mask, feature_map=Favor(count, seed=0))
        for weight, old in zip(layer.trainable_weights, dense.trainable_weights, strict=True):
            weight.assign(old)
        errors.append(np.abs(to_numpy(layer(x)) - right).max())
    assert errors[1] < 0.02 * np.abs(right).max()
    assert errors[1] < 0.3 * errors[0]
    before = to_numpy(layer(x))
    layer.redraw_features(seed=1)
    assert 0.0 < np.abs(to_numpy(layer(x)) - before).max() < 0.05 * np.abs(right).max()
    with pytest.raises(ValueError, match="favor"):
        layer_of(Causal()).redraw_features()


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("form", KINDS)
def test_walks_of_each_call_train_and_load_at_other_sizes(form, tmp_path):
    inputs = keras.Input((None, CHANNELS)), keras.Input((None, *WALKS.shape[1:]), dtype="int32")
    layer = GraphKernelAttention(HEADS, SIZE, mask=RandomWalk(learn_decay=True), **KINDS[form])
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"walks": inputs[1]}))
    model.compile("sgd", "mse")
    before = [to_numpy(w) for w in layer.trainable_variables]
    walks = PER_EXAMPLE["walks"]
    model.fit((tokens(), walks), tokens(seed=1), verbose=0)
    for old, weight in zip(before, layer.trainable_variables, strict=True):
        assert "key/bias" in weight.path or np.abs(to_numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    small = tokens()[:, :5], np.minimum(walks[:, :5], 4)
    assert_close(again.predict(small, verbose=0), model.predict(small, verbose=0), 1e-6)


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_hundred_thousand_nodes_train_without_a_matrix():
    """The matrix would take 40 GB. Far from its ends, a part of the ring has the same outputs."""
    count, part = 100_000, 200
    around = np.stack([np.arange(count), (np.arange(count) + 1) % count], axis=1)
    walks = our_ops.random_walks(Graph(around).adjacency(), 2, 3, seed=0)
    few, x = walks[:part], tokens(count, batch=1)
    results = []
    for drawn, nodes in ((walks, x), (np.where(few < part, few, -1), x[:, :part])):
        mask = RandomWalk(walks=drawn, learn_decay=True, decay=0.7)
        layer = GraphKernelAttention(1, 4, mask=mask, feature_map=Favor(2, seed=0))
        layer.build(nodes.shape)
        layer.set_weights(results[0][2] if results else layer.get_weights())
        value, gradients = layer_value_and_gradients(layer, nodes)
        results.append((value, gradients, layer.get_weights()))
    inner = slice(10, part - 10)
    np.testing.assert_allclose(results[0][0][0, inner], results[1][0][0, inner], atol=1e-5)
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in results[0][1].values())


# Walks that follow the attention


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("halt", [0.0, 0.4])
def test_equal_scores_give_the_expected_walks_of_the_graph(halt):
    walk = {"num_nodes": LENGTH, "walk_length": 3, "decay": 0.7, "halt_probability": halt}
    exact = layer_of(RandomWalk(EDGES, WEIGHTS, exact=True, **walk))
    layer = layer_of(RandomWalk(EDGES, WEIGHTS, **walk), dynamic_walks=True)
    layer.set_weights(exact.get_weights())
    assert np.abs(to_numpy(layer(tokens())) - to_numpy(exact(tokens()))).max() > 1e-3
    for one in (exact, layer):  # all scores are 0
        for dense in (one.query_dense, one.key_dense):
            dense.kernel.assign(0.0 * dense.kernel)
            dense.bias.assign(0.0 * dense.bias)
    assert_close(to_numpy(layer(tokens())), to_numpy(exact(tokens())), 1e-6)


def test_a_row_is_nan_if_its_walks_may_depend_on_nan():
    path = [[node, node + 1] for node in range(LENGTH - 1)]
    mask = RandomWalk(path, num_nodes=LENGTH, walk_length=2)
    layer, x = layer_of(mask, dynamic_walks=True), tokens()
    right = to_numpy(layer(x))
    x[0, 0] = np.nan
    outputs = to_numpy(layer(x))
    # node 1 steps to node 0; nodes 2 and 3 see node 1, whose walks meet theirs
    assert np.isnan(outputs[0, :4]).all()
    np.testing.assert_array_equal(outputs[0, 4:], right[0, 4:])
    np.testing.assert_array_equal(outputs[1], right[1])
