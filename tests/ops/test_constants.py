"""On torch, constants of a topology are made once for each device, not at every step."""

import copy
import pickle

import numpy as np
import pytest
import torch

from keras_graphattn.masks import GraphDiffusion, RandomWalk, Tree
from keras_graphattn.masks.graphs.sparse import RowNumbers, SparseMatrix, TorchConstants
from tests import reference_topology as reference
from tests.numerics import BACKEND, to_numpy

PARENTS = reference.random_parents(20, seed=1)
EDGES = reference.random_edges(20, 3.0, 1)
X = np.random.default_rng(0).standard_normal((1, 20, 1, 2)).astype("float32")
MASKS = {
    "levels": lambda: Tree(PARENTS),
    "doubling": lambda: Tree(PARENTS),
    "series": lambda: GraphDiffusion(EDGES, num_nodes=20),
    "features": lambda: RandomWalk(EDGES, num_nodes=20),
}


@pytest.mark.skipif(BACKEND != "torch", reason="compiled code has them as constants")
@pytest.mark.parametrize("path", MASKS)
def test_made_at_the_first_step_only(path, monkeypatch):
    made = []
    stored = TorchConstants._stored
    monkeypatch.setattr(
        TorchConstants,
        "_stored",
        lambda self, key, make: stored(self, key, lambda: made.append(1) or make()),
    )
    mask, found = MASKS[path](), []
    for _ in range(3):
        x = torch.tensor(X, requires_grad=True)
        value = mask.apply(x, path)
        value.square().sum().backward()
        found.append((value.detach(), x.grad, len(made)))
    assert found[0][2] == found[2][2] > 0
    assert torch.equal(found[0][0], found[2][0])
    assert torch.equal(found[0][1], found[2][1])
    with torch.inference_mode():  # whose tensors take no gradient later
        mask = MASKS[path]()
        mask.apply(torch.tensor(X), path)
    mask.apply(torch.tensor(X, requires_grad=True), path).sum().backward()


def test_copies_leave_the_tensors_behind():
    rows, matrix = RowNumbers([2, 0]), SparseMatrix(np.eye(3, dtype="float32"))
    right = to_numpy(rows.of(X[0, :, 0]))
    matrix(np.ones((3, 1), "float32"))
    for again in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert not again._constants
        np.testing.assert_array_equal(to_numpy(again.of(X[0, :, 0])), right)
    assert not copy.deepcopy(matrix)._constants
