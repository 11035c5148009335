"""Toeplitz matrices as tensors: a whole matrix, or a block of its query rows.

Row i + 1 is row i moved by one place. So a block of rows comes from one short part of the table:
repeat it, then read the numbers with rows that are shorter by one. This needs no gather of single
numbers, and the backward pass is a sum; a gather would need a scatter there, which is slow.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.numerics.precision import at_least_float32, take
from keras_graphattn.ops.toeplitz.fourier import table_shape

Tensor = Any


def skewed(window: Tensor, rows: int) -> Tensor:
    """`out[..., r, j] = window[..., rows - 1 - r + j]`.

    Args:
        window: Tensor of shape (..., rows + columns - 1).
        rows: Number of rows of the result.

    Returns:
        A tensor of shape (..., rows, columns).

    Example:

    >>> keras.ops.convert_to_numpy(skewed(np.array([1, 2, 3, 4]), rows=2)).tolist()
    [[2, 3, 4], [1, 2, 3]]
    """
    *others, width = ops.shape(window)
    columns = width - rows + 1
    if rows == 1:
        return window[..., None, :]
    repeated = ops.broadcast_to(window[..., None, :], (*others, rows, width))
    flat = ops.reshape(repeated, (*others, rows * width))
    flat = flat[..., rows - 1 : rows - 1 + rows * (width - 1)]  # now rows of length width - 1
    return ops.reshape(flat, (*others, rows, width - 1))[..., :columns]


def toeplitz_matrix(table: Tensor) -> Tensor:
    """Returns a whole (block-)Toeplitz matrix: `out[n, i, j] = table[n, i - j]`.

    Args:
        table: Tensor of shape (N, 2 s_1 - 1, ..., 2 s_d - 1), as for `toeplitz_product`.

    Returns:
        A float32 tensor of shape (N, T, T), with T = s_1 ... s_d, in row-major order.

    Example:

    >>> keras.ops.convert_to_numpy(toeplitz_matrix(np.array([[3.0, 1.0, 2.0]])))[0].tolist()
    [[1.0, 3.0], [2.0, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Definition 3.2.
    """
    matrix = at_least_float32(table)
    heads, *offsets = matrix.shape
    grid_shape = [(size + 1) // 2 for size in offsets]
    rank = len(grid_shape)
    for size in reversed(grid_shape):  # the last axis becomes two axes, which move to the front
        axes = len(matrix.shape)
        matrix = skewed(ops.flip(matrix, axis=-1), size)
        matrix = ops.transpose(matrix, (0, axes - 1, axes, *range(1, axes - 1)))
    queries = [1 + 2 * axis for axis in range(rank)]
    matrix = ops.transpose(matrix, (0, *queries, *(axis + 1 for axis in queries)))
    return ops.reshape(matrix, (heads, math.prod(grid_shape), math.prod(grid_shape)))


def toeplitz_rows(table: Tensor, start: Any, count: int, length: int | None = None) -> Tensor:
    """Returns consecutive rows of the Toeplitz matrix of a sequence.

    Args:
        table: Tensor of shape (N, 2 s - 1).
        start: The position of the first row: an integer, or a tensor of shape ().
        count: Number of rows. Rows past the end have meaningless numbers.
        length: Number of columns, at most `s`, the default.

    Returns:
        A float32 tensor of shape (N, count, length).
    """
    table = at_least_float32(table)
    size = (table.shape[1] + 1) // 2
    length = size if length is None else length
    # window[k] with k = count - 1 - r + j is the factor of the offset start + r - j.
    offsets = ops.cast(start, "int32") + count - 1
    offsets = offsets - ops.arange(count + length - 1, dtype="int32")
    indices = ops.clip(offsets + size - 1, 0, 2 * size - 2)
    return skewed(take(table, indices, axis=1), count)


def block_toeplitz_rows(
    table: Tensor, first_line: Any, lines: int, grid_shape: Sequence[int]
) -> Tensor:
    """Returns rows of the block-Toeplitz matrix of a grid, for whole lines of tokens.

    A line is the tokens along the last axis of the grid.

    Args:
        table: Tensor of shape (N, 2 s_1 - 1, ..., 2 s_d - 1).
        first_line: The first line: an integer, or a tensor of shape ().
        lines: Number of lines. Lines past the end have meaningless numbers.
        grid_shape: `(s_1, ..., s_d)`.

    Returns:
        A float32 tensor of shape (N, lines * s_d, T).
    """
    *leading, size = grid_shape
    if not leading:
        return toeplitz_rows(table, first_line * size, lines * size, size)
    table = at_least_float32(table)
    offsets = table_shape(leading)
    slabs = ops.reshape(table, (table.shape[0], math.prod(offsets), 2 * size - 1))
    ours = ops.cast(first_line, "int32") + ops.arange(lines, dtype="int32")
    ours = ops.minimum(ours, math.prod(leading) - 1)[:, None]
    theirs = ops.arange(math.prod(leading), dtype="int32")[None, :]
    indices, stride = 0, 1
    # the index of the offset between two lines, (lines, all lines)
    for extent, width in zip(reversed(leading), reversed(offsets), strict=True):
        offset = ours % extent - theirs % extent + (extent - 1)
        indices, stride = indices + stride * offset, stride * width
        ours, theirs = ours // extent, theirs // extent
    windows = take(ops.flip(slabs, axis=-1), ops.reshape(indices, (-1,)), axis=1)
    blocks = ops.reshape(skewed(windows, size), (-1, lines, math.prod(leading), size, size))
    blocks = ops.transpose(blocks, (0, 1, 3, 2, 4))  # (N, lines, s_d, all lines, s_d)
    return ops.reshape(blocks, (-1, lines * size, math.prod(grid_shape)))
