"""The adapter of the attention of Qwen and of Qwen with experts: a window in the layer itself."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.rotary import RotaryAdapter


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

    def sliding_window(self, layer: Any) -> int | None:
        """The window that the layer was given, whether it applies it or not."""
        return layer.sliding_window_size if layer.use_sliding_window_attention else None

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        size = None if self.calls_backend(layer) else self.sliding_window(layer)
        return None if size is None else (size - 1, size - 1)
