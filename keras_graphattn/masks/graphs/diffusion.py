"""Heat on the nodes of a graph as a mask, by a series that is exact in every row.

S is -L or A. Let c be at least as large as each diagonal entry of L. Then B = S + c I has no
negative entry, and

    exp(t S) x = e^(-c t) sum_k t^k / k! B^k x

is a sum over walks of k steps with positive weights. No terms cancel. So the error of a row is
relative to the same row of |M| |x|, even if other rows are much larger. As e^(c t) would overflow
for a long time, the time is split into equal parts, exp(t S) = exp(t S / 2^p)^(2^p).

Source: Choromanski et al., arXiv 2107.07999, Eq. 4. The series is the one for the matrix
exponential of a Markov chain (uniformization).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
import scipy.sparse
import scipy.special
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array, flag, number, one_of, optional
from keras_graphattn.masks.graphs.edges import Graph, read_graph, repeated_edges, spectral_radius
from keras_graphattn.masks.graphs.sparse import SparseMatrix
from keras_graphattn.masks.inputs import Arrays, Flags, Length, Tensors, either
from keras_graphattn.masks.mask import (
    MaskOptions,
    Nodes,
    PerHead,
    Rows,
    Shape,
    Signal,
    TopologyMask,
    finite,
    from_nodes,
    reads_topology,
    to_nodes,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import identity, largest, positions_of, take
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.types import Bool, Float, Int, Tensor

OPERATORS = ("laplacian", "normalized_laplacian", "adjacency")
LONGEST_PART = 32.0  # largest t rho of one series: its sums are up to e^32 times the signal
LONGEST_PART_OF_MATRIX = 4.0  # the same, if the result is then squared as a matrix
MOST_TERMS = 2000
TERMS_AT_A_TIME = 8  # of a matrix, joined before they are multiplied by their coefficients
LARGEST_EXPONENT = 64.0  # of exp(t A): then float32 holds it, with signals and sums
BOUND_SLACK = 1.0 + 1e-5  # allows for the rounding of degrees in float32; a series tolerates it


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphDiffusion(TopologyMask):
    """M = exp(-t L) on the nodes of a graph, with a learned time t per head.

    L is the plain or the normalised Laplacian; with the adjacency matrix A, M = exp(t A). The path
    "series" never forms M: M x is a series of positive terms in the sparse matrix, O(edges) per
    term. `tolerance` sets the number of terms, for the longest time.

    Entries between two components of the graph are exactly 0 on every path. Values of one
    component, NaN included, never reach another component. Every path is exact row by row: in
    float32 the error of a row is at most `tolerance` + 1e-6 + 2e-7 t r, relative to its largest
    entry. Here r is the largest degree (1 if normalised, the spectral radius of an adjacency
    matrix).

    "auto" uses the matrix for up to about 128 nodes (for attention, 1024) and the series for more,
    as benchmarks/tree_and_graph_masks.py measures.

    Args:
        graph: An integer array of edges of shape (E, 2), a `keras_graphattn.graphs.Graph`, a
            symmetric scipy.sparse matrix of edge weights, or an object like a networkx graph.
            `None` if each example of a batch has its own graph: then the calls take `edges`,
            integers of shape (B, E, 2). Nodes are numbered within the example, and (-1, -1) is
            padding. In both cases an edge counts once, even if it is given several times or in
            both directions. An edge from a node to itself is an error.
        edge_weights: Positive weights, one per edge of an array; 1 by default. With `graph=None`,
            `True` makes the calls take `edge_weights` of shape (B, E), which get gradients. The
            weights of an edge that is given several times must be equal.
        num_nodes: Number of nodes, if the edges do not name them all.
        operator: `"laplacian"` (D - A), `"normalized_laplacian"` (I - D^-1/2 A D^-1/2, 0 at
            isolated nodes) or `"adjacency"`.
        function: `"heat"`, the only one.
        initial_time: Start value of t, a positive number or one per head.
        max_time: Learned times stay below this; by default, twice the largest start value. The
            number of terms grows with it, up to 2000.
        learn_time: Whether t is learned. `False` keeps its start value and needs fewest terms.
        tolerance: Largest sum of the dropped terms, relative to each row of M; 1e-6 by default,
            1e-14 for a float64 mask.
        spectral_bound: With `graph=None`, a bound of the operator's largest eigenvalue. It is
            needed unless the Laplacian is normalised (then it is 2). For the plain Laplacian it
            must be at least the largest d_u + d_v over the edges (u, v) of every graph, for the
            adjacency matrix the largest sqrt(d_u d_v). An example with a larger value is an error,
            because its series would have too few terms. A graph that is given needs no bound.
        **kwargs: Those of every `Mask`.

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

    Source: Choromanski et al., arXiv 2107.07999, Eq. 4 and Theorem 4.1. Our additions: the series
    of positive terms, other operators, and one graph per example.
    """

    paths: tuple[str, ...] = ("dense", "series")
    _settings = (
        *("operator", "function", "initial_time", "max_time", "learn_time", "tolerance"),
        "spectral_bound",
    )

    def __init__(
        self,
        graph: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        operator: str = "laplacian",
        function: str = "heat",
        initial_time: ArrayLike = 1.0,
        max_time: float | None = None,
        learn_time: bool = True,
        tolerance: float | None = None,
        spectral_bound: float | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.operator = one_of(*OPERATORS)("operator", operator, {})
        if function != "heat" or hasattr(self, "spectral_function"):
            raise ValueError(
                '`function` must be "heat": there are no resolvents and no functions of your own. '
                f"Received: function={function!r}, for a {type(self).__name__}. Leave it out, or "
                'use `GraphRandomFeatures(graph, series="regularized_laplacian")`, an estimate of '
                "(I + s L)^-1 for the normalised Laplacian."
            )
        self.function = "heat"
        self.tolerance = optional(number(above=0.0, below=1.0))("tolerance", tolerance, {})
        self.initial_time = finite("initial_time", initial_time, positive=True)
        self.learn_time = flag("learn_time", learn_time)
        latest = float(np.max(self.initial_time))
        self.max_time = latest * (2.0 if learn_time else 1.0) if max_time is None else max_time
        self.max_time = number(above=0.0)("max_time", self.max_time, {})
        if self.max_time < latest or (learn_time and self.max_time == latest):
            raise ValueError(
                "`max_time` must be larger than every initial time. Received: "
                f"max_time={max_time!r}, initial_time={initial_time!r}. Use a larger `max_time`."
            )
        self.spectral_bound = optional(number(above=0.0))("spectral_bound", spectral_bound, {})
        of_calls = {"num_nodes": num_nodes} if graph is None else {"spectral_bound": spectral_bound}
        for name, number_given in of_calls.items():
            if number_given is not None:
                wanted = "a graph" if graph is None else "graph=None"
                raise ValueError(
                    f"`{name}` is for masks with {wanted}. Received: {name}={number_given!r}, with "
                    f"{'graph=None' if graph is None else 'a graph'}. Leave it out."
                )
        if graph is None:
            self.inputs_at_call = self._read_edge_weights(edge_weights)
            self._bound = self._bound_of_examples()
            radius = 1.0 if operator == "normalized_laplacian" else self._bound
        else:
            self._adjacency = read_graph(graph, num_nodes, edge_weights)
            self.num_nodes = self._adjacency.shape[0]
            positive, shift, radius = positive_operator(self._adjacency, operator)
        if operator == "adjacency" and radius * self.max_time > LARGEST_EXPONENT:
            raise ValueError(
                f"exp(t A) is too large for float32 if t |A| is above {LARGEST_EXPONENT:g}. "
                f"Received: times up to {self.max_time:g}, an adjacency matrix of radius "
                f"{radius:g}. Use shorter times, or a Laplacian."
            )
        accuracy = 1e-14 if self.variable_dtype == "float64" else 1e-6
        accuracy = accuracy if tolerance is None else tolerance
        self._sizes = series_sizes(radius, self.max_time, accuracy)
        self.num_terms = self._sizes.terms * self._sizes.parts
        if graph is not None:
            short = series_sizes(radius, self.max_time, accuracy, LONGEST_PART_OF_MATRIX)
            self._heat = Heat(positive, shift, self._sizes, short)

    def _bound_of_examples(self) -> float:
        """The bound of the eigenvalues of graphs that come with each call."""
        bound = self.spectral_bound
        if self.operator == "normalized_laplacian":
            if bound is not None and bound < 2.0:
                raise ValueError(
                    "The eigenvalues of a normalised Laplacian can be as large as 2 in graphs that "
                    f"come with each call. Received: spectral_bound={bound!r}. Leave it out."
                )
            return 2.0
        if bound is None:
            raise ValueError(
                "Graphs that come with each call need a bound of the operator's eigenvalues. "
                f"Received: operator={self.operator!r}, spectral_bound=None. Give "
                '`spectral_bound`, or use operator="normalized_laplacian", whose bound is 2.'
            )
        return float(bound)

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        plain = super()._check_values(inputs, length)
        all_known = bool(self.inputs_at_call) and set(self.inputs_at_call) <= set(inputs)
        if self.operator == "normalized_laplacian" or not all_known:
            return plain
        bounds = degree_bounds(inputs["edges"], inputs.get("edge_weights"), self.operator)
        beyond = np.flatnonzero(bounds > BOUND_SLACK * self._bound)
        if len(beyond):
            least = "d_u + d_v" if self.operator == "laplacian" else "sqrt(d_u d_v)"
            raise ValueError(
                f"`edges` of example {beyond[0]}: the largest {least} over its edges (u, v) is "
                f"{bounds[beyond[0]]:.6g}, but the mask has spectral_bound={self._bound:g}. Give "
                "a `spectral_bound` that holds for all graphs, or use operator="
                '"normalized_laplacian".'
            )
        return plain

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        inputs, wrong = super()._bounded(inputs, length)
        if self.operator == "normalized_laplacian":
            return inputs, wrong
        bounds = self._examples(inputs, length, "float32").degree_bounds()
        beyond = ops.logical_or(bounds > BOUND_SLACK * self._bound, ops.isnan(bounds))
        return inputs, either(wrong, beyond)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self._start = self._of_heads("initial_time", self.initial_time)
        if self.learn_time:
            logit = scipy.special.logit(self._start / self.max_time)
            self.time_logit = self._add_parameter("time_logit", logit)

    @property
    def time(self) -> PerHead:
        """t of each head, of shape (num_heads,)."""
        if not self.learn_time:
            return self._constant(self._start)
        return self.max_time * ops.sigmoid(self._weights("time_logit")["time_logit"])

    def parameters(self) -> Tensors:
        return {"time": self.time}

    @reads_topology
    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        if self._adjacency is not None:
            return from_nodes(self._heat.product(to_nodes(x), parameters["time"]), x)
        examples = self._examples(inputs, ops.shape(x)[1], x.dtype)
        return examples.heat(x, parameters["time"], self._sizes)

    @reads_topology
    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        time = parameters["time"]
        if self._adjacency is not None:
            return self._heat.matrix(time)[None]
        return self._examples(inputs, length, time.dtype).heat_matrix(time, self._sizes)

    def _examples(self, inputs: Tensors, length: Length, dtype: object) -> "ExampleGraphs":
        weights, name = inputs.get("edge_weights"), keras.backend.standardize_dtype(dtype)
        return ExampleGraphs(inputs["edges"], weights, length, self.operator, name)


class SeriesSizes(NamedTuple):
    """The number of terms per part, the number of parts (a power of 2), and the longest time."""

    terms: int
    parts: int
    longest: float


def series_sizes(
    radius: float, time: float, tolerance: float, longest_part: float = LONGEST_PART
) -> SeriesSizes:
    """How many terms and parts a time needs, for eigenvalues of B up to `radius`.

    The dropped terms are at most `tolerance` times a row of M. `radius` times the time of one part
    is at most `longest_part`.
    """
    mean, parts, terms = radius * time, 1, MOST_TERMS + 1
    if mean <= MOST_TERMS:
        parts = 2 ** max(0, math.ceil(math.log2(max(mean / longest_part, 1e-9))))
        counts = np.arange(1, MOST_TERMS + 1)
        # The dropped terms add up to the probability that a Poisson variable is above `terms`.
        enough = scipy.special.pdtrc(counts, mean / parts) <= 0.1 * tolerance / parts
        terms = int(counts[np.argmax(enough)])
    in_turn = parts if longest_part == LONGEST_PART else 1
    if terms * in_turn > MOST_TERMS:
        raise ValueError(
            "The series needs more than 2000 terms. Received: times up to "
            f"{time:g}, eigenvalues up to {radius:g}, tolerance={tolerance:g}. Use "
            "shorter times or a larger tolerance."
        )
    return SeriesSizes(terms, parts, time)


def positive_operator(adjacency: Graph, operator: str) -> tuple[SparseMatrix, float, float]:
    """B of a graph, c, which has 12 bits, and a bound of the largest eigenvalue of B."""
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    if operator == "adjacency":
        return SparseMatrix(adjacency, True), 0.0, spectral_radius(adjacency)
    if operator == "laplacian":
        highest = max(float(degrees.max(initial=0.0)), 1e-6)
        unit = 2.0 ** (math.floor(math.log2(highest)) - 11)
        shift = math.ceil(highest / unit) * unit
        matrix = adjacency + scipy.sparse.diags_array(shift - degrees)
        return SparseMatrix(matrix, True), shift, shift
    scale = np.where(degrees > 0, np.where(degrees > 0, degrees, 1.0) ** -0.5, 0.0)
    scaled = scipy.sparse.diags_array(scale) @ adjacency @ scipy.sparse.diags_array(scale)
    matrix = scaled + scipy.sparse.diags_array((degrees == 0).astype("float64"))
    return SparseMatrix(matrix, True), 1.0, 1.0


def decay_of(
    time: Float[Tensor, "..."], shift: Float[Tensor, "..."] | float, longest: float
) -> Float[Tensor, "..."]:
    """e^(-c t), exact to the last bit even if c t is large.

    Rounding of c t would lose these bits. The product of the leading 12 bits of t and the 12 bits
    of c is exact in float32.
    """
    unit = 2.0 ** (math.ceil(math.log2(longest)) - 12)
    leading = ops.stop_gradient(ops.cast(ops.cast(time / unit, "int32"), time.dtype) * unit)
    return ops.exp(-shift * leading) * ops.exp(-shift * (time - leading))


def positive_series(
    x: Float[Tensor, "nodes ..."],
    time: Float[Tensor, "..."],
    decay: Float[Tensor, "..."] | float,
    sizes: SeriesSizes,
    apply: Callable[[Tensor], Tensor],
    loop: Callable[..., Tensor] = ops.fori_loop,
) -> Float[Tensor, "nodes ..."]:
    """exp(t S) x, for each part of the time by Horner's rule; `apply` is x -> B x.

    `time` and `decay` are those of one part, and broadcast to `x`.
    """

    def part(_: Tensor, x: Tensor) -> Tensor:
        def term(k: Tensor, y: Tensor) -> Tensor:
            order = sizes.terms - k
            order = order if isinstance(order, int) else ops.cast(order, x.dtype)
            return x + time / order * apply(y)

        return decay * loop(0, sizes.terms, term, x)

    return part(0, x) if sizes.parts == 1 else loop(0, sizes.parts, part, x)


def unrolled(start: int, stop: int, body: Callable[..., Tensor], state: Tensor) -> Tensor:
    """`keras.ops.fori_loop` without a loop: XLA can then differentiate what `body` captures."""
    for index in range(start, stop):
        state = body(index, state)
    return state


class Heat:
    """exp(t S) for one graph, with gradients of any order, from B (n, n) and c.

    Products take the series `sizes`; the matrix takes one part of `short`, which is then squared.
    """

    def __init__(
        self, positive: SparseMatrix, shift: float, sizes: SeriesSizes, short: SeriesSizes
    ) -> None:
        self.positive, self.shift, self.sizes, self.short = positive, shift, sizes, short
        self._product = FunctionWithGradient(self._value, self._gradient)
        self._matrix = FunctionWithGradient(self._matrix_value, self._matrix_gradient)

    def product(self, x: Nodes, time: PerHead) -> Nodes:
        (product,) = self._product(x, time)
        return product

    def matrix(self, time: PerHead) -> Float[Tensor, "N n n"]:
        (matrix,) = self._matrix(time)
        return matrix

    def _series(self, x: Nodes, time: PerHead, decay: PerHead, sizes: SeriesSizes) -> Nodes:
        ones = ops.ones_like(x[:1])
        time, decay = (ops.reshape(each[:, None] * ones, (1, -1)) for each in (time, decay))
        columns = ops.reshape(x, (self.positive.shape[0], -1))
        matrix = self.positive.operand(columns, time)
        product = positive_series(columns, time, decay, sizes, lambda y: matrix @ y)
        return ops.reshape(product, ops.shape(x))

    def _value(self, x: Tensor, time: Tensor) -> tuple[tuple[Tensor], tuple[()]]:
        parts = self.sizes.parts
        decay = decay_of(time / parts, self.shift, self.sizes.longest / parts)
        return (self._series(x, time / parts, decay, self.sizes),), ()

    def _gradient(
        self, tensors: tuple[Tensor, Tensor], kept: tuple[()], upstream: tuple[Tensor]
    ) -> tuple[Tensor, Tensor]:
        x, time = tensors
        back, moved = self.product(upstream[0], time), self.positive(x) - self.shift * x  # S x
        return back, ops.sum(back * moved, axis=(0, 2))

    def _matrix_value(self, time: Tensor) -> tuple[tuple[Tensor], tuple[Tensor]]:
        count, heads, sizes = self.positive.shape[0], time.shape[0], self.short
        units = ops.broadcast_to(identity(count, dtype=time.dtype)[:, None], (count, heads, count))
        one_part = sizes._replace(parts=1)
        columns = self._series(units, time / sizes.parts, ops.ones_like(time), one_part)
        # e^(-c t) follows the first squares: then its rounding is squared as often as in a series
        first = min(sizes.parts, int(LONGEST_PART / LONGEST_PART_OF_MATRIX))
        later = sizes.parts // first
        decay = decay_of(time / later, self.shift, sizes.longest / later)[:, None, None]
        matrix = squared(ops.transpose(columns, (1, 0, 2)), first)
        matrix = squared(matrix * decay, later)
        return (matrix,), (matrix,)

    def _matrix_gradient(
        self, tensors: tuple[Tensor], kept: tuple[Tensor], upstream: tuple[Tensor]
    ) -> tuple[Tensor]:
        columns, upstream_columns = (ops.transpose(x[0], (1, 0, 2)) for x in (kept, upstream))
        derivative = self.positive(columns) - self.shift * columns  # S M
        return (ops.sum(upstream_columns * derivative, axis=(0, 2)),)


def squared(matrix: Float[Tensor, "... n n"], parts: int) -> Float[Tensor, "... n n"]:
    """The power `parts` of matrices, a power of 2."""
    for _ in range(int(math.log2(parts))):
        matrix = matrix @ matrix
    return matrix


class ExampleGraphs:
    """exp(t S) for one graph per example, from tensors that hold each edge once, padded with -1.

    The weights of edges may get gradients, so the terms of the series are unrolled.
    """

    def __init__(
        self,
        edges: Int[Tensor, "B E 2"],
        edge_weights: Float[Tensor, "B E"] | None,
        length: Length,
        operator: str,
        dtype: str,
    ) -> None:
        self.batch, self.length, self.operator = ops.shape(edges)[0], length, operator
        edges = ops.cast(edges, "int32")
        self.is_edge: Bool[Tensor, "B E"] = ops.all(edges >= 0, axis=-1)
        first = positions_of(self.batch)[:, None, None] * length
        ends = ops.where(self.is_edge[..., None], edges + first, 0)
        ends = ops.reshape(ends, (-1, 2))  # (B E, 2)
        weights = ops.cast(self.is_edge, dtype)
        if edge_weights is not None:
            weights = ops.where(self.is_edge, ops.cast(edge_weights, dtype), 0.0)
            if operator == "normalized_laplacian":  # the same for all multiples of the weights
                most = ops.stop_gradient(largest(weights, axis=1, keepdims=True))
                root = ops.rsqrt(ops.where(most > 0.0, most, 1.0))  # 1 / most may be 0 on JAX
                weights = weights * root * root
        # both directions of each edge, (2 B E,)
        self.weights = ops.tile(ops.reshape(weights, (-1,)), 2)
        self.sources = ops.concatenate([ends[:, 0], ends[:, 1]], axis=0)
        self.targets = ops.concatenate([ends[:, 1], ends[:, 0]], axis=0)
        self.degrees = self._sums(self.weights)  # (B T,)
        self.diagonal = ops.zeros_like(self.degrees) if operator == "adjacency" else self.degrees
        if operator == "normalized_laplacian":
            isolated = self.degrees <= 0.0
            scale = ops.where(isolated, 0.0, ops.rsqrt(ops.where(isolated, 1.0, self.degrees)))
            for ends in (self.sources, self.targets):
                self.weights = self.weights * take(scale, ends, axis=0)
            self.diagonal = ops.cast(ops.logical_not(isolated), dtype)

    def _sums(self, x: Float[Tensor, "edges ..."]) -> Float[Tensor, "nodes ..."]:
        return add_rows(x, self.targets, self.batch * self.length)

    def neighbours(self, nodes: Float[Tensor, "nodes N C"]) -> Float[Tensor, "nodes N C"]:
        """The weighted sum over the neighbours of each node."""
        return self._sums(self.weights[:, None, None] * take(nodes, self.sources, axis=0))

    def shift(self) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B T"]]:
        """c of each example, and the diagonal of B = S + c I."""
        diagonal = ops.reshape(self.diagonal, (self.batch, self.length))
        shift = ops.stop_gradient(largest(diagonal, axis=1, keepdims=True))
        return shift, shift - diagonal

    def heat(self, x: Signal, time: PerHead, sizes: SeriesSizes) -> Signal:
        """exp(t S) x."""
        (shift, rest), time = self.shift(), time / sizes.parts
        shift = ops.reshape(ops.broadcast_to(shift, ops.shape(rest)), (-1, 1))
        decay = decay_of(time[None], shift, sizes.longest / sizes.parts)[:, :, None]
        nodes = ops.reshape(x, (-1, *ops.shape(x)[2:]))  # one graph of all examples
        diagonal = ops.reshape(rest, (-1, 1, 1))

        def positive(nodes: Tensor) -> Tensor:
            image = self.neighbours(nodes)
            return image if self.operator == "adjacency" else image + diagonal * nodes

        nodes = positive_series(nodes, time[None, :, None], decay, sizes, positive, unrolled)
        return ops.reshape(nodes, ops.shape(x))

    def heat_matrix(self, time: PerHead, sizes: SeriesSizes) -> Rows:
        """exp(t S), from powers of B that all heads share.

        With the longest time u, exp(t B) = sum_k (t / u)^k (u B)^k / k!: only the first factor
        depends on the head.
        """
        (shift, rest), eye = self.shift(), identity(self.length, dtype=time.dtype)
        shape = (self.batch, self.length, self.length)
        units = ops.reshape(ops.broadcast_to(eye, shape), (-1, 1, self.length))
        positive = ops.reshape(self.neighbours(units), shape)
        positive = positive + rest[:, :, None] * eye  # B
        positive = (sizes.longest / sizes.parts) * positive

        powers = [eye + ops.zeros_like(positive), positive]
        for order in range(2, sizes.terms + 1):
            powers.append(powers[-1] @ positive / order)
        orders = ops.cast(positions_of(len(powers)), time.dtype)[:, None]
        shares, matrix = (time / sizes.longest) ** orders, 0.0  # (terms + 1, N)
        for start in range(0, len(powers), TERMS_AT_A_TIME):
            some = slice(start, start + TERMS_AT_A_TIME)
            matrix = matrix + ops.einsum("kbvw,kn->bnvw", ops.stack(powers[some]), shares[some])
        decay = decay_of(time / sizes.parts, shift, sizes.longest / sizes.parts)  # (B, N)
        return squared(decay[..., None, None] * matrix, sizes.parts)

    def degree_bounds(self) -> Float[Tensor, " B"]:
        """`degree_bounds` of tensors."""
        shape = (2, *ops.shape(self.is_edge))
        degrees = ops.reshape(take(self.degrees, self.sources, axis=0), shape)
        if self.operator == "adjacency":
            bounds = ops.sqrt(degrees[0]) * ops.sqrt(degrees[1])
        else:
            bounds = degrees[0] + degrees[1]
        return largest(ops.where(self.is_edge, bounds, 0.0), axis=1)


def degree_bounds(edges: Array, weights: Array | None, operator: str) -> Array:
    """Bounds (B,) of graphs' largest eigenvalues: d_u + d_v, or sqrt(d_u d_v), over edges (u, v).

    A negative node in `edges` (B, E, 2) marks padding. `weights` are (B, E), or `None`.
    """
    batch, edges = len(edges), edges.astype("int64")
    is_edge = (edges >= 0).all(axis=2)
    is_edge.ravel()[repeated_edges(edges)[0]] = False  # each edge counts once
    nodes = max(int(edges.max(initial=-1)) + 1, 1)
    ends = np.arange(batch)[:, None, None] * nodes + np.maximum(edges, 0)
    of_edges = np.where(is_edge, 1.0 if weights is None else weights, 0.0)
    sums = np.bincount(ends.ravel(), np.repeat(of_edges.ravel(), 2), minlength=batch * nodes)
    degrees = sums[ends]  # of both ends, (B, E, 2)
    pairs = np.prod(degrees, axis=2) ** 0.5 if operator == "adjacency" else degrees.sum(axis=2)
    bounds: Array = np.where(is_edge, pairs, 0.0).max(axis=1, initial=0.0)
    return bounds
