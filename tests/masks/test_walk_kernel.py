"""The kernel of walks: seeded walks are counted one by one, and converge to their expectation."""

import numpy as np
import pytest
import scipy.sparse
import torch

from keras_graphattn.masks import RandomWalk
from keras_graphattn.masks.graphs.edges import read_graph
from keras_graphattn.ops import random_walks
from tests import reference_topology as reference
from tests.numerics import to_numpy

COUNT, LENGTH, HEADS = 12, 4, 2
EDGES = reference.random_edges(COUNT, 3.0, 2)
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2.0, len(EDGES))
DECAY = [0.5, 0.9]


def kernel(normalization, **options):
    mask = RandomWalk(
        EDGES,
        WEIGHTS,
        COUNT,
        walk_length=LENGTH,
        decay=DECAY,
        normalization=normalization,
        **options,
    )
    mask.build((None, COUNT, HEADS, COUNT))
    return mask


def all_walks(node, steps, halt=0.0):
    """Every walk from a node with its probability, by the weights of the edges."""
    near = [(b, w) for (a, b), w in zip(EDGES, WEIGHTS, strict=True) if a == node]
    near += [(a, w) for (a, b), w in zip(EDGES, WEIGHTS, strict=True) if b == node]
    if steps == 1 or not near:
        yield [node], 1.0
        return
    if halt:
        yield [node], halt
    total = sum(weight for _, weight in near)
    for other, weight in near:
        for walk, probability in all_walks(other, steps - 1, halt):
            yield [node, *walk], (1.0 - halt) * probability * weight / total


def expected_kernel(normalization, halt=0.0):
    features = np.zeros((HEADS, COUNT, COUNT))
    for node in range(COUNT):
        for walk, probability in all_walks(node, LENGTH, halt):
            for step, place in enumerate(walk):
                features[:, node, place] += probability * np.array(DECAY) ** step
    return reference.walk_matrix(torch.tensor(features), normalization).numpy()


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("normalization", [0.0, 1.0])
def test_seeded_walks_are_counted(normalization):
    walks = random_walks(read_graph(EDGES, COUNT, WEIGHTS), 7, LENGTH, seed=5)
    features = reference.walk_features(walks, torch.tensor(DECAY, dtype=torch.float64))
    right = reference.walk_matrix(features, normalization).numpy()
    drawn = kernel(normalization, num_walks=7, seed=5)
    each = RandomWalk(decay=DECAY, normalization=normalization)
    each.build((None, COUNT, HEADS, COUNT))
    identity = np.broadcast_to(np.eye(COUNT, dtype="float32")[:, None], (1, COUNT, HEADS, COUNT))
    for mask, inputs in ((drawn, {}), (each, {"walks": walks[None].astype("int32")})):
        columns = np.moveaxis(to_numpy(mask.apply(identity, "features", **inputs))[0], 1, 0)
        for found in (to_numpy(mask.dense(**inputs))[0], columns):
            np.testing.assert_allclose(found, right, atol=1e-6 * right.max(), rtol=0)


@pytest.mark.parametrize("halt", [0.0, 0.3])
@pytest.mark.parametrize("normalization", [0.0, 1.0])
def test_the_expectation_is_the_sum_over_all_walks(normalization, halt):
    right = expected_kernel(normalization, halt)
    found = to_numpy(kernel(normalization, exact=True, halt_probability=halt).dense())[0]
    np.testing.assert_allclose(found, right, atol=1e-6 * right.max(), rtol=0)


@pytest.mark.parametrize(("normalization", "halt"), [(0.0, 0.0), (0.0, 0.3), (1.0, 0.0)])
def test_the_kernel_converges_at_the_rate_of_the_root_of_the_walks(normalization, halt):
    right, errors = expected_kernel(normalization, halt), []
    options = {"halt_probability": halt}
    for number in (200, 3200):
        each = [kernel(normalization, num_walks=number, seed=seed, **options) for seed in range(4)]
        found = np.stack([to_numpy(mask.dense())[0] for mask in each])
        errors.append(np.sqrt(np.mean((found - right) ** 2)))
    assert 3.0 < errors[0] / errors[1] < 5.3  # sixteen times as many walks: a quarter of the error


def test_walks_that_halt_have_a_closed_form_in_the_limit():
    """The kernel of long walks is R R^T, for the resolvent R = (I - (1 - p) decay P)^-1."""
    options = {"walk_length": 40, "decay": DECAY, "normalization": 0.0, "exact": True}
    mask = RandomWalk(EDGES, WEIGHTS, COUNT, halt_probability=0.4, **options)
    mask.build((None, COUNT, HEADS, COUNT))
    weights = read_graph(EDGES, COUNT, WEIGHTS).toarray()
    steps = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)  # one node is isolated
    found = to_numpy(mask.dense())[0]
    for head, decay in enumerate(DECAY):
        resolvent = np.linalg.inv(np.eye(COUNT) - 0.6 * decay * steps)
        right = resolvent @ resolvent.T
        np.testing.assert_allclose(found[head], right, atol=1e-6 * right.max(), rtol=0)


@pytest.mark.parametrize(("decay", "heads"), [(0.5, 1), (DECAY, HEADS)])
def test_heads_of_one_decay_share_one_matrix_of_the_walks_of_a_call(decay, heads):
    walks = random_walks(read_graph(EDGES, num_nodes=COUNT), walks=3, length=LENGTH, seed=0)
    mask = RandomWalk(decay=decay)
    mask.build((None, COUNT, HEADS, COUNT))
    found = to_numpy(mask.dense(walks=walks[None].astype("int32")))
    assert found.shape == (1, heads, COUNT, COUNT)
    once = RandomWalk(walks=walks, decay=decay)
    once.build((None, COUNT, HEADS, COUNT))
    expected = np.broadcast_to(to_numpy(once.dense()), (1, HEADS, COUNT, COUNT))
    np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("decay", [0.7, DECAY])
def test_products_of_walks_are_found_once_for_all_calls(decay, monkeypatch):
    options = {"num_nodes": COUNT, "walk_length": LENGTH, "num_walks": 5, "seed": 0}
    mask = RandomWalk(EDGES, decay=decay, **options)
    mask.build((None, COUNT, HEADS, COUNT))
    dense = to_numpy(mask.dense())
    walks = random_walks(read_graph(EDGES, COUNT), 5, LENGTH, seed=0)
    decays = torch.tensor(np.broadcast_to(decay, (HEADS,)).copy(), dtype=torch.float64)
    right = reference.walk_matrix(reference.walk_features(walks, decays), 1.0).numpy()
    np.testing.assert_allclose(np.broadcast_to(dense[0], right.shape), right, atol=1e-6)
    monkeypatch.setattr(scipy.sparse.csc_array, "__matmul__", None)  # cannot be called
    np.testing.assert_array_equal(to_numpy(mask.dense()), dense)
