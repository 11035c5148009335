"""The adapter of the attention of Llama 2 and 3."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.rotary import RotaryAdapter


class LlamaAdapter(RotaryAdapter):
    """For `LlamaAttention`. The `get_config` of its decoder fails (KerasHub 0.32)."""

    classes: Sequence[str] = ("LlamaAttention",)
    backbones: Sequence[str] = ("LlamaBackbone", "Llama3Backbone")
    inner_layers: Sequence[str] = ("LlamaTransformerDecoder",)
    holder_configs: ClassVar[Mapping[str, Any]] = {"LlamaTransformerDecoder": constructor_config}
