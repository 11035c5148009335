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
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks import checked, instance, number, one_of, tensor, whole
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, kept_with
from keras_graphattn.ops.graphs.graphs import Array, an_adjacency, numbers_of
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product
from keras_graphattn.ops.graphs.walks import random_walks

Tensor = Any

RANDOM_FEATURE_OPERATORS = ("normalized_adjacency", "adjacency")


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """The features of one set of walks, before they are weighted by the modulation.

    Attributes:
        steps: The sparse matrices F_0, F_1, ..., each of shape (n, n).
    """

    steps: tuple[SparseMatrix, ...]

    @cached_property
    def transpose(self) -> "GraphFeatures":
        """The features F_0^T, F_1^T, ..."""
        found = GraphFeatures(tuple(step.transpose for step in self.steps))
        found.__dict__["transpose"] = self
        return found

    @cached_property
    def _joined(self) -> SparseMatrix:
        """[F_0; F_1; ...], of shape (L n, n)."""
        return SparseMatrix(scipy.sparse.vstack([step.matrix for step in self.steps]))

    def products(self, x: Tensor) -> Iterator[Tensor]:
        """F_0 x, F_1 x, ..., for x of shape (n, N, C).

        torch computes one after the other. Other backends compile one product for all of them: as
        many products as steps take several times as long to compile.
        """
        if keras.backend.backend() == "torch":
            yield from (sparse_product(step, x) for step in self.steps)
            return
        found = sparse_product(self._joined, x)
        found = ops.reshape(found, (len(self.steps), *ops.shape(x)))
        yield from (found[k] for k in range(len(self.steps)))


def modulation_of_series(coefficients: Any) -> Array:
    """Returns f with f * f = alpha, for the first coefficients of a power series.

    f_0 is the positive square root of alpha_0. f_k follows from alpha_k and from f_0 ... f_{k-1}.

    Args:
        coefficients: alpha_0, alpha_1, ..., of shape (K,); alpha_0 is positive.

    Returns:
        float64 numbers of shape (K,). Some may be negative.

    Raises:
        ValueError: For coefficients that are not finite, or alpha_0 that is not positive.

    Example:

    >>> modulation_of_series([1.0, 2.0, 3.0, 4.0]).tolist()  # (1 + x + x^2 + ...)^2
    [1.0, 1.0, 1.0, 1.0]

    Source: Reid et al., arXiv 2310.04859, Section 2.
    """
    alpha: Array = numbers_of("coefficients", coefficients).astype("float64")
    if alpha.ndim != 1 or not alpha.size or not np.isfinite(alpha).all() or alpha[0] <= 0.0:
        raise ValueError(
            "`coefficients` must be finite numbers of shape (K,), the first of them positive. "
            f"Received: coefficients={coefficients!r}"
        )
    found: Array = np.sqrt(alpha[:1])
    for k in range(1, len(alpha)):
        known = found[1:] @ found[:0:-1]  # the sum of f_p f_{k-p} for 0 < p < k
        found = np.append(found, (alpha[k] - known) / (2.0 * found[0]))
    return found


@checked(
    adjacency=an_adjacency,
    walks=whole(),
    length=whole(),
    seed=whole(0),
    halt_probability=number(least=0.0, below=1.0),
    operator=one_of(*RANDOM_FEATURE_OPERATORS),
)
def graph_random_features(
    adjacency: Any,
    walks: int,
    length: int,
    seed: int,
    halt_probability: float = 0.1,
    operator: str = "normalized_adjacency",
) -> tuple[GraphFeatures, GraphFeatures]:
    """Draws two independent sets of walks from every node, and returns their features F and G.

    Args:
        adjacency: The graph A from `keras_graphattn.ops.graphs.graphs.read_graph`.
        walks: Number of walks from each node, in each set.
        length: Largest number of nodes of a walk, including its start.
        seed: Seed of NumPy's generator. The features are the same on every backend.
        halt_probability: Probability that a walk ends before each of its steps.
        operator: W: `"normalized_adjacency"` (D^-1/2 A D^-1/2) or `"adjacency"` (A).

    Returns:
        F and G, for `graph_random_product`.

    Example:

    >>> from keras_graphattn.ops.graphs.graphs import read_graph
    >>> features, _ = graph_random_features(read_graph([[0, 1]]), walks=1, length=2, seed=0,
    ...     halt_probability=0.0)
    >>> [step.matrix.toarray().tolist() for step in features.steps]
    [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]

    Source: Reid et al., arXiv 2310.04859, Algorithm 1. Ours: the probability of a step is
    proportional to the weight of its edge.
    """
    drawn = random_walks(adjacency, 2 * walks, length, seed, halt_probability)
    left, right = (
        features_of_loads(adjacency, some, halt_probability, operator)
        for some in (drawn[:, :walks], drawn[:, walks:])
    )
    return left, right


def features_of_loads(
    adjacency: Any, walks: Array, halt_probability: float, operator: str
) -> GraphFeatures:
    """Returns the features of walks that `random_walks` drew: E F_k = W^k.

    From u, a step to v has the probability (1 - halt) A[u, v] / d_u. So it multiplies the load by
    d_u / (1 - halt) for W = A, and by sqrt(d_u / d_v) / (1 - halt) for W = D^-1/2 A D^-1/2.

    Args:
        adjacency: The graph A, of shape (n, n).
        walks: Integers of shape (n, walks, length), -1 after the end of a walk.
        halt_probability: The probability with which the walks were drawn.
        operator: W, as for `graph_random_features`.
    """
    count, number_of_walks, length = walks.shape
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    rows = np.repeat(np.arange(count), number_of_walks)
    carried = np.full(count * number_of_walks, 1.0 / number_of_walks)
    start, steps = walks[:, :, 0].ravel(), []
    for step in range(length):
        here = walks[:, :, step].ravel()
        known = here >= 0
        load = carried[known]
        if operator == "normalized_adjacency" and step:  # the square roots of a walk cancel
            load = load * np.sqrt(degrees[start[known]] / degrees[here[known]])
        entries = (load, (rows[known], here[known]))
        matrix = scipy.sparse.csr_array(entries, shape=(count, count))
        steps.append(SparseMatrix(matrix, symmetric=step == 0))
        carried = carried / (1.0 - halt_probability)
        if operator == "adjacency":
            carried[known] *= degrees[here[known]]
    return GraphFeatures(tuple(steps))


def modulated(features: GraphFeatures, modulation: Array) -> GraphFeatures:
    """Returns the sum over k of f_k F_k as features with one step, for a fixed f of shape (L,)."""
    pairs = zip(modulation, features.steps, strict=True)
    return GraphFeatures((SparseMatrix(sum(f * step.matrix for f, step in pairs)),))


def _features_rule(letter: str) -> Any:
    made_by = "features from `graph_random_features`"
    return instance(GraphFeatures, made_by, letter, lambda found: found.steps[0].shape[0])


@checked(
    x=tensor("n N C"),
    modulation=tensor("L N"),
    left=_features_rule("n"),
    right=_features_rule("n"),
)
def graph_random_product(
    x: Tensor, modulation: Tensor, left: GraphFeatures, right: GraphFeatures
) -> Tensor:
    """M x for M = F G^T, with F = sum_k f_k F_k and G = sum_k f_k G_k.

    Gradients compute the products of each step again, so that nothing is stored for them.

    Args:
        x: float32 tensor of shape (n, N, C): nodes, heads, columns.
        modulation: f, a tensor of shape (L, N) for walks of up to L nodes. It may have any sign.
        left: F.
        right: G.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `modulation`.

    Raises:
        ValueError: If the features have another number of steps than the modulation.

    Example:

    >>> from keras_graphattn.ops.graphs.graphs import read_graph
    >>> features = graph_random_features(read_graph([[0, 1]]), walks=1, length=2, seed=0,
    ...     halt_probability=0.0)
    >>> x = np.array([1.0, 0.0], "float32").reshape((2, 1, 1))
    >>> y = graph_random_product(x, np.array([[1.0], [0.5]], "float32"), *features)  # (1 + W / 2)^2
    >>> keras.ops.convert_to_numpy(y).ravel().tolist()
    [1.25, 1.0]

    Source: Reid et al., arXiv 2310.04859, Section 2.
    """
    x, modulation = ops.convert_to_tensor(x), ops.convert_to_tensor(modulation)
    for name, features in (("left", left), ("right", right)):
        if len(features.steps) != modulation.shape[0]:
            raise ValueError(
                f"`modulation` must have one row for each of the {len(features.steps)} steps of "
                f"`{name}`. Received: modulation.shape={tuple(modulation.shape)}"
            )
    (total,) = kept_with(right.transpose, _weighted_sum)(x, modulation)
    (found,) = kept_with(left, _weighted_sum)(total, modulation)
    return found


def _weighted_sum(features: GraphFeatures) -> FunctionWithGradient:
    """x, f -> (sum_k f_k F_k x,)."""
    return FunctionWithGradient(partial(_value, features), partial(_gradient, features))


def _value(
    features: GraphFeatures, x: Tensor, modulation: Tensor
) -> tuple[tuple[Tensor], tuple[()]]:
    total = ops.zeros_like(x)
    for k, found in enumerate(features.products(x)):
        total = total + modulation[k, :, None] * found
    return (total,), ()


def _gradient(
    features: GraphFeatures, tensors: tuple[Tensor, Tensor], kept: Any, upstream: tuple[Tensor]
) -> tuple[Tensor, Tensor]:
    x, modulation = tensors
    total, products = ops.zeros_like(x), []
    for k, found in enumerate(features.transpose.products(upstream[0])):  # F_k^T y', (n, N, C)
        total = total + modulation[k, :, None] * found
        products.append(ops.sum(x * found, axis=(0, 2)))
    return total, ops.stack(products, axis=0)
