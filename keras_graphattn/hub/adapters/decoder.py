"""The base of adapters for KerasHub's decoders, which attend in place and decode from a cache.

Most of their classes of attention have the hook `_compute_attention(query, key, value, mask)`, and
the same projections under two spellings. The cache is [B, 2, S, Nkv, H]; what a filter keeps beyond
it, `attend_cached` adds.
"""

import inspect
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.adapters.in_place import InPlaceAdapter, keras_hub_utilities

Tensor = Any


def constructor_config(layer: Any) -> dict[str, Any]:
    """The arguments of a layer's constructor, which are attributes of the same names.

    The `get_config` of some of KerasHub's decoder layers fails, leaves arguments out or adds others
    (KerasHub 0.32). So models made of such layers could not be saved or cloned, or came back
    different.
    """
    config: dict[str, Any] = keras.Layer.get_config(layer)
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            config[name] = keras.saving.serialize_keras_object(getattr(layer, name))
    return config


def part(layer: Any, name: str) -> Any:
    """A sublayer of an attention layer; some families keep it in a private attribute."""
    return getattr(layer, f"_{name}") if hasattr(layer, f"_{name}") else getattr(layer, name)


def usual_projections(layer: Any) -> dict[str, Any]:
    """The projections of an attention layer that names them in the usual way."""
    return {
        "query": part(layer, "query_dense"),
        "key": part(layer, "key_dense"),
        "value": part(layer, "value_dense"),
        "attention_output": part(layer, "output_dense"),
    }


def joined_heads(outputs: Tensor) -> Tensor:
    """Outputs of heads (B, t, N, H) as one vector of each token, (B, t, N * H)."""
    return ops.reshape(outputs, (*ops.shape(outputs)[:2], outputs.shape[-2] * outputs.shape[-1]))


class AttendHook:
    """The method that attends, which a converted layer overrides."""

    attend: Any
    attend_cached: Any

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        position: Any = None,
        *,
        cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Tensor:
        # The position of the first query, under either name, is that of a step; `call` decodes.
        return self.attend(query, key, value, attention_mask, training)


class DecoderHook(AttendHook):
    """The methods of most decoders' attention that a converted layer overrides."""

    def call(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                hidden_states, attention_mask, None, cache_update_index, training
            )
        return self.attend_cached(
            hidden_states, attention_mask, cache, cache_update_index, training
        )


class DecoderAdapter(InPlaceAdapter):
    """Base of the adapters of KerasHub's decoders. A subclass sets the names."""

    module = "keras_hub."
    has_cache = True
    hook: type = DecoderHook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return True

    def projections(self, layer: Any) -> dict[str, Any]:
        return usual_projections(layer)

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key = self.queries_and_keys(layer, inputs)
        return (
            self.rotated(layer, query, index),
            self.rotated(layer, key, index),
            part(layer, "value_dense")(inputs),
        )

    def queries_and_keys(self, layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, t, N, H) and keys (B, t, Nkv, H) before they are rotated."""
        return part(layer, "query_dense")(inputs), part(layer, "key_dense")(inputs)

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        """Queries or keys (B, t, N, H) at the positions from `index` on; here as they are."""
        return x

    def calls_backend(self, layer: Any) -> bool:
        if hasattr(layer, "_use_fused_attention_op"):
            return bool(layer._use_fused_attention_op())
        return bool(keras_hub_utilities().fused_attention_op_available())

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        outputs = part(layer, "dropout_layer")(outputs, training=training)
        return part(layer, "output_dense")(outputs)
