"""Graphs as data: edges, scipy.sparse matrices and networkx-like objects, read once in NumPy.

Most libraries give an undirected edge twice, once in each direction. Here an edge that is given
several times, in either direction, counts once, and its weights must be equal. The same holds for
edges that come with a batch (`edges_once`).
"""

from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks import Array, Sizes, numpy_of, optional, whole
from keras_graphattn.numerics.precision import (
    larger,
    order_of,
    positions_of,
    size_tensor,
    take,
    take_along,
)
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.types import Bool, Float, Int, Tensor

Graph: TypeAlias = scipy.sparse.csr_array  # of edge weights: symmetric, with no diagonal

SAME_WEIGHT = 1e-6  # weights of one edge are equal up to this difference, relative to the larger
WIDEST_KEY = 46340  # the largest number whose square is below 2^31


def read_graph(graph: Any, num_nodes: int | None = None, edge_weights: Any = None) -> Graph:
    """The symmetric matrix (n, n) of edge weights, float64 with sorted indices and no diagonal.

    The graph is edges (E, 2), a `keras_graphattn.graphs.Graph`, a scipy.sparse matrix of edge
    weights, or an object like a networkx graph, whose nodes are numbered in the order of `nodes`
    and whose edge attribute "weight" is 1 by default. `edge_weights` are numbers, one per row of an
    edge array.
    """
    num_nodes = optional(whole(0))("num_nodes", num_nodes, {})
    if hasattr(graph, "edge_weights") and hasattr(graph, "adjacency"):
        graph = graph.adjacency()  # of a `keras_graphattn.graphs.Graph`
    if scipy.sparse.issparse(graph):
        return _from_matrix(graph, num_nodes, edge_weights)
    if hasattr(graph, "nodes") and hasattr(graph, "edges"):
        graph, num_nodes, edge_weights = _from_networkx(graph, num_nodes, edge_weights)
    edges = _edge_array(graph)
    num_nodes = _checked_count(edges, num_nodes)
    weights = _checked_weights(edge_weights, len(edges))
    later, earlier = repeated_edges(edges[None])
    apart = disagreeing(weights, later, earlier)
    if len(apart):
        one, other = int(earlier[apart[0]]), int(later[apart[0]])
        u, v = sorted(edges[one].tolist())
        raise ValueError(
            f"An edge of `graph` may be given several times, with equal weights. Received: edges "
            f"{one} and {other} both join nodes {u} and {v}, with the weights {weights[one]:g} and "
            f"{weights[other]:g} in `edge_weights`. Give the edge once, or with equal weights."
        )
    edges, weights = np.delete(edges, later, axis=0), np.delete(weights, later)
    low, high = edges.min(axis=1), edges.max(axis=1)
    places = np.concatenate([low, high]), np.concatenate([high, low])
    shape = (num_nodes, num_nodes)
    return _sorted(scipy.sparse.coo_array((np.tile(weights, 2), places), shape=shape))


def graph_edges(adjacency: Graph) -> tuple[Array, Array]:
    """Returns the edges (E, 2), smaller node first, and weights (E,) of a symmetric matrix."""
    upper = scipy.sparse.coo_array(scipy.sparse.triu(adjacency, k=1))
    return np.stack([upper.row, upper.col], axis=1).astype("int64"), upper.data


def graph_config(adjacency: Graph) -> dict[str, Any]:
    """The arguments of a mask that give its graph, as plain lists."""
    edges, weights = graph_edges(adjacency)
    config: dict[str, Any] = {"graph": edges.tolist(), "num_nodes": adjacency.shape[0]}
    return config | ({"edge_weights": weights.tolist()} if (weights != 1.0).any() else {})


def adjacency_rule(name: str, value: Any, sizes: Sizes | None = None) -> Graph:
    """The rule of `adjacency`: a square scipy.sparse matrix."""
    if not scipy.sparse.issparse(value) or value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(
            f"`{name}` must be a square scipy.sparse matrix of edge weights, such as "
            f"`keras_graphattn.graphs.Graph(edges).adjacency()`. Received: {name}={value!r}"
        )
    return value


def spectral_radius(matrix: Graph, iterations: int = 100) -> float:
    """Returns an upper bound of the largest eigenvalue of a symmetric nonnegative matrix.

    For every positive vector v, the largest (A v)_i / v_i is such a bound (Collatz and Wielandt).
    Steps of the power method make it tight. It is at least 1e-6, so that a division by it is safe.
    """
    vector, best = np.ones(matrix.shape[0]), np.inf
    for _ in range(iterations):
        image = matrix @ vector
        best = min(best, float((image / vector).max(initial=0.0)))
        # shifted, or it oscillates on a bipartite graph
        vector = image + max(best, 1e-6) / 2.0 * vector
        vector = np.maximum(vector / vector.max(initial=1e-300), 1e-100)
    return max(best, 1e-6)


def transition_matrix(adjacency: Graph) -> Graph:
    """The matrix of one step of a random walk. Rows sum to 1, or to 0 at isolated nodes."""
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    matrix = _sorted(adjacency)
    # divide each entry: the inverse of a degree of 1e-310 would be infinite
    matrix.data /= np.repeat(np.where(degrees > 0, degrees, 1.0), np.diff(matrix.indptr))
    return matrix


def _sorted(matrix: Any) -> Graph:
    matrix = scipy.sparse.csr_array(matrix).astype("float64")
    matrix.sum_duplicates()
    matrix.sort_indices()
    return matrix


def _from_matrix(graph: Any, num_nodes: int | None, edge_weights: Any) -> Graph:
    if edge_weights is not None:
        raise ValueError(
            "A sparse matrix or a Graph has its own weights. Received: `edge_weights` as well. "
            "Leave it out."
        )
    count = graph.shape[0]
    if graph.shape != (count, count) or num_nodes not in (None, count) or not count:
        raise ValueError(
            f"The matrix of a `graph` must have one row and one column per node, and at least one "
            f"node. Received: shape {graph.shape}, num_nodes={num_nodes}"
        )
    if graph.dtype.kind not in "biuf":
        raise ValueError(
            f"The matrix of a `graph` must have real numbers. Received: dtype {graph.dtype}. "
            "Convert it, for example with `graph.astype('float64')`."
        )
    if graph.format not in ("bsr", "dia"):  # these fill up with zeros, which are no edges
        _check_entries(graph.tocoo())
    matrix = _sorted(graph)
    matrix.eliminate_zeros()
    # by entry: next to a weight of 1e12, an edge of weight 1 in only one direction is not rounding
    if (abs(matrix - matrix.T) - 1e-9 * abs(matrix).maximum(abs(matrix.T))).max() > 0.0:
        raise ValueError(
            "The matrix of a `graph` must be symmetric. Received: a matrix that is not. To ignore "
            "directions, use `matrix.maximum(matrix.T)`."
        )
    if matrix.diagonal().any():
        node = int(np.flatnonzero(matrix.diagonal())[0])
        raise ValueError(
            "An edge of `graph` must join two different nodes. Received: a matrix with a diagonal, "
            f"such as a loop at node {node}. Call `graph.setdiag(0)` and `graph.eliminate_zeros()`."
        )
    _checked_weights(matrix.data, matrix.nnz)
    return matrix


def _check_entries(entries: scipy.sparse.coo_array) -> None:
    """Refuses a stored 0, an edge of weight 0, and two entries in one place, which scipy adds."""
    zero = np.flatnonzero(entries.data == 0)
    if len(zero):
        place = int(entries.row[zero[0]]), int(entries.col[zero[0]])
        raise ValueError(
            f"Weights of edges of `graph` must be positive. Received: a stored 0 at {place}, and "
            f"{len(zero)} such in all. To leave these edges out, call `graph.eliminate_zeros()`."
        )
    keys = entries.row.astype("int64") * entries.shape[1] + entries.col
    places, counts = np.unique(keys, return_counts=True)
    if (counts > 1).any():
        row, column = divmod(int(places[np.argmax(counts > 1)]), entries.shape[1])
        raise ValueError(
            f"The matrix of a `graph` must have one entry in each place. Received: several at "
            f"({row}, {column}). If scipy may add them, call `graph.sum_duplicates()` first."
        )


def _from_networkx(
    graph: Any, num_nodes: int | None, edge_weights: Any
) -> tuple[Array, int, list[Any]]:
    """The edges (E, 2) of a networkx-like object, its number of nodes, and the edges' weights."""
    numbers = {name: i for i, name in enumerate(graph.nodes)}
    if num_nodes not in (None, len(numbers)) or edge_weights is not None:
        raise ValueError(
            f"The graph has {len(numbers)} nodes and its own weights. Received: "
            f"num_nodes={num_nodes}, edge_weights={edge_weights!r}. Leave both out."
        )
    weighted = list(graph.edges(data="weight", default=1.0))
    pairs = [(numbers[u], numbers[v]) for u, v, _ in weighted]
    directed = getattr(graph, "is_directed", False)
    directed = directed() if callable(directed) else directed
    one_way = {(u, v) for u, v in pairs if directed} - {(v, u) for u, v in pairs}
    if one_way:
        u, v = (list(numbers)[node] for node in min(one_way))
        raise ValueError(
            "A directed `graph` must have every edge in both directions. Received: an edge from "
            f"{u!r} to {v!r} and none back. To ignore directions, use `graph.to_undirected()`."
        )
    edges = np.array(pairs, "int64").reshape((-1, 2))
    return edges, len(numbers), [1.0 if w is None else w for _, _, w in weighted]


def numbers_of(name: str, values: Any) -> Array:
    """Returns an array of real numbers, or raises a `ValueError`."""
    array: Array = numpy_of(values)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"`{name}` must be numbers. Received: {name}={values!r}")
    return array


def _edge_array(graph: Any) -> Array:
    edges: Array = numpy_of(graph)
    if edges.size == 0 and edges.dtype != object:
        return np.zeros((0, 2), "int64")
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        hint = ""
        if edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind == "f":
            hint = " Nodes are integers: give edges.astype(int)."
        elif edges.ndim == 2 and edges.shape[0] == 2:  # as `edge_index` of PyTorch Geometric
            hint = " One edge is one row: give its transpose, np.transpose(edges)."
        elif edges.ndim == 2 and edges.shape[0] == edges.shape[1]:
            hint = " For a number for each pair of nodes, give scipy.sparse.csr_array(matrix)."
        raise TypeError(
            "`graph` must be an integer array of edges of shape (E, 2), a "
            "`keras_graphattn.graphs.Graph`, a scipy.sparse matrix, or an object with `nodes` and "
            f"`edges`. Received: {type(graph).__name__} of shape "
            f"{edges.shape}, dtype {edges.dtype}.{hint}"
        )
    return edges.astype("int64")


def _checked_count(edges: Array, num_nodes: int | None) -> int:
    named = int(edges.max(initial=-1)) + 1
    if not len(edges) and num_nodes is None:
        raise ValueError(
            "Edges of `graph` show how many nodes there are. Received: no edges, num_nodes=None. "
            "Give `num_nodes`."
        )
    count = named if num_nodes is None else num_nodes
    if count < max(named, 1) or edges.min(initial=0) < 0:
        raise ValueError(
            f"The nodes of `graph` must be numbered from 0 to num_nodes - 1. Received: nodes "
            f"{edges.min(initial=0)} to {named - 1}, num_nodes={num_nodes}"
        )
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if len(loops):
        raise ValueError(
            "An edge of `graph` must join two different nodes. Received: edge "
            f"{loops[0]}, from node {edges[loops[0], 0]} to itself. Leave it out."
        )
    return count


def _checked_weights(weights: Any, count: int) -> Array:
    if weights is None:
        return np.ones(count)
    numbers = numbers_of("edge_weights", weights).astype("float64")
    if numbers.shape != (count,) or not np.isfinite(numbers).all() or (numbers <= 0).any():
        raise ValueError(
            f"`edge_weights` of `graph` must be {count} positive finite numbers, one per edge. "
            f"Received: shape {numbers.shape}, smallest {numbers.min(initial=np.inf)}"
        )
    return numbers


def repeated_edges(edges: Array) -> tuple[Array, Array]:
    """The places b E + e of repeated edges (B, E, 2), and for each the place of the one before.

    An edge with a negative node is padding.
    """
    low, high = edges.min(axis=2).astype("int64"), edges.max(axis=2).astype("int64")
    nodes = int(high.max(initial=-1)) + 1
    keys = (np.arange(len(edges))[:, None] * nodes + low) * nodes + high
    places = np.flatnonzero(low.ravel() >= 0)
    keys = keys.ravel()[places]
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():  # the usual case: skip the slower stable sort
        nothing = np.zeros(0, "int64")
        return nothing, nothing
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    return places[order[same + 1]], places[order[same]]


def disagreeing(numbers: Array, later: Array, earlier: Array) -> Array:
    """Which pairs of places have numbers (places, ...) that differ by more than rounding."""
    one, other = numbers[later], numbers[earlier]
    apart = np.abs(one - other) > SAME_WEIGHT * np.maximum(np.abs(one), np.abs(other))
    return np.flatnonzero(apart.any(axis=(*range(1, apart.ndim),)))


def edges_once(
    edges: Int[Tensor, "B E 2"], numbers: Float[Tensor, "B E C"] | None, length: Any
) -> tuple[Int[Tensor, "B E 2"], Float[Tensor, "B E C"] | None, Bool[Tensor, " B"]]:
    """Each edge of a batch once, even if it is given several times or in both directions.

    `numbers` are weights or features of edges. Returns three tensors. The first has the sorted
    edges, smaller node first; repeated edges are padding (-1). The second has their numbers: the
    mean of the numbers of an edge, so that each of these gets its part of the gradient. The third
    says which examples have an edge with two different numbers.
    """
    last = size_tensor(length, "int32")
    is_edge = ops.all(edges >= 0, axis=-1)
    low = ops.where(is_edge, ops.minimum(edges[..., 0], edges[..., 1]), last)
    high = ops.where(is_edge, ops.maximum(edges[..., 0], edges[..., 1]), last)
    order = _order_of_pairs(low, high, length)
    low, high = (take_along(ends, order, axis=1) for ends in (low, high))
    again = ops.logical_and(
        ops.equal(low[:, 1:], low[:, :-1]), ops.equal(high[:, 1:], high[:, :-1])
    )
    again = ops.concatenate([ops.zeros_like(low[:, :1], dtype="bool"), again], axis=1)  # (B, E)
    is_edge = low < last
    first = ops.logical_and(is_edge, ops.logical_not(again))
    once = ops.where(first[..., None], ops.stack([low, high], axis=-1), ops.cast(-1, "int32"))
    if numbers is None:
        return once, None, ops.zeros_like(low[:, 0], dtype="bool")
    order = ops.broadcast_to(order[..., None], ops.shape(numbers))
    numbers = ops.where(is_edge[..., None], take_along(numbers, order, axis=1), 0.0)
    batch, count, width = ops.shape(numbers)
    start = positions_of(batch)[:, None] * count
    # the number of each edge's run of equal edges
    runs = ops.maximum(ops.cumsum(ops.cast(first, "int32"), axis=1) - 1, 0) + start
    runs = ops.reshape(runs, (-1,))
    ones = ops.cast(is_edge, numbers.dtype)[..., None]
    sums = ops.reshape(ops.concatenate([numbers, ones], axis=-1), (batch * count, width + 1))
    sums = take(add_rows(sums, runs, batch * count), runs, axis=0)
    mean = ops.reshape(sums[:, :-1] / larger(sums[:, -1:], 1.0), (batch, count, width))
    before = ops.concatenate([numbers[:, :1], numbers[:, :-1]], axis=1)
    apart = ops.abs(numbers - before) > SAME_WEIGHT * ops.maximum(ops.abs(numbers), ops.abs(before))
    conflict = ops.logical_and(ops.logical_and(again, is_edge), ops.any(apart, axis=-1))
    return once, ops.where(first[..., None], mean, 1.0), ops.any(conflict, axis=1)


def _order_of_pairs(
    low: Int[Tensor, "B E"], high: Int[Tensor, "B E"], length: Any
) -> Int[Tensor, "B E"]:
    """The places of the pairs in sorted order; both are between 0 and `length`."""
    if isinstance(length, int) and length < WIDEST_KEY:
        return order_of(low * (length + 1) + high, axis=1)
    order = order_of(high, axis=1)
    later = order_of(take_along(low, order, axis=1), axis=1)  # stable on all backends
    return take_along(order, later, axis=1)
