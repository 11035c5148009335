"""Masks over graphs: how much of a token's heat reaches another along the edges."""

from functools import cached_property
from typing import Any

import keras
import numpy as np
import scipy.sparse
import scipy.special
from keras import ops

from keras_graphattn.checks.arguments import flag, number, one_of, optional
from keras_graphattn.masks.input_checks import either
from keras_graphattn.masks.mask import Tensors
from keras_graphattn.masks.topology import (
    TopologyMask,
    finite,
    from_nodes,
    in_float32,
    to_nodes,
)
from keras_graphattn.ops.graphs.diffusion import (
    chebyshev_coefficients,
    chebyshev_matrix,
    chebyshev_terms,
    graph_operator_of_batch,
    resolvent_error,
    spectral_product,
    spectral_product_of_batch,
)
from keras_graphattn.ops.graphs.example_topology import largest_eigenvalue_bound
from keras_graphattn.ops.graphs.graphs import (
    graph_edges,
    graph_operator,
    read_graph,
    spectrum_by_component,
)
from keras_graphattn.ops.graphs.heat import (
    LONGEST_PART_OF_MATRIX,
    PositiveOperator,
    check_exponent,
    exponential_matrix,
    exponential_product,
    exponential_product_of_batch,
    positive_operator,
    series_sizes,
)
from keras_graphattn.ops.graphs.sparse import SparseMatrix
from keras_graphattn.ops.graphs.spectral_bounds import BOUND_SLACK, check_degrees, checked_bound

Tensor = Any

OPERATORS = ("laplacian", "normalized_laplacian", "adjacency")
SPECTRAL_FUNCTIONS = ("heat", "resolvent")
RESOLVENT_ERROR = 1e-5  # of a row by its series, relative to the row's largest entry


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphDiffusion(TopologyMask):
    """M = exp(-t L) on the nodes of a graph, the time t learned per head; O(edges) per term.

    L is the plain or the normalised Laplacian; with the adjacency matrix A, M = exp(t A). M is
    never formed: M x is a series of positive terms in the sparse matrix, whose number `tolerance`
    fixes at the longest time. `function="resolvent"` takes (I + t L)^-1 in place of the
    exponential, by a Chebyshev series. For any other function of the operator, subclass and write
    `spectral_function`.

    Entries between two components of the graph are exactly 0 on every path, and what one component
    holds, NaN included, never reaches another. Every path is exact row by row: in float32 the error
    of a row is at most `tolerance` + 1e-6 + 2e-7 t r, relative to its largest entry, r being the
    largest degree (1 if normalised, the spectral radius of an adjacency matrix). A resolvent
    has the path "series" only where its series is that exact (1e-5). A function of your own is
    right to 1e-6 of its largest value.

    "auto" takes the series beyond about 128 nodes (for attention, 1024) and the matrix below:
    measured in benchmarks/tree_and_graph_masks.py.

    Args:
        graph: An integer array of edges of shape (E, 2), a symmetric scipy.sparse matrix of edge
            weights, or an object like a networkx graph. `None` where each example of a batch has
            its own: then the calls get `edges`, integers of shape (B, E, 2), nodes numbered within
            the example, (-1, -1) for padding. Here and there an edge counts once, however often
            and in whichever direction it is given; an edge from a node to itself is an error.
        edge_weights: Positive weights, one per edge of an array; 1 by default. With `graph=None`,
            `True` makes the calls take `edge_weights` of shape (B, E), gradients included. The
            weights of an edge that is given several times must agree.
        num_nodes: Number of nodes, where edges do not name them all.
        operator: `"laplacian"` (D - A), `"normalized_laplacian"` (I - D^-1/2 A D^-1/2, 0 at
            isolated nodes) or `"adjacency"`.
        function: `"heat"` or `"resolvent"`.
        initial_time: Start of t, a positive number or one per head.
        max_time: Learned times stay below this; twice the largest start by default. The number of
            terms grows with it, to 2000 at most.
        learn_time: Whether t is learned. `False` fixes it at its start, at the fewest terms.
        tolerance: What the dropped terms add up to at most, relative to each row of M; 1e-6 by
            default, 1e-14 for a float64 mask.
        spectral_bound: Bound of the operator's largest eigenvalue. Needed with `graph=None`, unless
            the Laplacian is normalised (2): at least the largest d_u + d_v over the edges (u, v)
            of every graph for the plain one, sqrt(d_u d_v) for the adjacency matrix. An example
            with a larger one is an error, as a series is wrong beyond its interval. Else taken
            from the graph; one that is below the largest eigenvalue is refused.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer.

    Weights:
        `time_logit` of shape (num_heads,), with t = max_time sigmoid(time_logit).

    Raises:
        ValueError: For graphs that cannot be read, unknown names, and times, tolerances or bounds
            out of range.

    Example:

    >>> mask = GraphDiffusion([[0, 1]])
    >>> mask.build((None, 2, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0].astype(float).round(4).tolist()
    [[0.5677, 0.4323], [0.4323, 0.5677]]

    Source: Choromanski et al., arXiv 2107.07999, Eq. 4 and Theorem 4.1. Ours: the Chebyshev series,
    other functions and operators, and one graph per example.
    """

    paths: tuple[str, ...] = ("dense", "series")

    def __init__(
        self,
        graph: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        operator: str = "laplacian",
        function: str = "heat",
        initial_time: Any = 1.0,
        max_time: float | None = None,
        learn_time: bool = True,
        tolerance: float | None = None,
        spectral_bound: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, given, known in (
            ("operator", operator, OPERATORS),
            ("function", function, SPECTRAL_FUNCTIONS),
        ):
            one_of(*known)(name, given, {})
        tolerance = optional(number(above=0.0))("tolerance", tolerance, {})
        if function == "resolvent" and operator == "adjacency":
            raise ValueError(
                'The resolvent of an adjacency matrix has poles. Received: function="resolvent", '
                'operator="adjacency". Use a Laplacian.'
            )
        self.operator, self.function, self.tolerance = operator, function, tolerance
        self.initial_time = finite("initial_time", initial_time, positive=True)
        self.learn_time = flag("learn_time", learn_time)
        longest = float(np.max(self.initial_time))
        self.max_time = longest * (2.0 if learn_time else 1.0) if max_time is None else max_time
        self.max_time = number(above=0.0)("max_time", self.max_time, {})
        if self.max_time < longest or (learn_time and self.max_time == longest):
            raise ValueError(
                "`max_time` must be above the start of every time. Received: "
                f"max_time={max_time!r}, initial_time={initial_time!r}"
            )
        self.spectral_bound = spectral_bound
        self._read(graph, edge_weights, num_nodes, spectral_bound)
        self._plan_series()

    def _plan_series(self) -> None:
        """Fixes the number of terms, and which paths are exact."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-14 if self.variable_dtype == "float64" else 1e-6
        low, high = self.interval
        if self._is_heat:
            radius = high if self._positive is None else self._positive.radius
            if self._positive is None and self.operator == "normalized_laplacian":
                radius = 1.0
            if self.operator == "adjacency":
                check_exponent(radius, self.max_time)
            self._sizes = series_sizes(radius, self.max_time, tolerance)
            self._matrix_sizes = series_sizes(
                radius, self.max_time, tolerance, LONGEST_PART_OF_MATRIX
            )
            self.num_terms = self._sizes.terms * self._sizes.parts
            return
        self.num_terms = chebyshev_terms(
            lambda x: self.spectral_function(np, x, self.max_time), low, high, tolerance
        )
        error = resolvent_error(high, self.max_time, self.variable_dtype)
        if self.function != "resolvent" or error <= RESOLVENT_ERROR:
            return
        if self._adjacency is None:
            raise ValueError(
                "The series of this resolvent is not exact in float32. Received: times up to "
                f"{self.max_time:g} on an operator of up to {high:g}. Use shorter times, "
                'dtype="float64" or function="heat".'
            )
        self.paths = ("dense",)

    @property
    def _is_heat(self) -> bool:
        own = type(self).spectral_function is not GraphDiffusion.spectral_function
        return self.function == "heat" and not own

    def _read(
        self, graph: Any, edge_weights: Any, num_nodes: int | None, bound: float | None
    ) -> None:
        if bound is not None:
            number(above=0.0)("spectral_bound", bound, {})
        if graph is not None:
            adjacency = read_graph(graph, num_nodes, edge_weights)
            matrix, low, high = graph_operator(adjacency, self.operator)
            self._adjacency, self.num_nodes = adjacency, adjacency.shape[0]
            self._operator = scipy.sparse.csr_array(matrix)
            self._positive: PositiveOperator | None = positive_operator(adjacency, self.operator)
            high = high if bound is None else checked_bound(float(bound), matrix, high)
            self.interval = (-high if low < 0 else 0.0, high)
            return
        if edge_weights is not None and not isinstance(edge_weights, bool):
            raise ValueError(
                "Without a graph, `edge_weights` says whether the calls bring any. Received: "
                f"edge_weights={edge_weights!r}. Use True or None."
            )
        self._adjacency, self._positive = None, None
        self.inputs_at_call = ("edges", "edge_weights") if edge_weights else ("edges",)
        if self.operator == "normalized_laplacian":
            bound = 2.0 if bound is None else bound
            if bound < 2.0:
                raise ValueError(
                    "The eigenvalues of a normalised Laplacian reach 2, and graphs that come with "
                    f"each call may have such. Received: spectral_bound={bound!r}. Leave it out."
                )
        if bound is None:
            raise ValueError(
                "Graphs that come with each call need a bound of the operator's spectrum. "
                f"Received: operator={self.operator!r}, spectral_bound=None. Give one, or use "
                'operator="normalized_laplacian", whose bound is 2.'
            )
        self.interval = (-float(bound) if self.operator == "adjacency" else 0.0, float(bound))

    def _check_values(self, inputs: dict[str, Any], length: int | None) -> bool:
        plain = super()._check_values(inputs, length)
        has_weights = "edge_weights" in self.inputs_at_call
        if self.operator != "normalized_laplacian" and len(inputs) == 1 + has_weights:
            weights = inputs.get("edge_weights")
            check_degrees(inputs["edges"], weights, self.operator, self.interval[1])
        return plain

    def _bounded(self, inputs: Tensors, length: Any) -> tuple[Tensors, Tensor | None]:
        found, wrong = super()._bounded(inputs, length)
        if self.operator == "normalized_laplacian":
            return found, wrong
        bounds = largest_eigenvalue_bound(
            found["edges"], found.get("edge_weights"), length, self.operator
        )
        beyond = ops.logical_or(bounds > BOUND_SLACK * self.interval[1], ops.isnan(bounds))
        return found, either(wrong, beyond)

    def spectral_function(self, library: Any, x: Any, time: Any) -> Any:
        """f of the operator's eigenvalues.

        Args:
            library: `numpy` or `keras.ops`, whichever `x` belongs to.
            x: Eigenvalues, of shape (..., 1) or (...,).
            time: t: a number, or one per head.

        Returns:
            f(x), of the shape that `x * time` has.
        """
        if self.function == "resolvent":
            return 1.0 / (1.0 + time * x)
        return library.exp(time * x if self.operator == "adjacency" else -time * x)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self._start = self._of_heads("initial_time", self.initial_time)
        if self.learn_time:
            logit = scipy.special.logit(self._start / self.max_time)
            self.time_logit = self._add_parameter("time_logit", logit)

    @property
    def time(self) -> Tensor:
        """t of each head, of shape (num_heads,)."""
        if not self.learn_time:
            return self._constant(self._start)
        return self.max_time * ops.sigmoid(in_float32({"logit": self.time_logit})["logit"])

    def parameters(self) -> Tensors:
        return {"time": self.time}

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        time = parameters["time"]
        if self._adjacency is None:
            return self._signal_of_batch(x, time, inputs)
        nodes = to_nodes(x)
        if self._positive is not None and self._is_heat:
            found = exponential_product(nodes, time, self._positive, self._sizes)
        else:
            found = spectral_product(nodes, self._coefficients(time), self._chebyshev_matrix)
        return from_nodes(found, x)

    def _signal_of_batch(self, x: Tensor, time: Tensor, inputs: Tensors) -> Tensor:
        shape, weights = ops.shape(x), inputs.get("edge_weights")
        dtype = keras.backend.standardize_dtype(x.dtype)
        apply = graph_operator_of_batch(inputs["edges"], weights, shape[1], self.operator, dtype)
        nodes = ops.reshape(x, (-1, *shape[2:]))
        if self._is_heat:
            found = exponential_product_of_batch(nodes, time, apply, shape[1], self._sizes)
        else:
            coefficients = self._coefficients(time)
            found = spectral_product_of_batch(nodes, coefficients, apply, *self.interval)
        return ops.reshape(found, shape)

    def _coefficients(self, time: Tensor) -> Tensor:
        return chebyshev_coefficients(
            lambda nodes: self.spectral_function(ops, nodes, time),
            *self.interval,
            self.num_terms,
            keras.backend.standardize_dtype(time.dtype),
        )

    @cached_property
    def _chebyshev_matrix(self) -> SparseMatrix:
        return chebyshev_matrix(self._operator, *self.interval)

    @cached_property
    def _spectrum(self) -> tuple[Any, Any]:
        return spectrum_by_component(self._operator)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._adjacency is None:
            columns = ops.eye(length, dtype=parameters["time"].dtype)
            columns = self._columns(columns, length, parameters, inputs)
            return ops.transpose(columns, (0, 2, 1, 3))
        time = parameters["time"]
        if self._positive is not None and self._is_heat:
            return exponential_matrix(time, self._positive, self._matrix_sizes)[None]
        values, vectors = (ops.convert_to_tensor(a, dtype=time.dtype) for a in self._spectrum)
        factors = self.spectral_function(ops, values[:, None], time)
        return ops.einsum("ik,kn,jk->nij", vectors, factors, vectors)[None]

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        if self._adjacency is None:
            config |= {"graph": None, "edge_weights": "edge_weights" in self.inputs_at_call}
        else:
            edges, weights = graph_edges(self._adjacency)
            config |= {"graph": edges.tolist(), "num_nodes": self.num_nodes}
            if (weights != 1.0).any():
                config["edge_weights"] = weights.tolist()
        return config | {
            "operator": self.operator,
            "function": self.function,
            "initial_time": self.initial_time,
            "max_time": self.max_time,
            "learn_time": self.learn_time,
            "tolerance": self.tolerance,
            "spectral_bound": self.spectral_bound,
        }
