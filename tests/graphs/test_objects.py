"""Objects of other libraries; stand-ins have the attributes that those libraries document."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from keras_graphattn.graphs import from_networkx, from_pyg, from_scipy

BOTH = np.array([[2, 0], [0, 2], [1, 2], [2, 1]])  # the path 0 - 2 - 1
WEIGHTS = np.array([0.5, 0.5, 2.0, 2.0])


def assert_is_the_path(graph):
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    assert graph.edge_weights.tolist() == [0.5, 2.0]
    assert graph.num_nodes == 3


def test_scipy():
    matrix = scipy.sparse.coo_array((WEIGHTS, BOTH.T), shape=(3, 3))
    graph = from_scipy(matrix, np.eye(3), label=1)
    assert_is_the_path(graph)
    assert graph.node_features.tolist() == np.eye(3).tolist()
    with pytest.raises(ValueError, match="symmetric"):
        from_scipy(scipy.sparse.csr_array([[0.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="at least one node"):
        from_scipy(scipy.sparse.csr_array((0, 0)))
    with pytest.raises(TypeError, match=r"scipy\.sparse"):
        from_scipy(np.eye(2))


def test_networkx():
    networkx = pytest.importorskip("networkx")
    original = networkx.Graph()
    original.add_node("a", size=1.0, place=[1, 2])
    original.add_node("b", size=2.0, place=[3, 4])
    original.add_node("c", size=3.0, place=[5, 6])
    original.add_edge("c", "b", weight=2.0, kind=7)
    original.add_edge("c", "a", weight=0.5, kind=8)
    graph = from_networkx(original, ["size", "place"], "kind", label=2)
    assert_is_the_path(graph)
    assert graph.node_features.tolist() == [[1, 1, 2], [2, 3, 4], [3, 5, 6]]
    assert graph.edge_features.tolist() == [[8], [7]]
    assert_is_the_path(from_networkx(original.to_directed()))
    with pytest.raises(ValueError, match=r"attribute 'colour'.*\('a',\) without it, and 3"):
        from_networkx(original, "colour")
    with pytest.raises(ValueError, match="none back"):
        from_networkx(networkx.DiGraph([(0, 1)]))
    with pytest.raises(ValueError, match="at least one node"):
        from_networkx(networkx.Graph())


@pytest.mark.parametrize("as_tensors", [False, True])
def test_torch_geometric(as_tensors):
    arrays = {"edge_index": BOTH.T, "x": np.eye(3), "edge_weight": WEIGHTS, "y": np.array([[1, 0]])}
    arrays["edge_attr"] = np.array([1.0, 1.0, 5.0, 5.0])
    if as_tensors:
        torch = pytest.importorskip("torch")
        arrays = {name: torch.tensor(array) for name, array in arrays.items()}
        arrays["x"].requires_grad_()
    graph = from_pyg(SimpleNamespace(num_nodes=3, **arrays))
    assert_is_the_path(graph)
    assert graph.node_features.tolist() == np.eye(3).tolist()
    assert graph.edge_features.tolist() == [[1.0], [5.0]]
    assert graph.label.tolist() == [1, 0]
    assert from_pyg(SimpleNamespace(edge_index=BOTH.T, y=np.array([4]))).label.shape == ()


def test_torch_geometric_with_wrong_edges():
    with pytest.raises(ValueError, match=r"from 0 to 1 and none back.*to_undirected"):
        from_pyg(SimpleNamespace(edge_index=np.array([[0], [1]])))
    with pytest.raises(TypeError, match=r"shape \(E, 2\).*of shape \(2, 4\)"):
        from_pyg(SimpleNamespace(edge_index=BOTH))
