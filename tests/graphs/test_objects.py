"""Objects of other libraries; stand-ins have the attributes that those libraries document."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from keras_graphattn.graphs import from_dgl, from_networkx, from_pyg, from_scipy, from_smiles

BOTH = np.array([[2, 0], [0, 2], [1, 2], [2, 1]])  # the path 0 - 2 - 1
WEIGHTS = np.array([0.5, 0.5, 2.0, 2.0])


def assert_is_the_path(graph, weights=(0.5, 2.0)):
    assert graph.edges.tolist() == [[0, 2], [1, 2]]
    assert graph.edge_weights.tolist() == list(weights)
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
    found = networkx.Graph()
    found.add_node("a", size=1.0, place=[1, 2])
    found.add_node("b", size=2.0, place=[3, 4])
    found.add_node("c", size=3.0, place=[5, 6])
    found.add_edge("c", "b", weight=2.0, kind=7)
    found.add_edge("c", "a", weight=0.5, kind=8)
    graph = from_networkx(found, ["size", "place"], "kind", label=2)
    assert_is_the_path(graph)
    assert graph.node_features.tolist() == [[1, 1, 2], [2, 3, 4], [3, 5, 6]]
    assert graph.edge_features.tolist() == [[8], [7]]
    assert_is_the_path(from_networkx(found.to_directed()))
    with pytest.raises(ValueError, match=r"attribute 'colour'.*\('a',\) without it, and 3"):
        from_networkx(found, "colour")
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


def dgl_graph(edges):
    return SimpleNamespace(
        edges=lambda: tuple(edges.T),
        num_nodes=lambda: 3,
        ndata={"feat": np.eye(3)},
        edata={"w": WEIGHTS, "kind": np.array([[1.0], [1.0], [5.0], [5.0]])},
    )


def test_dgl():
    graph = from_dgl(dgl_graph(BOTH), "feat", "kind", "w", label=1)
    assert_is_the_path(graph)
    assert graph.edge_features.tolist() == [[1.0], [5.0]]
    assert_is_the_path(from_dgl(dgl_graph(BOTH)), (1.0, 1.0))
    with pytest.raises(KeyError, match="'x'"):
        from_dgl(dgl_graph(BOTH), "x")
    with pytest.raises(ValueError, match=r"none back.*to_bidirected"):
        from_dgl(dgl_graph(BOTH[1:]))


def atom(number):
    values = {"GetAtomicNum": number, "GetFormalCharge": 0, "GetTotalNumHs": 3}
    values |= {"GetIsAromatic": False, "IsInRing": True}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


def test_smiles(monkeypatch):
    bond = {"GetBeginAtomIdx": 1, "GetEndAtomIdx": 0, "GetBondTypeAsDouble": 1.5}
    bond |= {"GetIsConjugated": True, "IsInRing": False}
    bond = SimpleNamespace(**{name: lambda value=value: value for name, value in bond.items()})
    molecule = SimpleNamespace(GetAtoms=lambda: [atom(6), atom(8)], GetBonds=lambda: [bond])
    rdkit = ModuleType("rdkit")
    rdkit.Chem = SimpleNamespace(MolFromSmiles=lambda text: molecule if text == "CO" else None)
    monkeypatch.setitem(sys.modules, "rdkit", rdkit)
    graph = from_smiles("CO", label=0.5)
    assert graph.node_features.tolist() == [[6, 0, 3, 0, 1], [8, 0, 3, 0, 1]]
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.edge_features.tolist() == [[1.5, 1.0, 0.0]]
    for wrong in ("no molecule", 3):
        with pytest.raises(ValueError, match="SMILES"):
            from_smiles(wrong)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ImportError, match="pip install rdkit"):
        from_smiles("CO")
