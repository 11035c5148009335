"""Forests as data, in NumPy: centres, distances, centroids; and what is refused."""

import keras
import networkx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn.masks import Tree
from keras_graphattn.ops.trees.centroids import centroid_incidences
from keras_graphattn.ops.trees.choice import COSTS, distance_path, sweep_path, way_of_running
from keras_graphattn.ops.trees.forests import (
    forest_diameter,
    forest_distances,
    forest_from_graph,
    forest_from_parents,
)
from keras_graphattn.ops.trees.spines import is_caterpillar
from keras_graphattn.ops.trees.tables import table_tree_product
from tests import reference_topology as reference
from tests.numerics import BACKEND

KINDS = ["random", "path", "deep", "balanced", "star", "caterpillar"]


@settings(max_examples=60)
@given(count=st.integers(1, 40), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_a_forest_is_what_it_was_told(count, kind, seed):
    parents = reference.random_parents(count, kind, seed)
    weights = np.random.default_rng(seed).random(count)
    links = reference.parent_edges(parents)
    right = reference.shortest_paths(count, links, [weights[node] for node, _ in links])
    forest = forest_from_parents(parents, weights)
    np.testing.assert_allclose(forest_distances(forest), right)
    assert (np.diff(forest.depth) >= 0).all()
    assert (np.diff(forest.parents[forest.starts[1] :]) >= 0).all()
    hops = reference.shortest_paths(count, links)
    diameter = int(hops[np.isfinite(hops)].max())
    assert forest_diameter(forest) == diameter
    assert forest.height == (diameter + 1) // 2  # hung from the centre


@settings(max_examples=30)
@given(count=st.integers(1, 60), kind=st.sampled_from(KINDS), seed=st.integers(0, 1000))
def test_centroids_meet_every_pair_once(count, kind, seed):
    forest = forest_from_parents(reference.random_parents(count, kind, seed))
    found = centroid_incidences(forest)
    assert np.bincount(found.node).max() <= np.log2(count) + 1
    met = np.full((count, count), np.inf)
    for component in range(found.component.max() + 1):
        inside = np.flatnonzero(found.component == component)
        for one in inside:
            for other in inside:
                if one == other or found.branch[one] != found.branch[other]:
                    own = found.distance[one] == 0
                    if one != other or own:
                        pair = forest.order[found.node[one]], forest.order[found.node[other]]
                        assert np.isinf(met[pair])
                        met[pair] = found.distance[one] + found.distance[other]
    np.testing.assert_array_equal(met, forest_distances(forest))


@pytest.mark.parametrize("form", ["edges", "scipy", "networkx"])
def test_forms_of_a_graph(form):
    parents, weights = reference.random_parents(20, seed=4), np.linspace(0.5, 2.0, 20)
    links = reference.parent_edges(parents)
    lengths = [weights[node] for node, _ in links]
    right = forest_distances(forest_from_parents(parents, weights))
    if form == "edges":
        forest = forest_from_graph(np.array(links)[:, ::-1], 20, lengths)
    elif form == "scipy":
        rows, columns = np.array(links).T
        matrix = scipy.sparse.coo_array((lengths, (rows, columns)), shape=(20, 20))
        forest = forest_from_graph(matrix + matrix.T)
    else:
        graph = networkx.Graph()
        graph.add_nodes_from(range(20))
        graph.add_weighted_edges_from([(*link, w) for link, w in zip(links, lengths, strict=True)])
        forest = forest_from_graph(graph)
    np.testing.assert_allclose(forest_distances(forest), right)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ([[1, 2, 0]], {}, "cycle"),
        ([[-1, 5]], {}, "between -1 and 1"),
        ([[-1.0, 0.0]], {}, "integers"),
        ([[-1, 0], [1.0, -2.0]], {}, "not negative"),
        ([[[0, 1], [1, 2], [2, 0]]], {}, "has a cycle"),
        ([[[0, 1], [1, 0]], [1.0, 2.0]], {}, "edges 0 and 1"),
        ([[[0, 0]]], {}, "to itself"),
        ([[-1, 0]], {"function": "power"}, "function"),
        ([[-1, 0], [1.0, 2.0]], {"function": "table"}, "number of edges"),
        ([], {"function": "table"}, "last distance"),
        ([[-1, 0]], {"function": "table", "initial_table": [1.0, -1.0]}, "initial_table"),
        ([[-1, 0]], {"max_distance": 3}, "table"),
        ([[-1, 0]], {"max_depth": 3}, "max_depth"),
        ([[-1, 0]], {"num_nodes": 3}, "one parent for each node"),
        ([[-1, 0]], {"initial_rate": np.nan}, "initial_rate"),
    ],
)
def test_wrong_trees_are_refused(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Tree(*arguments, **options)


def test_wrong_lengths_and_inputs_are_refused():
    mask = Tree([-1, 0, 1])
    with pytest.raises(ValueError, match="3 nodes"):
        mask.apply(np.ones((1, 4, 1, 2), "float32"))
    with pytest.raises(ValueError, match="parents"):
        mask.apply(np.ones((1, 3, 1, 2), "float32"), parents=np.zeros((1, 3), "int32"))
    with pytest.raises(ValueError, match="broadcast"):
        Tree([-1, 0], initial_rate=[1.0, 2.0, 3.0]).build((None, 2, 2, 1))
    with pytest.raises(ValueError, match="path"):
        mask.apply(np.ones((1, 3, 1, 2), "float32"), path="centroids")


def test_choices_follow_the_shape():
    nodes = np.arange(50_000)
    bushy = forest_from_parents(np.where(nodes > 0, (nodes - 1) // 2, -1))
    star = forest_from_parents(np.where(nodes > 0, 0, -1))
    path = forest_from_parents(nodes - 1)
    for way in COSTS:
        assert sweep_path(bushy, way) == "levels"
        loops_are_slow = way in ("tensorflow", "torch")
        assert sweep_path(path, way) == ("doubling" if loops_are_slow else "scan")
    assert distance_path(path, 49_999) == "centroids"
    assert distance_path(star, 2) == "depths"


def test_ways_of_running_are_told_apart():
    if BACKEND != "tensorflow":
        assert way_of_running() == BACKEND
        return
    import tensorflow as tf

    found = []

    def traced(x):
        def body(_, x):
            found.append(way_of_running())
            return x + 1.0

        return keras.ops.fori_loop(0, 3, body, x)

    for compiled in (False, True):
        tf.function(traced, jit_compile=compiled)(tf.ones(2))
    assert way_of_running() == "tensorflow"
    assert found == ["tensorflow", "tensorflow xla"]


def test_spines_need_caterpillars():
    nodes = np.arange(15)
    balanced = forest_from_parents(np.where(nodes > 0, (nodes - 1) // 2, -1))
    assert is_caterpillar(forest_from_parents(reference.random_parents(40, "caterpillar")))
    assert not is_caterpillar(balanced)
    with pytest.raises(ValueError, match="when its leaves are removed"):
        table_tree_product(np.ones((15, 1, 1)), np.ones((3, 1)), balanced, "spines")
