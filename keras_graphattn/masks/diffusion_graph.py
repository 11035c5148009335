"""The graph of a `GraphDiffusion` mask: its operator, and the interval of the eigenvalues."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import scipy.sparse

from keras_graphattn.checks import number, optional
from keras_graphattn.ops.graphs.diffusion import chebyshev_matrix
from keras_graphattn.ops.graphs.graphs import graph_operator, read_graph, spectrum_by_component
from keras_graphattn.ops.graphs.heat import PositiveOperator, positive_operator
from keras_graphattn.ops.graphs.sparse import SparseMatrix
from keras_graphattn.ops.graphs.spectral_bounds import checked_bound

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class DiffusionGraph:
    """A graph that is the same at every call.

    Attributes:
        adjacency: Sparse matrix of edge weights, (n, n).
        operator: The Laplacian or the adjacency matrix, as a sparse matrix.
        positive: The form of the operator whose series has only positive terms, if there is one.
        interval: Bounds of the operator's eigenvalues.
    """

    adjacency: Any
    operator: Any
    positive: PositiveOperator | None
    interval: Interval

    @cached_property
    def chebyshev(self) -> SparseMatrix:
        """The matrix of the recurrence of a Chebyshev series."""
        return chebyshev_matrix(self.operator, *self.interval)

    @cached_property
    def spectrum(self) -> tuple[Any, Any]:
        """Eigenvalues and eigenvectors of the operator."""
        return spectrum_by_component(self.operator)


def read_diffusion_graph(
    graph: Any, edge_weights: Any, num_nodes: int | None, operator: str, bound: float | None
) -> DiffusionGraph:
    """Reads the graph of the constructor.

    Raises:
        ValueError: For a graph that cannot be read, or a bound below the largest eigenvalue.
    """
    bound = optional(number(above=0.0))("spectral_bound", bound, {})
    adjacency = read_graph(graph, num_nodes, edge_weights)
    matrix, low, high = graph_operator(adjacency, operator)
    high = high if bound is None else checked_bound(bound, matrix, high)
    return DiffusionGraph(
        adjacency,
        scipy.sparse.csr_array(matrix),
        positive_operator(adjacency, operator),
        (-high if low < 0 else 0.0, high),
    )


def interval_of_batches(edge_weights: Any, operator: str, bound: float | None) -> Interval:
    """Bounds of the eigenvalues of graphs that come with each call.

    Raises:
        ValueError: For a missing or too small bound, or for edge weights in the constructor.
    """
    bound = optional(number(above=0.0))("spectral_bound", bound, {})
    if edge_weights is not None and not isinstance(edge_weights, bool):
        raise ValueError(
            "Without a graph, `edge_weights` must be True if the calls take edge weights, else "
            f"None. Received: edge_weights={edge_weights!r}. Use True or None."
        )
    if operator == "normalized_laplacian":
        bound = 2.0 if bound is None else bound
        if bound < 2.0:
            raise ValueError(
                "The eigenvalues of a normalised Laplacian can be as large as 2 in graphs that "
                f"come with each call. Received: spectral_bound={bound!r}. Leave it out."
            )
    if bound is None:
        raise ValueError(
            "Graphs that come with each call need a bound of the operator's eigenvalues. "
            f"Received: operator={operator!r}, spectral_bound=None. Give `spectral_bound`, or use "
            'operator="normalized_laplacian", whose bound is 2.'
        )
    return (-bound if operator == "adjacency" else 0.0, bound)


def refuse_poles(operator: str, function: str) -> None:
    """Raises a `ValueError` for a function that is infinite at some eigenvalues."""
    if function == "resolvent" and operator == "adjacency":
        raise ValueError(
            'The resolvent of an adjacency matrix has poles. Received: function="resolvent", '
            'operator="adjacency". Use operator="laplacian" or "normalized_laplacian".'
        )


def inexact_resolvent(time: float, high: float) -> ValueError:
    """The error for a resolvent whose series loses too many digits."""
    return ValueError(
        "The series of this resolvent is not exact in float32. Received: times up to "
        f"{time:g} for eigenvalues up to {high:g}. Use shorter times, "
        'dtype="float64" or function="heat".'
    )
