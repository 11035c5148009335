"""One undirected graph as data: edges, weights, features and a label, checked once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from keras_graphattn.checks import numpy_of, optional, whole
from keras_graphattn.ops.graphs.edge_lists import repeated_edges
from keras_graphattn.ops.graphs.graphs import graph_edges, read_graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
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
    >>> Graph([[0, 5]], num_nodes=3)
    Traceback (most recent call last):
    ValueError: The nodes of `graph` must be numbered from 0 to num_nodes - 1. Received: nodes 0 \
to 5, num_nodes=3
    """

    edges: Any
    edge_weights: Any = None
    node_features: Any = None
    edge_features: Any = None
    label: Any = None
    num_nodes: Any = None

    def __post_init__(self) -> None:
        given = numpy_of(self.edges)
        features = _numbers("node_features", self.node_features, ("num_nodes", None))
        count = optional(whole(0))("num_nodes", self.num_nodes, {})
        count = len(features) if count is None and features is not None else count
        if count == 0 or (count is None and given.size == 0):
            raise ValueError(
                "A graph must have at least one node. Received: no node. Leave empty graphs "
                "out, or give `num_nodes`."
            )
        if scipy.sparse.issparse(self.edges) or hasattr(self.edges, "nodes"):
            raise TypeError(
                "`edges` must be an integer array of shape (E, 2). Received: "
                f"{type(self.edges).__name__}. Use `from_scipy` or `from_networkx`."
            )
        adjacency = read_graph(given, count, self.edge_weights)
        count = adjacency.shape[0]
        if features is not None and len(features) != count:
            raise ValueError(
                f"`node_features` must have one row for each of the {count} nodes. Received: "
                f"{len(features)} rows"
            )
        edges, weights = graph_edges(adjacency)
        order = np.lexsort((edges[:, 1], edges[:, 0]))
        found: dict[str, Any] = {
            "edges": edges[order],
            "edge_weights": weights[order],
            "node_features": np.zeros((count, 0), "float32") if features is None else features,
            "edge_features": _edge_features(self.edge_features, given.reshape((-1, 2)), count),
            "label": None if self.label is None else _finite("label", numpy_of(self.label)),
        }
        for name, array in found.items():
            if array is not None:
                array = np.array(array)
                array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "num_nodes", count)

    def adjacency(self) -> Any:
        """The symmetric matrix of edge weights: a float64 `csr_array` of shape (n, n)."""
        return read_graph(self.edges, self.num_nodes, self.edge_weights)

    def __repr__(self) -> str:
        features = self.node_features.shape[1]
        return f"Graph({self.num_nodes} nodes, {len(self.edges)} edges, {features} node features)"


def _numbers(name: str, value: Any, rows: tuple[str, int | None]) -> Array | None:
    """Finite float32 numbers of shape (rows, any), or `None`."""
    if value is None:
        return None
    array = _finite(name, numpy_of(value))
    if array.ndim != 2 or rows[1] not in (None, len(array)):
        expected = rows[0] if rows[1] is None else rows[1]
        raise ValueError(
            f"`{name}` must be numbers of shape ({expected}, features). Received: shape "
            f"{array.shape}. Use `{name}[:, None]` for one feature."
        )
    with np.errstate(over="ignore"):
        narrow = array.astype("float32")
    lost = ~np.isfinite(narrow)
    if array.dtype.kind in "iu":
        lost |= narrow.astype(array.dtype) != array
    wrong = np.argwhere(lost)
    if len(wrong):
        place = wrong[0].tolist()
        raise ValueError(
            f"A graph holds `{name}` as float32: numbers up to 3.4e38, and whole numbers up to "
            f"2^24 for certain. Received: {array[tuple(place)]} at {name}{place}, and {len(wrong)} "
            "such in all. Scale the numbers, or number names from 0 to their count."
        )
    return narrow


def _finite(name: str, array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must be numbers. Received: an array of dtype {array.dtype}")
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        place = wrong[0].tolist()
        raise ValueError(
            f"`{name}` must be finite numbers. Received: {array[tuple(place)]} at {name}{place}, "
            f"and {len(wrong)} such in all. Replace missing values first."
        )
    return array


def _edge_features(value: Any, edges: Array, count: int) -> Array | None:
    """The features of each edge once, in ascending order of the edges."""
    features = _numbers("edge_features", value, ("num_edges", len(edges)))
    if features is None:
        return None
    later, earlier = repeated_edges(edges[None].astype("int64"))
    apart = np.flatnonzero((features[later] != features[earlier]).any(axis=1))
    if len(apart):
        one, other = int(earlier[apart[0]]), int(later[apart[0]])
        raise ValueError(
            "An edge may be given several times, with equal features. Received: edges "
            f"{one} and {other} join the same nodes and differ in `edge_features`. Give the edge "
            "once, or with equal features."
        )
    kept = np.setdiff1d(np.arange(len(edges)), later)
    keys = edges[kept].min(axis=1) * count + edges[kept].max(axis=1)
    found: Array = features[kept[np.argsort(keys)]]
    return found
