import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn.graphs import Graph


def links(count):
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    return st.lists(pair.filter(lambda edge: edge[0] != edge[1]), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(
    given_edges=links(20), seed=st.integers(0, 9), dtype=st.sampled_from(["int64", "int8", "uint8"])
)
def test_each_edge_is_kept_once_with_its_weight_and_features(given_edges, seed, dtype):
    random = np.random.default_rng(seed)
    of_edge = {}  # the naive twin: a dictionary by the pair of nodes
    for u, v in given_edges:
        of_edge.setdefault((min(u, v), max(u, v)), (random.uniform(0.1, 2), random.normal(size=2)))
    drawn = [of_edge[min(u, v), max(u, v)] for u, v in given_edges]
    weights, features = [one[0] for one in drawn], np.array([one[1] for one in drawn])
    edges = np.array(given_edges, dtype)
    graph = Graph(edges, weights, edge_features=features, num_nodes=20)
    assert [tuple(edge) for edge in graph.edges.tolist()] == sorted(of_edge)
    expected = [of_edge[edge] for edge in sorted(of_edge)]
    np.testing.assert_allclose(graph.edge_weights, [one[0] for one in expected])
    np.testing.assert_allclose(graph.edge_features, [one[1] for one in expected], rtol=1e-6)
    matrix = np.zeros((20, 20))
    for (u, v), (weight, _) in of_edge.items():
        matrix[u, v] = matrix[v, u] = weight
    np.testing.assert_allclose(graph.adjacency().toarray(), matrix)


def test_a_graph_cannot_change_nor_change_what_it_was_made_of():
    features = np.ones((2, 1), "float32")
    graph = Graph(np.array([[0, 1]]), node_features=features, label=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.label = 2
    for array in (graph.edges, graph.edge_weights, graph.node_features, graph.label):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    features[0] = 5.0
    assert graph.node_features[0, 0] == 1.0


def test_graphs_without_edges_and_nodes_without_edges():
    lonely = Graph([], num_nodes=2)
    assert lonely.edges.shape == (0, 2)
    assert lonely.node_features.shape == (2, 0)
    assert Graph([[0, 1]], node_features=np.ones((4, 3))).num_nodes == 4
    assert Graph(np.zeros((0, 2), "int64"), edge_features=np.zeros((0, 3)), num_nodes=1).num_nodes


NAN = np.full((2, 1), np.nan)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"edges": [[0, 2]], "num_nodes": 2}, "numbered from 0 to num_nodes - 1"),
        ({"edges": [[0, -1]]}, "numbered from 0"),
        ({"edges": [[1, 1]]}, "join two different nodes"),
        ({"edges": []}, "at least one node"),
        ({"edges": [], "num_nodes": 0}, "at least one node"),
        ({"edges": [], "node_features": np.zeros((0, 2))}, "at least one node"),
        ({"edges": [[0, 1]], "edge_weights": [-1.0]}, "positive finite"),
        ({"edges": [[0, 1]], "edge_weights": [np.nan]}, "positive finite"),
        ({"edges": [[0, 1]], "edge_weights": [1.0, 1.0]}, "one per edge"),
        ({"edges": [[0, 1], [1, 0]], "edge_weights": [1.0, 2.0]}, "with equal weights"),
        ({"edges": [[0, 1]], "node_features": NAN}, r"nan at node_features\[0, 0\], and 2 such"),
        ({"edges": [[0, 1]], "node_features": np.ones(2)}, r"shape \(rows, features\)"),
        ({"edges": [[0, 1]], "node_features": [["a"], ["b"]]}, "must be numbers"),
        ({"edges": [[0, 2]], "node_features": np.ones((2, 1))}, "numbered from 0"),
        ({"edges": [[0, 1]], "node_features": np.ones((3, 1)), "num_nodes": 2}, "3 rows"),
        (
            {"edges": [[0, 1]], "node_features": [[0], [1e39]]},
            r"float32.*1e\+39 at node_f.*\[1, 0\]",
        ),
        ({"edges": [[0, 1]], "node_features": [[2**24 + 1], [0]]}, "float32.*16777217 at"),
        ({"edges": [[0, 1]], "node_features": [[2**62 + 1], [0]]}, "float32.*4611686018427387905"),
        ({"edges": [[0, 1]], "edge_features": [[-1e39]]}, "float32.*-1e.39 at edge_features"),
        ({"edges": [[0, 1]], "edge_features": NAN}, "finite"),
        ({"edges": [[0, 1]], "edge_features": np.ones((2, 1))}, r"shape \(1, features\)"),
        ({"edges": [[0, 1], [1, 0]], "edge_features": [[1.0], [2.0]]}, "edges 0 and 1 join"),
        ({"edges": [[0, 1]], "label": np.inf}, "`label` must be finite"),
        ({"edges": [[0, 1]], "label": "cat"}, "`label` must be numbers"),
        ({"edges": [[0, 1]], "num_nodes": 2.0}, "num_nodes"),
    ],
)
def test_malformed_graphs_get_one_clear_error(arguments, words):
    with pytest.raises(ValueError, match=words):
        Graph(**arguments)


@pytest.mark.filterwarnings("error")
def test_numbers_that_float32_holds_are_held():
    features = np.array([[2**24, -(2**40)], [3, 0]])
    assert Graph([[0, 1]], node_features=features).node_features.tolist() == features.tolist()
    rounded = Graph([[0, 1]], edge_features=[[0.1, 1e-50]]).edge_features
    assert rounded.tolist() == [[float(np.float32(0.1)), 0.0]]


@pytest.mark.parametrize(
    "edges",
    [
        [[0.0, 1.0]],
        [[0, 1, 2]],
        "edges",
        scipy.sparse.eye_array(3),
        SimpleNamespace(nodes=[0], edges=[]),
    ],
)
def test_edges_of_another_type_are_refused(edges):
    with pytest.raises(TypeError, match="integer array"):
        Graph(edges, num_nodes=3)
