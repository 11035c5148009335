"""Graph filters in a converted layer (GFSA)."""

from typing import Any

import keras

from keras_graphattn import filters
from keras_graphattn.checks.arguments import is_one_of, whole
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.grouped_cache import GroupedOperator, in_all_heads
from keras_graphattn.layers.parts.filter_weights import add_coefficients, filtered
from keras_graphattn.ops.filters.operator_filters import Operator
from keras_graphattn.ops.softmax.attention import attention_matrix, fused_operator, matrix_operator
from keras_graphattn.ops.softmax.blockwise import BlockwiseOperator
from keras_graphattn.ops.softmax.masks import AttentionMask, four_dimensional, zero_blind_rows

Tensor = Any
PATHS = ("dense", "blockwise", "fused")


class ConvertedGraphFilter(ConvertedAttention):
    """A filter of `keras_graphattn.filters` over the layer's own attention matrix."""

    @classmethod
    def settings_from(  # type: ignore[override]
        cls,
        sizes: Any,
        *,
        filter: Any = "first_order",
        order: int | None = None,
        attention_path: str = "dense",
        block_size: int = 512,
    ) -> dict[str, Any]:
        if not is_one_of(attention_path, PATHS):
            raise ValueError(
                f"`attention_path` must be one of {list(PATHS)}. Received: "
                f"attention_path={attention_path!r}"
            )
        found = filters.get(filter, order)
        found.coefficients(sizes.num_heads)  # refuses start values for another number of heads
        found.refuse_without_solution("an attention layer with a cache of grouped heads")
        return {
            "filter": found,
            "attention_path": attention_path,
            "block_size": whole()("block_size", block_size, {}),
        }

    def add_coefficients(self) -> None:
        add_coefficients(self, self.settings.filter)

    @property
    def num_signals(self) -> int:
        return int(self.settings.filter.num_applications)

    def matrix(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """A, of shape (B, N, T, S): the one method to override where it is no plain softmax."""
        return attention_matrix(query, key, mask, self.sizes.scale)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        entries = None if mask is None else four_dimensional(mask)  # (B, 1, T, T)
        reasons = AttentionMask(entries=entries)
        apply = self._operator(query, key, reasons)
        outputs = filtered(self, self.settings.filter, apply, value)
        return zero_blind_rows(outputs, reasons, self.settings.block_size)

    def _operator(self, query: Tensor, key: Tensor, mask: AttentionMask) -> Operator:
        scale = self.sizes.scale
        if self.settings.attention_path == "blockwise":
            return BlockwiseOperator(query, key, mask, scale, self.settings.block_size)
        if self.settings.attention_path == "fused":
            flash = keras.config.is_flash_attention_enabled()
            return fused_operator(query, key, mask, scale, flash)
        return matrix_operator(self.matrix(query, key, mask.entries))

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, mask: Tensor, index: Any
    ) -> tuple[Tensor, Tensor]:
        groups = self.sizes.groups
        matrix = self.matrix(query, in_all_heads(cache[:, 0], groups), mask)  # (B, N, t, S)
        apply = GroupedOperator(matrix, value, cache, index, groups)
        outputs = filtered(self, self.settings.filter, apply, value)
        return outputs, apply.cache
