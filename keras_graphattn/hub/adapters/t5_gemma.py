"""The adapter of the attention of T5Gemma: as Gemma's, in an encoder and a decoder.

The masks of `T5GemmaAttention` are numbers that are added to the scores: 0 where a token is seen,
-1e9 where it is not. The hook makes them boolean. The layers scale by `query_pre_attn_scalar`, have
a soft cap and heads in groups, and always return a cache, [B, 2, S, Nkv, H] with rotated keys. The
window is in the mask of the decoder; the encoder of KerasHub 0.32 ignores it, converted or not.
Cross-attention is of the same class, and stays as it is.

KerasHub spreads a row that sees nothing over all tokens. Here it is zero.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.gemma import GemmaAdapter
from keras_graphattn.hub.adapters.t5 import seen

Tensor = Any


class T5GemmaHook:
    """The methods of `T5GemmaAttention` that a converted one overrides."""

    attend: Any
    attend_cached: Any

    def _compute_attention(
        self,
        query_states: Tensor,
        key_states: Tensor,
        value_states: Tensor,
        attention_mask: Tensor | None,
        training: bool | None,
    ) -> Tensor:
        return self.attend(query_states, key_states, value_states, seen(attention_mask), training)

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                inputs, attention_mask, None, cache_update_index, training
            )
        return self.attend_cached(inputs, seen(attention_mask), cache, cache_update_index, training)


class T5GemmaAdapter(GemmaAdapter):
    """For `T5GemmaAttention` over its own tokens, in the encoder and in the decoder."""

    classes: Sequence[str] = ("T5GemmaAttention",)
    backbones: Sequence[str] = ("T5GemmaBackbone",)
    inner_layers: Sequence[str] = ("T5GemmaEncoderLayer", "T5GemmaDecoderLayer")
    hook: type = T5GemmaHook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return type(parent).__name__ == "T5GemmaDecoderLayer"

    def scale(self, layer: Any) -> float:
        return float(layer.scaling)

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        return layer.rotary_embedding(x, start_index=index)
