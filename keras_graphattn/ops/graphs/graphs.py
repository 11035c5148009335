"""Graphs as data: NumPy edges, scipy.sparse matrices and networkx-like objects, read once.

The topology is known before training, so this file uses only NumPy and scipy. The tensor code gets
plain arrays from it.
"""

from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components, laplacian

from keras_graphattn.checks import checked, numpy_of, one_of, optional, whole
from keras_graphattn.ops.graphs.edge_lists import check_entries, edges_of_graph

Array = np.ndarray[Any, np.dtype[Any]]


def an_adjacency(name: str, value: Any, sizes: Any = None) -> Any:
    """The rule for a graph from `read_graph`: a square scipy.sparse matrix."""
    if not scipy.sparse.issparse(value) or value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(f"`{name}` must be a graph from `read_graph`. Received: {name}={value!r}")
    return value


def read_graph(graph: Any, num_nodes: int | None = None, edge_weights: Any = None) -> Any:
    """Reads an undirected weighted graph as a symmetric scipy.sparse matrix.

    Args:
        graph: One of three forms. An integer array of shape (E, 2), one edge per row in either
            direction; an edge that is given several times, or in both directions, counts once. A
            symmetric scipy.sparse matrix of edge weights, with one entry in each place. An object
            like a networkx graph, with `nodes` and `edges`: its nodes are numbered in the order of
            `nodes`, and the edge attribute "weight" is the weight, 1 by default. A directed graph
            must have every edge in both directions. In all forms, an edge of weight 0 is an error,
            which an entry of 0 in a scipy.sparse matrix is, too.
        num_nodes: Number of nodes n; by default the number that the edges or the matrix show.
        edge_weights: Optional numbers, one per row of an edge array; 1 by default.

    Returns:
        A float64 `scipy.sparse.csr_array` of shape (n, n) with sorted indices and no diagonal.

    Raises:
        ValueError: For nodes out of range, loops, edges with two weights, weights that are not
            positive finite numbers, matrices that are not square and symmetric, and directed graphs
            with an edge in one direction only.
        TypeError: For any other object.

    Example:

    >>> read_graph([[0, 1], [1, 2]]).toarray().tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    num_nodes = optional(whole(0))("num_nodes", num_nodes, {})
    if scipy.sparse.issparse(graph):
        return _from_matrix(graph, num_nodes, edge_weights)
    if hasattr(graph, "nodes") and hasattr(graph, "edges"):
        graph, num_nodes, edge_weights = _from_networkx(graph, num_nodes, edge_weights)
    edges = _edge_array(graph)
    num_nodes = _checked_count(edges, num_nodes)
    weights = _checked_weights(edge_weights, len(edges))
    edges, weights = edges_of_graph(edges, weights)
    low, high = edges.min(axis=1), edges.max(axis=1)
    rows, columns = np.concatenate([low, high]), np.concatenate([high, low])
    values = np.concatenate([weights, weights])
    matrix = scipy.sparse.coo_array((values, (rows, columns)), shape=(num_nodes, num_nodes))
    return _sorted(matrix)


def graph_edges(adjacency: Any) -> tuple[Array, Array]:
    """Returns the edges (E, 2), smaller node first, and weights (E,) of a symmetric matrix."""
    upper = scipy.sparse.coo_array(scipy.sparse.triu(adjacency, k=1))
    return np.stack([upper.row, upper.col], axis=1).astype("int64"), upper.data


@checked(adjacency=an_adjacency, operator=one_of("laplacian", "normalized_laplacian", "adjacency"))
def graph_operator(adjacency: Any, operator: str) -> tuple[Any, float, float]:
    """Returns the symmetric matrix S of a mask f(S), and an interval with all its eigenvalues.

    Args:
        adjacency: The graph, as `read_graph` returns it.
        operator: `"laplacian"` (D - A), `"normalized_laplacian"` (I - D^-1/2 A D^-1/2, 0 at
            isolated nodes) or `"adjacency"` (A).

    Returns:
        The matrix (float64 `csr_array`) and the ends of the interval.

    Raises:
        ValueError: For an unknown `operator`.

    Example:

    >>> laplacian, low, high = graph_operator(read_graph([[0, 1]]), "laplacian")
    >>> laplacian.toarray().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if operator == "adjacency":
        radius = spectral_radius(adjacency)
        return adjacency, -radius, radius
    if operator in ("laplacian", "normalized_laplacian"):
        is_normalised = operator == "normalized_laplacian"
        matrix = _sorted(laplacian(adjacency, normed=is_normalised, form="array"))
        # no eigenvalue of D - A is above the largest eigenvalue of D + A
        return matrix, 0.0, 2.0 if is_normalised else spectral_radius(abs(matrix))
    raise ValueError(
        '`operator` must be "laplacian", "normalized_laplacian" or "adjacency". Received: '
        f"operator={operator!r}"
    )


def spectral_radius(matrix: Any, iterations: int = 100) -> float:
    """Returns an upper bound of the largest eigenvalue of a symmetric nonnegative matrix.

    For every positive vector v, the largest (A v)_i / v_i is such a bound (Collatz and Wielandt).
    Steps of the power method make it tight.

    Args:
        matrix: A scipy.sparse matrix.
        iterations: Number of steps.

    Returns:
        The bound, at least 1e-6, so that a division by it is safe.
    """
    vector, best = np.ones(matrix.shape[0]), np.inf
    for _ in range(iterations):
        image = matrix @ vector
        best = min(best, float((image / vector).max(initial=0.0)))
        vector = (
            image + max(best, 1e-6) / 2.0 * vector
        )  # shifted, or it oscillates on a bipartite graph
        vector = np.maximum(vector / vector.max(initial=1e-300), 1e-100)
    return max(best, 1e-6)


def spectrum_by_component(matrix: Any) -> tuple[Array, Array]:
    """Returns eigenvalues (n,) and eigenvectors (n, n) of a symmetric matrix, by component.

    Each eigenvector is exactly 0 outside one component. So a function of the matrix never joins two
    components, not even by rounding.

    Args:
        matrix: A symmetric scipy.sparse matrix of shape (n, n).

    Example:

    >>> values, vectors = spectrum_by_component(scipy.sparse.diags_array([3.0, 1.0]))
    >>> values.tolist(), vectors.tolist()
    ([3.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
    """
    matrix = scipy.sparse.csr_array(matrix)
    _, component = connected_components(matrix, directed=False)
    values, vectors = matrix.diagonal(), np.eye(matrix.shape[0])
    order = np.argsort(component, kind="stable")
    for nodes in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        if len(nodes) > 1:
            block = np.ix_(nodes, nodes)
            values[nodes], vectors[block] = np.linalg.eigh(matrix[nodes][:, nodes].toarray())
    return values, vectors


@checked(adjacency=an_adjacency)
def transition_matrix(adjacency: Any) -> Any:
    """Returns the matrix of one step of a random walk. Rows sum to 1, or to 0 at isolated nodes.

    Example:

    >>> transition_matrix(read_graph([[0, 1], [1, 2]])).toarray().tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    """
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    matrix = _sorted(adjacency)
    # a division of each entry: the inverse of a degree of 1e-310 would be infinite
    matrix.data /= np.repeat(np.where(degrees > 0, degrees, 1.0), np.diff(matrix.indptr))
    return matrix


def _sorted(matrix: Any) -> Any:
    matrix = scipy.sparse.csr_array(matrix).astype("float64")
    matrix.sum_duplicates()
    matrix.sort_indices()
    return matrix


def _from_matrix(graph: Any, num_nodes: int | None, edge_weights: Any) -> Any:
    if edge_weights is not None:
        raise ValueError(
            "A sparse matrix has its own weights. Received: `edge_weights` as well. Leave it out."
        )
    if graph.shape != (graph.shape[0],) * 2 or num_nodes not in (None, graph.shape[0]):
        raise ValueError(
            f"The matrix of a `graph` must have one row and one column per node. Received: shape "
            f"{graph.shape}, num_nodes={num_nodes}"
        )
    if graph.dtype.kind not in "biuf":
        raise ValueError(
            f"The matrix of a `graph` must have real numbers. Received: dtype {graph.dtype}. "
            "Convert it, for example with `graph.astype('float64')`."
        )
    check_entries(graph)
    matrix = _sorted(graph)
    matrix.eliminate_zeros()
    # by entry: beside a weight of 1e12, an edge of weight 1 in one direction only is not rounding
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


def _from_networkx(
    graph: Any, num_nodes: int | None, edge_weights: Any
) -> tuple[Array, int, list[float]]:
    names = {name: i for i, name in enumerate(graph.nodes)}
    if num_nodes not in (None, len(names)) or edge_weights is not None:
        raise ValueError(
            f"The graph has {len(names)} nodes and its own weights. Received: "
            f"num_nodes={num_nodes}, edge_weights={edge_weights!r}. Leave both out."
        )
    found = list(graph.edges(data="weight", default=1.0))
    edges = np.array([(names[u], names[v]) for u, v, _ in found], "int64").reshape((-1, 2))
    given = {(u, v) for u, v in edges.tolist()}
    directed = getattr(graph, "is_directed", False)
    directed = directed() if callable(directed) else directed
    one_way = [(u, v) for u, v in given if directed and (v, u) not in given]
    if one_way:
        u, v = (list(names)[node] for node in min(one_way))
        raise ValueError(
            "A directed `graph` must have every edge in both directions. Received: an edge from "
            f"{u!r} to {v!r} and none back. To ignore directions, use `graph.to_undirected()`."
        )
    return edges, len(names), [1.0 if w is None else float(w) for _, _, w in found]


def numbers_of(name: str, given: Any) -> Array:
    """Returns an array of real numbers.

    Raises:
        ValueError: For any other value.
    """
    array: Array = numpy_of(given)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"`{name}` must be numbers. Received: {name}={given!r}")
    return array


def _edge_array(graph: Any) -> Array:
    edges: Array = numpy_of(graph)
    if edges.dtype.kind not in "iuf":
        edges = np.asarray(None)
    if edges.size == 0 and edges.dtype != object:
        return np.zeros((0, 2), "int64")
    if edges.ndim != 2 or edges.shape[1] != 2 or not np.issubdtype(edges.dtype, np.integer):
        columns = edges.ndim == 2 and edges.shape[0] == 2  # as `edge_index` of PyTorch Geometric
        hint = " One edge is one row: give its transpose, np.transpose(edges)." if columns else ""
        raise TypeError(
            "`graph` must be an integer array of edges of shape (E, 2), a scipy.sparse matrix, or "
            f"an object with `nodes` and `edges`. Received: {type(graph).__name__} of shape "
            f"{edges.shape}, dtype {edges.dtype}.{hint}"
        )
    return edges.astype("int64")


def _checked_count(edges: Array, num_nodes: int | None) -> int:
    named = int(edges.max(initial=-1)) + 1
    count = named if num_nodes is None else whole(0)("num_nodes", num_nodes, {})
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
