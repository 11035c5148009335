"""Masks over trees and graphs form a matrix only on the paths that are named for it."""

import keras
import numpy as np
import pytest

from keras_graphattn.masks import GraphDiffusion, GraphRandomFeatures, RandomWalk
from tests import reference_topology as reference
from tests.call_inputs import MASKS, batch_for
from tests.numerics import BACKEND, to_numpy
from tests.tensor_sizes import largest_tensor

COUNT = 500  # tokens: the matrix has 250000 entries
EDGES = reference.random_edges(COUNT, 3.0)
CASES = MASKS | {
    "learned walks per example": lambda: RandomWalk(learn_decay=True, normalization=0.5),
    "GraphDiffusion": lambda: GraphDiffusion(EDGES, num_nodes=COUNT),
    "RandomWalk once": lambda: RandomWalk(EDGES, num_nodes=COUNT, learn_decay=True, num_walks=8),
    "GraphRandomFeatures": lambda: GraphRandomFeatures(EDGES, num_nodes=COUNT, num_walks=8),
}
OWN = [
    (name, path)
    for name, make in CASES.items()
    for path in make().paths
    if path not in ("dense", "blockwise")
]


def attended(mask, path, inputs):
    """Attention under the mask as a function of features, signal, weights and edge weights."""
    random = np.random.default_rng(0)
    signals = random.uniform(size=(3, 1, COUNT, 1, 2)).astype("float32")
    given = {k: v.astype("float32") for k, v in inputs.items() if v.dtype.kind == "f"}
    weights = mask.trainable_variables

    def function(query, key, x, *values):
        pairs = zip(weights, values[: len(weights)], strict=True)
        floats = dict(zip(given, values[len(weights) :], strict=True))
        with keras.StatelessScope(state_mapping=list(pairs)):
            return mask.attend(query, key, x, path, **inputs | floats)

    return function, [*signals, *map(to_numpy, weights), *given.values()]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="its graphs hide what they form")
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("name", "path"), OWN)
def test_no_matrix_is_formed(name, path, hidden, monkeypatch):
    mask = CASES[name]()
    mask.build((None, COUNT, 1, 1))
    inputs = batch_for(mask, length=COUNT, batch=1)
    if hidden:
        monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
    assert largest_tensor(*attended(mask, path, inputs)) < COUNT**2 / 2


@pytest.mark.parametrize("name", dict(OWN))
def test_large_graphs_never_take_the_matrix_by_themselves(name):
    mask = CASES[name]()
    assert mask.choose_path(100_000) not in ("dense", "blockwise")
    assert mask.choose_path(None, 16, 65) not in ("dense", "blockwise")
