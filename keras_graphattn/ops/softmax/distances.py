"""Squared distances between tokens, near ones as exact as far ones.

The Gram form |v_i|^2 + |v_j|^2 - 2 v_i . v_j is one product of matrices, but it is wrong by the
rounding of |v_i|^2 + |v_j|^2, which drowns the distance of equal or nearly equal tokens. Where a
distance is small next to that, it is the sum of the squared differences instead. That takes
much longer, so it is done only if a call has such a pair.

Which of the two a pair gets depends only on its own two tokens.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_graphattn.checks import checked, tensor, traced_by_torch
from keras_graphattn.numerics.blocks import (
    cut_into_blocks,
    fits_one_block,
    join_blocks,
    map_in_turn,
    where_needed,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import at_least_float32

Tensor = Any
Tensors = tuple[Tensor, ...]

_LEAST_SHARE = 1.0 / 64.0  # of |v_i|^2 + |v_j|^2; the Gram form is right to 4e-6 from there on
_DIFFERENCES_OF_A_ROW = 512  # about how many numbers per column are formed at a time
_CHANNELS = 8  # of a pair that are formed at a time where rows are not cut into blocks


@checked(rows=tensor("B T N D"), columns=tensor("B S N D"))
def squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """|v_i - v_j|^2 in at least float32, with a relative error below 1e-5 for every pair.

    Args:
        rows: Values of shape (B, T, N, D).
        columns: Values of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, N, T, S). Two equal tokens have distance 0.

    Example:

    >>> values = np.array([1.0, 3.0], "float32").reshape((1, 2, 1, 1))
    >>> keras.ops.convert_to_numpy(squared_distances(values, values))[0, 0].tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    return ops.maximum(pair_distances(rows, columns, _LEAST_SHARE), 0.0)


def pair_distances(
    rows: Tensor,
    columns: Tensor,
    least_share: Any,
    *,
    smoothing: float = 0.0,
    relevant: Tensor | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    """Squared distances plus `smoothing`; those of pairs that are not `relevant` may be wrong.

    Args:
        rows: Values of shape (B, T, N, D).
        columns: Values of shape (B, S, N, D).
        least_share: The Gram form is kept where it comes to at least this share of
            |v_i|^2 + |v_j|^2: a number, or a tensor of shape (N, 1).
        smoothing: What is added to every distance.
        relevant: Optional boolean tensor that broadcasts to (B, N, T, S): the pairs that count.
        centre: Optional tensor of shape (B, 1, N, D) that every row may see. The Gram form is
            that of values minus `centre`: exact, and so quick, for values far from 0.

    Returns:
        A tensor of shape (B, N, T, S).
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

    is_any = ops.max(ops.cast(near, "uint8"), initial=0) > 0  # `any` is slow on torch
    return where_needed(is_any, corrected, lambda: gram)


def _gram_form(rows: Tensor, columns: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """(|v_i|^2, 1, v_i) . (1, |v_j|^2, -2 v_j), one product of matrices."""
    left = ops.concatenate([of_rows, ops.ones_like(of_rows), rows], axis=-1)
    right = ops.concatenate([ops.ones_like(of_columns), of_columns, -2.0 * columns], axis=-1)
    return ops.einsum("btnd,bsnd->bnts", left, right)


def _sums_of_squares(rows: Tensor, columns: Tensor) -> Tensor:
    """sum_h (v_ih - v_jh)^2 for every pair, (B, N, T, S)."""
    (found,) = _SUMS_OF_SQUARES(rows, columns)
    return found


def _sums_by_channels(rows: Tensor, columns: Tensor) -> Tensor:
    """Squared distances (B, N, T, S), for all rows and a few channels at a time."""
    rows, columns = (ops.transpose(x, (0, 2, 1, 3)) for x in (rows, columns))
    total = 0.0
    for first in range(0, rows.shape[-1], _CHANNELS):
        some = slice(first, first + _CHANNELS)
        differences = rows[..., :, None, some] - columns[..., None, :, some]
        total = total + ops.sum(differences * differences, axis=-1)
    return total


def _value_of_sums(rows: Tensor, columns: Tensor) -> tuple[Tensors, Tensors]:
    sums = _by_rows(lambda d: ops.sum(d * d, axis=-1), rows, columns)
    return (ops.transpose(sums, (0, 2, 1, 3)),), ()


def _gradient_of_sums(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    rows, columns = tensors
    to_rows = _weighted_differences(upstream[0], rows, columns)
    transposed = ops.swapaxes(upstream[0], -1, -2)
    return 2.0 * to_rows, 2.0 * _weighted_differences(transposed, columns, rows)


def _weighted_differences(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """sum_j w_ij (v_i - v_j) for every row, (B, T, N, D)."""
    (found,) = _WEIGHTED_DIFFERENCES(weights, rows, columns)
    return found


def _value_of_weighted(weights: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensors, Tensors]:
    by_row = ops.transpose(weights, (0, 2, 1, 3))
    sums = _by_rows(lambda d, w: ops.einsum("btns,btnsd->btnd", w, d), rows, columns, by_row)
    return (sums,), ()


def _gradient_of_weighted(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    weights, rows, columns = tensors
    to_weights = _projected_differences(upstream[0], rows, columns)
    return to_weights, *_sums(weights, upstream[0])


def _projected_differences(vectors: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """sum_h u_ih (v_ih - v_jh) for every pair, (B, N, T, S)."""
    (found,) = _PROJECTED_DIFFERENCES(vectors, rows, columns)
    return found


def _value_of_projected(vectors: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensors, Tensors]:
    products = _by_rows(lambda d, u: ops.einsum("btnd,btnsd->btns", u, d), rows, columns, vectors)
    return (ops.transpose(products, (0, 2, 1, 3)),), ()


def _gradient_of_projected(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    vectors, rows, columns = tensors
    to_vectors = _weighted_differences(upstream[0], rows, columns)
    return to_vectors, *_sums(upstream[0], vectors)


_SUMS_OF_SQUARES = FunctionWithGradient(_value_of_sums, _gradient_of_sums)
_WEIGHTED_DIFFERENCES = FunctionWithGradient(_value_of_weighted, _gradient_of_weighted)
_PROJECTED_DIFFERENCES = FunctionWithGradient(_value_of_projected, _gradient_of_projected)


def _sums(weights: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """u_i sum_j w_ij for every row, and -sum_i w_ij u_i for every column."""
    totals = ops.transpose(ops.sum(weights, axis=-1), (0, 2, 1))[..., None]
    return vectors * totals, -ops.einsum("bnts,btnd->bsnd", weights, vectors)


def _by_rows(
    function: Callable[..., Tensor], rows: Tensor, columns: Tensor, *by_row: Tensor
) -> Tensor:
    """`function` of the differences (B, t, N, S, D) of a few rows at a time, and of `by_row`."""
    columns = ops.transpose(columns, (0, 2, 1, 3))[:, None]
    length, count = ops.shape(rows)[1], max(1, _DIFFERENCES_OF_A_ROW // rows.shape[-1])

    def of_block(block: tuple[Tensor, ...]) -> Tensor:
        return function(block[0][:, :, :, None] - columns, *block[1:])

    if fits_one_block(length, count):
        return of_block((rows, *by_row))
    blocks = tuple(cut_into_blocks(x, count) for x in (rows, *by_row))
    return join_blocks(map_in_turn(of_block, blocks), length)
