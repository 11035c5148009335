"""Squared distances between tokens, near ones as exact as far ones.

The Gram form |v_i|^2 + |v_j|^2 - 2 v_i . v_j is one product of matrices, but it is wrong by the
rounding of |v_i|^2 + |v_j|^2, which drowns the distance of equal or nearly equal tokens. Where a
distance is small beside that, it is the sum of the squared differences in its place. That takes
much longer, so it is done only if a call has such a pair.

Which of the two a pair gets depends on its own two tokens alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_graphattn.ops.arguments import checked, tensor
from keras_graphattn.ops.blocks import map_query_blocks
from keras_graphattn.ops.precision import at_least_float32

Tensor = Any

_LEAST_SHARE = 1.0 / 64.0  # of |v_i|^2 + |v_j|^2; the Gram form is right to 4e-6 from there on
_DIFFERENCES_OF_A_ROW = 512  # about how many numbers per column are formed at a time


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
    """Squared distances of which those that are not `relevant` may be wrong; none below -rounding.

    Args:
        rows: Values of shape (B, T, N, D).
        columns: Values of shape (B, S, N, D).
        least_share: The Gram form is kept for distances of at least this share of
            |v_i|^2 + |v_j|^2: a number, or a tensor of shape (N, 1, 1).
        smoothing: What is added to the distances before they are used, and here compared.
        relevant: Optional boolean tensor that broadcasts to (B, N, T, S): the pairs that count.
        centre: Optional tensor of shape (B, 1, N, D) that every row may see. The Gram form is
            that of values minus `centre`: exact, and so quick, for values far from 0.

    Returns:
        A tensor of shape (B, N, T, S).
    """
    rows, columns = at_least_float32(rows), at_least_float32(columns)
    shift = ops.cast(0.0, rows.dtype) if centre is None else ops.stop_gradient(centre)
    gram, norms = _gram_form(rows - shift, columns - shift)
    near = ops.maximum(gram, 0.0) + smoothing < least_share * norms
    if relevant is not None:
        near = ops.logical_and(near, relevant)
    return _if_any(near, lambda: ops.where(near, _sums_of_squares(rows, columns), gram), gram)


def _gram_form(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """(|v_i|^2, 1, v_i) . (1, |v_j|^2, -2 v_j), and |v_i|^2 + |v_j|^2, which has no gradient."""
    of_rows, of_columns = (ops.sum(x * x, axis=-1, keepdims=True) for x in (rows, columns))
    left = ops.concatenate([of_rows, ops.ones_like(of_rows), rows], axis=-1)
    right = ops.concatenate([ops.ones_like(of_columns), of_columns, -2.0 * columns], axis=-1)
    of_rows, of_columns = (ops.transpose(x, (0, 2, 1, 3)) for x in (of_rows, of_columns))
    norms = ops.stop_gradient(of_rows + ops.swapaxes(of_columns, -1, -2))
    return ops.einsum("btnd,bsnd->bnts", left, right), norms


def _sums_of_squares(rows: Tensor, columns: Tensor) -> Tensor:
    """sum_h (v_ih - v_jh)^2 for every pair, a few rows at a time."""

    def of_block(_: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        differences = tensors["rows"][:, :, :, None] - tensors["columns"][:, None]
        return ops.sum(differences * differences, axis=-1)  # (B, block, N, S)

    distances = map_query_blocks(
        of_block,
        {"rows": rows},
        {"columns": ops.transpose(columns, (0, 2, 1, 3))},
        ops.shape(rows)[1],
        max(1, _DIFFERENCES_OF_A_ROW // rows.shape[-1]),
    )
    return ops.transpose(distances, (0, 2, 1, 3))


def _if_any(flags: Tensor, function: Callable[[], Tensor], otherwise: Tensor) -> Tensor:
    """`function()` if any flag is set, else `otherwise`, of the same shape and dtype."""
    wanted = ops.any(flags)
    if keras.backend.backend() == "jax":
        try:  # outside `jit`, a branch would be compiled again in each call
            return function() if bool(wanted) else otherwise
        except TypeError:  # not known while jax traces
            pass
    return ops.cond(wanted, function, lambda: otherwise)
