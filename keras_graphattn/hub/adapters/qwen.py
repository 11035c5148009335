"""The adapter of the attention of Qwen and of Qwen with experts: a window in the layer itself."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.rotary import RotaryAdapter, RotaryHook, constructor_config
from keras_graphattn.hub.cached import step_mask
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


def near(window: int | None, queries: Any, keys: Any, index: Any = 0) -> Tensor | None:
    """Which pairs of positions (t, S) are less than a window apart; `None` without a window.

    Args:
        window: The window; position i sees position j if |i - j| < window.
        queries: The number of queries.
        keys: The number of keys.
        index: The position of the first query.
    """
    if window is None:
        return None
    rows = index + ops.arange(queries)
    return ops.abs(rows[:, None] - ops.arange(keys)[None]) < window


class QwenHook(RotaryHook):
    """The hook of layers that apply the window of their `Sizes` themselves."""

    sizes: Any

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        cache_update_index: Any = None,
    ) -> Tensor:
        window = near(self.sizes.window, ops.shape(query)[1], ops.shape(key)[1])  # (T, T)
        return self.attend(query, key, value, all_of(attention_mask, window))

    def call(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        if cache is not None and cache_update_index is not None:
            length, index = ops.shape(hidden_states)[1], cache_update_index
            window = near(self.sizes.window, length, ops.shape(cache)[2], index)  # (t, S)
            mask = step_mask(attention_mask, hidden_states, cache, index)  # (B or 1, 1, t, S)
            attention_mask = all_of(mask, window)
        return super().call(hidden_states, attention_mask, cache, cache_update_index, training)


class QwenAdapter(RotaryAdapter):
    """For `QwenAttention` and `QwenMoeAttention`.

    Whether these layers apply their sliding window depends on the backend (KerasHub 0.32): they do
    where they form the matrix A, and ignore the window where they call the backend's own
    attention. `QwenAttention` forms A on TensorFlow only; `QwenMoeAttention` everywhere but on most
    GPUs and on TPUs. A converted layer does what the original does on the same backend and device:
    its outputs are the original's at the start.

    The `get_config` of Qwen's decoder leaves out the window, and that of the decoder with experts
    the index of the layer, the activation and the initializer (KerasHub 0.32).
    """

    classes: Sequence[str] = ("QwenAttention", "QwenMoeAttention")
    backbones: Sequence[str] = ("QwenBackbone", "QwenMoeBackbone")
    inner_layers: Sequence[str] = ("QwenTransformerDecoder", "QwenMoeTransformerDecoder")
    holder_configs: ClassVar[Mapping[str, Any]] = {
        "QwenTransformerDecoder": constructor_config,
        "QwenMoeTransformerDecoder": constructor_config,
    }
    hook = QwenHook

    def sliding_window(self, layer: Any) -> int | None:
        """The window that the layer was given, whether it applies it or not."""
        return layer.sliding_window_size if layer.use_sliding_window_attention else None

    def calls_backend(self, layer: Any) -> bool:
        """Whether the original calls the backend's own attention, here and now."""
        if hasattr(layer, "_use_fused_attention_op"):
            return bool(layer._use_fused_attention_op())
        utilities = sys.modules["keras_hub.src.utils.keras_utils"]
        return bool(utilities.fused_attention_op_available())

    def sizes(self, layer: Any) -> Sizes:
        window = None if self.calls_backend(layer) else self.sliding_window(layer)
        return super().sizes(layer)._replace(window=window)
