"""MaskedKernelAttention over trees, graphs and walks."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import GraphDiffusion, Hypercube, RandomWalk, Tree
from tests import reference_kernel
from tests import reference_topology as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    to_numpy,
)

HEADS, KEY, FEATURES, LENGTH = 2, 4, 10, 16
PARENTS = reference.random_parents(LENGTH, seed=2, cut=0.25)
EDGES = reference.random_edges(LENGTH, 3.0, 1)
DISTANCES = reference.shortest_paths(LENGTH, reference.parent_edges(PARENTS))


def tokens(seed=0):
    shape = (2, LENGTH, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def built(mask, **options):
    layer = MaskedKernelAttention(HEADS, KEY, name="layer", seed=0, mask=mask, **options)
    layer.build((None, LENGTH, FEATURES))
    randomise(layer)
    return layer


def tree_matrix(weights):
    rate, offset = weights["mask/rate"], weights["mask/offset"]
    return reference.exponential_matrix(DISTANCES, rate, offset)[None]


def diffusion_matrix(weights):
    matrix = reference.graph_matrix(LENGTH, EDGES, "laplacian")
    return reference.diffusion_matrix(matrix, 2.0 * torch.sigmoid(weights["mask/time_logit"]))[None]


MASKS = {
    "tree": (lambda: Tree(PARENTS, name="mask"), tree_matrix, {}, "doubling"),
    "tree per example": (
        lambda: Tree(name="mask"),
        tree_matrix,
        {"mask_inputs": {"parents": np.stack([PARENTS, PARENTS]).astype("int32")}},
        "doubling",
    ),
    "diffusion": (
        lambda: GraphDiffusion(EDGES, num_nodes=LENGTH, name="mask"),
        diffusion_matrix,
        {},
        "series",
    ),
    "hypercube": (
        lambda: Hypercube(name="mask"),
        lambda w: reference.hypercube_matrix(LENGTH, torch.exp(w["mask/log_time"]))[None],
        {},
        "butterfly",
    ),
}


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("name", MASKS)
def test_agrees_with_naive_twin(name, chunk):
    make, matrix, inputs, path = MASKS[name]
    layer = built(make(), path=path, feature_chunk=chunk)
    value, gradients = layer_value_and_gradients(layer, tokens(), **inputs)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference_kernel.layer_outputs(x, w, matrix(w), "relu"),
        tokens(),
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize("name", ["levels", "scan", "doubling", "depths", "centroids"])
def test_attention_never_sees_other_trees(name):
    function = "table" if name in ("depths", "centroids") else "exponential"
    layer = built(Tree(PARENTS, function=function), path=name, filter="first_order")
    x = tokens()
    tree = np.isfinite(DISTANCES[0])
    changed = np.where(tree[None, :, None], x, 100.0 * tokens(1)).astype("float32")
    before, after = (to_numpy(layer(values)) for values in (x, changed))
    np.testing.assert_array_equal(before[:, tree], after[:, tree])
    assert np.abs(before[:, ~tree] - after[:, ~tree]).min() > 0


@pytest.mark.slow_on("jax")
def test_permuting_nodes_permutes_outputs():
    order = np.random.default_rng(3).permutation(LENGTH)
    place = np.argsort(order)  # new place of each node
    parents = np.where(PARENTS >= 0, place[PARENTS], -1)[order]
    pairs = [
        (Tree(PARENTS), Tree(parents)),
        (Tree(PARENTS, function="table"), Tree(parents, function="table")),
        (
            GraphDiffusion(EDGES, num_nodes=LENGTH),
            GraphDiffusion(place[EDGES], num_nodes=LENGTH),
        ),
        (
            RandomWalk(EDGES, num_nodes=LENGTH, exact=True),
            RandomWalk(place[EDGES], num_nodes=LENGTH, exact=True),
        ),
    ]
    for mask, permuted in pairs:
        path = mask.paths[-1]
        one, other = built(mask, path=path), built(permuted, path=path)
        for old, new in zip(one.weights, other.weights, strict=True):
            new.assign(old)
        found = to_numpy(other(tokens()[:, order]))
        assert_close(found, to_numpy(one(tokens()))[:, order], 1e-5)


@pytest.mark.parametrize("filter", ["first_order", "chebyshev"])
def test_filters_over_a_tree(filter):
    dense = built(Tree(PARENTS), path="dense", filter=filter)
    swept = built(Tree(PARENTS), path="levels", filter=filter)
    for old, new in zip(dense.weights, swept.weights, strict=True):
        new.assign(old)
    assert_close(to_numpy(swept(tokens())), to_numpy(dense(tokens())), 1e-5)


TRAINED = {
    "levels": lambda: Tree(PARENTS, np.linspace(0.5, 1.5, LENGTH)),
    "scan": lambda: Tree(PARENTS),
    "doubling": lambda: Tree(PARENTS),
    "depths": lambda: Tree(PARENTS, function="table"),
    "centroids": lambda: Tree(PARENTS, function="table"),
    "series": lambda: GraphDiffusion(EDGES, num_nodes=LENGTH),
    "features": lambda: RandomWalk(EDGES, num_nodes=LENGTH, learn_decay=True),
}


@pytest.mark.parametrize("path", TRAINED)
def test_trains_and_loads_with_its_topology(path, tmp_path):
    inputs, mask = keras.Input((LENGTH, FEATURES)), TRAINED[path]()
    outputs = MaskedKernelAttention(HEADS, KEY, mask=mask, path=path)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    before = [to_numpy(w) for w in mask.trainable_variables]
    model.fit(tokens(), tokens(1), verbose=0)
    for old, weight in zip(before, mask.trainable_variables, strict=True):
        # the normaliser cancels exp(offset)
        assert "offset" in weight.path or np.abs(to_numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(again.predict(tokens(), verbose=0), model.predict(tokens(), verbose=0), 1e-6)


def test_parents_of_each_example_are_a_model_input():
    inputs = keras.Input((LENGTH, FEATURES)), keras.Input((LENGTH,), dtype="int32")
    layer = MaskedKernelAttention(HEADS, KEY, mask=Tree(), path="doubling")
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"parents": inputs[1]}))
    parents = np.stack([PARENTS, reference.random_parents(LENGTH, "path", 5)]).astype("int32")
    model.compile("sgd", "mse")
    model.fit((tokens(), parents), tokens(1), verbose=0)
    found = model.predict((tokens(), parents), verbose=0)
    right = layer(tokens(), mask_inputs={"parents": parents})
    assert_close(found, to_numpy(right), 1e-5)
