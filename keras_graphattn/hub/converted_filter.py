"""Graph filters in a converted layer (GFSA)."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import filters
from keras_graphattn.checks import is_one_of, whole
from keras_graphattn.coefficient_rate import Filtered
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.grouped_cache import GroupedOperator, Step, in_all_heads
from keras_graphattn.hub.logits import Logits
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of, zero_hidden_rows

Tensor = Any
PATHS = ("dense", "blockwise", "fused")


class ConvertedGraphFilter(Filtered, ConvertedAttention):
    """A filter of `keras_graphattn.filters` over the layer's own attention matrix."""

    @classmethod
    def settings_from(  # type: ignore[override]
        cls,
        sizes: Any,
        *,
        filter: Any = "first_order",
        order: int | None = None,
        attention_path: str | None = None,
        block_size: int = 512,
    ) -> dict[str, Any]:
        if attention_path is not None and not is_one_of(attention_path, PATHS):
            raise ValueError(
                f"`attention_path` must be one of {list(PATHS)}, or None. Received: "
                f"attention_path={attention_path!r}"
            )
        if attention_path not in (None, "dense") and sizes.beyond_softmax:
            raise ValueError(
                f"These layers have a {' and a '.join(sizes.beyond_softmax)}, which only the dense "
                f"path keeps. Received: attention_path={attention_path!r}. Use "
                'attention_path="dense".'
            )
        found = filters.get(filter, order)
        found.coefficients(sizes.num_heads)  # refuses start values for another number of heads
        return {
            "filter": found,
            "attention_path": attention_path,
            "block_size": whole()("block_size", block_size, {}),
        }

    def add_coefficients(self) -> None:
        self.add_filter_weights(self.settings.filter, int(self.sizes.num_heads))

    @property
    def num_signals(self) -> int:
        return int(self.settings.filter.num_applications)

    @property
    def attention_path(self) -> str:
        """The path of the full pass.

        By default, `"fused"` where the original calls a fused kernel of this device, or `"dense"`.
        """
        if self.settings.attention_path is not None:
            return str(self.settings.attention_path)
        has_kernel = not self.sizes.beyond_softmax and self.adapter.calls_kernel(self)
        return "fused" if has_kernel else "dense"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        given: Any = None,
    ) -> Tensor:
        reasons = self.mask_of(query, mask)
        logits = self.adapter.logits(self, ops.shape(key)[1], given)
        operator = self._operator(query, key, reasons, logits, training)
        return operator.finished(self.apply(operator, value))

    def apply(self, operator: Operator, values: Tensor) -> Tensor:
        """The filter of the operator, applied to the values."""
        return self.filtered(self.settings.filter, operator, values)

    def _operator(
        self,
        query: Tensor,
        key: Tensor,
        mask: Visibility,
        logits: Logits,
        training: bool | None,
    ) -> Operator:
        scale, path = self.sizes.scale, self.attention_path
        if path != "dense" and not logits.is_plain:
            raise ValueError(
                f"{type(self).__name__} was given a bias of its scores, which only the dense path "
                f'keeps. Received: attention_path="{path}". Convert with attention_path="dense".'
            )
        if path == "blockwise":
            return BlockwiseOperator(query, key, mask, scale, self.settings.block_size)
        if path == "fused":
            flash = keras.config.is_flash_attention_enabled()
            return FusedOperator(query, key, mask, scale, flash)
        return SoftmaxOperator(
            scores_of(query, key, scale),
            mask.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            logits=logits,
            dropout=lambda matrix: self.adapter.dropped(self, matrix, training),
        )

    def attend_rows(
        self, query: Tensor, value: Tensor, cache: Tensor, step: Step, logits: Logits
    ) -> tuple[Tensor, Tensor]:
        groups = self.sizes.groups
        key = in_all_heads(self.adapter.cached_keys(self, cache[:, 0]), groups)  # (B, S, N, H)
        matrix = attention_matrix(query, key, step.mask, self.sizes.scale, logits)  # (B, N, t, S)
        apply = GroupedOperator(matrix, value, cache, step, groups)
        outputs = self.filtered(self.settings.filter, apply, value)
        return zero_hidden_rows(outputs, step.mask), apply.cache


def attention_matrix(
    query: Tensor, key: Tensor, visible: Tensor | None, scale: float, logits: Logits
) -> Tensor:
    """A, of shape (B, N, T, S), in the dtype of the queries."""
    scores = scores_of(query, key, scale)
    return SoftmaxOperator(scores, visible, dtype=query.dtype, logits=logits).matrix()
