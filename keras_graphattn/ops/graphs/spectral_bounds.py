"""Checks of bounds of a graph operator's largest eigenvalue.

A Chebyshev series for [0, bound] is wrong if an eigenvalue is outside: it grows without limit.
"""

from typing import Any

import numpy as np
import scipy.sparse.linalg

from keras_graphattn.ops.graphs.edge_lists import repeated_edges

Array = np.ndarray[Any, np.dtype[Any]]

BOUND_SLACK = 1.0 + 1e-5  # allows for the rounding of degrees in float32; a series tolerates it
SMALL = 256  # up to this number of nodes, all eigenvalues are computed


def checked_bound(bound: float, operator: Any, upper: float) -> float:
    """Checks the bound that the caller gives for a constant graph.

    Args:
        bound: The caller's bound.
        operator: The symmetric scipy.sparse matrix.
        upper: A bound that is certainly right.

    Returns:
        `bound`.

    Raises:
        ValueError: If the largest eigenvalue is above it.

    Example:

    >>> checked_bound(2.5, scipy.sparse.csr_array([[1.0, -1.0], [-1.0, 1.0]]), 4.0)
    2.5
    """
    if bound >= upper:
        return bound
    count = operator.shape[0]
    if count <= SMALL:
        largest = float(np.linalg.eigvalsh(operator.toarray()).max(initial=0.0))
    else:
        start = np.random.default_rng(0).uniform(0.5, 1.5, count)
        # well within the slack: the last digits take minutes for a long path
        found = scipy.sparse.linalg.eigsh(operator, 1, which="LA", v0=start, tol=2e-6)
        largest = float(found[0][0])
    if largest > BOUND_SLACK * bound:
        raise ValueError(
            f"`spectral_bound` must not be below the largest eigenvalue of the operator, "
            f"{largest:.6g}. Received: spectral_bound={bound!r}. Leave it out: then it "
            "comes from the graph."
        )
    return bound


def check_degrees(edges: Array, weights: Array | None, operator: str, bound: float) -> None:
    """Raises a `ValueError` for the first graph of a batch whose degrees exceed a bound.

    Args:
        edges: Integers of shape (B, E, 2); an edge with a negative node is padding.
        weights: Positive numbers of shape (B, E), or `None`.
        operator: `"laplacian"` or `"adjacency"`.
        bound: The largest valid value of `degree_bounds`.
    """
    found = degree_bounds(edges, weights, operator)
    wrong = np.flatnonzero(found > BOUND_SLACK * bound)
    if len(wrong):
        example, value = wrong[0], found[wrong[0]]
        least = "d_u + d_v" if operator == "laplacian" else "sqrt(d_u d_v)"
        raise ValueError(
            f"`edges` of example {example}: the largest {least} over its edges (u, v) is "
            f"{value:.6g}, but the mask has spectral_bound={bound:g}. Give a `spectral_bound` "
            'that holds for all graphs, or use operator="normalized_laplacian".'
        )


def degree_bounds(edges: Array, weights: Array | None, operator: str) -> Array:
    """Bounds each graph's largest eigenvalue by the degrees of its edges' ends, in float64.

    Args:
        edges: Integers of shape (B, E, 2); an edge with a negative node is padding.
        weights: Positive numbers of shape (B, E), or `None`.
        operator: `"laplacian"`: the largest d_u + d_v; `"adjacency"`: the largest sqrt(d_u d_v).

    Returns:
        Numbers of shape (B,); 0 for a graph without edges.

    Example:

    >>> degree_bounds(np.array([[[0, 1], [1, 2], [1, 0]]]), None, "laplacian")
    array([3.])
    """
    batch = len(edges)
    known = (edges >= 0).all(axis=2)
    known.ravel()[repeated_edges(edges)[0]] = False  # each edge counts once
    nodes = max(int(edges.max(initial=-1)) + 1, 1)
    ends = np.arange(batch)[:, None, None] * nodes + np.maximum(edges, 0)
    of_edges = known.astype("float64")
    if weights is not None:
        of_edges = np.where(known, weights, 0.0)
    degrees = np.bincount(ends.ravel(), np.repeat(of_edges.ravel(), 2), minlength=batch * nodes)[
        ends
    ]
    # degrees of both ends, (B, E, 2) -> (B, E)
    pairs = np.prod(degrees, axis=2) ** 0.5 if operator == "adjacency" else degrees.sum(axis=2)
    found: Array = np.where(known, pairs, 0.0).max(axis=1, initial=0.0)
    return found
