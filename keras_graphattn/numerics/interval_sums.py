"""Sums over intervals of numbers of one sign, without differences of longer sums.

The difference of two cumulative sums loses the digits of a short interval. These sums add only the
numbers of their interval, so the relative error is that of a sum of so many numbers of one sign.
"""

from keras import ops

from keras_graphattn.numerics.blocks import cut_into_chunks, first_of
from keras_graphattn.numerics.precision import matmul, positions_of
from keras_graphattn.types import Float, Int, Tensor

PART = 64  # numbers of which all pairs are added at once


def sums_between(
    numbers: Float[Tensor, "... c"], first: Int[Tensor, " columns"], behind: Int[Tensor, " rows"]
) -> Float[Tensor, "... rows columns"]:
    """The sums of `numbers[k]` over first <= k < behind, for all pairs; 0 for empty intervals.

    Example:

    >>> order = keras.ops.arange(3, dtype="int32")
    >>> sums = sums_between(np.array([1.0, 2.0, 4.0], "float32"), order, order + 1)
    >>> keras.ops.convert_to_numpy(sums).tolist()
    [[1.0, 0.0, 0.0], [3.0, 2.0, 0.0], [7.0, 6.0, 4.0]]
    """
    numbers = ops.convert_to_tensor(numbers)
    order = positions_of(ops.shape(numbers)[-1])
    before = ops.cast(order[None, :] < behind[:, None], numbers.dtype)  # (rows, c)
    after = ops.cast(order[:, None] >= first[None, :], numbers.dtype)  # (c, columns)
    return matmul(numbers[..., None, :] * before, after)


def sums_behind(numbers: Float[Tensor, "B N R T"]) -> Float[Tensor, "B N R T"]:
    """The sum of all numbers after each one, along the last axis, in O(T) for each row.

    Example:

    >>> sums = sums_behind(np.array([1.0, 2.0, 4.0], "float32").reshape((1, 1, 1, 3)))
    >>> keras.ops.convert_to_numpy(sums).ravel().tolist()
    [6.0, 4.0, 0.0]
    """
    numbers = ops.convert_to_tensor(numbers)
    batch, heads, rows, length = ops.shape(numbers)
    parts = cut_into_chunks(ops.reshape(numbers, (batch, heads * rows, length)), PART)
    sums = _behind(parts) + _behind(ops.sum(parts, axis=-1))[..., None]  # (B, N R, parts, PART)
    sums = first_of(ops.reshape(sums, (batch, heads * rows, -1)), length, axis=2)
    return ops.reshape(sums, (batch, heads, rows, length))


def _behind(numbers: Float[Tensor, "... c"]) -> Float[Tensor, "... c"]:
    """`sums_behind` by the matrix of all pairs."""
    order = positions_of(ops.shape(numbers)[-1])
    return matmul(numbers, ops.cast(order[:, None] > order[None, :], numbers.dtype))
