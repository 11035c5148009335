"""The adapter of the attention of T5Gemma 2's encoder: as T5Gemma's, with norms.

Queries and keys have norms, as in Gemma 3, and the window is in the mask of the encoder.

The decoder has one attention for its own tokens and those of the encoder: T decoder tokens look at
T + S others in one softmax. This matrix is not square, and a filter of it is undefined. So layers
of class `T5Gemma2MergedAttention` are refused by name. The vision tower is Gemma 3's.

KerasHub spreads a row that sees nothing over all tokens. Here it is zero. In KerasHub 0.32 the
`get_config` of the encoder's layer leaves out the factor of its rotation.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from keras_graphattn.hub.adapters.t5_gemma import T5GemmaAdapter

Tensor = Any
MERGED = "T5Gemma2MergedAttention"


def layer_config(layer: Any) -> dict[str, Any]:
    """The arguments of a `T5Gemma2EncoderLayer`, all of them."""
    module = sys.modules["keras_hub.src.models.t5gemma2.t5gemma2_encoder"]
    config: dict[str, Any] = module.T5Gemma2EncoderLayer.get_config(layer)
    return {**config, "rope_scaling_factor": layer.rope_scaling_factor}


class T5Gemma2Adapter(T5GemmaAdapter):
    """For `T5Gemma2Attention`, which is that of the encoder."""

    classes: Sequence[str] = ("T5Gemma2Attention", MERGED)
    backbones: Sequence[str] = ("T5Gemma2Backbone",)
    inner_layers: Sequence[str] = ("T5Gemma2EncoderLayer", "T5Gemma2DecoderLayer")
    has_cache = False  # that of the decoder is of the layers that are refused
    holder_configs: ClassVar[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
        "T5Gemma2EncoderLayer": layer_config
    }

    def refusal(self, layer: Any) -> str | None:
        if type(layer).__name__ != MERGED:
            return None
        return (
            f"{MERGED} looks from the decoder's tokens at these and at all of the encoder's: its "
            "attention matrix is not square"
        )

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return type(layer).__name__ == MERGED

    def queries_and_keys(self, layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().queries_and_keys(layer, inputs)
        if layer.use_query_key_norm:
            query, key = layer.query_norm(query), layer.key_norm(key)
        return query, key
