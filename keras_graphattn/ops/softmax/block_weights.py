"""Rows of the attention matrix by blocks, formed when they are needed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.numerics.blocks import cut_into_blocks, cut_rows
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax
from keras_graphattn.ops.softmax.masks import AttentionMask, block_mask, split_mask

Tensor = Any
Tensors = tuple[Tensor, ...]


class Settings(NamedTuple):
    """What is known of an operator without its tensors: equal settings share compiled code."""

    by_row: tuple[str, ...]
    whole: tuple[str, ...]
    causal: bool
    window: int | None
    block_size: int

    def named(self, mask_tensors: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The mask's tensors by name: those with query rows, and the rest."""
        count = len(self.by_row)
        by_row = dict(zip(self.by_row, mask_tensors[:count], strict=True))
        return by_row, dict(zip(self.whole, mask_tensors[count:], strict=True))

    def weights(
        self, query: Tensor, keys: Tensor, mask_tensors: Mapping[str, Tensor], rows: Tensor
    ) -> Tensor:
        """Rows of A, (B, N, T, S), of queries (B, T, N, H) and of keys (B, N, S, H)."""
        scores = ops.einsum("btnh,bnsh->bnts", query, keys)
        mask = AttentionMask(causal=self.causal, window=self.window)
        columns = ops.arange(ops.shape(keys)[2], dtype="int32")
        return masked_softmax(scores, block_mask(mask, mask_tensors, rows, columns))


def settings_of(mask: AttentionMask, block_size: int) -> tuple[Settings, Tensors]:
    """The settings of an operator with this mask, and the mask's tensors."""
    by_row, whole = split_mask(mask)
    settings = Settings(tuple(by_row), tuple(whole), mask.causal, mask.window, block_size)
    return settings, (*by_row.values(), *whole.values())


def weights_by_index(
    settings: Settings, query: Tensor, key: Tensor, mask_tensors: Tensors, dtype: Any
) -> tuple[Any, Tensor, Tensor]:
    """A function of a block's number that returns its rows of A; blocks of queries; keys."""
    by_row, whole = settings.named(mask_tensors)
    blocks = {name: cut_into_blocks(x, settings.block_size) for name, x in by_row.items()}
    rows = cut_rows(ops.shape(query)[1], settings.block_size)
    query_blocks, keys = cut_into_blocks(query, settings.block_size), heads_first(key)

    def weights_of(index: Tensor) -> Tensor:
        tensors = whole | {name: x[index] for name, x in blocks.items()}
        weights = settings.weights(query_blocks[index], keys, tensors, rows[index])
        return ops.cast(weights, dtype)

    return weights_of, query_blocks, keys


def heads_first(x: Tensor) -> Tensor:
    """(B, T, N, H) -> (B, N, T, H), as products with a block of A want it, and back."""
    return ops.transpose(x, (0, 2, 1, 3))


def float32_sum(equation: str, *tensors: Tensor) -> Tensor:
    """`keras.ops.einsum`, ready to be added up in float32."""
    return at_least_float32(ops.einsum(equation, *tensors))
