"""Graphs from objects of scipy, networkx and PyTorch Geometric, which are not imported.

A graph here is undirected. An object with directions must have every edge in both of them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.masks.graphs.edges import edges_of_networkx, graph_edges, read_graph


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
    edges, num_nodes, weights = edges_of_networkx(graph)
    return Graph(
        edges,
        weights,
        None if node_features is None else _attributes(graph.nodes.data, node_features),
        None if edge_features is None else _attributes(graph.edges, edge_features),
        label,
        num_nodes,
    )


def _attributes(
    read: Callable[..., Iterable[tuple[Any, ...]]], names: str | Sequence[str]
) -> Array:
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

    def array(name: str) -> Any:
        value: Any = getattr(data, name, None)
        value = value.detach().cpu() if hasattr(value, "detach") else value
        return None if value is None else np.asarray(value)

    edges, features, label = array("edge_index"), array("edge_attr"), array("y")
    graph = Graph(
        np.transpose(edges),
        array("edge_weight"),
        array("x"),
        features[:, None] if features is not None and features.ndim == 1 else features,
        label[0] if label is not None and label.shape[:1] == (1,) else label,
        getattr(data, "num_nodes", None),
    )
    pairs = set(zip(*edges.tolist(), strict=True))
    one_way = min(((u, v) for u, v in pairs if (v, u) not in pairs), default=None)
    if one_way:
        raise ValueError(
            "A graph with directions must have every edge in both of them. Received: an edge from "
            f"{one_way[0]} to {one_way[1]} and none back. Use torch_geometric.utils.to_undirected."
        )
    return graph
