"""Products with Toeplitz and block-Toeplitz matrices by one real FFT, without an n x n matrix.

An entry of such a matrix depends only on the position of the query relative to the key: on one
offset along a sequence, or on one offset per axis of a grid. A *table* has one number per offset.
A sequence is a grid with one axis.

Suppose that the rows of a grid, of length s, are stored 2 s - 1 places apart. Then every offset has
its own distance in memory. So the table of the grid, read in memory order, is the table of one long
sequence. The product with a block-Toeplitz matrix of any rank is then one convolution in one
dimension. It is exact, and cheaper than one transform for each axis.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.checks import cached, checked, is_list, is_whole, tensor
from keras_graphattn.numerics.precision import at_least_float32, pad

Tensor = Any
Shape = Sequence[int]


def table_shape(grid_shape: Shape) -> tuple[int, ...]:
    """The number of offsets of each axis of a grid: `2 s - 1`, from `-(s - 1)` to `s - 1`."""
    return tuple(2 * size - 1 for size in grid_shape)


@cached
def fast_fourier_length(length: int) -> int:
    """Returns the smallest even number >= `length` with no prime factor above 5.

    Example:

    >>> fast_fourier_length(127), fast_fourier_length(511)
    (128, 512)
    """
    half = max(1, -(-length // 2))
    powers = range(half.bit_length())
    odd = [3**i * 5**j for i in powers for j in powers if 3**i * 5**j < 2 * half]
    return int(2 * min(factor << (-(-half // factor) - 1).bit_length() for factor in odd))


@checked(table=tensor("_ ..."), x=tensor("B T N D"))
def toeplitz_product(table: Tensor, x: Tensor, grid_shape: Shape | None = None) -> Tensor:
    """Returns `y_i = sum_j table[i - j] x_j`, in O(n log n) per column, differentiable in both.

    In every row, the error is about 1e-7 of the largest entry of the column. So rows that are much
    smaller than the largest row have few correct digits.

    Args:
        table: Tensor of shape (N, 2 s_1 - 1, ..., 2 s_d - 1): for each head the factor of each
            offset, from `-(s - 1)` to `s - 1` along each axis. If N is 1, all heads share it.
        x: Tensor of shape (B, T, N, D), the tokens of the grid in row-major order.
        grid_shape: `(s_1, ..., s_d)`, whose product is T. By default a sequence, `(T,)`.

    Returns:
        A tensor of the shape and dtype of `x`. It is computed in at least float32.

    Raises:
        ValueError: If the shapes do not match.

    Example:

    >>> lower = np.array([[0.0, 0.0, 1.0, 1.0, 1.0]], "float32")  # 1 where i >= j
    >>> x = np.array([1.0, 2.0, 3.0], "float32").reshape(1, 3, 1, 1)
    >>> keras.ops.convert_to_numpy(toeplitz_product(lower, x)).ravel().round(4).tolist()
    [1.0, 3.0, 6.0]

    Source: Choromanski et al., arXiv 2107.07999, Lemma 3.3. They use an FFT per axis; here it is
    one FFT.
    """
    table, x = at_least_float32(table), ops.convert_to_tensor(x)
    dtype = x.dtype
    grid_shape = _checked_grid(table, x, grid_shape)
    length = fast_fourier_length(math.prod(table_shape(grid_shape)))
    kernel = [part[:, None] for part in ops.rfft(_wrapped(table, length), fft_length=length)]
    columns = ops.transpose(at_least_float32(x), (0, 2, 3, 1))  # (B, N, D, T)
    signal = ops.rfft(_spread(columns, grid_shape), fft_length=length)
    real = signal[0] * kernel[0] - signal[1] * kernel[1]
    imaginary = signal[0] * kernel[1] + signal[1] * kernel[0]
    # the product of two transforms is the convolution: (B, N, D, T)
    product = _gathered(ops.irfft((real, imaginary), fft_length=length), grid_shape)
    return ops.cast(ops.transpose(product, (0, 3, 1, 2)), dtype)


def _checked_grid(table: Tensor, x: Tensor, grid_shape: Shape | None) -> Shape:
    length, heads = x.shape[1], x.shape[2]
    if grid_shape is None:
        grid_shape = (length,)
    elif not is_list(grid_shape) or not all(is_whole(size) and size > 0 for size in grid_shape):
        raise ValueError(
            f"`grid_shape` must be a list of sizes. Received: grid_shape={grid_shape!r}"
        )
    grid_shape = tuple(grid_shape)
    if None in grid_shape:
        raise ValueError(
            "A Toeplitz product by FFT needs a fixed length. Received: "
            f"x.shape={tuple(x.shape)}. Give `x` a fixed second axis."
        )
    expected = table_shape(grid_shape)
    if (
        math.prod(grid_shape) != length
        or tuple(table.shape[1:]) != expected
        or table.shape[0] not in (1, heads)
    ):
        raise ValueError(
            f"For `grid_shape`={grid_shape}, `x` must have shape (B, {math.prod(grid_shape)}, "
            f"N, D) and `table` (N, {', '.join(map(str, expected))}). "
            f"Received: x.shape={tuple(x.shape)}, table.shape={tuple(table.shape)}"
        )
    return grid_shape


def _wrapped(table: Tensor, length: int) -> Tensor:
    """(N, ...) -> (N, length): offset 0 first, negative offsets last, zeros between them."""
    heads, offsets = table.shape[0], math.prod(table.shape[1:])
    flat, centre = ops.reshape(table, (heads, offsets)), offsets // 2
    zeros = ops.zeros((heads, length - offsets), dtype=table.dtype)
    return ops.concatenate([flat[:, centre:], zeros, flat[:, :centre]], axis=-1)


def _spread(columns: Tensor, grid_shape: Shape) -> Tensor:
    """(B, N, D, T) -> (B, N, D, positions): pads every axis except the first to 2 s - 1."""
    if len(grid_shape) == 1:
        return columns
    *others, _ = ops.shape(columns)
    wide = (grid_shape[0], *table_shape(grid_shape[1:]))
    columns = ops.reshape(columns, (*others, *grid_shape))
    widths = [(0, full - size) for full, size in zip(wide, grid_shape, strict=True)]
    return ops.reshape(pad(columns, [(0, 0)] * 3 + widths), (*others, math.prod(wide)))


def _gathered(columns: Tensor, grid_shape: Shape) -> Tensor:
    """The inverse of `_spread`: picks the positions that hold tokens."""
    *others, _ = ops.shape(columns)
    wide = (grid_shape[0], *table_shape(grid_shape[1:]))
    columns = ops.reshape(columns[..., : math.prod(wide)], (*others, *wide))
    columns = columns[(..., *(slice(size) for size in grid_shape))]
    return ops.reshape(columns, (*others, math.prod(grid_shape)))
