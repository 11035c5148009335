"""Attention by blocks of query rows, each against all keys: no n x n tensor in any direction.

No online softmax is needed. The backward pass forms each block of A again in place of keeping
it. A filter that applies A twice in a row pays for that once: `BlockwiseOperator.twice` has a
backward pass of its own, in which both applications share one gradient of the scores.
"""

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_graphattn.ops.arguments import checked, optional, scale_of_scores, tensor, whole
from keras_graphattn.ops.attention import attention_matrix, matrix_operator, scaled
from keras_graphattn.ops.attention_mask import (
    AttentionMask,
    attention_mask,
    block_mask,
    joined_mask,
    split_mask,
)
from keras_graphattn.ops.blocks import (
    cut_into_blocks,
    cut_rows,
    fits_one_block,
    join_blocks,
    loop_in_turn,
    map_in_turn,
    map_query_blocks,
    number_of_blocks,
)
from keras_graphattn.ops.precision import at_least_float32, masked_softmax

Tensor = Any


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
        self.query = scaled(query, scale)
        self.key = ops.convert_to_tensor(key)
        self.mask = AttentionMask() if mask is None else mask
        self.block_size = block_size

    @checked(x=tensor("B S N D"))
    def __call__(self, x: Tensor) -> Tensor:
        """A x, of shape (B, T, N, D), for a signal x of shape (B, S, N, D)."""
        by_row, whole = split_mask(self.mask)
        length = ops.shape(self.query)[1]

        def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            scores = ops.einsum("btnh,bnsh->bnts", tensors["query"], tensors["key"])
            weights = masked_softmax(
                scores, block_mask(self.mask, tensors, rows, tensors["columns"])
            )
            return ops.einsum("bnts,bnsh->btnh", weights, tensors["signal"])

        return map_query_blocks(
            rows_of_block,
            {**by_row, "query": self.query},
            {
                **whole,
                "key": _heads_first(self.key),
                "signal": _heads_first(ops.convert_to_tensor(x)),
                "columns": ops.arange(ops.shape(self.key)[1]),
            },
            length,
            self.block_size,
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
            positions = ops.arange(length)
            mask = joined_mask(self.mask, positions, positions)
            apply = matrix_operator(attention_matrix(self.query, self.key, mask, scale=1.0))
            once = apply(x)
            return once, apply(once)
        return _twice(self.query, self.key, x, self.mask, self.block_size)


def _twice(
    query: Tensor, key: Tensor, x: Tensor, mask: AttentionMask, block_size: int
) -> tuple[Tensor, Tensor]:
    length = ops.shape(query)[1]
    by_row, whole = split_mask(mask)
    mask_blocks = {name: cut_into_blocks(tensor, block_size) for name, tensor in by_row.items()}
    count = number_of_blocks(length, block_size)

    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def both(query: Tensor, key: Tensor, x: Tensor, *mask_tensors: Tensor) -> Any:
        rows, columns = cut_rows(length, block_size), ops.arange(length)
        of_rows = dict(zip(mask_blocks, mask_tensors, strict=False))
        of_all = dict(zip(whole, mask_tensors[len(mask_blocks) :], strict=True))

        def weights_of(index: Tensor, query_block: Tensor, keys: Tensor) -> Tensor:
            scores = ops.einsum("btnh,bnsh->bnts", query_block, keys)
            tensors = of_all | {name: blocks[index] for name, blocks in of_rows.items()}
            return masked_softmax(scores, block_mask(mask, tensors, rows[index], columns))

        query_blocks, keys = cut_into_blocks(query, block_size), _heads_first(key)

        def apply(signal: Tensor) -> Tensor:
            signal = _heads_first(signal)

            def rows_of_block(index: Tensor) -> Tensor:
                weights = weights_of(index, query_blocks[index], keys)
                return ops.einsum("bnts,bnsh->btnh", weights, signal)

            return join_blocks(map_in_turn(rows_of_block, ops.arange(count)), length)

        once = apply(x)
        second = apply(once)

        def gradient(*arguments: Any, upstream: Any = None) -> tuple[Any, ...]:
            (to_both,) = arguments if upstream is None else (upstream,)
            upstream = ops.split(at_least_float32(to_both), 2, axis=-1)
            inputs, outputs = (query_blocks, keys, x), (once, second)
            found = _gradient_of_twice(weights_of, inputs, outputs, upstream, length)
            return *found, *[None for _ in mask_tensors]

        # one tensor: torch's backend knows no gradient of its own for several
        return ops.concatenate([once, second], axis=-1), gradient

    # on jax, a function with its own gradient may not capture tensors
    tensors = (*mask_blocks.values(), *whole.values())
    once, second = ops.split(both(query, key, x, *tensors), 2, axis=-1)
    return once, second


def _gradient_of_twice(
    weights_of: Any, inputs: Any, outputs: Any, upstream: Any, length: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for query, key and x of once = A x and second = A once, given theirs.

    The gradient of `once` gathers A^T of the gradient of `second` first. Then, for both at once,
    dA = d(second) once^T + d(once) x^T, and dS = A o (dA - rowsum(A o dA)), where the row sums are
    those of (outputs o their gradients).
    """
    query_blocks, keys, x = inputs
    once, second = outputs
    count, block_size = ops.shape(query_blocks)[0], query_blocks.shape[2]
    to_once, to_second = upstream
    dtype, size = x.dtype, x.shape[-1]

    def cut(tensor: Tensor) -> Tensor:
        return cut_into_blocks(tensor, block_size)

    second_blocks = cut(ops.cast(to_second, dtype))

    def through_second(index: Tensor, total: Tensor) -> Tensor:
        weights = weights_of(index, query_blocks[index], keys)
        return total + _float32_sum("bnts,btnh->bnsh", weights, second_blocks[index])

    total = loop_in_turn(count, through_second, _heads_first(to_once))
    to_once = _heads_first(total)
    row_sums = ops.sum(
        at_least_float32(once) * to_once + at_least_float32(second) * to_second, axis=-1
    )
    row_sums = ops.transpose(cut(row_sums), (0, 1, 3, 2))[..., None]  # (count, B, N, block, 1)
    signals = _heads_first(ops.concatenate([once, x], axis=-1))
    to_signals = cut(ops.cast(ops.concatenate([to_second, to_once], axis=-1), dtype))

    def through_both(index: Tensor, totals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        to_query, to_key, to_x = totals
        query_block, to_block = query_blocks[index], to_signals[index]
        weights = weights_of(index, query_block, keys)
        to_x = to_x + _float32_sum("bnts,btnh->bnsh", weights, to_block[..., size:])
        to_weights = _float32_sum("btnh,bnsh->bnts", to_block, signals)
        to_scores = ops.cast(
            at_least_float32(weights) * (to_weights - row_sums[index]), query_block.dtype
        )
        to_key = to_key + _float32_sum("bnts,btnh->bnsh", to_scores, query_block)
        to_block = ops.einsum("bnts,bnsh->btnh", to_scores, keys)[None]
        return ops.slice_update(to_query, (index, 0, 0, 0, 0), to_block), to_key, to_x

    start = (
        ops.zeros_like(query_blocks),
        *(ops.zeros_like(at_least_float32(z)) for z in (keys, _heads_first(x))),
    )
    to_query, to_key, to_x = loop_in_turn(count, through_both, start)
    return (
        join_blocks(to_query, length),
        ops.cast(_heads_first(to_key), keys.dtype),
        ops.cast(_heads_first(to_x), dtype),
    )


def _heads_first(x: Tensor) -> Tensor:
    """(B, T, N, H) -> (B, N, T, H), as products with a block of A want it, and back."""
    return ops.transpose(x, (0, 2, 1, 3))


def _float32_sum(equation: str, *tensors: Tensor) -> Tensor:
    return at_least_float32(ops.einsum(equation, *tensors))
