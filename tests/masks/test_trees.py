"""Forests as data, the choice of a path, and tables on long trees and tables that end early."""

import keras
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.masks import Tree
from keras_graphattn.masks.trees.forest import Forest, forest_distances, forest_from_parents
from keras_graphattn.masks.trees.sweeps import sweep_path
from keras_graphattn.masks.trees.tables import centroid_incidences, table_path
from tests import reference_topology as reference
from tests.numerics import BACKEND, differentiated, to_numpy
from tests.topology_cases import HEADS, check

KINDS = ["random", "path", "deep", "balanced", "star", "caterpillar"]
LONG = {"path": 600, "caterpillar": 1200, "deep": 1500}  # more distances than a matrix has
NODES = np.arange(50_000)
PATH = NODES - 1


@settings(max_examples=60)
@given(count=st.integers(1, 40), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_a_forest_has_the_distances_of_its_parents(count, kind, seed):
    parents = reference.random_parents(count, kind, seed)
    weights = np.random.default_rng(seed).random(count)
    links = reference.parent_edges(parents)
    right = reference.shortest_paths(count, links, [weights[node] for node, _ in links])
    forest = forest_from_parents(parents, weights)
    np.testing.assert_allclose(forest_distances(forest), right)
    np.testing.assert_array_equal(forest.order[forest.position], np.arange(count))
    assert (np.diff(forest.depth) >= 0).all()
    assert (np.diff(forest.parents[forest.starts[1] :]) >= 0).all()
    assert forest.farthest_distance() == pytest.approx(right[np.isfinite(right)].max())
    hops = reference.shortest_paths(count, links)
    assert forest.diameter == int(hops[np.isfinite(hops)].max())
    assert forest.height == (forest.diameter + 1) // 2  # hung from the centre


@settings(max_examples=30)
@given(count=st.integers(1, 60), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_centroids_meet_every_pair_once(count, kind, seed):
    forest = Forest(reference.random_parents(count, kind, seed))
    node, distance, component, branch = centroid_incidences(forest)
    assert np.bincount(node).max() <= np.log2(count) + 1
    met = np.full((count, count), np.inf)
    for inside in (np.flatnonzero(component == k) for k in range(component.max() + 1)):
        for one, other in ((i, j) for i in inside for j in inside):
            if branch[one] != branch[other] or (one == other and distance[one] == 0):
                pair = forest.order[node[one]], forest.order[node[other]]
                assert np.isinf(met[pair])
                met[pair] = distance[one] + distance[other]
    np.testing.assert_array_equal(met, forest_distances(forest))


WRONG = [
    ([[1, 2, 0]], {}, "3 nodes on or below a cycle"),
    ([[-1, 1, 1, 2]], {}, "3 nodes on or below a cycle"),
    ([[-1, 5]], {}, "between -1 and 1"),
    ([[-1.0, 0.0]], {}, "integers"),
    ([[-1, 0], [1.0, -2.0]], {}, "not negative"),
    ([[[0, 1], [1, 2], [2, 0]]], {}, "has a cycle"),
    ([[-1, 0]], {"function": "power"}, "function"),
    ([[-1, 0], [1.0, 2.0]], {"function": "table"}, "number of edges"),
    ([], {"function": "table"}, "last distance"),
    ([None, [1.0, 2.0]], {}, "must be True"),
    ([[-1, 0]], {"function": "table", "initial_table": [1.0, -1.0]}, "initial_table"),
    ([[-1, 0]], {"max_distance": 3}, "table"),
    ([[-1, 0]], {"max_depth": 3}, "max_depth"),
    ([[-1, 0]], {"num_nodes": 3}, "one parent for each node"),
    ([[-1, 0]], {"initial_rate": np.nan}, "initial_rate"),
    ([[-1, 0]], {"function": "table", "max_distance": 2, "initial_rate": 2.0}, "initial_table"),
    ([[-1, 0]], {"function": "table", "max_distance": 2, "initial_offset": [1.0]}, "initial_table"),
    ([], {"num_nodes": 3}, "belongs to `forest`"),
]


def test_numbers_at_roots_are_ignored():
    matrices = []
    for at_root in (0.0, -1.0, np.nan):
        mask = Tree([-1, 0, 1], [at_root, 1.0, 2.0])
        mask.build((None, 3, 1, 1))
        matrices.append(to_numpy(mask.dense()))
    np.testing.assert_array_equal(matrices[1:], matrices[:1] * 2)


@pytest.mark.parametrize(("arguments", "options", "message"), WRONG)
def test_wrong_trees_are_refused(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Tree(*arguments, **options)


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (4, {}, "3 nodes"),
        (3, {"parents": np.zeros((1, 3), "int32")}, "parents"),
        (3, {"path": "centroids"}, "path"),
    ],
)
def test_wrong_lengths_and_inputs_are_refused(length, options, message):
    with pytest.raises(ValueError, match=message):
        Tree([-1, 0, 1]).apply(np.ones((1, length, 1, 2), "float32"), **options)
    with pytest.raises(ValueError, match="broadcast"):
        Tree([-1, 0], initial_rate=[1.0, 2.0, 3.0]).build((None, 2, 2, 1))


def test_choices_follow_the_shape():
    bushy = Forest(np.where(NODES > 0, (NODES - 1) // 2, -1))
    star = Forest(np.where(NODES > 0, 0, -1))
    assert sweep_path(bushy) == sweep_path(star) == "levels"
    assert sweep_path(Forest(PATH)) == ("scan" if BACKEND == "jax" else "doubling")
    assert table_path(Forest(PATH), 49_999) == "centroids"
    assert table_path(star, 2) == "depths"


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others always or never compile loops")
def test_xla_is_told_apart():
    import tensorflow as tf

    forest, paths = Forest(PATH), []

    def traced(x):
        def body(_, x):
            paths.append(sweep_path(forest))
            return x + 1.0

        return keras.ops.fori_loop(0, 3, body, x)

    for compiled in (False, True):
        tf.function(traced, jit_compile=compiled)(tf.ones(2))
    assert paths == ["doubling", "scan"]


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
@pytest.mark.parametrize("kind", LONG)
def test_long_trees(kind, last):
    parents = reference.random_parents(LONG[kind], kind, cut=0.0)
    distances, mask = distances_of(parents), table_of(parents, last)
    matrix = lambda table: reference.table_matrix(distances, torch.exp(table))  # noqa: E731
    check(mask, {}, matrix, len(parents), "centroids", floor=1e-3)


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
@pytest.mark.parametrize(
    ("kind", "path"), [*((kind, "centroids") for kind in LONG), ("deep", "depths")]
)
def test_nodes_beyond_the_table_change_nothing_in_long_trees(kind, path, last):
    parents = reference.random_parents(LONG[kind], kind, cut=0.0)
    check_unseen(table_of(parents, last), path, distances_of(parents), last, {})


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "deep"])
@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_nodes_beyond_the_table_change_nothing(kind, last):
    parents = reference.random_parents(12, kind, cut=0.0)
    of_examples = Tree(function="table", max_distance=last)
    of_examples.build((None, 12, HEADS, 2))
    inputs = {"parents": parents[None].astype("int32")}
    for mask, at_call in ((table_of(parents, last), {}), (of_examples, inputs)):
        for path in mask.paths:
            check_unseen(mask, path, distances_of(parents), last, at_call)
