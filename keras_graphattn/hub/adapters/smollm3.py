"""The adapter of SmolLM3's attention: rotary embedding in some layers only."""

import sys
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import AttendHook
from keras_graphattn.hub.adapters.rotary import RotaryAdapter

Tensor = Any
CACHE, INDEX = "self_attention_cache", "self_attention_cache_update_index"


class SmolLM3Hook(AttendHook):
    """The methods of `SmolLM3Attention` that a converted layer overrides."""

    def call(
        self,
        hidden_states: Tensor,
        training: bool = False,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        cache, index = kwargs.get(CACHE), kwargs.get(INDEX)
        if cache is None:
            return super().call(  # type: ignore[misc]
                hidden_states, training=training, attention_mask=attention_mask, **kwargs
            )
        if index is None:
            raise ValueError(
                f"{type(self).__name__} decodes self-attention: with `{CACHE}` it needs "
                f"`{INDEX}`. Received: {INDEX}=None"
            )
        return self.attend_cached(hidden_states, attention_mask, cache, index, training)


class SmolLM3Adapter(RotaryAdapter):
    """For `SmolLM3Attention`, whose `rope_layer_enabled_list` tells which layers rotate.

    The original ignores its `attention_dropout`, and so does a converted layer.
    """

    classes: Sequence[str] = ("SmolLM3Attention",)
    backbones: Sequence[str] = ("SmolLM3Backbone",)
    inner_layers: Sequence[str] = ("SmolLM3DecoderLayer",)
    cache_argument = CACHE
    hook = SmolLM3Hook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_attention_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            scale=layer._inv_norm_factor,
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.q_proj,
            "key": layer.k_proj,
            "value": layer.v_proj,
            "attention_output": layer.o_proj,
        }

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            ops.reshape(x, (*ops.shape(x)[:-1], -1, layer.head_dim))  # (B, t, N or Nkv, H)
            for x in (layer.q_proj(inputs), layer.k_proj(inputs), layer.v_proj(inputs))
        )
        if layer.use_rope:
            cosine, sine = layer.rotary_embedding(query, start_index=index)  # (B, t, H)
            utilities = sys.modules["keras_hub.src.models.smollm3.smollm3_utils"]
            query, key = utilities.apply_rotary_pos_emb(query, key, cosine, sine, expansion_axis=2)
        return query, key, value

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.o_proj(outputs)
