"""The adapter of the attention of Qwen3 and of Qwen3 with experts: norms of queries and keys."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.qwen import QwenAdapter

Tensor = Any


class Qwen3Adapter(QwenAdapter):
    """For `Qwen3Attention` and `Qwen3MoeAttention`.

    The root mean square of each query and key is normalised before the rotation. The original
    applies its sliding window on TensorFlow only, and so does a converted layer: see
    `QwenAdapter`. The `get_config` of Qwen3's decoder leaves out the size of heads, which its
    constructor needs, and the window (KerasHub 0.32).
    """

    classes: Sequence[str] = ("Qwen3Attention", "Qwen3MoeAttention")
    backbones: Sequence[str] = ("Qwen3Backbone", "Qwen3MoeBackbone")
    inner_layers: Sequence[str] = ("Qwen3TransformerDecoder", "Qwen3MoeTransformerDecoder")
    holder_configs: ClassVar[Mapping[str, Any]] = {"Qwen3TransformerDecoder": constructor_config}

    def sliding_window(self, layer: Any) -> int | None:
        return layer.sliding_window_size or None

    def queries_and_keys(self, layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().queries_and_keys(layer, inputs)
        return layer._query_dense_layer_norm(query), layer._key_dense_layer_norm(key)
