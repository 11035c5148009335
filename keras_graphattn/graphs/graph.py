"""One undirected graph as data: edges, weights, features and a label, checked once."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array, numpy_of, optional, whole
from keras_graphattn.masks.graphs.edges import graph_edges, read_graph
from keras_graphattn.types import Bool, Float, Int


@dataclass(frozen=True, eq=False, init=False)
class Graph:
    """An undirected graph. Its arrays cannot be changed.

    Every edge is kept once, with its smaller node first, in ascending order. The masks of
    `keras_graphattn.masks` read edges in the same way.

    Args:
        edges: Integers of shape (E, 2), one edge per row in either direction. An edge that is given
            several times, or in both directions, counts once; its weights and its features must be
            equal each time. An edge from a node to itself is an error.
        edge_weights: Positive finite numbers of shape (E,); 1 by default.
        node_features: Finite numbers of shape (n, F); none (F = 0) by default.
        edge_features: Finite numbers of shape (E, G), or `None`.
        label: A finite number, or an array of them: for the graph, or for each node. `None` for no
            label.
        num_nodes: Number of nodes n, at least 1. By default the number of rows of `node_features`,
            or the number that the edges show.

    Attributes:
        edges: int64, (E, 2), each edge once.
        edge_weights: float64, (E,).
        node_features: float32, (n, F).
        edge_features: float32, (E, G), or `None`.
        label: A NumPy array of any shape, or `None`.
        num_nodes: n.

    Raises:
        ValueError: For an empty graph, edges to nodes that are not there, loops, weights that are
            not positive finite numbers, numbers of the wrong shape, NaN or infinity, features that
            float32 does not hold (above 3.4e38, and some whole numbers above 2^24 given as
            integers), and for an edge with two different weights or features.
        TypeError: For edges that are not an integer array of shape (E, 2).

    Example:

    >>> graph = Graph([[1, 0], [1, 2], [2, 1]], node_features=np.eye(3), label=1)
    >>> graph.edges.tolist(), graph.edge_weights.tolist(), graph.num_nodes
    ([[0, 1], [1, 2]], [1.0, 1.0], 3)
    >>> matrix = scipy.sparse.csr_array([[0.0, 2.0], [2.0, 0.0]])  # symmetric, no diagonal
    >>> entries = matrix.tocoo()  # or networkx.to_scipy_sparse_array(graph).tocoo()
    >>> edges = np.stack([entries.row, entries.col], axis=1)
    >>> Graph(edges, entries.data, num_nodes=matrix.shape[0])
    Graph(2 nodes, 1 edges, 0 node features)
    >>> Graph([[0, 5]], num_nodes=3)
    Traceback (most recent call last):
    ValueError: The nodes of `graph` must be numbered from 0 to num_nodes - 1. Received: nodes 0 \
to 5, num_nodes=3
    """

    edges: Int[Array, "E 2"]
    edge_weights: Float[Array, " E"]
    node_features: Float[Array, "n F"]
    num_nodes: int
    edge_features: Float[Array, "E G"] | None = None
    label: Array | None = None

    def __init__(
        self,
        edges: ArrayLike,
        edge_weights: ArrayLike | None = None,
        node_features: ArrayLike | None = None,
        edge_features: ArrayLike | None = None,
        label: ArrayLike | None = None,
        num_nodes: int | None = None,
    ) -> None:
        if scipy.sparse.issparse(edges) or hasattr(edges, "nodes"):
            raise TypeError(
                "`edges` must be an integer array of shape (E, 2). Received: "
                f"{type(edges).__name__}. The docstring of `Graph` shows how to take them from it."
            )
        rows = numpy_of(edges)
        features = None if node_features is None else _features("node_features", node_features)
        count = optional(whole(0))("num_nodes", num_nodes, {})
        count = len(features) if count is None and features is not None else count
        if count == 0 or (count is None and rows.size == 0):
            raise ValueError(
                "A graph must have at least one node. Received: no node. Leave empty graphs "
                "out, or give `num_nodes`."
            )
        adjacency = read_graph(rows, count, edge_weights)
        count = adjacency.shape[0]
        features = np.zeros((count, 0), "float32") if features is None else features
        if len(features) != count:
            raise ValueError(
                f"`node_features` must have one row for each of the {count} nodes. Received: "
                f"{len(features)} rows"
            )
        once, weights = graph_edges(adjacency)
        arrays = {"edges": once, "edge_weights": weights, "node_features": features}
        if edge_features is not None:
            arrays["edge_features"] = _edge_features(edge_features, rows.reshape((-1, 2)), count)
        if label is not None:
            arrays["label"] = np.array(_finite("label", label))
        for array in arrays.values():
            array.flags.writeable = False
        vars(self).update(arrays, num_nodes=count)

    def adjacency(self) -> scipy.sparse.csr_array:
        """The symmetric matrix of edge weights: a float64 `csr_array` of shape (n, n)."""
        return read_graph(self.edges, self.num_nodes, self.edge_weights)

    def __repr__(self) -> str:
        features = self.node_features.shape[1]
        return f"Graph({self.num_nodes} nodes, {len(self.edges)} edges, {features} node features)"


def _features(name: str, value: ArrayLike) -> Float[Array, "_ _"]:
    """A copy of finite numbers as float32."""
    array = _finite(name, value)
    if array.ndim != 2:
        raise ValueError(
            f"`{name}` must be numbers of shape (rows, features). Received: shape {array.shape}. "
            f"Use `{name}[:, None]` for one feature."
        )
    with np.errstate(over="ignore"):
        narrow = array.astype("float32")
    lost = ~np.isfinite(narrow)
    if array.dtype.kind in "iu":
        lost |= narrow.astype(array.dtype) != array
    if lost.any():
        raise ValueError(
            f"A graph holds `{name}` as float32: numbers up to 3.4e38, and whole numbers up to "
            f"2^24 for certain. Received: {_first(name, array, lost)}. Scale the numbers, or "
            "number names from 0 to their count."
        )
    return narrow


def _finite(name: str, value: ArrayLike) -> Array:
    array: Array = numpy_of(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must be numbers. Received: an array of dtype {array.dtype}")
    wrong = ~np.isfinite(array)
    if wrong.any():
        raise ValueError(
            f"`{name}` must be finite numbers. Received: {_first(name, array, wrong)}. Replace "
            "missing values first."
        )
    return array


def _first(name: str, array: Array, wrong: Bool[Array, "..."]) -> str:
    """The first wrong number, its position, and how many there are."""
    place = np.argwhere(wrong)[0].tolist()
    return f"{array[tuple(place)]} at {name}{place}, and {wrong.sum()} such in all"


def _edge_features(value: ArrayLike, edges: Int[Array, "_ 2"], count: int) -> Float[Array, "E G"]:
    """The features of each edge once, in ascending order of the edges."""
    features = _features("edge_features", value)
    if len(features) != len(edges):
        raise ValueError(
            f"`edge_features` must be numbers of shape ({len(edges)}, features), a row for each "
            f"row of `edges`. Received: shape {features.shape}"
        )
    keys = edges.min(axis=1).astype("int64") * count + edges.max(axis=1)
    _, first, places = np.unique(keys, return_index=True, return_inverse=True)
    apart = np.flatnonzero((features != features[first[places]]).any(axis=1))
    if len(apart):
        raise ValueError(
            "An edge may be given several times, with equal features. Received: edges "
            f"{first[places[apart[0]]]} and {apart[0]} join the same nodes and differ in "
            "`edge_features`. Give the edge once, or with equal features."
        )
    once: Array = features[first]
    return once
