"""GraphKernelAttention with walks that follow the attention, against walks one by one."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import GraphKernelAttention
from keras_graphattn.masks import RandomWalk, Tree
from tests import reference_topology as reference
from tests.layers.test_graph_kernel_forms import naive_additive
from tests.numerics import (
    BACKEND,
    as_seen,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    to_numpy,
)
from tests.reference import project, project_out

HEADS, KEY, FEATURES, LENGTH, STEPS = 2, 4, 6, 9, 3
EDGES = reference.random_edges(LENGTH, 2.5, 3)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, len(EDGES))
WALKS = np.random.default_rng(0).integers(-1, LENGTH, (2, LENGTH, 1, STEPS)).astype("int32")
PADDED = np.ones((2, LENGTH), bool)
PADDED[0, [1, 5]] = False


def graph_matrix():
    edges = np.zeros((LENGTH, LENGTH))
    for (a, b), weight in zip(EDGES, WEIGHTS, strict=True):
        edges[a, b] = edges[b, a] = weight
    return np.stack([edges, edges])


def edges_of_walks(walks):
    edges = np.zeros((len(walks), LENGTH, LENGTH))
    for example, node, walk, step in np.ndindex(*walks.shape[:3], walks.shape[3] - 1):
        here, there = walks[example, node, walk, step : step + 2]
        if here >= 0 and there >= 0:
            edges[example, here, there] = edges[example, there, here] = 1.0
    return edges


KINDS = {
    "graph": (
        {"graph": EDGES, "edge_weights": WEIGHTS, "num_nodes": LENGTH, "walk_length": STEPS},
        {},
        graph_matrix(),
    ),
    "walks": ({"walks": WALKS[0]}, {}, edges_of_walks(WALKS[[0, 0]])),
    "walks of each call": ({}, {"mask_inputs": {"walks": WALKS}}, edges_of_walks(WALKS)),
}


def tokens(seed=0):
    shape = (2, LENGTH, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built(kind, **options):
    mask = RandomWalk(**KINDS[kind][0], learn_decay=True, decay=0.7, name="mask")
    layer = GraphKernelAttention(HEADS, KEY, mask=mask, dynamic_walks=True, name="layer", **options)
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    return layer


def naive(x, weights, edges, seen, score):
    """Steps by a softmax over each node's edges, powers of the steps, and their kernel."""
    query, key, values = (project(x, weights, name) for name in ("query", "key", "value"))
    if score == "additive":
        scores = naive_additive(query, key, weights["score/query"], weights["score/key"])
    else:
        scores = torch.einsum("btnh,bsnh->bnts", query, key) / KEY**0.5
    pairs = torch.tensor(seen[:, None, :, None] & seen[:, None, None, :], dtype=scores.dtype)
    chances = torch.tensor(edges)[:, None] * torch.exp(scores) * pairs
    steps = chances / chances.sum(-1, keepdim=True).clamp(min=1e-300)
    decay = torch.exp(weights["mask/log_decay"])
    each = []
    for example in steps:
        power = torch.eye(LENGTH, dtype=scores.dtype).expand(HEADS, LENGTH, LENGTH)
        features = torch.zeros_like(power)
        for step in range(STEPS):
            features = features + (decay**step)[:, None, None] * power
            power = power @ example
        each.append(reference.walk_matrix(features))
    attention = torch.exp(scores) * torch.stack(each) * pairs
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1e-300)
    return project_out(torch.einsum("bnts,bsnh->btnh", attention, values), weights)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("score", ["dot_product", "additive"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_naive_twin(kind, padded, score):
    layer, seen = built(kind, score=score), PADDED | (not padded)
    _, call, edges = KINDS[kind]
    call = {**call, "query_mask": PADDED, "value_mask": PADDED} if padded else call
    value, gradients = layer_value_and_gradients(layer, tokens(), **call)
    expected, right = layer_reference(layer, lambda x, w: naive(x, w, edges, seen, score), tokens())
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, right, 1e-4)
    if padded:
        assert (gradients["input"][~PADDED] == 0.0).all()


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    layer = built("graph", dtype=f"mixed_{dtype}")
    x, weights = as_seen(layer, tokens())
    right = naive(x, weights, KINDS["graph"][2], PADDED | True, "dot_product")
    assert_close(to_numpy(layer(tokens())), right.numpy(), 1e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.slow_on("jax")
def test_equal_scores_give_the_expected_walks_of_the_graph():
    exact = GraphKernelAttention(
        HEADS, KEY, mask=RandomWalk(**KINDS["graph"][0], exact=True, decay=0.7)
    )
    layer = GraphKernelAttention(
        HEADS, KEY, mask=RandomWalk(**KINDS["graph"][0], decay=0.7), dynamic_walks=True
    )
    for made in (exact, layer):
        made.build((None, LENGTH, FEATURES))
    layer.set_weights(exact.get_weights())
    assert np.abs(to_numpy(layer(tokens())) - to_numpy(exact(tokens()))).max() > 1e-3
    for made in (exact, layer):  # all scores are 0
        made.query_dense.kernel.assign(0.0 * made.query_dense.kernel)
    assert_close(to_numpy(layer(tokens())), to_numpy(exact(tokens())), 1e-6)


def test_a_row_is_nan_if_its_walks_may_depend_on_nan():
    path = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8]]
    mask = RandomWalk(path, num_nodes=LENGTH, walk_length=2)
    layer = GraphKernelAttention(HEADS, KEY, mask=mask, dynamic_walks=True)
    x = tokens()
    right = to_numpy(layer(x))
    x[0, 0] = np.nan
    found = to_numpy(layer(x))
    # node 1 steps to node 0; nodes 2 and 3 see node 1, whose walks meet theirs
    assert np.isnan(found[0, :4]).all()
    np.testing.assert_array_equal(found[0, 4:], right[0, 4:])
    np.testing.assert_array_equal(found[1], right[1])


@pytest.mark.slow_on("jax", "tensorflow")
def test_permuting_nodes_permutes_outputs():
    order = np.random.default_rng(3).permutation(LENGTH)
    place = np.argsort(order)
    one, other = (
        GraphKernelAttention(
            HEADS,
            KEY,
            mask=RandomWalk(edges, WEIGHTS, LENGTH),
            dynamic_walks=True,
        )
        for edges in (EDGES, place[EDGES])
    )
    one.build((None, LENGTH, FEATURES))
    randomise(one)
    other.build((None, LENGTH, FEATURES))
    other.set_weights(one.get_weights())
    found = to_numpy(other(tokens()[:, order]))
    assert_close(found, to_numpy(one(tokens()))[:, order], 1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
def test_trains_and_loads(tmp_path):
    inputs = keras.Input((None, FEATURES)), keras.Input((None, 1, STEPS), dtype="int32")
    layer = GraphKernelAttention(HEADS, KEY, mask=RandomWalk(learn_decay=True), dynamic_walks=True)
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"walks": inputs[1]}))
    model.compile("sgd", "mse")
    before = [to_numpy(w) for w in layer.trainable_variables]
    model.fit((tokens(), WALKS), tokens(1), verbose=0)
    for old, weight in zip(before, layer.trainable_variables, strict=True):
        assert np.abs(to_numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    small = tokens()[:, :5], np.minimum(WALKS[:, :5], 4)
    assert_close(again.predict(small, verbose=0), model.predict(small, verbose=0), 1e-6)


@pytest.mark.parametrize(
    ("match", "mask", "options"),
    [
        ("masks.RandomWalk", Tree([-1, 0]), {}),
        ("sliding_window", RandomWalk(), {"sliding_window": 2}),
        ("`dynamic_walks` needs the attention matrix", RandomWalk(), {"feature_map": "relu"}),
    ],
)
def test_what_is_refused(match, mask, options):
    with pytest.raises(ValueError, match=match):
        GraphKernelAttention(HEADS, KEY, mask=mask, dynamic_walks=True, **options)


def test_masks_of_pairs_are_refused():
    with pytest.raises(ValueError, match="attention_mask"):
        built("graph")(tokens(), attention_mask=np.tri(LENGTH, dtype=bool))


@pytest.mark.slow_on("jax")
def test_a_wrong_walk_is_an_error_or_nan_in_its_example():
    layer, wrong = built("walks of each call"), WALKS.copy()
    wrong[1, 2, 0, 1] = LENGTH
    with pytest.raises(ValueError, match="`walks` of example 1"):
        layer(tokens(), mask_inputs={"walks": wrong})
    if BACKEND == "torch":  # nothing is compiled there
        return
    inputs = keras.Input((None, FEATURES)), keras.Input((None, 1, STEPS), dtype="int32")
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"walks": inputs[1]}))
    right = model.predict((tokens(), WALKS), verbose=0)
    found = model.predict((tokens(), wrong), verbose=0)
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[0], right[0], atol=1e-6)
