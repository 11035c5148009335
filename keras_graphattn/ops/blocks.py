"""Work on a few query rows at a time: O(n * block) memory, backward pass included."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

Tensor = Any
BlockFunction = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


def map_query_blocks(
    function: BlockFunction,
    by_row: Mapping[str, Tensor],
    whole: Mapping[str, Tensor],
    length: Any,
    block_size: int,
) -> Tensor:
    """Calls `function` for each block of query rows and joins what it returns.

    The intermediate tensors of a block are not kept for the backward pass but computed again,
    so nothing of size n x n is ever alive. `function` must not capture tensors that need a
    gradient (TensorFlow's rematerialisation drops it in silence): they come as arguments.

    Args:
        function: Callable of `rows`, an integer tensor of shape (block,) with the positions of
            the block's rows, and `tensors`, a dictionary with the block's part of each tensor
            of `by_row` and with all of each tensor of `whole`. Returns a (B, block, ...) tensor.
        by_row: Tensors of shape (B, T, ...), cut into blocks. Rows beyond T are zeros.
        whole: Tensors that every block sees entirely.
        length: T, the number of query rows.
        block_size: Number of query rows at a time, at least 1.

    Returns:
        A tensor of shape (B, T, ...).
    """
    if isinstance(length, int) and length <= block_size:
        return function(ops.arange(length), {**by_row, **whole})
    padding = (-length) % block_size
    count = (length + padding) // block_size
    rows = ops.reshape(ops.arange(length + padding), (count, block_size))
    blocks = [_cut(_without_booleans(x), padding, count, block_size) for x in by_row.values()]
    names = (*by_row, *whole)
    is_mask = [_is_boolean(x) for x in (*by_row.values(), *whole.values())]

    def one_block(block_rows: Tensor, *tensors: Tensor) -> Tensor:
        masks_restored = (
            ops.cast(x, "bool") if mask else x for x, mask in zip(tensors, is_mask, strict=True)
        )
        return function(block_rows, dict(zip(names, masks_restored, strict=True)))

    rematerialised = keras.remat(one_block)
    shared = [_without_booleans(x) for x in whole.values()]
    joined = ops.map(lambda block: rematerialised(*block, *shared), (rows, *blocks))
    axes = list(range(len(joined.shape)))
    joined = ops.transpose(joined, (1, 0, *axes[2:]))
    batch, _, _, *others = ops.shape(joined)
    return ops.reshape(joined, (batch, count * block_size, *others))[:, :length]


def _is_boolean(x: Tensor) -> bool:
    return bool(keras.backend.standardize_dtype(x.dtype) == "bool")


def _without_booleans(x: Tensor) -> Tensor:
    """Masks as integers: TensorFlow's loops cannot sum the gradients of booleans."""
    return ops.cast(x, "uint8") if _is_boolean(x) else x


def _cut(x: Tensor, padding: Any, count: Any, block_size: int) -> Tensor:
    """(B, T, ...) -> (count, B, block_size, ...), filled up with zeros."""
    batch, _, *others = ops.shape(x)
    zeros = ops.zeros((batch, padding, *others), dtype=x.dtype)
    x = ops.reshape(ops.concatenate([x, zeros], axis=1), (batch, count, block_size, *others))
    return ops.transpose(x, (1, 0, *range(2, len(x.shape))))
