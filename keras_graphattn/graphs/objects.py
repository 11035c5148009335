"""Graphs from objects of other libraries, by duck type: none of the libraries is imported.

A graph here is undirected. An object with directions must have every edge in both of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from keras_graphattn.graphs.graph import Array, Graph
from keras_graphattn.ops.graphs.graphs import graph_edges, read_graph


def from_scipy(matrix: Any, node_features: Any = None, label: Any = None) -> Graph:
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
    if matrix.shape[0] == 0:
        return Graph([], num_nodes=0)
    edges, weights = graph_edges(read_graph(matrix))
    return Graph(edges, weights, node_features, None, label, matrix.shape[0])


def from_networkx(
    graph: Any,
    node_features: str | Sequence[str] | None = None,
    edge_features: str | Sequence[str] | None = None,
    label: Any = None,
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
        TypeError: For an object without `nodes` and `edges`.

    Example:

    >>> from types import SimpleNamespace
    >>> class Path:
    ...     nodes = ("a", "b", "c")
    ...     def edges(self, data, default=None):
    ...         return [("a", "b", default), ("b", "c", default)]
    >>> from_networkx(Path()).edges.tolist()
    [[0, 1], [1, 2]]
    """
    if not hasattr(graph, "nodes") or not hasattr(graph, "edges"):
        raise TypeError(f"`graph` must have `nodes` and `edges`. Received: {graph!r}")
    if not len(graph.nodes):
        return Graph([], num_nodes=0)
    read_graph(graph)  # refuses one-way edges, loops and wrong weights by the nodes' names
    numbers = {name: i for i, name in enumerate(graph.nodes)}
    found = list(graph.edges(data="weight", default=1.0))
    edges = np.array([(numbers[u], numbers[v]) for u, v, _ in found], "int64").reshape((-1, 2))
    weights = [1.0 if w is None else float(w) for _, _, w in found]

    def attribute(kind: str, name: str, read: Any) -> Array:
        values = list(read(data=name, default=None))
        missing = [value[:-1] for value in values if value[-1] is None]
        if missing:
            raise ValueError(
                f"Each {kind} must have the attribute {name!r}. Received: {kind} "
                f"{missing[0] if kind == 'edge' else missing[0][0]!r} without it, and "
                f"{len(missing)} such in all"
            )
        return np.array([np.ravel(value[-1]) for value in values]).reshape((len(values), -1))

    def joined(kind: str, names: str | Sequence[str] | None, read: Any) -> Array | None:
        if names is None:
            return None
        names = [names] if isinstance(names, str) else list(names)
        return np.concatenate([attribute(kind, name, read) for name in names], axis=1)

    nodes_read = None if node_features is None else graph.nodes.data
    return Graph(
        edges,
        weights,
        joined("node", node_features, nodes_read),
        joined("edge", edge_features, graph.edges),
        label,
        len(numbers),
    )


def from_pyg(data: Any) -> Graph:
    """Reads an object like `torch_geometric.data.Data`.

    Args:
        data: An object with `edge_index` (2, E), every edge in both directions. `x` (n, F) are the
            node features, `edge_attr` (E, G) or (E,) the edge features, `edge_weight` (E,) the
            weights, `y` the label and `num_nodes` the number of nodes, each if it is there. A `y`
            of shape (1, ...) loses its first axis.

    Raises:
        ValueError: For edges in one direction only, and for wrong numbers.
        TypeError: For an object without `edge_index`.

    Example:

    >>> from types import SimpleNamespace
    >>> data = SimpleNamespace(edge_index=np.array([[0, 1], [1, 0]]), y=np.array([3]))
    >>> graph = from_pyg(data)
    >>> graph.edges.tolist(), int(graph.label)
    ([[0, 1]], 3)
    """
    if getattr(data, "edge_index", None) is None:
        raise TypeError(f"`data` must have `edge_index` of shape (2, E). Received: {data!r}")
    edges = _array(data.edge_index)
    if edges.ndim != 2 or len(edges) != 2:
        raise ValueError(f"`edge_index` must be of shape (2, E). Received: shape {edges.shape}")
    _check_both_directions(edges.T, "Use torch_geometric.utils.to_undirected.")
    of_edges = _array(getattr(data, "edge_attr", None))
    label = _array(getattr(data, "y", None))
    return Graph(
        edges.T,
        _array(getattr(data, "edge_weight", None)),
        _array(getattr(data, "x", None)),
        of_edges[:, None] if of_edges is not None and of_edges.ndim == 1 else of_edges,
        label[0] if label is not None and label.shape[:1] == (1,) else label,
        getattr(data, "num_nodes", None),
    )


def from_dgl(
    graph: Any,
    node_features: str | None = None,
    edge_features: str | None = None,
    edge_weights: str | None = None,
    label: Any = None,
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
        ValueError: For edges in one direction only, a name that is missing, and wrong numbers.
        TypeError: For an object without `edges`, `ndata` and `edata`.

    Example:

    >>> from types import SimpleNamespace
    >>> pair = SimpleNamespace(edges=lambda: ([0, 1], [1, 0]), num_nodes=lambda: 2,
    ...     ndata={"feat": np.eye(2)}, edata={})
    >>> from_dgl(pair, node_features="feat")
    Graph(2 nodes, 1 edges, 2 node features)
    """
    if not all(hasattr(graph, name) for name in ("edges", "num_nodes", "ndata", "edata")):
        raise TypeError(
            "`graph` must have `edges`, `num_nodes`, `ndata` and `edata`. Received: "
            f"{type(graph).__name__}"
        )
    edges = np.stack([_array(end) for end in graph.edges()], axis=1)
    _check_both_directions(edges, "Use dgl.to_bidirected.")

    def named(place: str, name: str | None) -> Any:
        if name is not None and name not in getattr(graph, place):
            raise ValueError(
                f"`{place}` must have {name!r}. Received: {place} with "
                f"{sorted(getattr(graph, place))}"
            )
        return None if name is None else _array(getattr(graph, place)[name])

    return Graph(
        edges.astype("int64"),
        named("edata", edge_weights),
        named("ndata", node_features),
        named("edata", edge_features),
        _array(label),
        int(graph.num_nodes()),
    )


def from_smiles(smiles: str, label: Any = None) -> Graph:
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
    if molecule is None or not molecule.GetNumAtoms():
        raise ValueError(f"`smiles` must be a molecule in SMILES. Received: {smiles!r}")
    atoms = [
        (
            atom.GetAtomicNum(),
            atom.GetFormalCharge(),
            atom.GetTotalNumHs(),
            atom.GetIsAromatic(),
            atom.IsInRing(),
        )
        for atom in molecule.GetAtoms()
    ]
    bonds = list(molecule.GetBonds())
    edges = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    features = [
        (bond.GetBondTypeAsDouble(), bond.GetIsConjugated(), bond.IsInRing()) for bond in bonds
    ]
    return Graph(
        np.array(edges, "int64").reshape((-1, 2)),
        node_features=np.array(atoms, "float32"),
        edge_features=np.array(features, "float32").reshape((-1, 3)),
        label=label,
    )


def _array(value: Any) -> Any:
    """The value as a NumPy array; tensors come to the host. `None` stays."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return None if value is None else np.asarray(value)


def _check_both_directions(edges: Array, remedy: str) -> None:
    given = set(map(tuple, edges.tolist()))
    one_way = [(u, v) for u, v in given if (v, u) not in given]
    if one_way:
        u, v = min(one_way)
        raise ValueError(
            "A graph with directions must have every edge in both of them. Received: an edge from "
            f"{u} to {v} and none back. {remedy}"
        )
