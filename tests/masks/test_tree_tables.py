"""Tables of distances on long trees, whose products are transforms, and tables that end early."""

import numpy as np
import pytest
import scipy.sparse
import torch
from keras import ops
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.masks import Tree
from tests import reference_topology as reference
from tests.numerics import differentiated, to_numpy
from tests.topology_cases import HEADS, check

LONG = {"path": 600, "caterpillar": 800, "deep": 1500}  # more places or distances than a matrix has
KINDS = [("path", "spines"), ("path", "centroids"), ("caterpillar", "spines")]
KINDS += [("deep", "centroids"), ("deep", "depths")]
SHORT = ("star", "caterpillar", "path", "random", "balanced")


def distances_of(parents):
    nodes = np.flatnonzero(parents >= 0)
    links = (np.ones(len(nodes)), (nodes, parents[nodes]))
    graph = scipy.sparse.csr_array(links, shape=(len(parents),) * 2)
    return shortest_path(graph, directed=False, unweighted=True)


def table_of(parents, last):
    mask = Tree(parents, function="table", max_distance=last)
    mask.build((None, len(parents), HEADS, 2))
    return mask


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("last", [None, 4, 290])
@pytest.mark.parametrize(("kind", "path"), [pair for pair in KINDS if pair[1] != "depths"])
def test_long_trees(kind, path, last):
    parents = reference.random_parents(LONG[kind], kind, cut=0.0)
    distances, mask = distances_of(parents), table_of(parents, last)
    matrix = lambda table: reference.table_matrix(distances, torch.exp(table))  # noqa: E731
    check(mask, {}, matrix, len(parents), path, floor=1e-3)


def check_unseen(mask, path, distances, last, inputs):
    """A node beyond the table changes no row and gets no gradient from one, at any size."""
    count = len(distances)
    x = np.random.default_rng(0).standard_normal((1, count, HEADS, 2)).astype("float32")
    for node in (0, count - 1):
        unseen = np.flatnonzero(distances[node] > last)
        if not len(unseen):
            continue
        of_unseen = differentiated(
            lambda x, unseen=unseen: ops.take(mask.apply(x, path, **inputs), unseen, axis=1)
        )
        rows = []
        for factor in (1.0, 1e4, 1e15):
            changed = x.copy()
            changed[:, node] *= factor
            value, gradients = of_unseen(changed)
            rows.append(value)
            assert not gradients[0][:, node].any()
        np.testing.assert_array_equal(rows[1], rows[0])
        np.testing.assert_array_equal(rows[2], rows[0])


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("last", [5, 290])
@pytest.mark.parametrize(("kind", "path"), KINDS)
def test_nodes_beyond_the_table_change_nothing_in_long_trees(kind, path, last):
    parents = reference.random_parents(LONG[kind], kind, cut=0.0)
    check_unseen(table_of(parents, last), path, distances_of(parents), last, {})


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_nodes_beyond_the_table_change_nothing(kind, last):
    parents = reference.random_parents(12, kind, cut=0.0)
    distances, mask = distances_of(parents), table_of(parents, last)
    for path in mask.paths:
        check_unseen(mask, path, distances, last, {})
    of_examples = Tree(function="table", max_distance=last)
    of_examples.build((None, 12, HEADS, 2))
    for path in of_examples.paths:
        inputs = {"parents": parents[None].astype("int32")}
        check_unseen(of_examples, path, distances, last, inputs)


@pytest.mark.parametrize("kind", SHORT)
def test_small_factors_beside_large_ones_on_spines(kind):
    """f(d) and f(d + 1) have products of their own: a difference of both would round f(d) away."""
    parents = reference.random_parents(12, "caterpillar" if kind == "random" else kind, cut=0.0)
    distances, mask = distances_of(parents), table_of(parents, None)
    if "spines" not in mask.paths:
        pytest.skip("not a caterpillar")
    table = np.where(np.arange(mask.max_distance + 1) == 1, 0.0, -20.0)[:, None]
    mask.log_table.assign(np.repeat(table, HEADS, axis=1))
    matrix = reference.table_matrix(distances, torch.exp(torch.tensor(to_numpy(mask.log_table))))
    identity = np.broadcast_to(np.eye(12, dtype="float32")[:, None], (1, 12, HEADS, 12))
    found = to_numpy(mask.apply(identity, "spines"))[0].transpose((1, 0, 2))
    np.testing.assert_allclose(found, matrix, rtol=1e-5)
