"""Graphs from objects of other libraries, which are not imported (but RDKit for SMILES).

A graph here is undirected. An object with directions must have every edge in both of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.masks.graphs.edges import graph_edges, read_graph


def from_scipy(
    matrix: scipy.sparse.sparray,
    node_features: ArrayLike | None = None,
    label: ArrayLike | None = None,
) -> Graph:
    """Reads a symmetric scipy.sparse matrix of edge weights.

    Args:
        matrix: Positive numbers of shape (n, n), with one entry in each place and no diagonal. A
            stored 0 is an error, as is an edge of weight 0 in every other form of a graph.
        node_features: Finite numbers of shape (n, F).
        label: A finite number, or an array of them.

    Raises:
        ValueError: For a matrix that is not square and symmetric, a diagonal, or wrong numbers.
        TypeError: For anything but a scipy.sparse matrix.

    Example:

    >>> from_scipy(scipy.sparse.csr_array([[0.0, 2.0], [2.0, 0.0]])).edge_weights.tolist()
    [2.0]
    """
    if not scipy.sparse.issparse(matrix):
        raise TypeError(f"`matrix` must be a scipy.sparse matrix. Received: {matrix!r}")
    if not matrix.shape[0]:
        return Graph([], num_nodes=0)
    edges, weights = graph_edges(read_graph(matrix))
    return Graph(edges, weights, node_features, None, label, matrix.shape[0])


def from_networkx(
    graph: Any,
    node_features: str | Sequence[str] | None = None,
    edge_features: str | Sequence[str] | None = None,
    label: ArrayLike | None = None,
) -> Graph:
    """Reads an object like a networkx graph, with `nodes` and `edges`.

    Args:
        graph: The graph. Its nodes are numbered in the order of `nodes`. The edge attribute
            "weight" is the weight, 1 by default.
        node_features: The name of a node attribute, or names. Each is a number or a list of
            numbers; they are joined along the features.
        edge_features: The same for edge attributes.
        label: A finite number, or an array of them.

    Raises:
        ValueError: For a directed graph with an edge in one direction only, an attribute that is
            missing, or wrong numbers.

    Example:

    >>> from types import SimpleNamespace
    >>> class Path:
    ...     nodes = ("a", "b", "c")
    ...     def edges(self, data, default=None):
    ...         return [("a", "b", default), ("b", "c", default)]
    >>> from_networkx(Path()).edges.tolist()
    [[0, 1], [1, 2]]
    """
    numbers = {name: number for number, name in enumerate(graph.nodes)}
    if numbers:
        read_graph(graph)  # refuses one-way edges, loops and wrong weights by the nodes' names
    weighted = list(graph.edges(data="weight", default=1.0))
    return Graph(
        [(numbers[u], numbers[v]) for u, v, _ in weighted],
        [1.0 if weight is None else float(weight) for *_, weight in weighted],
        None if node_features is None else _attributes(graph.nodes.data, node_features),
        None if edge_features is None else _attributes(graph.edges, edge_features),
        label,
        len(numbers),
    )


def _attributes(read: Callable[..., Any], names: str | Sequence[str]) -> Array:
    """Attributes of all nodes or edges, joined along the features."""
    columns = []
    for name in [names] if isinstance(names, str) else names:
        rows = list(read(data=name, default=None))
        missing = [row[:-1] for row in rows if row[-1] is None]
        if missing:
            raise ValueError(
                f"Each node or edge must have the attribute {name!r}. Received: {missing[0]} "
                f"without it, and {len(missing)} such in all"
            )
        columns.append(np.array([np.ravel(row[-1]) for row in rows]).reshape((len(rows), -1)))
    return np.concatenate(columns, axis=1)


def from_pyg(data: Any) -> Graph:
    """Reads an object like `torch_geometric.data.Data`.

    Args:
        data: An object with `edge_index` (2, E), every edge in both directions. `x` (n, F) are the
            node features, `edge_attr` (E, G) or (E,) the edge features, `edge_weight` (E,) the
            weights, `y` the label and `num_nodes` the number of nodes, each if it is there. A `y`
            of shape (1, ...) loses its first axis.

    Raises:
        ValueError: For edges in one direction only, and for wrong numbers.
        TypeError: For edges that are not integers of shape (2, E).

    Example:

    >>> from types import SimpleNamespace
    >>> data = SimpleNamespace(edge_index=np.array([[0, 1], [1, 0]]), y=np.array([3]))
    >>> graph = from_pyg(data)
    >>> graph.edges.tolist(), int(graph.label)
    ([[0, 1]], 3)
    """
    weights, nodes, edges, label = (
        _array(getattr(data, name, None)) for name in ("edge_weight", "x", "edge_attr", "y")
    )
    ends = _array(data.edge_index).T
    graph = Graph(
        ends,
        weights,
        nodes,
        edges[:, None] if edges is not None and edges.ndim == 1 else edges,
        label[0] if label is not None and label.shape[:1] == (1,) else label,
        getattr(data, "num_nodes", None),
    )
    return _both_ways(graph, ends, "torch_geometric.utils.to_undirected")


def from_dgl(
    graph: Any,
    node_features: str | None = None,
    edge_features: str | None = None,
    edge_weights: str | None = None,
    label: ArrayLike | None = None,
) -> Graph:
    """Reads an object like a homogeneous `dgl.DGLGraph`.

    Args:
        graph: An object with `edges()`, which returns the two ends of every edge, each edge in both
            directions; `num_nodes()`; `ndata` and `edata`.
        node_features: The name in `ndata` of numbers of shape (n, F).
        edge_features: The name in `edata` of numbers of shape (E, G).
        edge_weights: The name in `edata` of positive numbers of shape (E,).
        label: A finite number, or an array of them. For labels of nodes give `graph.ndata[name]`.

    Raises:
        ValueError: For edges in one direction only, and wrong numbers.
        KeyError: For a name that is missing.

    Example:

    >>> from types import SimpleNamespace
    >>> pair = SimpleNamespace(edges=lambda: ([0, 1], [1, 0]), num_nodes=lambda: 2,
    ...     ndata={"feat": np.eye(2)}, edata={})
    >>> from_dgl(pair, node_features="feat")
    Graph(2 nodes, 1 edges, 2 node features)
    """
    ends = np.stack([_array(end) for end in graph.edges()], axis=1)
    made = Graph(
        ends,
        None if edge_weights is None else _array(graph.edata[edge_weights]),
        None if node_features is None else _array(graph.ndata[node_features]),
        None if edge_features is None else _array(graph.edata[edge_features]),
        _array(label),
        int(graph.num_nodes()),
    )
    return _both_ways(made, ends, "dgl.to_bidirected")


def from_smiles(smiles: str, label: ArrayLike | None = None) -> Graph:
    """Reads a molecule with RDKit. Hydrogen atoms that are not written are no nodes.

    Args:
        smiles: The molecule in SMILES.
        label: A finite number, or an array of them.

    Returns:
        A graph of atoms with 5 node features (atomic number, formal charge, number of hydrogen
        atoms, whether aromatic, whether in a ring) and 3 edge features (order of the bond, whether
        conjugated, whether in a ring).

    Raises:
        ImportError: If RDKit is not installed.
        ValueError: For text that is no molecule.

    Example:

    >>> from_smiles("CCO")  # doctest: +SKIP
    Graph(3 nodes, 2 edges, 5 node features)
    """
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ImportError("SMILES are read by RDKit: pip install rdkit") from error
    molecule = Chem.MolFromSmiles(smiles) if isinstance(smiles, str) else None
    if molecule is None:
        raise ValueError(f"`smiles` must be a molecule in SMILES. Received: {smiles!r}")
    atoms, bonds = list(molecule.GetAtoms()), list(molecule.GetBonds())
    of_atoms = ("GetAtomicNum", "GetFormalCharge", "GetTotalNumHs", "GetIsAromatic", "IsInRing")
    of_bonds = ("GetBondTypeAsDouble", "GetIsConjugated", "IsInRing")
    return Graph(
        [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds],
        node_features=_called(atoms, of_atoms),
        edge_features=_called(bonds, of_bonds),
        label=label,
    )


def _called(parts: list[Any], methods: Sequence[str]) -> Array:
    """What the methods return for each part of a molecule, (parts, methods)."""
    rows = [[float(getattr(part, method)()) for method in methods] for part in parts]
    return np.array(rows).reshape((len(parts), len(methods)))


def _array(value: Any) -> Any:
    """The value as a NumPy array; tensors come to the host. `None` stays."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return None if value is None else np.asarray(value)


def _both_ways(graph: Graph, edges: Array, remedy: str) -> Graph:
    """The graph, if it was made of edges (E, 2) in both directions."""
    pairs = set(map(tuple, edges.tolist()))
    one_way = min(((u, v) for u, v in pairs if (v, u) not in pairs), default=None)
    if one_way:
        raise ValueError(
            "A graph with directions must have every edge in both of them. Received: an edge from "
            f"{one_way[0]} to {one_way[1]} and none back. Use {remedy}."
        )
    return graph
