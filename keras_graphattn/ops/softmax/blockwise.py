"""Attention by blocks of query rows, each against all keys: no n x n tensor in any direction.

No online softmax is needed. The backward pass forms each block of A again in place of keeping
it. A filter that applies A twice in a row pays for that once: `BlockwiseOperator.twice` has a
backward pass of its own, in which both applications share one gradient of the scores.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import cached, checked, optional, scale_of_scores, tensor, whole
from keras_graphattn.numerics.blocks import (
    cut_into_blocks,
    fits_one_block,
    join_blocks,
    loop_in_turn,
    loop_over_blocks,
    map_in_turn,
    map_query_blocks,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, compiled_once
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.ops.filters.triangular import NOT_CAUSAL
from keras_graphattn.ops.softmax.attention import attention_matrix, matrix_operator, score_operands
from keras_graphattn.ops.softmax.block_weights import (
    Settings,
    float32_sum,
    heads_first,
    settings_of,
    weights_by_index,
)
from keras_graphattn.ops.softmax.causal_solution import causal_solution
from keras_graphattn.ops.softmax.masks import AttentionMask, attention_mask, joined_mask

Tensor = Any
Tensors = tuple[Tensor, ...]


class BlockwiseOperator:
    """The operator `x -> A x` in O(n * block_size) memory, forward and backward.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        mask: What each query may see; everything by default.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        block_size: Number of query rows at a time.

    Example:

    >>> query, key, values = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> apply = BlockwiseOperator(query, key, AttentionMask(causal=True), block_size=4)
    >>> once, twice = apply.twice(values)  # A V and A A V
    >>> tuple(apply(values).shape), tuple(twice.shape)
    ((2, 10, 4, 8), (2, 10, 4, 8))
    """

    @checked(
        query=tensor("B T N H"),
        key=tensor("B S N H"),
        mask=optional(attention_mask("T", "S")),
        scale=optional(scale_of_scores),
        block_size=whole(),
    )
    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: AttentionMask | None = None,
        scale: float | None = None,
        block_size: int = 512,
    ) -> None:
        self.query, self.key = score_operands(query, key, scale)
        self.mask = AttentionMask() if mask is None else mask
        self.block_size = block_size

    @checked(x=tensor("B S N D"))
    def __call__(self, x: Tensor) -> Tensor:
        """A x, of shape (B, T, N, D), for a signal x of shape (B, S, N, D)."""
        settings, tensors = settings_of(self.mask, self.block_size)
        return compiled_once(_once, settings)(
            self.query, self.key, ops.convert_to_tensor(x), *tensors
        )

    @checked(x=tensor("B T N D"))
    def twice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A x and A A x, with one backward pass for both, for a square A.

        Forward and backward, two applications cost 14 products with n x n matrices; here two are
        spared, those that take the gradient of the scores to queries and keys a second time.
        """
        x = ops.convert_to_tensor(x)
        length = ops.shape(self.query)[1]
        if fits_one_block(length, self.block_size):
            apply = matrix_operator(self._matrix(x.dtype))
            once = apply(x)
            return once, apply(once)
        settings, tensors = settings_of(self.mask, self.block_size)

        def by_blocks(query: Tensor, key: Tensor, x: Tensor) -> Tensors:
            return _twice(settings)(query, key, x, *tensors)

        heads = self.query.shape[2]
        if keras.backend.backend() == "torch" and fits_one_block(length, heads * self.block_size):
            from keras_graphattn.ops.softmax import torch_blockwise

            positions = ops.arange(length, dtype="int32")
            mask = joined_mask(self.mask, positions, positions)
            once, second = torch_blockwise.twice(by_blocks, self.query, self.key, x, mask)
        else:
            once, second = by_blocks(self.query, self.key, x)
        return once, second

    @checked(x=tensor("B T N D"))
    def solve(self, factor: Tensor, x: Tensor) -> Tensor:
        """The y with y + factor * A y = x, for causal attention.

        Block after block from the first row on, so it takes the time of one application.

        Args:
            factor: Tensor that broadcasts to (N, 1): one number for each head.
            x: Tensor of shape (B, T, N, D).

        Returns:
            A tensor of the shape and dtype of `x`.

        Raises:
            ValueError: If the mask is not causal.
        """
        if not self.mask.causal:
            raise ValueError(NOT_CAUSAL.format("a mask with causal=False"))
        x = ops.convert_to_tensor(x)
        if fits_one_block(ops.shape(self.query)[1], self.block_size):
            return matrix_operator(self._matrix(x.dtype)).solve(factor, x)
        return causal_solution(self.mask, self.block_size, self.query, self.key, factor, x)

    def _matrix(self, dtype: Any) -> Tensor:
        positions = ops.arange(ops.shape(self.query)[1], dtype="int32")
        mask = joined_mask(self.mask, positions, positions)
        return ops.cast(attention_matrix(self.query, self.key, mask, scale=1.0), dtype)


def _once(
    settings: Settings, query: Tensor, key: Tensor, x: Tensor, *mask_tensors: Tensor
) -> Tensor:
    by_row, whole = settings.named(mask_tensors)

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        weights = settings.weights(tensors["query"], tensors["key"], tensors, rows)
        weights = ops.cast(weights, tensors["signal"].dtype)
        return ops.einsum("bnts,bnsh->btnh", weights, tensors["signal"])

    return map_query_blocks(
        rows_of_block,
        {**by_row, "query": query},
        {**whole, "key": heads_first(key), "signal": heads_first(x)},
        ops.shape(query)[1],
        settings.block_size,
    )


@cached
def _twice(settings: Settings) -> FunctionWithGradient:
    return FunctionWithGradient(
        lambda *tensors: _value_of_twice(settings, *tensors),
        lambda *given: _gradient_of_twice(settings, *given),
    )


def _value_of_twice(
    settings: Settings, query: Tensor, key: Tensor, x: Tensor, *mask_tensors: Tensor
) -> tuple[Tensors, Tensors]:
    length = ops.shape(query)[1]
    weights_of, query_blocks, _ = weights_by_index(settings, query, key, mask_tensors, x.dtype)
    numbers = ops.arange(ops.shape(query_blocks)[0], dtype="int32")

    def apply(signal: Tensor) -> Tensor:
        signal = heads_first(signal)

        def rows_of_block(index: Tensor) -> Tensor:
            return ops.einsum("bnts,bnsh->btnh", weights_of(index), signal)

        return join_blocks(map_in_turn(rows_of_block, numbers), length)

    once = apply(x)
    second = apply(once)
    return (once, second), (once, second)


def _gradient_of_twice(
    settings: Settings, inputs: Tensors, outputs: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    """Gradients for query, key and x of once = A x and second = A once, given theirs.

    The gradient of `once` gathers A^T of the gradient of `second` first. Then, for both at once,
    dA = d(second) once^T + d(once) x^T, and dS = A o (dA - rowsum(A o dA)), where the row sums are
    those of (outputs o their gradients).
    """
    query, key, x, *mask_tensors = inputs
    once, second = outputs
    length, dtype, size = ops.shape(query)[1], x.dtype, x.shape[-1]
    weights_of, query_blocks, keys = weights_by_index(
        settings, query, key, tuple(mask_tensors), dtype
    )
    count = ops.shape(query_blocks)[0]
    to_once, to_second = (at_least_float32(tensor) for tensor in upstream)

    def cut(tensor: Tensor) -> Tensor:
        return cut_into_blocks(tensor, settings.block_size)

    second_blocks = cut(ops.cast(to_second, dtype))

    def through_second(index: Tensor, total: Tensor) -> Tensor:
        weights = weights_of(index)
        return total + float32_sum("bnts,btnh->bnsh", weights, second_blocks[index])

    total = loop_in_turn(count, through_second, heads_first(to_once))
    to_once = heads_first(total)
    row_sums = ops.sum(
        at_least_float32(once) * to_once + at_least_float32(second) * to_second, axis=-1
    )
    row_sums = ops.transpose(cut(row_sums), (0, 1, 3, 2))[..., None]  # (count, B, N, block, 1)
    signals = heads_first(ops.concatenate([once, x], axis=-1))
    to_signals = cut(ops.cast(ops.concatenate([to_second, to_once], axis=-1), dtype))

    def through_both(index: Tensor, totals: Tensors) -> tuple[Tensors, Tensor]:
        to_key, to_x = totals
        query_block, to_block = query_blocks[index], to_signals[index]
        weights = weights_of(index)
        to_x = to_x + float32_sum("bnts,btnh->bnsh", weights, to_block[..., size:])
        to_weights = float32_sum("btnh,bnsh->bnts", to_block, signals)
        to_scores = ops.cast(
            at_least_float32(weights) * (to_weights - row_sums[index]), query_block.dtype
        )
        to_key = to_key + float32_sum("bnts,btnh->bnsh", to_scores, query_block)
        return (to_key, to_x), ops.einsum("bnts,bnsh->btnh", to_scores, keys)

    start = tuple(ops.zeros_like(at_least_float32(z)) for z in (keys, heads_first(x)))
    (to_key, to_x), to_query = loop_over_blocks(count, through_both, start, query_blocks[0])
    return (
        join_blocks(to_query, length),
        ops.cast(heads_first(to_key), keys.dtype),
        ops.cast(heads_first(to_x), dtype),
        *(None for _ in mask_tensors),
    )
