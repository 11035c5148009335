"""MaskedKernelAttention over trees, graphs and walks: what no node may see, and training."""

import keras
import numpy as np
import pytest

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import GraphDiffusion, RandomWalk, Tree
from tests import reference_topology as reference
from tests.layers.twins import CHANNELS, EDGES, HEADS, LENGTH, PARENTS, SIZE, built, tokens
from tests.numerics import assert_close, to_numpy

DISTANCES = reference.shortest_paths(LENGTH, reference.parent_edges(PARENTS))


def layer_of(mask, **options):
    return built(lambda: MaskedKernelAttention(HEADS, SIZE, seed=0, mask=mask, **options))


@pytest.mark.parametrize("name", ["levels", "scan", "doubling", "depths", "centroids"])
def test_attention_never_sees_other_trees(name):
    function = "table" if name in ("depths", "centroids") else "exponential"
    layer = layer_of(Tree(PARENTS, function=function), path=name, filter="first_order")
    x, tree = tokens(), np.isfinite(DISTANCES[0])
    changed = np.where(tree[None, :, None], x, 100.0 * tokens(seed=1)).astype("float32")
    before, after = (to_numpy(layer(values)) for values in (x, changed))
    np.testing.assert_array_equal(before[:, tree], after[:, tree])
    assert np.abs(before[:, ~tree] - after[:, ~tree]).min() > 0


@pytest.mark.slow_on("jax")
def test_permuting_nodes_permutes_outputs():
    order = np.random.default_rng(3).permutation(LENGTH)
    place = np.argsort(order)  # new place of each node
    parents = PARENTS, np.where(PARENTS >= 0, place[PARENTS], -1)[order]
    edges = EDGES, place[EDGES]
    for masks in (
        [Tree(p) for p in parents],
        [Tree(p, function="table") for p in parents],
        [GraphDiffusion(e, num_nodes=LENGTH) for e in edges],
        [RandomWalk(e, num_nodes=LENGTH, exact=True) for e in edges],
    ):
        one, other = (layer_of(mask, path=mask.paths[-1]) for mask in masks)
        other.set_weights(one.get_weights())
        outputs = to_numpy(other(tokens()[:, order]))
        assert_close(outputs, to_numpy(one(tokens()))[:, order], 1e-5)


@pytest.mark.parametrize("filter", ["first_order", "chebyshev"])
def test_filters_over_a_tree(filter):
    dense, swept = (layer_of(Tree(PARENTS), path=p, filter=filter) for p in ("dense", "levels"))
    swept.set_weights(dense.get_weights())
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
    inputs, mask = keras.Input((LENGTH, CHANNELS)), TRAINED[path]()
    model = keras.Model(inputs, MaskedKernelAttention(HEADS, SIZE, mask=mask, path=path)(inputs))
    model.compile("sgd", "mse")
    before = [to_numpy(w) for w in mask.trainable_variables]
    model.fit(tokens(), tokens(seed=1), verbose=0)
    for old, weight in zip(before, mask.trainable_variables, strict=True):
        # the normaliser cancels exp(offset)
        assert "offset" in weight.path or np.abs(to_numpy(weight) - old).max() > 0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(again.predict(tokens(), verbose=0), model.predict(tokens(), verbose=0), 1e-6)


def test_parents_of_each_example_are_a_model_input():
    inputs = keras.Input((LENGTH, CHANNELS)), keras.Input((LENGTH,), dtype="int32")
    layer = MaskedKernelAttention(HEADS, SIZE, mask=Tree(), path="doubling")
    model = keras.Model(inputs, layer(inputs[0], mask_inputs={"parents": inputs[1]}))
    parents = np.stack([PARENTS, reference.random_parents(LENGTH, "path", 5)]).astype("int32")
    model.compile("sgd", "mse")
    model.fit((tokens(), parents), tokens(seed=1), verbose=0)
    outputs = model.predict((tokens(), parents), verbose=0)
    right = layer(tokens(), mask_inputs={"parents": parents})
    assert_close(outputs, to_numpy(right), 1e-5)
