"""Attention re-weighted by the distances between values (p-LaT).

    out_i = sum_j softmax_j(q_i . k_j * scale) (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2) x_j

In float32 inside. Keys that a row may not see change nothing in it: neither its weights nor its
rounding. All element-wise steps, from the softmax to the re-weighted matrix, have one custom
gradient. They are most of the work, and this halves the passes over n x n numbers.

Squared distances come from the Gram form |v_i|^2 + |v_j|^2 - 2 v_i . v_j, one product of matrices.
It is wrong by the rounding of |v_i|^2 + |v_j|^2, which is larger than the distance of equal or
nearly equal tokens. Where a distance is small next to that, it is the sum of the squared
differences instead. That takes much longer, so it is done only if a call has such a pair. The
choice for a pair depends only on its own two tokens.

Source: Nguyen et al., "p-Laplacian Transformer", arXiv 2311.03235, Eq. 11-12. Ours: epsilon.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.checks import cached, traced_by_torch
from keras_graphattn.numerics.blocks import map_query_blocks, where_needed
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, compiled_once
from keras_graphattn.numerics.precision import (
    ALL,
    any_of,
    at_least_float32,
    finite_scores,
    masked_softmax,
    new_axes,
    pad,
    positions_of,
    without_padding,
)
from keras_graphattn.operators.cached import CachedOperator
from keras_graphattn.operators.operator import Operator, Visibility, all_of
from keras_graphattn.operators.softmax import Blocks, Logits, score_operands, zero_rows_without_keys
from keras_graphattn.types import Bool, Float, Int, Tensor

Tensors = tuple[Tensor, ...]

MOST_EPSILON = 1e19  # its square is the largest that float32 holds
LEAST_SHARE = 1.0 / 16.0  # times the exponent: an error of 1e-6 or so in the weight
DIFFERENCES_OF_A_ROW = 512  # about how many numbers per column are formed at a time
CHANNELS = 8  # of a pair that are formed at a time where rows are not cut into blocks


class PLaplacian(NamedTuple):
    """The numbers that define the re-weighting.

    Attributes:
        p: One exponent of at least 1 for each head.
        epsilon: Smoothing length of the distances, greater than 0.
        drop_diagonal: Whether heads with p != 2 get zeros on the diagonal.

    Example:

    >>> PLaplacian((1.5, 2.5)).epsilon
    0.1
    """

    p: tuple[float, ...]
    epsilon: float = 0.1
    drop_diagonal: bool = False


class PLaplacianOperator(Operator):
    """Attention re-weighted by the distances between values, in O(n * block_size) memory.

    Args:
        query: Q, of shape (B, T, N, H).
        key: K, of shape (B, T, N, H).
        values: V, of shape (B, T, N, D): their distances re-weight the attention.
        numbers: The exponents and the smoothing.
        visibility: What each query may see; everything by default.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        logits: What becomes of the scores before the softmax; nothing by default.
        block_size: Number of query rows at a time. `None` forms the whole matrix, once.
        dropout: Optional function that drops entries of the matrix, which is then formed.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = PLaplacianOperator(query, key, x, PLaplacian((1.5, 1.5, 2.5, 2.5)))
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        values: Float[Tensor, "B T N D"],
        numbers: PLaplacian,
        visibility: Visibility | None = None,
        *,
        scale: float | None = None,
        logits: Logits | None = None,
        block_size: int | None = 512,
        dropout: Callable[[Float[Tensor, "B N T T"]], Float[Tensor, "B N T T"]] | None = None,
    ) -> None:
        self.query, self.key = score_operands(query, key, scale)
        self.values = values
        self.numbers = numbers
        self.visibility = Visibility() if visibility is None else visibility
        self.logits = Logits() if logits is None else logits
        self.block_size = block_size or 512
        self.weights = None
        if block_size is None or dropout is not None:
            self.weights = self._formed()
        self.applied = self.weights if dropout is None else dropout(self.weights)

    def __call__(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if self.applied is not None:
            return apply_weights(self.applied, x)
        blocks, tensors = Blocks.of(self.visibility, self.logits, self.block_size)
        signal = () if x is self.values else (x,)
        keep = blocks.source is None
        attend = compiled_once(_in_blocks, blocks, self.numbers, bool(signal), keep=keep)
        return attend(self.query, self.key, self.values, *signal, *tensors)

    def matrix(self) -> Float[Tensor, "B N T T"]:
        return self._formed() if self.weights is None else self.weights

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return zero_rows_without_keys(outputs, self.visibility, self.logits, self.block_size)

    def _formed(self) -> Float[Tensor, "B N T T"]:
        length = ops.shape(self.key)[1]
        positions = positions_of(length)
        visible = self.visibility.block(positions, positions)
        values, logits = (self.values, self.values), self.logits.formed(length)
        return rows_of_weights(
            self.query, self.key, values, self.numbers, visible, positions, logits
        )


class CachedPLaplacianOperator(CachedOperator):
    """Rows of the re-weighted matrix for new tokens, against the values in the cache.

    The signals in the cache are the values. `index` is the position of the first new token.
    """

    def __init__(
        self,
        query: Float[Tensor, "B t N H"],
        key: Float[Tensor, "B L N H"],
        value: Float[Tensor, "B t N D"],
        numbers: PLaplacian,
        signals: Float[Tensor, "B 1 L N D"],
        index: int | Int[Tensor, ""],
        visible: Bool[Tensor, "B? 1 t L"],
        scale: float | None = None,
        logits: Logits | None = None,
    ) -> None:
        row_values = ops.cast(value, signals.dtype)
        signals = ops.slice_update(signals, (0, 0, index, 0, 0), row_values[:, None])
        self.values = without_padding(signals[:, 0], any_of(visible, (1, 2)))
        positions = index + positions_of(ops.shape(query)[1])
        logits = Logits() if logits is None else logits.formed(ops.shape(key)[1], positions)
        rows = rows_of_weights(
            *score_operands(query, key, scale),
            (row_values, self.values),
            numbers,
            visible,
            positions,
            logits,
        )
        super().__init__(rows, signals, index, logits.seen(visible))

    def __call__(self, x: Float[Tensor, "B t N D"]) -> Float[Tensor, "B t N D"]:
        return apply_weights(self.rows, self.values)


def rows_of_weights(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    values: tuple[Float[Tensor, "B T N D"], Float[Tensor, "B S N D"]],
    numbers: PLaplacian,
    visible: Bool[Tensor, "B? N? T? S?"] | None,
    positions: Int[Tensor, " T"],
    logits: Logits,
    centre: Float[Tensor, "B 1 N D"] | None = None,
) -> Float[Tensor, "B N T S"]:
    """Rows of the re-weighted matrix at some positions, of scaled queries, in float32.

    The values are those of the rows and those of the columns. The centre is that of
    `pair_distances`.
    """
    row_values, column_values = values
    scores, visible = logits.of(ops.einsum("btnh,bsnh->bnts", query, key), visible)
    diagonal = positions[:, None] == positions_of(ops.shape(key)[1])[None, :]
    if logits.sink is not None:  # a column whose weight counts in the softmax only
        column_values = pad(column_values, ((0, 0), (0, 1), (0, 0), (0, 0)))
        diagonal = logits.with_sink(diagonal)
    pair = (row_values, column_values)
    return logits.without_sink(re_weighted(scores, pair, numbers, visible, diagonal, centre))


def re_weighted(
    scores: Float[Tensor, "B N T S"],
    values: tuple[Float[Tensor, "B T N D"], Float[Tensor, "B S N D"]],
    numbers: PLaplacian,
    visible: Bool[Tensor, "B? N? T? S?"] | None,
    diagonal: Bool[Tensor, "T S"],
    centre: Float[Tensor, "B 1 N D"] | None = None,
) -> Float[Tensor, "B N T S"]:
    """softmax(scores) times the distances to the power p - 2, in float32.

    `diagonal` marks where row and column are the same token. Hidden entries are exactly 0.
    """
    scores = finite_scores(scores)
    pairs = _Pairs.of(values, numbers, visible, diagonal, scores.dtype, centre)
    masks = [] if visible is None else [visible]
    weigh = _weights_with_gradient(numbers.epsilon**2)
    (weights,) = weigh(scores, pairs.distances, pairs.exponents, pairs.relevant, *masks)
    return pairs.kept(weights)


def powers_of_distances(
    values: tuple[Float[Tensor, "B T N D"], Float[Tensor, "B S N D"]],
    numbers: PLaplacian,
    visible: Bool[Tensor, "B? N? T? S?"] | None,
    diagonal: Bool[Tensor, "T S"],
    centre: Float[Tensor, "B 1 N D"] | None = None,
) -> Float[Tensor, "B N T S"]:
    """(|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2), what `re_weighted` multiplies the softmax by."""
    dtype = at_least_float32(values[0]).dtype
    pairs = _Pairs.of(values, numbers, visible, diagonal, dtype, centre)
    least = ops.cast(numbers.epsilon**2, pairs.distances.dtype)
    distances = ops.where(pairs.relevant, pairs.distances, least)
    powers = ops.exp(pairs.exponents * ops.log(distances))
    return pairs.kept(powers)


class _Pairs(NamedTuple):
    """Squared distances of pairs of tokens, and which of them count."""

    distances: Float[Tensor, "B N T S"]
    exponents: Float[Tensor, "N 1 1"]
    relevant: Bool[Tensor, "B? N? T S"]  # pairs of different tokens that are visible
    dropped: Bool[Tensor, "N T S"] | None  # of a token with itself, where they shall be 0

    @classmethod
    def of(
        cls,
        values: tuple[Float[Tensor, "B T N D"], Float[Tensor, "B S N D"]],
        numbers: PLaplacian,
        visible: Bool[Tensor, "B? N? T? S?"] | None,
        diagonal: Bool[Tensor, "T S"],
        dtype: Any,
        centre: Float[Tensor, "B 1 N D"] | None,
    ) -> "_Pairs":
        halves = [(p - 2) / 2 for p in numbers.p]
        exponents = ops.reshape(ops.convert_to_tensor(halves, dtype), (-1, 1, 1))
        is_changed = ops.convert_to_tensor([p != 2.0 for p in numbers.p])[:, None, None]
        apart = ops.logical_not(ops.cast(diagonal, "bool"))  # tokens that are not the same
        if 2.0 in numbers.p:
            apart = ops.logical_and(apart, is_changed)
        relevant = all_of(apart, visible)
        distances = pair_distances(
            *values,
            ops.abs(exponents[:, 0]) * LEAST_SHARE,
            smoothing=numbers.epsilon**2,
            relevant=relevant,
            centre=centre,
        )
        dropped = None
        if numbers.drop_diagonal:
            dropped = ops.logical_and(is_changed, ops.cast(diagonal, "bool"))
        return cls(distances, exponents, relevant, dropped)

    def kept(self, weights: Float[Tensor, "B N T S"]) -> Float[Tensor, "B N T S"]:
        """The weights, with zeros where pairs are dropped."""
        if self.dropped is None:
            return weights
        return ops.where(self.dropped, ops.cast(0.0, weights.dtype), weights)


class _Weights(NamedTuple):
    """softmax(scores) * distances^exponents, with `least` for distances that are not relevant."""

    least: float

    def value(
        self,
        scores: Float[Tensor, "B N T S"],
        distances: Float[Tensor, "B N T S"],
        exponents: Float[Tensor, "N 1 1"],
        relevant: Bool[Tensor, "..."],
        *masks: Bool[Tensor, "B? N? T? S?"],
    ) -> tuple[Tensors, Tensors]:
        softmax = masked_softmax(scores, *masks)
        distances = ops.where(relevant, distances, ops.cast(self.least, distances.dtype))
        weights = softmax * ops.exp(exponents * ops.log(distances))
        return (weights,), (softmax, weights, distances)

    def gradient(
        self, tensors: Tensors, results: Tensors, upstream: Tensors
    ) -> tuple[Tensor | None, ...]:
        softmax, weights, distances = results
        _, _, exponents, relevant, *masks = tensors
        products = upstream[0] * weights
        to_scores = products - softmax * ops.sum(products, axis=-1, keepdims=True)
        slopes = ops.where(relevant, exponents, ops.cast(0.0, exponents.dtype)) / distances
        return to_scores, products * slopes, None, None, *(None for _ in masks)


@cached
def _weights_with_gradient(least: float) -> FunctionWithGradient:
    weights = _Weights(least)
    return FunctionWithGradient(weights.value, weights.gradient)


def apply_weights(
    weights: Float[Tensor, "B N T S"], x: Float[Tensor, "B S N D"]
) -> Float[Tensor, "B T N D"]:
    """The weights times a signal, summed in float32, in the dtype of the signal."""
    outputs = ops.einsum("bnts,bsnh->btnh", at_least_float32(weights), at_least_float32(x))
    return ops.cast(outputs, x.dtype)


def _in_blocks(
    blocks: Blocks,
    numbers: PLaplacian,
    has_signal: bool,
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    values: Float[Tensor, "B T N D"],
    *tensors: Tensor,
) -> Float[Tensor, "B T N D"]:
    signal, tensors = (tensors[:1], tensors[1:]) if has_signal else ((), tensors)
    by_row, whole = blocks.named(tensors)
    entries, keys = (by_row | whole).get("entries"), whole.get("keys")
    visibility, length = blocks.visibility._replace(entries=entries, keys=keys), ops.shape(key)[1]
    centre = None if blocks.hides_keys else common_centre(values, visibility)
    by_row |= {"query": query, "row_values": values}
    whole |= {"key": key, "values": values}
    if centre is not None:
        whole["centre"] = centre
    if signal:
        whole["signal"] = signal[0]

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        visible, logits = blocks.of_block(tensors, rows, length)
        names = "query", "key", "row_values", "values", "centre"
        query, key, row_values, values, centre = map(tensors.get, names)
        if keras.backend.backend() == "torch" and logits.is_plain and not signal:
            operands = query, key, row_values, values, centre, visible
            return _rows_on_torch(numbers, rows, *operands)
        pair = (row_values, values)
        weights = rows_of_weights(query, key, pair, numbers, visible, rows, logits, centre)
        x = tensors["signal"] if signal else values
        return ops.einsum("bnts,bsnh->btnh", weights, at_least_float32(x))

    outputs = map_query_blocks(rows_of_block, by_row, whole, length, blocks.block_size)
    return ops.cast(outputs, (signal[0] if signal else values).dtype)


def _rows_on_torch(
    numbers: PLaplacian, rows: Int[Tensor, " T"], *operands: Tensor | None
) -> Float[Tensor, "B T N D"]:
    """Rows of W V: of queries, keys, values of rows and of columns, centre and visible pairs."""
    from keras_graphattn.operators.torch_p_laplacian import Settings, rows_of_output

    has_centre, is_masked = (x is not None for x in operands[4:])

    def plain(rows: Tensor, *tensors: Tensor) -> Tensor:
        query, key, row_values, values, *others = tensors
        visible = others[-1] if is_masked else None
        centre = others[0] if has_centre else None
        pair = (row_values, values)
        weights = rows_of_weights(query, key, pair, numbers, visible, rows, Logits(), centre)
        return ops.einsum("bnts,bsnh->btnh", weights, at_least_float32(values))

    p, epsilon, drop_diagonal = numbers
    settings = Settings(p, epsilon**2, LEAST_SHARE, drop_diagonal, has_centre, is_masked)
    return rows_of_output(plain, settings, rows, *(x for x in operands if x is not None))


def common_centre(
    values: Float[Tensor, "B T N D"], visibility: Visibility
) -> Float[Tensor, "B 1 N D"] | None:
    """The mean of the values if all rows see the same values; else `None`."""
    if visibility.entries is not None or visibility.causal or visibility.window is not None:
        return None
    values = at_least_float32(values)
    if visibility.keys is None:
        return ops.mean(values, axis=1, keepdims=True)
    count = ops.sum(ops.cast(visibility.keys, values.dtype), axis=1)[:, None, None, None]
    return ops.sum(values, axis=1, keepdims=True) / ops.maximum(count, 1.0)


def pair_distances(
    rows: Float[Tensor, "B T N D"],
    columns: Float[Tensor, "B S N D"],
    least_share: float | Float[Tensor, "N 1"],
    *,
    smoothing: float = 0.0,
    relevant: Bool[Tensor, "..."] | None = None,
    centre: Float[Tensor, "B 1 N D"] | None = None,
) -> Float[Tensor, "B N T S"]:
    """Squared distances plus `smoothing`; those of pairs that are not `relevant` may be wrong.

    The Gram form is kept where it comes to at least `least_share` of |v_i|^2 + |v_j|^2. With a
    centre that every row may see, it is the Gram form of the values minus the centre, which is
    exact for values far from 0.
    """
    rows, columns = at_least_float32(rows), at_least_float32(columns)
    if traced_by_torch():  # whether a pair is near is not known, and blocks would be unrolled
        return _sums_by_channels(rows, columns) + smoothing
    shift = ops.cast(0.0, rows.dtype) if centre is None else ops.stop_gradient(centre)
    from_centre = rows - shift, columns - shift
    of_rows, of_columns = (ops.sum(x * x, axis=-1, keepdims=True) for x in from_centre)
    gram = _gram_form(*from_centre, of_rows + smoothing, of_columns)
    least = (ops.stop_gradient(least_share * x) for x in (of_rows, of_columns))
    of_rows, of_columns = (ops.transpose(x, (0, 2, 1, 3)) for x in least)
    near = gram - of_rows < ops.swapaxes(of_columns, -1, -2)
    if relevant is not None:
        near = ops.logical_and(near, relevant)

    def corrected() -> Tensor:
        return ops.where(near, _sums_of_squares(rows, columns) + smoothing, gram)

    if keras.backend.backend() == "torch":  # `any` is slow there
        is_any = ops.max(ops.cast(near, "uint8"), initial=0) > 0
    else:
        is_any = ops.any(near)
    return where_needed(is_any, corrected, lambda: gram)


def _gram_form(
    rows: Float[Tensor, "B T N D"],
    columns: Float[Tensor, "B S N D"],
    of_rows: Float[Tensor, "B T N 1"],
    of_columns: Float[Tensor, "B S N 1"],
) -> Float[Tensor, "B N T S"]:
    """(|v_i|^2, 1, v_i) . (1, |v_j|^2, -2 v_j), one product of matrices."""
    left = ops.concatenate([of_rows, ops.ones_like(of_rows), rows], axis=-1)
    right = ops.concatenate([ops.ones_like(of_columns), of_columns, -2.0 * columns], axis=-1)
    return ops.einsum("btnd,bsnd->bnts", left, right)


def _sums_by_channels(
    rows: Float[Tensor, "B T N D"], columns: Float[Tensor, "B S N D"]
) -> Float[Tensor, "B N T S"]:
    """Squared distances, for all rows and a few channels at a time."""
    rows, columns = (ops.transpose(x, (0, 2, 1, 3)) for x in (rows, columns))
    rows, columns = new_axes(rows, (ALL, ALL, ALL, None)), new_axes(columns, (ALL, ALL, None))
    total = 0.0
    for first in range(0, rows.shape[-1], CHANNELS):
        some = slice(first, first + CHANNELS)
        differences = rows[..., some] - columns[..., some]
        total = total + ops.sum(differences * differences, axis=-1)
    return total


def _sums_of_squares(
    rows: Float[Tensor, "B T N D"], columns: Float[Tensor, "B S N D"]
) -> Float[Tensor, "B N T S"]:
    """sum_h (v_ih - v_jh)^2 for every pair, from the differences of a few rows at a time."""
    length, count = rows.shape[1], max(1, DIFFERENCES_OF_A_ROW // rows.shape[-1])
    if not isinstance(length, int):  # several formats cannot cut an open length into blocks
        return _sums_by_channels(rows, columns)

    def of_block(_: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        differences = tensors["rows"][:, :, :, None] - tensors["columns"]
        return ops.sum(differences * differences, axis=-1)

    columns = ops.transpose(columns, (0, 2, 1, 3))[:, None]
    sums = map_query_blocks(of_block, {"rows": rows}, {"columns": columns}, length, count)
    return ops.transpose(sums, (0, 2, 1, 3))
