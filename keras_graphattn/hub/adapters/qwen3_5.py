"""The adapter of the full attention of Qwen3.5 and of Qwen3.5 with experts: a gated output.

The hook is `_compute_attention(query, key, value, attention_mask, cache_update_index)`, with norms
of queries and keys, their first features rotated, and keys and values repeated to all query heads.
The projection of the queries also yields a gate: the outputs of the heads are multiplied by its
sigmoid before the output projection. A filter acts on A, and the gate on what comes out of it.

Most layers of these models are of class `Qwen3_5GatedDeltaNet`: a recurrence, which has no softmax
matrix over pairs of tokens to filter. They are not converted and stay as they are. The vision tower
has an adapter of its own.

The cache of the model is a tuple: keys and values [B, 2, S, Nkv, H] of each layer, and two states
of the recurrence. The first is stacked over all layers, so the layers with a recurrence pass on the
slots that a filter needs.

In KerasHub 0.32 a model with layers of recurrence generates other tokens than its full pass: the
first step of `generate` feeds the last token of the prompt to the recurrence a second time. A
converted layer decodes what its own full pass computes, and the recurrence stays as it is.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import AttendHook
from keras_graphattn.hub.adapters.qwen3 import Qwen3Adapter
from keras_graphattn.hub.cached import open_slots

Tensor = Any


class Qwen3_5Hook(AttendHook):
    """The methods of `Qwen3_5Attention` that a converted one overrides."""

    adapter: Any
    check_index: Any

    def call(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        position_ids: Tensor | None = None,
        training: bool | None = None,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                hidden_states, attention_mask, None, cache_update_index, position_ids, training
            )
        self.check_index(cache_update_index)
        *projected, gate = self.adapter.gated(self, hidden_states, cache_update_index, position_ids)
        return self.attend_cached(
            hidden_states,
            attention_mask,
            cache,
            cache_update_index,
            training,
            projected=tuple(projected),
            gate=ops.sigmoid(gate),
        )


@functools.cache
def passing_on(plain: type) -> type:
    """A class of decoder layers without attention, which passes on slots of the others' caches.

    Args:
        plain: The class, whose method `call_and_update_cache` gets the caches of all kinds.
    """
    plain_call: Any = plain.call_and_update_cache  # type: ignore[attr-defined]

    @functools.wraps(plain_call)
    def call_and_update_cache(
        self: Any, decoder_sequence: Tensor, kv_cache: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        kv_cache = open_slots(kv_cache, self.cache_slots)
        return plain_call(self, decoder_sequence, kv_cache, *args, **kwargs)

    namespace = {
        "call_and_update_cache": call_and_update_cache,
        "cache_slots": 2,
        "plain_class": plain,
        "__module__": plain.__module__,
    }
    return type(plain.__name__, (plain,), namespace)


class Qwen3_5Adapter(Qwen3Adapter):
    """For `Qwen3_5Attention`, which both families share.

    The original applies its sliding window on TensorFlow only, and so does a converted layer: see
    `QwenAdapter`.
    """

    classes: Sequence[str] = ("Qwen3_5Attention",)
    backbones: Sequence[str] = ("Qwen3_5Backbone", "Qwen3_5MoeBackbone")
    inner_layers: Sequence[str] = ("Qwen3_5TransformerDecoder", "Qwen3_5MoeTransformerDecoder")
    holder_configs: ClassVar[Mapping[str, Any]] = {}
    hook = Qwen3_5Hook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_query_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            scale=layer._inv_norm_factor,
            dropout=layer.dropout,
        )

    def gated(
        self, layer: Any, inputs: Tensor, index: Any, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values as they are cached, and the gate before its sigmoid.

        Args:
            layer: The layer.
            inputs: The new tokens, (B, t, d).
            index: The position of the first of them.
            positions: Optional positions in time and space, (B, 4, t), of tokens and patches.
        """
        query, gate = ops.split(layer._query_dense(inputs), 2, axis=-1)  # (B, t, N, H)
        key = layer._key_norm(layer._key_dense(inputs))
        return (
            layer._apply_partial_rope(layer._query_norm(query), index, positions),
            layer._apply_partial_rope(key, index, positions),
            layer._value_dense(inputs),
            gate,
        )

    def class_beside(self, layer: Any, slots: int) -> type | None:
        plain: Any = getattr(type(layer), "plain_class", type(layer))
        if getattr(layer, "layer_type", None) != "linear_attention":
            return None
        return passing_on(plain) if slots > 2 else plain
