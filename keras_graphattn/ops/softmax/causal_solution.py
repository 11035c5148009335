"""Solves (I + b A) y = x for causal attention in blocks of rows, without an n x n tensor.

Rows of A see earlier rows only. So each block of y needs the blocks before it, and one triangular
system of the block's own size. The gradient solves the transposed system from the last block on.
"""

from typing import Any

from keras import ops

from keras_graphattn.checks import cached
from keras_graphattn.numerics.blocks import cut_into_blocks, loop_in_turn, rows_missing
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import at_least_float32, pad, take
from keras_graphattn.ops.filters.triangular import solve_lower
from keras_graphattn.ops.softmax.block_weights import (
    Settings,
    Tensors,
    float32_sum,
    heads_first,
    settings_of,
    weights_by_index,
)
from keras_graphattn.ops.softmax.masks import AttentionMask

Tensor = Any


def causal_solution(
    mask: AttentionMask, block_size: int, query: Tensor, key: Tensor, factor: Tensor, x: Tensor
) -> Tensor:
    """The y with y + factor * A y = x.

    Args:
        mask: A causal mask.
        block_size: Number of rows at a time.
        query: Tensor of shape (B, T, N, H), scaled.
        key: Tensor of shape (B, T, N, H).
        factor: Tensor that broadcasts to (N, 1), between -1 and 1.
        x: Tensor of shape (B, T, N, D).

    Returns:
        A tensor of the shape and dtype of `x`.
    """
    settings, tensors = settings_of(mask, block_size)
    factor = at_least_float32(factor)[..., None]
    factor = ops.broadcast_to(factor, (query.shape[2], 1, 1))
    (solved,) = _solution(settings)(query, key, factor, x, *tensors)
    return ops.cast(solved, x.dtype)


@cached
def _solution(settings: Settings) -> FunctionWithGradient:
    return FunctionWithGradient(
        lambda *tensors: _value(settings, *tensors), lambda *given: _gradient(settings, *given)
    )


def _square(x: Tensor, settings: Settings) -> tuple[Tensor, Any]:
    """(B, T, N, D) in blocks, (count, B, N, block, D) in float32; and the number of blocks."""
    blocks = cut_into_blocks(at_least_float32(x), settings.block_size)
    return ops.transpose(blocks, (0, 1, 3, 2, 4)), ops.shape(blocks)[0]


def _rows_of_a(settings: Settings, query: Tensor, key: Tensor, masks: Tensors, dtype: Any) -> Any:
    """A function of a block's number: its rows of A, (B, N, block, count * block)."""
    weights_of, _, _ = weights_by_index(settings, query, key, masks, dtype)
    missing = rows_missing(ops.shape(key)[1], settings.block_size)

    def rows_of(index: Tensor) -> Tensor:
        return pad(weights_of(index), ((0, 0), (0, 0), (0, 0), (0, missing)))

    return rows_of


def _diagonal(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """The block's own columns, (B, N, block, block), of its rows of A."""
    batch, heads, _, length = ops.shape(rows)
    return take(ops.reshape(rows, (batch, heads, size, length // size, size)), index, axis=3)


def _with_block(x: Tensor, index: Tensor, block: Tensor) -> Tensor:
    """x (B, N, count * block, H) with one block of rows replaced; a gradient exists everywhere."""
    batch, heads, length, width = ops.shape(x)
    size = block.shape[2]
    blocks = ops.reshape(x, (batch, heads, length // size, size, width))
    is_it = (ops.arange(length // size, dtype="int32") == index)[:, None, None]
    replaced = ops.where(is_it, ops.expand_dims(ops.cast(block, x.dtype), 2), blocks)
    return ops.reshape(replaced, (batch, heads, length, width))


def _block_of(x: Tensor, index: Tensor, size: int) -> Tensor:
    """One block of rows of x (B, N, count * block, H)."""
    batch, heads, length, width = ops.shape(x)
    return take(ops.reshape(x, (batch, heads, length // size, size, width)), index, axis=2)


def _value(
    settings: Settings, query: Tensor, key: Tensor, factor: Tensor, x: Tensor, *masks: Tensor
) -> tuple[Tensors, Tensors]:
    size, length = settings.block_size, ops.shape(x)[1]
    blocks, count = _square(x, settings)
    rows_of = _rows_of_a(settings, query, key, masks, blocks.dtype)

    def solve_block(index: Tensor, solved: Tensor) -> Tensor:
        rows = rows_of(index)
        known = ops.matmul(rows, solved)  # of the blocks before: the others are still 0
        right = blocks[index] - factor * known
        found = solve_lower(_diagonal(rows, index, size), factor, right)
        return _with_block(solved, index, found)

    batch, heads, _, features = ops.shape(blocks)[1:]
    start = ops.zeros((batch, heads, count * size, features), blocks.dtype)
    solved = loop_in_turn(count, solve_block, start)  # (B, N, count * block, D)
    return (heads_first(solved)[:, :length],), (solved,)


def _gradient(
    settings: Settings, inputs: Tensors, kept: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    """Gradients for query, key, factor and x, given that of y.

    With z = (I + b A)^-T times the gradient of y: z is the gradient of x, -b z y^T that of A, and
    - sum(z o A y) that of b. The softmax follows: dS = A o (dA - rowsum(A o dA)).
    """
    query, key, factor, x, *masks = inputs
    (solved,) = kept
    size, length = settings.block_size, ops.shape(x)[1]
    blocks, count = _square(upstream[0], settings)
    rows_of = _rows_of_a(settings, query, key, tuple(masks), blocks.dtype)
    query_blocks, query_count = cut_into_blocks(query, size), count
    missing = rows_missing(length, size)
    keys = pad(heads_first(key), ((0, 0), (0, 0), (0, missing), (0, 0)))

    def solve_block(step: Tensor, state: Tensors) -> Tensors:
        later, to_x, to_query, to_key, to_factor = state
        index = query_count - 1 - step
        rows, query_block = rows_of(index), query_blocks[index]
        # the flipped transpose of a lower triangular matrix is lower triangular
        diagonal = ops.transpose(ops.flip(_diagonal(rows, index, size), (2, 3)), (0, 1, 3, 2))
        right = blocks[index] - factor * _block_of(later, index, size)
        z = ops.flip(solve_lower(diagonal, factor, ops.flip(right, 2)), 2)
        later = later + ops.matmul(ops.transpose(rows, (0, 1, 3, 2)), z)  # A^T z
        row_sums = ops.sum(z * ops.matmul(rows, solved), axis=-1, keepdims=True)
        to_weights = ops.matmul(z, ops.transpose(solved, (0, 1, 3, 2))) - row_sums
        to_scores = ops.cast(-factor * rows * to_weights, query_block.dtype)
        to_rows = float32_sum("bnts,bnsh->bnth", to_scores, keys)
        return (
            later,
            _with_block(to_x, index, z),
            _with_block(to_query, index, to_rows),
            to_key + float32_sum("bnts,btnh->bnsh", to_scores, query_block),
            to_factor - ops.sum(row_sums, axis=(0, 2), keepdims=True)[0],
        )

    nothing = ops.zeros_like(solved)
    no_keys = ops.zeros_like(at_least_float32(keys))
    start = (nothing, nothing, no_keys, no_keys, ops.zeros_like(factor))
    _, to_x, to_query, to_key, to_factor = loop_in_turn(count, solve_block, start)

    def like(gradient: Tensor, tensor: Tensor) -> Tensor:
        return ops.cast(heads_first(gradient)[:, :length], tensor.dtype)

    return (
        like(to_query, query),
        like(to_key, key),
        to_factor,
        like(to_x, x),
        *(None for _ in masks),
    )
