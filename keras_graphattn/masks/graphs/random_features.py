"""General graph random features: power series of an adjacency matrix, estimated by random walks.

A series sum_k alpha_k W^k is (sum_k f_k W^k)^2, if the modulation f satisfies f * f = alpha, where
* is the convolution. The walks from node v estimate row v of sum_k f_k W^k: a walk that is at node
i after k steps adds f_k times its load to entry i. The load is the product over the steps of the
entry of W, divided by the probability of the step. Two independent sets of walks give

    M = F G^T,      F = sum_k f_k F_k,      G = sum_k f_k G_k,      E F_k = E G_k = W^k

so M is unbiased, on its diagonal too. F_k and G_k are constant sparse matrices. M x takes
O(walks length n) operations for each column of x.

Source: Reid et al., "General Graph Random Features", arXiv 2310.04859, Algorithm 1. As masks of
linear attention: Reid et al., arXiv 2410.03462.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
import scipy.special
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array, checked, flag, numpy_of, one_of, seed_of, whole
from keras_graphattn.masks.graphs.edges import Graph, adjacency_rule, read_graph
from keras_graphattn.masks.graphs.walks import (
    Coefficients,
    WalkFeatures,
    features_of_loads,
    halt_rule,
    random_walks,
)
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import (
    MaskOptions,
    Rows,
    Shape,
    Signal,
    TopologyMask,
    finite,
    from_nodes,
    reads_topology,
    to_nodes,
)
from keras_graphattn.numerics.precision import constant

OPERATORS = ("normalized_adjacency", "adjacency")
SERIES = ("diffusion", "regularized_laplacian", "random_walk")
WALK_LENGTH = 8


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphRandomFeatures(TopologyMask):
    """M estimates a power series sum_k alpha_k W^k of a graph, by random walks from each node.

    W is the adjacency matrix or, by default, D^-1/2 A D^-1/2. M = F G^T with sparse F and G from
    two independent sets of walks. The modulation f weights the steps of the walks, and can be
    learned. The expectation of M over the seeds is exactly

        (f_0 I + f_1 W + ... + f_{L-1} W^{L-1})^2,      L = walk_length

    Below order L, its coefficients are alpha = f * f, where * is the convolution. Memory and time
    grow linearly with the number of nodes: F and G have at most num_walks walk_length numbers for
    each node.

    The variance of an entry is v / num_walks + O(1 / num_walks^2). Here v grows with the
    modulation of late steps. On the operator `"adjacency"` it also grows with the degrees.

    No entry of M is negative, so a modulation with a negative value is an error. An entry is 0 if
    no two walks from the two nodes meet. A node always meets itself. `MaskedKernelAttention` gives
    such a pair the weight 0, as the estimate says. For `GraphKernelAttention`, it is an unseen
    pair. Two nodes of different components never meet.

    Args:
        graph: An integer array of edges of shape (E, 2), a `keras_graphattn.graphs.Graph`, a
            symmetric scipy.sparse matrix of edge weights, or an object like a networkx graph.
            Directed graphs, weights that are not positive, and edges from a node to itself are
            errors.
        edge_weights: Positive weights, one per edge of an array. The probability of a step is
            proportional to the weight of its edge.
        num_nodes: Number of nodes, if the edges do not name them all.
        series: The series at the start. `"diffusion"`: exp(-s (I - W)).
            `"regularized_laplacian"`: (I + s (I - W))^-1. `"random_walk"`:
            ((1 - s) I + s W)^(2 L - 2), exactly. Or the coefficients alpha_0, alpha_1, ... of
            another series, of shape (K,) or (K, num_heads).
        strength: s, a positive number or one per head; by default 1, for `"random_walk"` 0.5,
            where it must be below 1.
        operator: W: `"normalized_adjacency"` or `"adjacency"`.
        num_walks: Number of walks from each node, in each of the two sets.
        walk_length: Largest number L of nodes of a walk, including its start; 8 by default, or the
            number K of given coefficients.
        halt_probability: Probability that a walk ends before each of its steps. Shorter walks save
            memory and time, and have a larger variance.
        learn_modulation: Whether f is learned. `False` keeps the start and joins the steps of the
            walks, which is faster.
        seed: Seed of the walks, which are the same on every backend. By default it is drawn. The
            draw follows `keras.utils.set_random_seed` and is kept in the configuration. Walks are
            not weights: give a seed to load weights into a model that is made by code again.
        **kwargs: Those of every `Mask`.

    Weights:
        With `learn_modulation=True`, `log_modulation` of shape (L, num_heads), the logarithm of f.
        A step that starts with f_k = 0 keeps it.

    Raises:
        ValueError: For graphs that cannot be read, series with a negative
            modulation, and numbers out of range.

    Example:

    >>> mask = GraphRandomFeatures([[0, 1], [1, 2]], num_walks=5000, halt_probability=0.2)
    >>> mask.build((None, 3, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0, 0].astype(float).round(1).tolist()
    [0.5, 0.3, 0.1]

    Source: Reid et al., "General Graph Random Features", arXiv 2310.04859, Algorithm 1, and
    "Linear Transformer Topological Masking with Graph Random Features", arXiv 2410.03462. Ours:
    steps in proportion to the weights of edges, and the modulation as a positive weight per head.
    """

    paths = ("dense", "features")
    _settings = (
        *("series", "strength", "operator", "num_walks", "walk_length", "halt_probability"),
        *("learn_modulation", "seed"),
    )

    def __init__(
        self,
        graph: Any,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        series: Any = "diffusion",
        strength: ArrayLike | None = None,
        operator: str = "normalized_adjacency",
        num_walks: int = 16,
        walk_length: int | None = None,
        halt_probability: float = 0.1,
        learn_modulation: bool = True,
        seed: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        if graph is None:
            raise ValueError(
                "`GraphRandomFeatures` draws its walks once, from one graph. Received: graph=None. "
                "Give `graph`. If each example has its own graph, use `GraphDiffusion` or "
                "`RandomWalk`."
            )
        self.operator = one_of(*OPERATORS)("operator", operator, {})
        self.num_walks = whole()("num_walks", num_walks, {})
        self.halt_probability = halt_rule("halt_probability", halt_probability, {})
        self.learn_modulation = flag("learn_modulation", learn_modulation)
        self.seed = seed_of(seed)
        self.series, self.strength, self._start = read_modulation(series, strength, walk_length)
        self.walk_length = len(self._start)
        self._adjacency = read_graph(graph, num_nodes, edge_weights)
        self.num_nodes = self._adjacency.shape[0]
        self._left, self._right = graph_random_features(
            self._adjacency,
            self.num_walks,
            self.walk_length,
            self.seed,
            self.halt_probability,
            self.operator,
        )
        self._check_range()
        if not self.learn_modulation and self._start.shape[1] == 1:
            self._left = self._left.summed(self._start[:, 0])
            self._right = self._right.summed(self._start[:, 0])
            self._start = np.ones((1, 1))

    def _check_range(self) -> None:
        """Raises a `ValueError` if sums of rows of M, or its diagonal, may leave float32."""
        largest = 1.0
        for features in (self._left, self._right):
            sums = [np.asarray(step.sum(axis=1)).ravel() for step in features.steps]
            largest *= float((np.stack(sums, axis=1) @ self._start).max())  # (n, heads)
        limit = 320.0 if self.variable_dtype == "float64" else 40.0
        smallest = float(self._start[0].min()) ** 2
        if not np.exp(-limit) < min(smallest, largest) <= max(smallest, largest) < np.exp(limit):
            raise ValueError(
                f"Entries of the mask must be between e^-{limit:g} and e^{limit:g}. Received: "
                f"strength={self.strength!r}, series={self.series!r}, operator={self.operator!r}, "
                f"with entries up to {largest:.1e} and a diagonal of at least {smallest:.1e}. Use "
                'a smaller `strength`, or operator="normalized_adjacency".'
            )

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        length, heads = self._start.shape
        if heads not in (1, self.num_heads):
            raise ValueError(
                f"`strength` and `series` must be for one head or for all {self.num_heads} heads. "
                f"Received: strength={self.strength!r}, series={self.series!r}, for {heads} heads."
            )
        self._walked = self._start > 0.0  # (L, 1 or heads)
        if self.learn_modulation:
            start = np.log(np.where(self._walked, self._start, 1.0))
            start = np.broadcast_to(start, (length, self.num_heads))
            self.log_modulation = self._add_parameter("log_modulation", start)

    def parameters(self) -> Tensors:
        if not self.learn_modulation:
            start = np.broadcast_to(self._start, (len(self._start), self.num_heads))
            return {"modulation": self._constant(start)}
        logarithm = self._weights("log_modulation")["log_modulation"]
        return {"modulation": ops.where(constant(self._walked), ops.exp(logarithm), 0.0)}

    @reads_topology
    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        return self._factored(self._left, self._right, x, parameters["modulation"])

    @reads_topology
    def _transposed_signal(self, x: Signal, parameters: Tensors, inputs: Tensors) -> Signal:
        return self._factored(self._right, self._left, x, parameters["modulation"])

    def _factored(
        self, left: WalkFeatures, right: WalkFeatures, x: Signal, modulation: Coefficients
    ) -> Signal:
        features = right.transposed_product(to_nodes(x), modulation)
        return from_nodes(left.product(features, modulation), x)

    @reads_topology
    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        left, right = (f.matrix(parameters["modulation"]) for f in (self._left, self._right))
        return ops.einsum("nvi,nwi->nvw", left, right)[None]


@checked(
    adjacency=adjacency_rule,
    walks=whole(),
    length=whole(),
    seed=whole(0),
    halt_probability=halt_rule,
    operator=one_of(*OPERATORS),
)
def graph_random_features(
    adjacency: Graph,
    walks: int,
    length: int,
    seed: int,
    halt_probability: float = 0.1,
    operator: str = "normalized_adjacency",
) -> tuple[WalkFeatures, WalkFeatures]:
    """Draws two independent sets of walks from every node, and returns their features F and G.

    Args:
        adjacency: The graph A, a symmetric scipy.sparse matrix of edge weights such as that of
            `keras_graphattn.graphs.Graph.adjacency`.
        walks: Number of walks from each node, in each set.
        length: Largest number of nodes of a walk, including its start.
        seed: Seed of NumPy's generator. The features are the same on every backend.
        halt_probability: Probability that a walk ends before each of its steps.
        operator: W: `"normalized_adjacency"` (D^-1/2 A D^-1/2) or `"adjacency"` (A).

    Returns:
        F and G. For a modulation f of shape (L, N) and x of shape (n, N, C), M x is
        `F.product(G.transposed_product(x, f), f)`. `F.steps` are the sparse matrices F_k.

    Example:

    >>> from keras_graphattn.graphs import Graph
    >>> graph = Graph([[0, 1]]).adjacency()
    >>> features, _ = graph_random_features(graph, walks=1, length=2, seed=0, halt_probability=0.0)
    >>> [step.toarray().tolist() for step in features.steps]
    [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]

    Source: Reid et al., arXiv 2310.04859, Algorithm 1. Ours: the probability of a step is
    proportional to the weight of its edge.
    """
    drawn = random_walks(adjacency, 2 * walks, length, seed, halt_probability)
    left, right = (
        features_of_loads(some, loads_of_walks(adjacency, some, halt_probability, operator))
        for some in (drawn[:, :walks], drawn[:, walks:])
    )
    return left, right


def loads_of_walks(
    adjacency: Graph, walks: Array, halt_probability: float, operator: str
) -> Iterator[Array]:
    """The loads of walks that `random_walks` drew, (n walks,) for each step: E F_k = W^k.

    From u, a step to v has the probability (1 - halt) A[u, v] / d_u. So it multiplies the load by
    d_u / (1 - halt) for W = A, and by sqrt(d_u / d_v) / (1 - halt) for W = D^-1/2 A D^-1/2.
    """
    count, number_of_walks, length = walks.shape
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    carried = np.full(count * number_of_walks, 1.0 / number_of_walks)
    start = walks[:, :, 0].ravel()
    for step in range(length):
        here = walks[:, :, step].ravel()
        going = here >= 0
        loads = carried
        if operator == "normalized_adjacency" and step:  # the square roots of a walk cancel
            loads = carried.copy()
            loads[going] *= np.sqrt(degrees[start[going]] / degrees[here[going]])
        yield loads
        carried = carried / (1.0 - halt_probability)
        if operator == "adjacency":
            carried[going] *= degrees[here[going]]


class Modulation(NamedTuple):
    """A series: its name or coefficients, its strength, and f at the start, (L, 1 or heads)."""

    series: str | list[Any]
    strength: float | list[float] | None
    start: Array


def read_modulation(series: Any, strength: Any, walk_length: int | None) -> Modulation:
    """The arguments `series`, `strength` and `walk_length` of a mask, checked."""
    if not isinstance(series, str) and numpy_of(series).ndim in (1, 2):
        return _of_coefficients(series, strength, walk_length)
    name = one_of(*SERIES)("series", series, {})
    length = whole()("walk_length", WALK_LENGTH if walk_length is None else walk_length, {})
    default = 0.5 if name == "random_walk" else 1.0
    strength = finite("strength", default if strength is None else strength, positive=True)
    numbers = np.atleast_1d(np.asarray(strength, "float64"))
    if numbers.ndim > 1 or (name == "random_walk" and (numbers >= 1.0).any()):
        limit = ", below 1 for a random walk" if name == "random_walk" else ""
        raise ValueError(
            f"`strength` must be a positive number or one per head{limit}. Received: "
            f"strength={strength!r}"
        )
    return Modulation(name, strength, _named(name, numbers, np.arange(length)[:, None]))


def _named(name: str, strength: Array, k: Array) -> Array:
    """f_k of a named series, for strengths (heads,) and steps (L, 1): (L, heads)."""
    f: Array
    if name == "diffusion":  # exp(-s / 2) exp(s x / 2)
        f = np.exp(k * np.log(strength / 2.0) - strength / 2.0 - scipy.special.gammaln(k + 1.0))
    elif name == "regularized_laplacian":  # (1 + s - s x)^-1/2
        ratio = strength / (1.0 + strength)
        f = scipy.special.binom(k - 0.5, k) * ratio**k / np.sqrt(1.0 + strength)
    else:  # ((1 - s) + s x)^(L - 1)
        last = k[-1]
        f = scipy.special.binom(last, k) * (1.0 - strength) ** (last - k) * strength**k
    return f


def _of_coefficients(series: Any, strength: Any, walk_length: int | None) -> Modulation:
    """Solves f * f = alpha for each column of coefficients, (K,) or (K, num_heads)."""
    numbers = finite("series", series)
    rows = np.asarray(numbers, "float64")
    rows = rows[:, None] if rows.ndim == 1 else rows  # (K, 1) or (K, heads)
    if strength is not None or walk_length not in (None, len(rows)):
        raise ValueError(
            "Given coefficients are the whole series. Received: `series` with "
            f"{len(rows)} coefficients, strength={strength!r}, walk_length={walk_length!r}. Leave "
            "`strength` and `walk_length` out."
        )
    if (rows[0] <= 0.0).any():
        raise ValueError(
            "The first coefficient of `series` must be positive, for every head. Received: "
            f"series={series!r}"
        )
    f = np.stack([modulation_of_series(column) for column in rows.T], axis=1)
    if (f < 0.0).any():
        step, head = np.argwhere(f < 0.0)[0]
        raise ValueError(
            "A mask has no negative factors, so the modulation f with f * f = `series` must not be "
            f"negative. Received: series={series!r}, whose f is {f[step, head]:g} at step "
            f"{step}. Use another series."
        )
    return Modulation(numbers, None, f)


def modulation_of_series(alpha: Array) -> Array:
    """f (K,) with f * f = alpha, for the first coefficients (K,) of a series, alpha_0 positive.

    f_0 is the positive square root of alpha_0. f_k follows from alpha_k and from f_0 ... f_{k-1}.
    Source: Reid et al., arXiv 2310.04859, Section 2.
    """
    f: Array = np.sqrt(alpha[:1])
    for k in range(1, len(alpha)):
        crossed = f[1:] @ f[:0:-1]  # the sum of f_p f_{k-p} for 0 < p < k
        f = np.append(f, (alpha[k] - crossed) / (2.0 * f[0]))
    return f
