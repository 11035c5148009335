"""The adapter of the attention of Mistral and Mixtral."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.rotary import RotaryAdapter


class MistralAdapter(RotaryAdapter):
    """For `CachedMistralAttention` and `CachedMixtralAttention`.

    The sliding window of both is part of the mask that the decoder gives to its attention. So A
    has the window, and a filter of order K sees K windows back.

    The `get_config` of Mixtral's decoder leaves out what it was told of the router (KerasHub 0.32).
    """

    classes: Sequence[str] = ("CachedMistralAttention", "CachedMixtralAttention")
    backbones: Sequence[str] = ("MistralBackbone", "MixtralBackbone")
    inner_layers: Sequence[str] = ("MistralTransformerDecoder", "MixtralTransformerDecoder")
    holder_configs: ClassVar[Mapping[str, Any]] = {"MixtralTransformerDecoder": constructor_config}
