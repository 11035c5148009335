"""The random-walk graph-nodes kernel (RWGNK) as a mask: two nodes are similar if their walks meet.

    f_v = mean over walks from v of sum_l decay^l e_(node at step l)
    M[v, w] = f_v . f_w / (|f_v|^a |f_w|^a)

f_v = sum_l decay^l F_l[v], where F_l[v, i] is the fraction of walks from v that are at node i at
step l. For each node, |f_v|^2 is a polynomial of the decay with constant coefficients. So

    M x = S F F^T S x,      F = sum_l decay^l F_l,      S = diag(1 / |f_v|^a)

costs two sparse products, and has a gradient for the decay. The expectation of F_l over all walks
is P^l, where P is the matrix of one step.

Source: Choromanski et al., arXiv 2107.07999, Eq. 5 and Section 4.2.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, Unpack

import keras
import numpy as np
import scipy.sparse
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import (
    Array,
    checked,
    flag,
    number,
    numpy_of,
    optional,
    seed_of,
    tensor,
    whole,
)
from keras_graphattn.masks.graphs.edges import (
    Graph,
    adjacency_rule,
    numbers_of,
    read_graph,
    transition_matrix,
)
from keras_graphattn.masks.graphs.sparse import SparseMatrix
from keras_graphattn.masks.inputs import Length, Tensors, marked
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
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, compiled_once
from keras_graphattn.numerics.precision import at_least_float32, constant, pad, positions_of, take
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.types import Float, Int, Tensor

halt_rule = number(least=0.0, below=1.0)  # of a probability to end before a step
Coefficients = Float[Tensor, "L N"]  # of each step and head
Matrices = Float[Tensor, "N T T"]  # one for each head


@keras.saving.register_keras_serializable(package="keras_graphattn")
class RandomWalk(TopologyMask):
    """M[v, w] = f_v . f_w / (|f_v|^a |f_w|^a), where f_v describes the walks from v (RWGNK).

    f_v is the mean over walks of sum_l decay^l e_(node at step l). M has low rank, and the product
    is F (F^T x) with a sparse F. With `exact=True`, F is the expectation over all walks.

    Args:
        graph: An integer array of edges of shape (E, 2), a `keras_graphattn.graphs.Graph`, a
            symmetric scipy.sparse matrix of edge weights, or an object like a networkx graph.
        edge_weights: Positive weights, one per edge of an array. The probability of a step is
            proportional to the weight of its edge.
        num_nodes: Number of nodes, if the edges do not name them all.
        walks: Walks to use instead of a graph: integers of shape (n, walks, length). They hold the
            nodes of each walk from its start, and -1 after its end. With neither `graph` nor
            `walks`, each example of a batch has its own walks: the calls take `walks`, integers of
            shape (B, T, walks, length), with nodes numbered within the example and -1 after the
            end. Then the path "features" goes through them walk by walk and never forms a matrix.
        num_walks: Number of walks drawn from each node of a graph; the paper uses 50 to 100.
        walk_length: Largest number of nodes of a walk, including its start; the paper uses 3 to 10.
        halt_probability: Probability that a walk of a graph ends before each of its steps.
        exact: Whether to use the expectation over all walks. It is for small graphs and short
            walks: F gets more entries as walks get longer.
        decay: Decay of each step, a positive number or one per head; the paper uses 1.
        learn_decay: Whether the decay is learned.
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.
        seed: Seed of the walks, which are the same on every backend. By default it is drawn. The
            draw follows `keras.utils.set_random_seed` and is kept in the configuration. Walks are
            not weights: give a seed to load weights into a model that is made by code again.
        **kwargs: Those of every `Mask`.

    Weights:
        With `learn_decay=True`, `log_decay` of shape (num_heads,).

    Raises:
        ValueError: For graphs or walks that cannot be read, for a graph together with walks, and
            for numbers out of range.

    Example:

    >>> mask = RandomWalk([[0, 1], [1, 2]], walk_length=2, exact=True)
    >>> mask.build((None, 3, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense())[0, 0].astype(float).round(4).tolist()
    [[1.0, 0.866, 0.5], [0.866, 1.0, 0.866], [0.5, 0.866, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Eq. 5 and Section 4.2. In expectation,
    `halt_probability` p multiplies the decay by 1 - p. Then the kernel of long walks with
    a = 0 is R R^T, where R = (I - (1 - p) decay P)^-1 and P holds the probabilities of steps.
    """

    paths = ("dense", "features")

    _topology = ("graph", "walks")
    _settings = (
        *("num_walks", "walk_length", "halt_probability", "exact", "decay", "learn_decay"),
        *("normalization", "seed"),
    )

    def __init__(
        self,
        graph: Any = None,
        edge_weights: Any = None,
        num_nodes: int | None = None,
        *,
        walks: Any = None,
        num_walks: int = 50,
        walk_length: int = 4,
        halt_probability: float = 0.0,
        exact: bool = False,
        decay: ArrayLike = 1.0,
        learn_decay: bool = False,
        normalization: float = 1.0,
        seed: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.num_walks = whole()("num_walks", num_walks, {})
        self.walk_length: int = whole()("walk_length", walk_length, {})
        self.halt_probability: float = halt_rule("halt_probability", halt_probability, {})
        optional(whole(0))("seed", seed, {})
        self.exact, self.learn_decay = flag("exact", exact), flag("learn_decay", learn_decay)
        self.decay = finite("decay", decay, positive=True)
        self.normalization = number()("normalization", normalization, {})
        self._given_walks: Array | None = None
        self._features: WalkFeatures | None = None
        if graph is not None and walks is not None:
            raise ValueError("`walks` replace `graph`. Received: both. Leave one of them out.")
        if exact and graph is None:
            raise ValueError(
                "`exact=True` needs a graph. Received: graph=None. Give `graph` or exact=False."
            )
        of_graph = {"edge_weights": edge_weights, "num_nodes": num_nodes}
        of_graph["halt_probability"] = self.halt_probability or None
        unused = [] if graph is not None else [n for n, x in of_graph.items() if x is not None]
        if seed is not None and (exact or walks is not None):
            unused.append("seed")
        if num_walks != 50 and (exact or graph is None):
            unused.append("num_walks")
        if walk_length != 4 and walks is not None:
            unused.append("walk_length")
        if unused:
            raise ValueError(
                "`edge_weights`, `num_nodes` and `halt_probability` belong to `graph`, `seed` and "
                "`num_walks` to walks that the mask draws, and `walk_length` to a graph or to "
                f"the walks of a call. Received: {' and '.join(unused)}, with graph="
                f"{'None' if graph is None else 'a graph'}, walks="
                f"{'None' if walks is None else 'an array'}, exact={exact}. Leave them out."
            )
        if graph is not None:
            self._adjacency = read_graph(graph, num_nodes, edge_weights)
            if exact:
                self._features = expected_features(self._adjacency, self.walk_length, self.going_on)
            else:
                self.seed = seed_of(seed)
                drawn = random_walks(
                    *(self._adjacency, num_walks, self.walk_length, self.seed),
                    self.halt_probability,
                )
                self._features = features_of_walks(drawn)
        elif walks is not None:
            self._given_walks = numpy_of(walks)
            self._features = features_of_walks(self._given_walks)
            self._topology = ("walks", "walks")
        else:
            self.inputs_at_call = ("walks",)
        if self._features is not None:
            self.num_nodes = self._features.count
            if self._has_one_decay:
                powers = float(self.decay) ** np.arange(self._features.length)
                self._features = self._features.summed(powers)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self._start = self._of_heads("decay", self.decay)
        self._check_range()
        if self.learn_decay:
            self.log_decay = self._add_parameter("log_decay", np.log(self._start))

    def _check_range(self) -> None:
        """Raises a `ValueError` if powers of the decay or of |f_v| overflow."""
        steps = self.walk_length if self._features is None else self._features.length
        exponents = [(steps - 1) * np.log(self._start)]
        if self._features is not None:
            orders = np.arange(self._features.squares.shape[1])
            with np.errstate(over="ignore"):
                squares = self._features.squares @ self._start ** orders[:, None]
            logarithms = np.log(squares[squares > 0.0])
            exponents += [logarithms, logarithms * self.normalization / 2.0]
        limit = 320.0 if self.variable_dtype == "float64" else 40.0
        if any((np.abs(exponent) > limit).any() for exponent in exponents):
            raise ValueError(
                f"Powers of `decay` and of |f_v| must be between e^-{limit:g} and e^{limit:g}. "
                f"Received: decay={self.decay!r}, normalization={self.normalization!r}. Use a "
                "decay nearer to 1, or shorter walks."
            )

    @property
    def going_on(self) -> float:
        """The probability that a walk takes its next step, if there is one to take."""
        return 1.0 - self.halt_probability

    @property
    def _has_one_decay(self) -> bool:
        """Whether all heads have the same decay, which is not learned."""
        return not self.learn_decay and isinstance(self.decay, float)

    def parameters(self) -> Tensors:
        if self.learn_decay:
            return {"decay": ops.exp(self._weights("log_decay")["log_decay"])}
        return {"decay": self._constant(self._start)}

    @reads_topology
    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        decay = parameters["decay"]
        if self._features is None:
            return ExampleWalks(inputs["walks"]).kernel_product(x, decay, self.normalization)
        product = self._features.kernel_product(to_nodes(x), decay, self.normalization)
        return from_nodes(product, x)

    @reads_topology
    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        # one matrix for all heads if they have the same decay
        decay = parameters["decay"][:1] if self._has_one_decay else parameters["decay"]
        if self._features is not None:
            return self._features.kernel_matrix(decay, self.normalization)[None]
        features = ExampleWalks(inputs["walks"]).features(decay, self.normalization)
        return ops.einsum("bnvi,bnwi->bnvw", features, features)

    def edge_matrix(self, length: int | None = None, **inputs: Tensor) -> Float[Tensor, "B? 1 T T"]:
        """Returns the weights of the edges that walks take, as a matrix; 0 where there is no edge.

        The edges are those of the graph. If walks are given instead, two nodes have an edge of
        weight 1 if one of the walks steps from one to the other.

        Args:
            length: Number of tokens T. It is optional if the mask or its inputs know it.
            **inputs: The tensors of `inputs_at_call`.

        Returns:
            A tensor of shape (1 or B, 1, T, T); NaN for an example with a wrong entry.
        """
        tensors, wrong, _ = self._prepared(inputs, {}, length)
        if self._adjacency is not None:
            weights = constant(self._adjacency.toarray(), self.variable_dtype)
            return weights[None, None]
        walks = tensors.get("walks")
        if self._given_walks is not None:
            walks = constant(self._given_walks[None])
        return marked(ExampleWalks(walks).edges()[:, None], wrong)

    def length_of_walks(self, inputs: Tensors) -> int:
        """The number of nodes of a walk with its start, from the mask or from a call's walks."""
        if self._adjacency is not None:
            return self.walk_length
        walks = self._given_walks if self._given_walks is not None else inputs["walks"]
        return int(walks.shape[-1])

    def get_config(self) -> dict[str, object]:
        walks = self._given_walks
        return super().get_config() | ({} if walks is None else {"walks": walks.tolist()})


class WalkFeatures:
    """F = sum_k c_k F_k, for constant sparse F_k (n, n) and coefficients c of each head."""

    def __init__(self, steps: Sequence[scipy.sparse.csr_array]) -> None:
        self.steps = tuple(steps)
        self.count, self.length = int(steps[0].shape[0]), len(steps)  # nodes n, and steps L
        # [F_0^T; F_1^T; ...], of shape (L n, n)
        self._joined = SparseMatrix(scipy.sparse.vstack([step.T for step in self.steps]))

    def summed(self, coefficients: Array) -> "WalkFeatures":
        """The features F for fixed coefficients (L,), with a single step."""
        pairs = zip(coefficients, self.steps, strict=True)
        return WalkFeatures([scipy.sparse.csr_array(sum(c * step for c, step in pairs))])

    def matrix(self, coefficients: Coefficients) -> Matrices:
        """F of each head."""
        steps = np.stack([step.toarray() for step in self.steps])
        steps = constant(steps, coefficients.dtype)
        return ops.einsum("lvi,ln->nvi", steps, coefficients)

    def product(self, x: Nodes, coefficients: Coefficients) -> Nodes:
        """F x."""
        terms = coefficients[:, None, :, None] * x[None]
        return self._joined.transpose(ops.reshape(terms, (-1, *ops.shape(x)[1:])))

    def transposed_product(self, x: Nodes, coefficients: Coefficients) -> Nodes:
        """F^T x."""
        terms = ops.reshape(self._joined(x), (self.length, *ops.shape(x)))
        return ops.sum(coefficients[:, None, :, None] * terms, axis=0)

    @cached_property
    def squares(self) -> Array:
        """Coefficients of |f_v|^2 as a polynomial of the decay, (n, 2 L - 1)."""
        squares = np.zeros((self.count, 2 * self.length - 1))
        for k, one in enumerate(self.steps):
            for l, other in enumerate(self.steps[: k + 1]):  # noqa: E741
                product = np.asarray(one.multiply(other).sum(axis=1)).ravel()
                squares[:, k + l] += product if k == l else 2.0 * product
        return squares

    @cached_property
    def meetings(self) -> Array:
        """Coefficients of f_v . f_w as a polynomial of the decay, (2 L - 1, n, n).

        Coefficient s is the sum of F_k F_l^T over all k + l = s. They are computed once, so a
        matrix of the kernel needs no product of n x n matrices.
        """
        meetings = np.zeros((2 * self.length - 1, self.count, self.count))
        for k, one in enumerate(self.steps):
            for l, other in enumerate(self.steps):  # noqa: E741
                meetings[k + l] += (one @ other.T).toarray()
        return meetings

    def _scale(self, decay: PerHead, normalization: float) -> Float[Tensor, "n N"]:
        squares = constant(self.squares, decay.dtype)
        return scale_of_squares(squares, decay, normalization)

    def kernel_product(self, x: Nodes, decay: PerHead, normalization: float) -> Nodes:
        """M x = S F F^T S x."""
        scale = self._scale(decay, normalization)[:, :, None]
        powers = decay[None] ** ops.arange(0, self.length, dtype=decay.dtype)[:, None]
        return scale * self.product(self.transposed_product(scale * x, powers), powers)

    def kernel_matrix(self, decay: PerHead, normalization: float) -> Matrices:
        """M = s_v s_w sum_k decay^k C_k, where s_v = 1 / |f_v|^a and C_k are the `meetings`."""
        meetings = constant(self.meetings, decay.dtype)  # (2 L - 1, n, n)
        powers = decay[None] ** ops.arange(0, meetings.shape[0], dtype=decay.dtype)[:, None]
        scale = ops.transpose(self._scale(decay, normalization))  # (N, n)
        met = ops.einsum("svw,sn->nvw", meetings, powers)
        return met * scale[:, :, None] * scale[:, None, :]


@checked(
    adjacency=adjacency_rule,
    walks=whole(),
    length=whole(),
    seed=whole(0),
    halt_probability=halt_rule,
)
def random_walks(
    adjacency: Graph, walks: int, length: int, seed: int, halt_probability: float = 0.0
) -> Array:
    """Draws walks from every node. The probability of a step is proportional to the edge's weight.

    Args:
        adjacency: The graph, a symmetric scipy.sparse matrix of edge weights such as that of
            `keras_graphattn.graphs.Graph.adjacency`.
        walks: Number of walks from each node.
        length: Number of nodes of a walk, including its start.
        seed: Seed of NumPy's generator. The walks are the same on every backend.
        halt_probability: Probability that a walk ends before each of its steps.

    Returns:
        Integers of shape (n, walks, length); -1 after the end of a walk. A walk at an isolated node
        ends there.

    Example:

    >>> from keras_graphattn.graphs import Graph
    >>> graph = Graph([[0, 1]]).adjacency()
    >>> random_walks(graph, walks=1, length=3, seed=0).tolist()
    [[[0, 1, 0]], [[1, 0, 1]]]

    Source: Choromanski et al., arXiv 2107.07999, Section 4.2; weights and halts as in Reid et al.,
    arXiv 2310.04859.
    """
    generator = np.random.default_rng(seed)
    steps, count = transition_matrix(adjacency), adjacency.shape[0]
    # The cumulative probabilities of all edges, from which a uniform number picks one edge of a
    # node. Those of a node sum to 1: sums of weights would lose a small one after a large one.
    ends = np.cumsum(np.concatenate([[0.0], steps.data]))
    first, last = ends[steps.indptr[:-1]], ends[steps.indptr[1:]]
    isolated = np.diff(steps.indptr) == 0
    places = np.full((count, walks, length), -1, "int64")
    here = np.repeat(np.arange(count), walks)
    for step in range(length):
        places[:, :, step] = here.reshape((count, walks))
        moving = (here >= 0) & ~isolated[here]
        if halt_probability > 0.0:
            moving &= generator.random(len(here)) >= halt_probability
        now = here[moving]
        target = first[now] + generator.random(len(now)) * (last[now] - first[now])
        edge = np.searchsorted(ends, target, side="right") - 1
        edge = np.clip(edge, steps.indptr[now], steps.indptr[now + 1] - 1)
        here = np.full(len(here), -1)
        here[moving] = steps.indices[edge]
    return places


def features_of_walks(walks: Any) -> WalkFeatures:
    """The features of walks (n, walks, length), where -1 follows the end of a walk."""
    walks = numbers_of("walks", walks)
    if walks.ndim != 3 or 0 in walks.shape or not np.issubdtype(walks.dtype, np.integer):
        raise ValueError(
            "`walks` must be integers of shape (nodes, walks, length). Received: shape "
            f"{walks.shape}, dtype {walks.dtype}"
        )
    count, number_of_walks, _ = walks.shape
    if walks.min() < -1 or walks.max() >= count:
        raise ValueError(
            f"`walks` must hold node numbers below {count}, or -1. Received: {walks.min()} to "
            f"{walks.max()}"
        )
    return features_of_loads(walks, repeat(np.full(count * number_of_walks, 1.0 / number_of_walks)))


def features_of_loads(walks: Array, loads: Iterable[Array]) -> WalkFeatures:
    """Features: F_k[v, i] is the sum of the loads of the walks from v that are at i at step k.

    There are loads of shape (n walks,) for each step of walks (n, walks, L).
    """
    count, number_of_walks, length = walks.shape
    rows, steps = np.repeat(np.arange(count), number_of_walks), []
    for step, load in zip(range(length), loads, strict=False):
        columns = walks[:, :, step].ravel()
        going = columns >= 0
        entries = load[going], (rows[going], columns[going])
        steps.append(scipy.sparse.csr_array(entries, shape=(count, count)))
    return WalkFeatures(steps)


def expected_features(adjacency: Graph, length: int, going_on: float) -> WalkFeatures:
    """The expectation over all walks: F_l = (g P)^l, with more entries as l grows.

    Walks go on with the probability g at each step.
    """
    step = going_on * transition_matrix(adjacency)
    steps = [scipy.sparse.eye_array(adjacency.shape[0], format="csr")]
    for _ in range(length - 1):
        steps.append(scipy.sparse.csr_array(steps[-1] @ step))
    return WalkFeatures(steps)


def scale_of_squares(
    squares: Float[Tensor, "... K"], decay: PerHead, normalization: float
) -> Float[Tensor, "... N"]:
    """1 / |f_v|^a, from the coefficients of |f_v|^2 as polynomials; 0 where f_v = 0."""
    if normalization == 0.0:
        return ops.ones_like(squares[..., -1:] * decay)
    total = squares[..., -1:] * ops.ones_like(decay)
    for k in range(squares.shape[-1] - 2, -1, -1):
        total = total * decay + squares[..., k : k + 1]
    return _inverse_power(total, normalization)


def normalised(features: Float[Tensor, "... T"], normalization: float) -> Float[Tensor, "... T"]:
    """f_v / |f_v|^a along the last axis; 0 where f_v = 0."""
    if normalization == 0.0:
        return features
    squares = ops.sum(features * features, axis=-1, keepdims=True)
    return features * _inverse_power(squares, normalization)


def _inverse_power(squares: Tensor, normalization: float) -> Tensor:
    is_positive = squares > 0.0
    powers = ops.where(is_positive, squares, 1.0) ** (-normalization / 2.0)
    return ops.where(is_positive, powers, 0.0)


class ExampleWalks:
    """The kernel of walks for batches where each example has its own walks.

    The product applies each F_l walk by walk, without its matrix. This takes O(walks length n)
    additions for each column of x, and only the memory of the walks and of `length` signals. -1
    follows the end of a walk.
    """

    def __init__(self, walks: Int[Tensor, "B T W L"]) -> None:
        self.walks: Int[Tensor, "B T W L"] = ops.cast(walks, "int32")
        self.number, self.length = self.walks.shape[2:]

    def _powers(self, decay: PerHead) -> Coefficients:
        powers = decay[None] ** ops.arange(0, self.length, dtype=decay.dtype)[:, None]
        return powers / float(self.number)

    def kernel_product(self, x: Signal, decay: PerHead, normalization: float) -> Signal:
        """M x = S F F^T S x, with gradients for `x` and `decay`."""
        scale = 1.0
        if normalization != 0.0:
            squares = compiled_once(_squares_of_walks)(self.walks)
            squares = ops.cast(squares, decay.dtype) / float(self.number**2)
            scale = scale_of_squares(squares, decay, normalization)[..., None]
        powers = self._powers(decay)[None, :, None, :, None]
        # Nodes as floats, because on some backends a custom gradient takes no integers.
        places = ops.cast(ops.transpose(self.walks, (2, 0, 3, 1)), "float32")  # (W, B, L, T)
        (visits,) = _visits(scale * x, places)
        (met,) = _met(powers * ops.sum(powers * visits, axis=1, keepdims=True), places)
        return scale * met

    def features(self, decay: PerHead, normalization: float) -> Rows:
        """f_v / |f_v|^a of each head; the last axes are the node v and the visited node."""
        batch, count = ops.shape(self.walks)[:2]
        nodes = ops.reshape(positions_of(batch * count), (batch, count, 1, 1))
        going = self.walks >= 0
        places = ops.reshape(nodes * count + ops.where(going, self.walks, 0), (-1,))
        values = ops.cast(going, decay.dtype)[..., None] * self._powers(decay)  # (B, T, W, L, N)
        met = add_rows(ops.reshape(values, (-1, decay.shape[0])), places, batch * count * count)
        met = ops.transpose(ops.reshape(met, (batch, count, count, -1)), (0, 3, 1, 2))
        return normalised(met, normalization)

    def edges(self) -> Float[Tensor, "B T T"]:
        """1 for two nodes that are next to each other in one of the walks, and 0 elsewhere."""
        batch, count = ops.shape(self.walks)[:2]
        here, there = self.walks[..., :-1], self.walks[..., 1:]
        is_step = ops.logical_and(here >= 0, there >= 0)
        example = ops.reshape(positions_of(batch), (batch, 1, 1, 1))
        here, there = (ops.where(is_step, nodes, 0) for nodes in (here, there))
        places = ops.reshape((example * count + here) * count + there, (-1,))
        steps = ops.reshape(ops.cast(is_step, "float32"), (-1, 1))
        counts = add_rows(steps, places, batch * count * count)
        counts = ops.reshape(counts, (batch, count, count))
        return ops.cast(counts + ops.transpose(counts, (0, 2, 1)) > 0.0, "float32")


def _squares_of_walks(walks: Int[Tensor, "B T W L"]) -> Float[Tensor, "B T K"]:
    """|f_v|^2 times the squared number of walks, as a polynomial of the decay.

    The coefficient of decay^k counts pairs of places in the walks of v, at steps l + l' = k, with
    the same node.
    """
    batch, count = ops.shape(walks)[:2]
    number, length = walks.shape[2:]
    turns = ops.transpose(walks, (2, 0, 1, 3))  # (W, B, T, L)

    def add(k: Any, total: Tensor) -> Tensor:
        walk = _entry(turns, k)  # (B, T, L)
        for step in range(length):
            node = walk[:, :, step, None, None]
            same = ops.logical_and(ops.equal(walks, node), node >= 0)
            pairs = ops.sum(ops.cast(same, "int32"), axis=2)
            total = total + pad(pairs, ((0, 0), (0, 0), (step, length - 1 - step)))
        return total

    start = ops.zeros((batch, count, 2 * length - 1), "int32")
    return ops.cast(ops.fori_loop(0, number, add, start), "float32")


def _sum_of_visits(x: Tensor, places: Tensor) -> Float[Tensor, "B L T N C"]:
    """F_l^T x times the number of walks, for every l, from x (B, T, N, C)."""
    batch, count, heads, width = ops.shape(x)
    length = places.shape[2]
    rows = batch * length * count

    def add(k: Any, total: Tensor) -> Tensor:
        targets, going = _rows_of_walk(_entry(places, k))
        carried = ops.where(going[..., None, None], x[:, None], 0.0)  # (B, L, T, N, C)
        return total + add_rows(ops.reshape(carried, (rows, heads, width)), targets, rows)

    total = ops.fori_loop(0, places.shape[0], add, ops.zeros((rows, heads, width), x.dtype))
    return ops.reshape(total, (batch, length, count, heads, width))


def _sum_of_met(x: Tensor, places: Tensor) -> Signal:
    """The transpose of `_sum_of_visits`: sum_l F_l x_l, from x (B, L, T, N, C)."""
    batch, length, count, heads, width = ops.shape(x)
    flat = ops.reshape(x, (batch * length * count, heads, width))

    def add(k: Any, total: Tensor) -> Tensor:
        sources, going = _rows_of_walk(_entry(places, k))
        met = ops.reshape(take(flat, sources, axis=0), (batch, length, count, heads, width))
        return total + ops.sum(ops.where(going[..., None, None], met, 0.0), axis=1)

    start = ops.zeros((batch, count, heads, width), x.dtype)
    return ops.fori_loop(0, places.shape[0], add, start)


def _rows_of_walk(nodes: Float[Tensor, "B L T"]) -> tuple[Tensor, Tensor]:
    """The rows of a signal (B, L, T, ...) that one walk of each node visits, and whether it does.

    The second tensor is `False` after the end of a walk.
    """
    nodes = ops.cast(nodes, "int32")
    batch, length, count = ops.shape(nodes)
    start = ops.reshape(positions_of(batch * length) * count, (batch, length, 1))
    return ops.reshape(ops.maximum(nodes, 0) + start, (-1,)), nodes >= 0


def _entry(x: Tensor, k: Any) -> Tensor:
    return x[k] if isinstance(k, int) else take(x, k, axis=0)


_visits = FunctionWithGradient(
    lambda x, places: ((_sum_of_visits(x, places),), ()),
    lambda tensors, kept, upstream: (_sum_of_met(upstream[0], tensors[1]), None),
)
_met = FunctionWithGradient(
    lambda x, places: ((_sum_of_met(x, places),), ()),
    lambda tensors, kept, upstream: (_sum_of_visits(upstream[0], tensors[1]), None),
)


@checked(steps=tensor("B N T T"), decay=tensor("N"), length=whole(), normalization=number())
def kernel_of_steps(steps: Rows, decay: PerHead, length: int, normalization: float = 1.0) -> Rows:
    """The expected kernel of walks with given probabilities of a step.

    Let P[v, w] be the probability of the step from v to w. The expectation over all walks of L
    nodes is f_v = sum_(l < L) decay^l (P^l)[v]. In the paper P is uniform over the neighbours. Here
    P is any tensor, such as a softmax of attention's scores over the edges.

    Args:
        steps: P, of shape (B, N, T, T), not negative. A row of zeros ends a walk.
        decay: Decay of each step, of shape (N,).
        length: Number of nodes of a walk, including its start.
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.

    Returns:
        M, of shape (B, N, T, T) in at least float32, with gradients for `steps` and `decay`.

    Example:

    >>> steps = np.array([[0.0, 1.0], [0.0, 0.0]], "float32").reshape((1, 1, 2, 2))
    >>> kernel = kernel_of_steps(steps, np.array([0.5], "float32"), length=2, normalization=0.0)
    >>> keras.ops.convert_to_numpy(kernel)[0, 0].tolist()
    [[1.25, 0.5], [0.5, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Eq. 5.
    """
    steps = at_least_float32(steps)
    decay = ops.cast(decay, steps.dtype)[None, :, None, None]
    nodes = positions_of(ops.shape(steps)[-1])
    start = ops.cast(ops.equal(nodes[:, None], nodes[None, :]), steps.dtype)  # (T, T)
    features = start + ops.zeros_like(steps)
    for step in range(length - 1):  # Horner: f = I + decay P f
        features = start + decay * (steps @ features if step else steps)
    features = normalised(features, normalization)
    return features @ ops.transpose(features, (0, 1, 3, 2))
