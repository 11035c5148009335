"""Softmax attention whose matrix is formed once: A = softmax(Q K^T / sqrt(H))."""

import math
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_graphattn.checks import dtype_name
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax, matmul, nan_where
from keras_graphattn.operators.operator import Operator
from keras_graphattn.types import Bool, Float, Num, Tensor

Dropout = Callable[[Float[Tensor, "B N T S"]], Float[Tensor, "B N T S"]]


class Logits(NamedTuple):
    """The changes of the scores Q K^T * scale before the softmax, in this order.

    Attributes:
        soft_cap: If given, a score s becomes soft_cap * tanh(s / soft_cap).
        bias: Tensor that is added, (B or 1, N, T or 1, S).
        sink: Logits (N,) of one more column. It takes part in the softmax and is dropped after it,
            so that the rows of A sum to less than 1.

    Example:

    >>> float(Logits(soft_cap=2.0).of(keras.ops.full((1, 1, 1, 1), 1e6))[0, 0, 0, 0])
    2.0
    """

    soft_cap: float | None = None
    bias: Float[Tensor, "B? N? T? S"] | None = None
    sink: Float[Tensor, " N"] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the scores stay as they are."""
        return self.soft_cap is None and self.bias is None and self.sink is None

    def of(self, scores: Float[Tensor, "B N T S"]) -> Float[Tensor, "B N T _"]:
        """The logits (B, N, T, S), or (B, N, T, S + 1) with a sink, of the scores."""
        if self.is_plain:
            return scores
        scores = at_least_float32(scores)
        if self.soft_cap is not None:
            scores = self.soft_cap * ops.tanh(scores / self.soft_cap)
        if self.bias is not None:
            scores = scores + ops.cast(self.bias, scores.dtype)
        if self.sink is None:
            return scores
        sink = ops.reshape(ops.cast(self.sink, scores.dtype), (1, -1, 1, 1))
        return ops.concatenate([scores, sink + ops.zeros_like(scores[..., :1])], axis=-1)

    def with_sink(self, visible: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
        """Booleans (..., S) with a column of `True` for the sink, if there is one."""
        if visible is None or self.sink is None:
            return visible
        visible = ops.cast(visible, "bool")
        return ops.concatenate([visible, ops.ones_like(visible[..., :1])], axis=-1)

    def without_sink(self, matrix: Float[Tensor, "B N T _"]) -> Float[Tensor, "B N T S"]:
        """A matrix without the column of the sink, if there is one."""
        return matrix if self.sink is None else matrix[..., :-1]


class MatrixOperator(Operator):
    """The operator of a matrix A that exists, (B, N, T, S) times (B, S, N, D).

    Args:
        matrix: A, of shape (B, N, T, S).
        visible: Optional booleans that broadcast to A: the entries that are not hidden.
        dropout: Optional function that drops entries of A. It is applied once.

    Attributes:
        scores: A before dropout.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = MatrixOperator(keras.ops.ones((2, 4, 10, 10)) / 10)
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        matrix: Float[Tensor, "B N T S"],
        visible: Bool[Tensor, "B? N? T? S?"] | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        self.scores, self.visible = matrix, visible
        self.applied = matrix if dropout is None else dropout(matrix)

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        return ops.einsum("bnts,bsnh->btnh", self.applied, x)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        return self.scores

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return zero_hidden_rows(outputs, self.visible)


class SoftmaxOperator(MatrixOperator):
    """A = softmax(scores) over the visible keys, formed once and applied many times.

    Memory O(n^2); the quickest form if A is applied more than once, as filters do.

    Args:
        scores: Scores of all pairs, (B, N, T, S), such as those of `scores_of`.
        visible: Optional booleans that broadcast to the scores: the keys that each query sees.
        dtype: Dtype of A; that of the scores by default.
        logits: What becomes of the scores before the softmax; nothing by default.
        dropout: Optional function that drops entries of A. It is applied once.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = SoftmaxOperator(scores_of(query, key))
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        scores: Float[Tensor, "B N T S"],
        visible: Num[Tensor, "B? N? T? S?"] | None = None,
        *,
        dtype: str | None = None,
        logits: Logits | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        if logits is None or logits.is_plain:
            weights = masked_softmax(scores, visible)
        else:
            weights = masked_softmax(logits.of(scores), logits.with_sink(visible))
            weights = logits.without_sink(weights)
        weights = weights if dtype is None else ops.cast(weights, dtype)
        super().__init__(weights, visible, dropout)


class WeightedSoftmaxOperator(SoftmaxOperator):
    """A = D^-1 [exp(scores) o M], D the row sums: softmax attention times factors.

    A factor of the exponential is its logarithm in the exponent, so a row of small factors does not
    underflow. A row without a factor above 0 is 0.

    Args:
        scores: Scores of all pairs, (B, N, T, S), in at least float32.
        factors: M, not negative, of a shape that broadcasts to the scores.
        visible: Optional booleans that broadcast to the scores.
        dtype: Dtype of A.
        dropout: Optional function that drops entries of A.
        non_finite: Optional booleans (B, 1 or N, S): tokens that held NaN or infinity. Rows that
            see one, and its own row, become NaN.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = WeightedSoftmaxOperator(scores_of(query, key), keras.ops.ones((1, 1, 10, 10)))
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        scores: Float[Tensor, "B N T S"],
        factors: Float[Tensor, "B? N? T S"],
        visible: Bool[Tensor, "B? N? T? S?"] | None = None,
        *,
        dtype: str | None = None,
        dropout: Dropout | None = None,
        non_finite: Bool[Tensor, "B N? S"] | None = None,
    ) -> None:
        seen = ops.logical_or(factors > 0.0, ops.isnan(factors))  # NaN is not hidden
        factors = ops.where(seen, factors, ops.cast(1.0, factors.dtype))
        seen = seen if visible is None else ops.logical_and(seen, visible)
        scores = scores + ops.log(ops.cast(factors, scores.dtype))
        super().__init__(scores, seen, dtype=dtype, dropout=dropout)
        self.sees_non_finite = None
        if non_finite is not None:
            near = ops.any(ops.logical_and(seen, non_finite[:, :, None]), axis=-1)
            self.sees_non_finite = ops.logical_or(near, non_finite)  # (B, N, T)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        if self.sees_non_finite is None:
            return self.scores
        return nan_where(self.sees_non_finite[..., None], self.scores)

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        outputs = super().finished(outputs)
        if self.sees_non_finite is None:
            return outputs
        rows = ops.transpose(self.sees_non_finite, (0, 2, 1))[..., None]
        return nan_where(rows, outputs)


class OnIdentity(Operator):
    """Products of a matrix A (..., n, n) with matrices; a product with the identity is free."""

    def __init__(self, matrix: Float[Tensor, "... n n"]) -> None:
        self.applied = matrix
        eye = ops.eye(ops.shape(matrix)[-1], dtype=matrix.dtype)
        self.identity = ops.broadcast_to(eye, ops.shape(matrix))

    def __call__(self, x: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
        return self.applied if x is self.identity else matmul(self.applied, x)


def score_operands(
    query: Float[Tensor, "B T N H"], key: Float[Tensor, "B S N H"], scale: float | None
) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B S N H"]]:
    """Queries times `scale`, and keys, whose products are the scores: finite in every precision.

    float16 becomes float32, and so do the scores. A score may be too large for float16. It becomes
    NaN if partial sums are float16 too, as in TensorFlow on a CPU.
    """
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    if "float16" in (dtype_name(query.dtype), dtype_name(key.dtype)):
        query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
    return scaled(query, scale), key


def scores_of(
    query: Float[Tensor, "B T N H"], key: Float[Tensor, "B S N H"], scale: float | None = None
) -> Float[Tensor, "B N T S"]:
    """Q K^T * scale, 1 / sqrt(H) by default, for all pairs of positions."""
    return ops.einsum("btnh,bsnh->bnts", *score_operands(query, key, scale))


def scaled(query: Float[Tensor, "B T N H"], scale: float | None) -> Float[Tensor, "B T N H"]:
    """Queries times `scale`, 1 / sqrt(H) by default: their products with keys are the scores."""
    return query * (1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale))


def zero_hidden_rows(
    outputs: Float[Tensor, "B T N D"], visible: Bool[Tensor, "B? N? T? S?"] | None
) -> Float[Tensor, "B T N D"]:
    """The outputs with exact zeros in rows for which every key is hidden."""
    if visible is None:
        return outputs
    rows = ops.transpose(ops.any(visible, axis=-1), (0, 2, 1))  # (B, T, N)
    return ops.where(rows[..., None], outputs, ops.cast(0.0, outputs.dtype))


def additive_scores(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    query_vector: Float[Tensor, "N H"],
    key_vector: Float[Tensor, "N H"],
    negative_slope: float = 0.2,
) -> Float[Tensor, "B N T S"]:
    """LeakyReLU(a . [q_i || k_j]) for each pair, where a = [query_vector || key_vector].

    In at least float32. Source: Velickovic et al., "Graph Attention Networks", arXiv 1710.10903
    (ICLR 2018), Eq. 3.
    """
    query, key, query_vector, key_vector = (
        at_least_float32(x) for x in (query, key, query_vector, key_vector)
    )
    of_queries = ops.einsum("btnh,nh->bnt", query, query_vector)
    of_keys = ops.einsum("bsnh,nh->bns", key, key_vector)
    scores = of_queries[:, :, :, None] + of_keys[:, :, None, :]
    return ops.leaky_relu(scores, negative_slope=negative_slope)
