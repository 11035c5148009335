"""Lists of edges as NumPy data, for one graph or for a batch of graphs. Each edge counts once.

Most libraries give an undirected edge twice, once in each direction. Here an edge that is given
several times, in either direction, counts once. Its weights must be equal.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SAME_WEIGHT = 1e-6  # weights of one edge are equal up to this difference, relative to the larger


def repeated_edges(edges: Array) -> tuple[Array, Array]:
    """Finds the edges that are repeated.

    Args:
        edges: Integers of shape (B, E, 2); an edge with a negative node is padding.

    Returns:
        Two arrays of the same length: the places (b E + e) of repeated edges, and for each of them
        the previous place of the same edge in the list.

    Example:

    >>> repeated_edges(np.array([[[0, 1], [1, 2], [1, 0]]]))
    (array([2]), array([0]))
    """
    batch = len(edges)
    low, high = edges.min(axis=2).astype("int64"), edges.max(axis=2).astype("int64")
    nodes = int(high.max(initial=-1)) + 1
    keys = (np.arange(batch)[:, None] * nodes + low) * nodes + high
    known = np.flatnonzero(low.ravel() >= 0)
    keys = keys.ravel()[known]
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():  # the usual case: skip the slower stable sort
        nothing = np.zeros(0, "int64")
        return nothing, nothing
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    return known[order[same + 1]], known[order[same]]


def disagreeing(weights: Array, later: Array, earlier: Array) -> Array:
    """Finds the pairs of places whose weights differ by more than rounding.

    Args:
        weights: Numbers, one for each place.
        later: Places of edges.
        earlier: Places of the same edges.

    Returns:
        The indices of these pairs.

    Example:

    >>> disagreeing(np.array([1.0, 2.0, 3.0]), np.array([2]), np.array([0]))
    array([0])
    """
    one, other = weights[later], weights[earlier]
    return np.flatnonzero(np.abs(one - other) > SAME_WEIGHT * np.maximum(one, other))


def edges_of_graph(edges: Array, weights: Array) -> tuple[Array, Array]:
    """Returns the edges of one graph, each of them once.

    Args:
        edges: Integers of shape (E, 2), not negative.
        weights: Positive numbers of shape (E,).

    Returns:
        The edges and weights without repeated edges.

    Raises:
        ValueError: For an edge with two different weights.

    Example:

    >>> edges_of_graph(np.array([[0, 1], [1, 0]]), np.ones(2))[0].tolist()
    [[0, 1]]
    """
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
    kept = np.ones(len(edges), "bool")
    kept[later] = False
    return edges[kept], weights[kept]


def check_entries(matrix: Any) -> None:
    """Raises a `ValueError` for a scipy.sparse matrix with a stored 0, or two entries in one place.

    scipy adds such entries, so an edge that is given twice would count double. A stored 0 is an
    edge of weight 0, which no graph has. Where a format fills up with zeros, they are no edges.
    """
    if matrix.format in ("bsr", "dia"):
        return
    entries = matrix.tocoo()
    zero = np.flatnonzero(entries.data == 0)
    if len(zero):
        place = int(entries.row[zero[0]]), int(entries.col[zero[0]])
        raise ValueError(
            f"Weights of edges of `graph` must be positive. Received: a stored 0 at {place}, and "
            f"{len(zero)} such in all. To leave these edges out, call `graph.eliminate_zeros()`."
        )
    keys = entries.row.astype("int64") * matrix.shape[1] + entries.col
    places, counts = np.unique(keys, return_counts=True)
    if (counts > 1).any():
        row, column = divmod(int(places[np.argmax(counts > 1)]), matrix.shape[1])
        raise ValueError(
            f"The matrix of a `graph` must have one entry in each place. Received: several at "
            f"({row}, {column}). If scipy may add them, call `graph.sum_duplicates()` first."
        )
