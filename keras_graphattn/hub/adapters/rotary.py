"""The base of adapters for decoders with rotary embedding, heads in groups and a cache.

Llama, Mistral, Qwen, Phi-3 and others have classes of attention that differ in names and details.
Queries and keys are rotated before the hook, and keys and values repeated to all query heads. The
cache holds rotated keys.
"""

from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, DecoderHook, part
from keras_graphattn.hub.paged import NoPagedAttention

Tensor = Any


class RotaryHook(NoPagedAttention, DecoderHook):
    """The methods of the original that a converted layer overrides."""


class RotaryAdapter(DecoderAdapter):
    """Base of the adapters of these decoders. A subclass sets the names."""

    hook: type = RotaryHook

    def sizes(self, layer: Any) -> Sizes:
        heads, size = part(layer, "query_dense").partial_output_shape[-2:]
        return Sizes(
            num_heads=heads,
            num_key_value_heads=part(layer, "key_dense").partial_output_shape[-2],
            key_dim=size,
            scale=layer._inv_norm_factor,
            dropout=part(layer, "dropout_layer").rate,
        )

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        return layer.rotary_embedding_layer(x, start_index=index)
