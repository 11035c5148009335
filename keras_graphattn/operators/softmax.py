"""Softmax attention whose matrix is formed once: A = softmax(Q K^T / sqrt(H))."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import dtype_name
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import (
    ALL,
    at_least_float32,
    in_one_dtype,
    larger,
    masked_softmax,
    nan_where,
    new_axes,
    positions_of,
    size_tensor,
    zero_where_masked,
)
from keras_graphattn.operators.operator import Operator, Visibility, all_of
from keras_graphattn.types import Bool, Float, Int, Num, Size, Tensor


class PairRows(NamedTuple):
    """Rows of a matrix of numbers for all pairs, made when an operator needs them.

    Attributes:
        source: The object that makes them, such as a bias of `keras_graphattn.biases`.
        parameters: The weights of the source as tensors, by name.
        inputs: What came with the call, by name, without wrong entries.
        wrong: Booleans (B,): examples with a wrong entry. Their rows are NaN. `None` if none is.
    """

    source: Any
    parameters: dict[str, Tensor]
    inputs: dict[str, Tensor]
    wrong: Bool[Tensor, " B?"] | None = None

    def at(
        self, positions: Int[Tensor, " T"] | None, length: Size, in_order: bool = False
    ) -> Float[Tensor, "B? N? T S"]:
        """The rows at the positions, for `length` columns; all rows without positions.

        With `in_order`, the positions are consecutive; the last of them may be past the end.
        """
        tensors = self.parameters, self.inputs
        if positions is None:
            rows = self.source._matrix(length, *tensors)
        elif in_order:
            last = size_tensor(length - 1, "int32")
            rows = self.source._block_rows(ops.minimum(positions, last), length, *tensors)
        else:
            rows = self.source._rows(positions, length, *tensors)
        if self.wrong is None:
            return rows
        wrong = ops.reshape(self.wrong, (-1, 1, 1, 1))
        return ops.where(wrong, ops.cast(float("nan"), rows.dtype), rows)


Pair = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]


def with_bias(
    scores: Float[Tensor, "B N T S"], bias: Float[Tensor, "B? N? T? S"]
) -> Float[Tensor, "B N T S"]:
    """The scores plus the bias.

    The gradient of one bias for all examples is a sum over the examples. On a CPU, XLA makes that
    sum slowly. With the tangent below it is a product of matrices, which is faster.
    """
    if keras.backend.backend() != "jax" or bias.shape[0] != 1 or scores.shape[0] == 1:
        return scores + bias
    import jax

    if jax.default_backend() != "cpu" or not isinstance(scores.shape[0], int):
        return scores + bias  # on other devices a product may round the gradient
    added = jax.custom_jvp(operator.add)

    def value_and_tangent(primals: Pair, tangents: Pair) -> Pair:
        of_scores, of_bias = tangents
        ones = ops.ones((scores.shape[0],), bias.dtype)
        return added(*primals), of_scores + ops.einsum("b,nts->bnts", ones, of_bias[0])

    added.defjvp(value_and_tangent)
    return added(scores, bias)


Dropout = Callable[[Float[Tensor, "B N T S"]], Float[Tensor, "B N T S"]]


class Logits(NamedTuple):
    """The changes of the scores Q K^T * scale before the softmax, in this order.

    Attributes:
        soft_cap: If given, a score s becomes soft_cap * tanh(s / soft_cap).
        bias: Tensor that is added, (B or 1, N or 1, T or 1, S).
        sink: Logits (N,) of one more column. It takes part in the softmax and is dropped after it,
            so that the rows of A sum to less than 1.
        source: Further numbers that are added, of which an operator makes some rows at a time.
        hides_keys: Whether an added number may be minus infinity, which hides the key.

    Example:

    >>> scores = keras.ops.full((1, 1, 1, 1), 1e6)
    >>> capped, visible = Logits(soft_cap=2.0).of(scores)
    >>> float(capped[0, 0, 0, 0])
    2.0
    """

    soft_cap: float | None = None
    bias: Float[Tensor, "B? N? T? S"] | None = None
    sink: Float[Tensor, " N"] | None = None
    source: PairRows | None = None
    hides_keys: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the scores stay as they are."""
        return self.soft_cap is None and self.sink is None and not self.adds_bias

    @property
    def adds_bias(self) -> bool:
        """Whether something is added to the scores."""
        return self.bias is not None or self.source is not None

    def formed(
        self, length: Size, positions: Int[Tensor, " T"] | None = None, in_order: bool = False
    ) -> "Logits":
        """These changes with the rows of `source` in `bias`: all rows, or those at positions."""
        if self.source is None:
            return self
        rows = self.source.at(positions, length, in_order)
        if self.bias is not None:
            rows, bias = in_one_dtype(rows, at_least_float32(self.bias))
            rows = rows + bias
        return self._replace(bias=rows, source=None)

    def of(
        self, scores: Float[Tensor, "B N T S"], visible: Num[Tensor, "B? N? T? S?"] | None = None
    ) -> tuple[Float[Tensor, "B N T _"], Bool[Tensor, "B? N? T? _"] | None]:
        """The logits of the scores, and what each query sees, with a column for a sink.

        The rows of `source` must be formed.
        """
        if self.is_plain:
            return scores, visible
        scores = at_least_float32(scores)
        if self.soft_cap is not None:
            scores = self.soft_cap * ops.tanh(scores / self.soft_cap)
        if self.bias is not None:
            bias, visible = self.finite_bias(visible, scores.dtype)
            scores = with_bias(scores, bias)
        if self.sink is None:
            return scores, visible
        sink = ops.reshape(ops.cast(self.sink, scores.dtype), (1, -1, 1, 1))
        scores = ops.concatenate([scores, sink + ops.zeros_like(scores[..., :1])], axis=-1)
        return scores, self.with_sink(visible)

    def finite_bias(
        self, visible: Num[Tensor, "B? N? T? S?"] | None, dtype: str | None = None
    ) -> tuple[Float[Tensor, "B? N? T? S"] | None, Num[Tensor, "B? N? T? S?"] | None]:
        """The bias without the infinities that hide keys, and what each query sees."""
        bias = self.bias if dtype is None else ops.cast(self.bias, dtype)
        if bias is None or not self.hides_keys:
            return bias, visible
        return zero_where_infinite(bias), self.seen(visible)

    def weights(
        self,
        scores: Float[Tensor, "B N T S"],
        visible: Num[Tensor, "B? N? T? S?"] | None = None,
        overwrite: bool = False,
    ) -> tuple[Float[Tensor, "B N T S"], Num[Tensor, "B? N? T? S?"] | None]:
        """The softmax of the logits, and what each query sees; `source` must be formed.

        With `overwrite`, the weights may take the memory of the scores.
        """
        if keras.backend.backend() == "torch" and self.bias is not None and self.sink is None:
            from keras_graphattn.operators.torch_biased_softmax import biased_softmax

            scores, _ = self._replace(bias=None).of(at_least_float32(scores))
            bias, visible = self.finite_bias(visible, scores.dtype)
            visible = None if visible is None else ops.cast(visible, "bool")
            return biased_softmax(scores, bias, visible, overwrite), visible
        logits, seen = self.of(scores, visible)
        weights = self.without_sink(masked_softmax(logits, seen))
        return weights, None if seen is None else self.without_sink(seen)

    def seen(
        self, visible: Num[Tensor, "B? N? T? S?"] | None
    ) -> Bool[Tensor, "B? N? T? S?"] | None:
        """What each query sees, without the keys that the formed bias hides."""
        if self.bias is None or not self.hides_keys:
            return visible
        return all_of(visible, self.bias != -float("inf"))  # NaN is not hidden

    def with_sink(self, visible: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
        """Booleans (..., S) with a column of `True` for the sink, if there is one."""
        if visible is None or self.sink is None:
            return visible
        visible = ops.cast(visible, "bool")
        return ops.concatenate([visible, ops.ones_like(visible[..., :1])], axis=-1)

    def without_sink(self, matrix: Num[Tensor, "B? N? T? _"]) -> Num[Tensor, "B? N? T? S"]:
        """A matrix without the column of the sink, if there is one."""
        return matrix if self.sink is None else matrix[..., :-1]


def zero_where_infinite(bias: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A bias with 0 in place of minus infinity, which hides a key.

    The smallest finite number comes first: tf2onnx writes a selection as a sum of products, and 0
    times infinity is NaN.
    """
    finite = larger(bias, float(np.finfo("float32").min))
    return ops.where(bias == -float("inf"), ops.cast(0.0, bias.dtype), finite)


class Blocks(NamedTuple):
    """A `Visibility` and `Logits` without tensors, for rows in blocks: equal ones share code."""

    visibility: Visibility  # causality and window only
    soft_cap: float | None
    hides_keys: bool
    source: Any
    parameters: tuple[str, ...]  # names of the tensors of the source
    inputs: tuple[str, ...]
    block_size: int
    by_row: tuple[str, ...]  # names of the tensors with query rows
    whole: tuple[str, ...]  # and of all others

    @classmethod
    def of(
        cls, visibility: Visibility, logits: Logits, block_size: int
    ) -> tuple["Blocks", tuple[Tensor, ...]]:
        """The settings, and the tensors in the order of their names."""
        pairs = logits.source or PairRows(None, {}, {})
        by_row, whole = visibility.tensors()
        tensors = {
            "sink": None if logits.sink is None else ops.convert_to_tensor(logits.sink),
            "wrong": pairs.wrong,
            **{f"parameter {name}": x for name, x in pairs.parameters.items()},
            **{f"input {name}": x for name, x in pairs.inputs.items()},
        }
        whole |= {name: x for name, x in tensors.items() if x is not None}
        if logits.bias is not None:
            bias = ops.transpose(logits.bias, (0, 2, 1, 3))  # (B, T, N, S)
            (whole if bias.shape[1] == 1 else by_row)["bias"] = bias
        blocks = cls(
            Visibility(causal=visibility.causal, window=visibility.window),
            *(logits.soft_cap, logits.hides_keys, pairs.source),
            *(tuple(pairs.parameters), tuple(pairs.inputs), block_size),
            *(tuple(by_row), tuple(whole)),
        )
        return blocks, (*by_row.values(), *whole.values())

    def named(self, tensors: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors by name, for `map_query_blocks`: those with query rows, and all others."""
        count = len(self.by_row)
        by_row = dict(zip(self.by_row, tensors[:count], strict=True))
        return by_row, dict(zip(self.whole, tensors[count:], strict=True))

    def of_block(
        self, tensors: Mapping[str, Tensor], rows: Int[Tensor, " T"], length: Size
    ) -> tuple[Bool[Tensor, "B? N? T? S?"] | None, Logits]:
        """What the rows of a block see of `length` columns, and their formed logits."""
        visible = self.visibility.of_block(tensors, rows, positions_of(length))
        bias, source = tensors.get("bias"), None
        bias = None if bias is None else ops.transpose(bias, (0, 2, 1, 3))
        if self.source is not None:
            source = PairRows(
                self.source,
                {name: tensors[f"parameter {name}"] for name in self.parameters},
                {name: tensors[f"input {name}"] for name in self.inputs},
                tensors.get("wrong"),
            )
        logits = Logits(self.soft_cap, bias, tensors.get("sink"), source, self.hides_keys)
        return visible, logits.formed(length, rows, in_order=True)


def zero_rows_without_keys(
    outputs: Float[Tensor, "B T N D"], visibility: Visibility, logits: Logits, block_size: int
) -> Float[Tensor, "B T N D"]:
    """The outputs of a square matrix with exact zeros in rows for which every key is hidden."""
    if not logits.hides_keys:
        return visibility.zero_other_rows(outputs, block_size)
    batch, length, heads, _ = ops.shape(outputs)
    blocks, tensors = Blocks.of(visibility, logits, block_size)

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        visible, logits = blocks.of_block(tensors, rows, length)
        seen = ops.transpose(ops.any(logits.seen(visible), axis=-1), (0, 2, 1))  # (B?, T, N?)
        return ops.cast(ops.broadcast_to(seen, (batch, ops.shape(rows)[0], heads)), "uint8")

    seeing = map_query_blocks(rows_of_block, *blocks.named(tensors), length, block_size)
    return zero_where_masked(outputs, new_axes(seeing, (..., None)))


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
        overwrite: Whether the operator may overwrite `scores`, which saves memory under a bias.

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
        overwrite: bool = False,
    ) -> None:
        if logits is None or logits.is_plain:
            weights = masked_softmax(scores, visible)
        else:
            logits = logits.formed(ops.shape(scores)[-1])
            weights, visible = logits.weights(scores, visible, overwrite)
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
        logits: What else becomes of the scores before the softmax.
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
        logits: Logits | None = None,
        dropout: Dropout | None = None,
        non_finite: Bool[Tensor, "B N? S"] | None = None,
    ) -> None:
        seen = ops.logical_or(factors > 0.0, ops.isnan(factors))  # NaN is not hidden
        factors = ops.where(seen, factors, ops.cast(1.0, factors.dtype))
        seen = seen if visible is None else ops.logical_and(seen, visible)
        scores = scores + ops.log(ops.cast(factors, scores.dtype))
        super().__init__(scores, seen, dtype=dtype, logits=logits, dropout=dropout)
        seen = self.visible
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
        rows = ops.transpose(self.sees_non_finite, (0, 2, 1))
        return nan_where(new_axes(rows, (..., None)), outputs)


class OnIdentity(Operator):
    """Products of a matrix A (..., n, n) with matrices; a product with the identity is free."""

    def __init__(self, matrix: Float[Tensor, "... n n"]) -> None:
        self.applied = matrix
        eye = ops.eye(ops.shape(matrix)[-1], dtype=matrix.dtype)
        self.identity = ops.broadcast_to(eye, ops.shape(matrix))

    def __call__(self, x: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
        return self.applied if x is self.identity else self.applied @ x


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
    return ops.where(new_axes(rows, (..., None)), outputs, ops.cast(0.0, outputs.dtype))


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
    of_queries, of_keys = (  # (B, N, T) and (B, N, S)
        ops.transpose(ops.sum(x * vector, axis=-1), (0, 2, 1))
        for x, vector in ((query, query_vector), (key, key_vector))
    )
    scores = new_axes(of_queries, (..., None)) + new_axes(of_keys, (ALL, ALL, None))
    return ops.leaky_relu(scores, negative_slope=negative_slope)
