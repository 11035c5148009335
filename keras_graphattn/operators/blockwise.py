"""Softmax attention by blocks of query rows, each against all keys: no n x n tensor.

No online softmax is needed. The backward pass forms each block of A again instead of keeping it. A
filter that applies A twice in a row forms the blocks only once in the backward pass:
`BlockwiseOperator.twice` has a custom gradient, in which both applications share one gradient of
the scores.
"""

from collections.abc import Callable, Mapping

import keras
from keras import ops

from keras_graphattn.checks import cached
from keras_graphattn.numerics.blocks import (
    cut_into_blocks,
    cut_rows,
    fits_one_block,
    join_blocks,
    loop_in_turn,
    loop_over_blocks,
    map_over_blocks,
    map_query_blocks,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, compiled_once
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.operators.device_kernels import Kernels, chosen_kernels
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.softmax import (
    Blocks,
    Logits,
    SoftmaxOperator,
    score_operands,
    scores_of,
    zero_rows_without_keys,
)
from keras_graphattn.types import Bool, Float, Int, Tensor

Tensors = tuple[Tensor, ...]
Summed = tuple[Tensors, Tensor]  # torch's compiler reads no `tuple[...]` within a gradient


class BlockwiseOperator(Operator):
    """`x -> A x` in O(n * block_size) memory, forward and backward.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        visibility: What each query may see; everything by default.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        block_size: Number of query rows at a time.
        logits: What becomes of the scores before the softmax; nothing by default.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = BlockwiseOperator(query, key, Visibility(causal=True), block_size=4)
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B S N H"],
        visibility: Visibility | None = None,
        scale: float | None = None,
        block_size: int = 512,
        logits: Logits | None = None,
    ) -> None:
        self.query, self.key = score_operands(query, key, scale)
        self.visibility = Visibility() if visibility is None else visibility
        self.logits = Logits() if logits is None else logits
        self.block_size = block_size

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        blocks, tensors = Blocks.of(self.visibility, self.logits, self.block_size)
        once = compiled_once(_once, blocks, keep=blocks.source is None)
        return once(self.query, self.key, x, *tensors)

    def twice(
        self, x: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B T N D"], Float[Tensor, "B T N D"]]:
        """A x and A A x, with one backward pass for both if the scores are as they are.

        Forward and backward, two applications cost 14 products with n x n matrices. This saves two
        of them: those that take the gradient of the scores to queries and keys a second time.
        """
        length = ops.shape(self.query)[1]
        if fits_one_block(length, self.block_size):
            visible = self.visibility.joined(length)
            scores = scores_of(self.query, self.key, scale=1.0)
            return SoftmaxOperator(scores, visible, dtype=x.dtype, logits=self.logits).twice(x)
        if not self.logits.is_plain:  # the backend knows the gradients of the added numbers
            return super().twice(x)
        kernels = self._kernels(x)
        if kernels is not None:
            return self._twice_on_kernels(x, kernels)
        blocks, tensors = Blocks.of(self.visibility, self.logits, self.block_size)

        def by_blocks(query: Tensor, key: Tensor, x: Tensor) -> Tensors:
            return _twice(blocks)(query, key, x, *tensors)

        heads = self.query.shape[2]
        if keras.backend.backend() == "torch" and fits_one_block(length, heads * self.block_size):
            from keras_graphattn.operators.torch_blockwise import twice

            visible = self.visibility.joined(length)
            once, second = twice(by_blocks, self.query, self.key, x, visible)
        else:
            once, second = by_blocks(self.query, self.key, x)
        return once, second

    def _kernels(self, x: Float[Tensor, "B T N D"]) -> Kernels | None:
        """The kernels for `twice`, where they are asked for and take what this operator sees."""
        kernels, seen = chosen_kernels(), self.visibility
        others = seen.entries is not None or seen.window is not None
        if kernels is None or others or keras.backend.backend() != "jax":
            return None
        from keras_graphattn.operators.pallas_sweeps import fits

        return kernels if fits(self.query, x) else None

    def _twice_on_kernels(
        self, x: Float[Tensor, "B T N D"], kernels: Kernels
    ) -> tuple[Float[Tensor, "B T N D"], Float[Tensor, "B T N D"]]:
        """`twice` by `pallas_sweeps`, which takes both masks of tokens."""
        everything = ops.ones(ops.shape(x)[:2], "bool")
        seen = self.visibility
        masks = [everything if one is None else one for one in (seen.queries, seen.keys)]
        masks = [ops.broadcast_to(ops.cast(one, "bool"), ops.shape(x)[:2]) for one in masks]
        named = seen._replace(queries=masks[0], keys=masks[1])
        blocks, tensors = Blocks.of(named, self.logits, self.block_size)
        once, second = _swept(blocks, kernels.interpret)(self.query, self.key, x, *tensors)
        return once, second

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return zero_rows_without_keys(outputs, self.visibility, self.logits, self.block_size)


def _weights(
    blocks: Blocks,
    query: Float[Tensor, "B T N H"],
    keys: Float[Tensor, "B N S H"],
    tensors: Mapping[str, Bool[Tensor, "..."]],
    rows: Int[Tensor, " T"],
) -> Float[Tensor, "B N T S"]:
    """Rows of A, of queries and of keys with heads first."""
    visible, logits = blocks.of_block(tensors, rows, ops.shape(keys)[2])
    return logits.weights(ops.einsum("btnh,bnsh->bnts", query, keys), visible)[0]


def _weights_by_index(
    blocks: Blocks,
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    tensors: Tensors,
    dtype: str,
) -> tuple[
    Callable[[Int[Tensor, ""]], Float[Tensor, "B N _ S"]],
    Float[Tensor, "_ B _ N H"],
    Float[Tensor, "B N S H"],
]:
    """Returns a function from block numbers to rows of A, the query blocks, and the keys."""
    by_row, whole = blocks.named(tensors)
    cut = {name: cut_into_blocks(x, blocks.block_size) for name, x in by_row.items()}
    rows = cut_rows(ops.shape(query)[1], blocks.block_size)
    query_blocks, keys = cut_into_blocks(query, blocks.block_size), heads_first(key)

    def weights_of(index: int | Tensor) -> Tensor:
        named = whole | {name: x[index] for name, x in cut.items()}
        return ops.cast(_weights(blocks, query_blocks[index], keys, named, rows[index]), dtype)

    return weights_of, query_blocks, keys


def _once(
    blocks: Blocks,
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    x: Float[Tensor, "B S N D"],
    *tensors: Bool[Tensor, "..."],
) -> Float[Tensor, "B T N D"]:
    by_row, whole = blocks.named(tensors)

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        weights = _weights(blocks, tensors["query"], tensors["key"], tensors, rows)
        weights = ops.cast(weights, tensors["signal"].dtype)
        return ops.einsum("bnts,bnsh->btnh", weights, tensors["signal"])

    return map_query_blocks(
        rows_of_block,
        {**by_row, "query": query},
        {**whole, "key": heads_first(key), "signal": heads_first(x)},
        ops.shape(query)[1],
        blocks.block_size,
    )


@cached
def _swept(blocks: Blocks, interpret: bool) -> Callable[..., Tensors]:
    from keras_graphattn.operators.pallas_sweeps import with_gradient

    def gradient(inputs: Tensors, outputs: Tensors, upstream: Tensors) -> tuple[Tensor | None, ...]:
        return _gradient_of_twice(blocks, inputs, outputs, upstream)

    return with_gradient(gradient, blocks.visibility.causal, interpret)


@cached
def _twice(blocks: Blocks) -> FunctionWithGradient:
    return FunctionWithGradient(
        lambda *tensors: _value_of_twice(blocks, *tensors),
        lambda *tensors: _gradient_of_twice(blocks, *tensors),
    )


def _value_of_twice(
    blocks: Blocks,
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    x: Float[Tensor, "B T N D"],
    *tensors: Bool[Tensor, "..."],
) -> tuple[Tensors, Tensors]:
    length = ops.shape(query)[1]
    weights_of, query_blocks, _ = _weights_by_index(blocks, query, key, tensors, x.dtype)
    count = ops.shape(query_blocks)[0]

    def apply(signal: Tensor) -> Tensor:
        signal = heads_first(signal)

        def rows_of_block(index: int | Tensor) -> Tensor:
            return ops.einsum("bnts,bnsh->btnh", weights_of(index), signal)

        return join_blocks(map_over_blocks(count, rows_of_block), length)

    once = apply(x)
    second = apply(once)
    return (once, second), (once, second)


def _gradient_of_twice(
    blocks: Blocks, inputs: Tensors, outputs: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    """Gradients for query, key and x, from those of once = A x and second = A once.

    The gradient of `once` gathers A^T of the gradient of `second` first. Then, for both at once,
    dA = d(second) once^T + d(once) x^T, and dS = A o (dA - rowsum(A o dA)), where the row sums are
    those of (outputs o their gradients).
    """
    query, key, x, *tensors = inputs
    once, second = outputs
    length, dtype, size = ops.shape(query)[1], x.dtype, x.shape[-1]
    weights_of, query_blocks, keys = _weights_by_index(blocks, query, key, tuple(tensors), dtype)
    count = ops.shape(query_blocks)[0]
    to_once, to_second = (at_least_float32(tensor) for tensor in upstream)

    def cut(tensor: Tensor) -> Tensor:
        return cut_into_blocks(tensor, blocks.block_size)

    second_blocks = cut(ops.cast(to_second, dtype))

    def through_second(index: Tensor, total: Tensor) -> Tensor:
        return total + float32_sum("bnts,btnh->bnsh", weights_of(index), second_blocks[index])

    total = loop_in_turn(count, through_second, heads_first(to_once))
    to_once = heads_first(total)
    row_sums = ops.sum(
        at_least_float32(once) * to_once + at_least_float32(second) * to_second, axis=-1
    )
    row_sums = ops.transpose(cut(row_sums), (0, 1, 3, 2))[..., None]  # (count, B, N, block, 1)
    signals = heads_first(ops.concatenate([once, x], axis=-1))
    to_signals = cut(ops.cast(ops.concatenate([to_second, to_once], axis=-1), dtype))

    def through_both(index: Tensor, totals: Tensors) -> Summed:
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
        *(None for _ in tensors),
    )


def heads_first(x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B N T H"]:
    """Moves tokens after heads, as products with a block of A need them, or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def float32_sum(equation: str, *tensors: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """`keras.ops.einsum`, ready to be added up in float32."""
    return at_least_float32(ops.einsum(equation, *tensors))
