"""Masks over graphs: how much heat flows from one token to another along the edges."""

from typing import Any

import keras
import numpy as np
import scipy.special
from keras import ops

from keras_graphattn.checks import flag, number, one_of, optional
from keras_graphattn.masks.diffusion_graph import (
    DiffusionGraph,
    inexact_resolvent,
    interval_of_batches,
    read_diffusion_graph,
    refuse_poles,
)
from keras_graphattn.masks.inputs import Tensors, either
from keras_graphattn.masks.topology import (
    ROWS_FROM_MATRIX,
    TopologyMask,
    finite,
    from_nodes,
    in_float32,
    to_nodes,
)
from keras_graphattn.ops.graphs.diffusion import (
    chebyshev_coefficients,
    chebyshev_terms,
    resolvent_error,
    spectral_product,
)
from keras_graphattn.ops.graphs.example_diffusion import (
    OperatorOfBatch,
    exponential_matrix_of_batch,
    exponential_product_of_batch,
    graph_operator_of_batch,
    spectral_matrix_of_batch,
    spectral_product_of_batch,
)
from keras_graphattn.ops.graphs.example_topology import largest_eigenvalue_bound
from keras_graphattn.ops.graphs.graphs import graph_edges
from keras_graphattn.ops.graphs.heat import (
    LONGEST_PART_OF_MATRIX,
    PositiveOperator,
    check_exponent,
    exponential_matrix,
    exponential_product,
    series_sizes,
)
from keras_graphattn.ops.graphs.spectral_bounds import BOUND_SLACK, check_degrees

Tensor = Any

OPERATORS = ("laplacian", "normalized_laplacian", "adjacency")
SPECTRAL_FUNCTIONS = ("heat", "resolvent")
RESOLVENT_ERROR = 1e-5  # largest error of a row by its series, relative to its largest entry


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphDiffusion(TopologyMask):
    """M = exp(-t L) on the nodes of a graph, with a learned time t per head.

    L is the plain or the normalised Laplacian; with the adjacency matrix A, M = exp(t A). The path
    "series" never forms M: M x is a series of positive terms in the sparse matrix, O(edges) per
    term. `tolerance` sets the number of terms, for the longest time. With `function="resolvent"`,
    M is (I + t L)^-1, by a Chebyshev series. For any other function of the operator, write a
    subclass with your own `spectral_function`.

    Entries between two components of the graph are exactly 0 on every path. Values of one
    component, NaN included, never reach another component. Every path is exact row by row: in
    float32 the error of a row is at most `tolerance` + 1e-6 + 2e-7 t r, relative to its largest
    entry. Here r is the largest degree (1 if normalised, the spectral radius of an adjacency
    matrix). A resolvent has the path "series" only if its series is exact to 1e-5. The error of
    your own function is at most 1e-6 of its largest value.

    "auto" uses the matrix for up to about 128 nodes (for attention, 1024) and the series for more,
    as benchmarks/tree_and_graph_masks.py measures.

    Args:
        graph: An integer array of edges of shape (E, 2), a symmetric scipy.sparse matrix of edge
            weights, or an object like a networkx graph. `None` if each example of a batch has its
            own graph: then the calls take `edges`, integers of shape (B, E, 2). Nodes are numbered
            within the example, and (-1, -1) is padding. In both cases an edge counts once, even
            if it is given several times or in both directions. An edge from a node to itself is
            an error.
        edge_weights: Positive weights, one per edge of an array; 1 by default. With `graph=None`,
            `True` makes the calls take `edge_weights` of shape (B, E), which get gradients. The
            weights of an edge that is given several times must be equal.
        num_nodes: Number of nodes, if the edges do not name them all.
        operator: `"laplacian"` (D - A), `"normalized_laplacian"` (I - D^-1/2 A D^-1/2, 0 at
            isolated nodes) or `"adjacency"`.
        function: `"heat"` or `"resolvent"`.
        initial_time: Start value of t, a positive number or one per head.
        max_time: Learned times stay below this; by default, twice the largest start value. The
            number of terms grows with it, up to 2000.
        learn_time: Whether t is learned. `False` keeps its start value and needs fewest terms.
        tolerance: Largest sum of the dropped terms, relative to each row of M; 1e-6 by default,
            1e-14 for a float64 mask.
        spectral_bound: Bound of the operator's largest eigenvalue. By default it comes from the
            graph, and a bound below the largest eigenvalue is an error. It is needed with
            `graph=None`, unless the Laplacian is normalised (then it is 2). For the plain
            Laplacian it must be at least the largest d_u + d_v over the edges (u, v) of every
            graph, for the adjacency matrix the largest sqrt(d_u d_v). An example with a larger
            value is an error, because a series is wrong outside its interval.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

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

    Source: Choromanski et al., arXiv 2107.07999, Eq. 4 and Theorem 4.1. Our additions: the
    Chebyshev series, other functions and operators, and one graph per example.
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
        refuse_poles(operator, function)
        self.operator, self.function, self.tolerance = operator, function, tolerance
        self.initial_time = finite("initial_time", initial_time, positive=True)
        self.learn_time = flag("learn_time", learn_time)
        longest = float(np.max(self.initial_time))
        self.max_time = longest * (2.0 if learn_time else 1.0) if max_time is None else max_time
        self.max_time = number(above=0.0)("max_time", self.max_time, {})
        if self.max_time < longest or (learn_time and self.max_time == longest):
            raise ValueError(
                "`max_time` must be larger than every initial time. Received: "
                f"max_time={max_time!r}, initial_time={initial_time!r}. Use a larger `max_time`."
            )
        self.spectral_bound = spectral_bound
        self._read(graph, edge_weights, num_nodes, spectral_bound)
        self._plan_series()

    def _plan_series(self) -> None:
        """Sets the number of terms, and the paths that are exact enough."""
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
        if self._graph is None:  # then its matrix comes from the same series
            raise inexact_resolvent(self.max_time, high)
        self.paths = ("dense",)

    @property
    def _is_heat(self) -> bool:
        own = type(self).spectral_function is not GraphDiffusion.spectral_function
        return self.function == "heat" and not own

    def _read(
        self, graph: Any, edge_weights: Any, num_nodes: int | None, bound: float | None
    ) -> None:
        self._graph: DiffusionGraph | None = None
        if graph is None:
            self.interval = interval_of_batches(edge_weights, self.operator, bound)
            self.inputs_at_call = ("edges", "edge_weights") if edge_weights else ("edges",)
            return
        self._graph = read_diffusion_graph(graph, edge_weights, num_nodes, self.operator, bound)
        self.interval = self._graph.interval
        self.num_nodes = self._graph.adjacency.shape[0]

    @property
    def _positive(self) -> PositiveOperator | None:
        """The operator of the series with only positive terms, if the mask uses it."""
        return self._graph.positive if self._graph is not None and self._is_heat else None

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
            library: `numpy` or `keras.ops`, depending on the type of `x`.
            x: Eigenvalues, of shape (..., 1) or (...,).
            time: t: a number, or one per head.

        Returns:
            f(x), of the shape of `x * time`.
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
        if self._graph is None:
            return self._signal_of_batch(x, time, inputs)
        nodes = to_nodes(x)  # (T, N, B D)
        if self._positive is not None:
            found = exponential_product(nodes, time, self._positive, self._sizes)
        else:
            found = spectral_product(nodes, self._coefficients(time), self._graph.chebyshev)
        return from_nodes(found, x)

    def _operator_of_batch(self, length: Any, dtype: Any, inputs: Tensors) -> OperatorOfBatch:
        dtype = keras.backend.standardize_dtype(dtype)
        weights = inputs.get("edge_weights")
        return graph_operator_of_batch(inputs["edges"], weights, length, self.operator, dtype)

    def _signal_of_batch(self, x: Tensor, time: Tensor, inputs: Tensors) -> Tensor:
        shape = ops.shape(x)
        apply = self._operator_of_batch(shape[1], x.dtype, inputs)
        nodes = ops.reshape(x, (-1, *shape[2:]))  # (B T, N, D): one graph of all examples
        if self._is_heat:
            found = exponential_product_of_batch(nodes, time, apply, shape[1], self._sizes)
        else:
            series = self._coefficients(time), apply, *self.interval
            found = spectral_product_of_batch(nodes, *series)
        return ops.reshape(found, shape)

    def _coefficients(self, time: Tensor) -> Tensor:
        return chebyshev_coefficients(
            lambda nodes: self.spectral_function(ops, nodes, time),
            *self.interval,
            self.num_terms,
            keras.backend.standardize_dtype(time.dtype),
        )

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        if self._graph is None:
            return self._matrix_of_batch(length, parameters, inputs)
        time = parameters["time"]
        if self._positive is not None:
            return exponential_matrix(time, self._positive, self._matrix_sizes)[None]
        values, vectors = (ops.convert_to_tensor(a, dtype=time.dtype) for a in self._graph.spectrum)
        factors = self.spectral_function(ops, values[:, None], time)  # (T, N)
        return ops.einsum("ik,kn,jk->nij", vectors, factors, vectors)[None]

    def _matrix_of_batch(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        time, batch = parameters["time"], ops.shape(inputs["edges"])[0]
        if isinstance(length, int) and length > ROWS_FROM_MATRIX:  # powers cost O(T^3)
            return self._rows(ops.arange(length, dtype="int32"), length, parameters, inputs)
        given = self._operator_of_batch(length, time.dtype, inputs), batch, length
        if self._is_heat:
            return exponential_matrix_of_batch(time, *given, self._sizes)
        return spectral_matrix_of_batch(self._coefficients(time), *given, *self.interval)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        if self._graph is None:
            config |= {"graph": None, "edge_weights": "edge_weights" in self.inputs_at_call}
        else:
            edges, weights = graph_edges(self._graph.adjacency)
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
