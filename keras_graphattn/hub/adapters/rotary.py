"""The base of adapters for decoders with rotary embedding, heads in groups and a cache.

Llama, Mistral, Qwen, Phi-3 and others have classes of attention that differ in names and details.
All have the hook `_compute_attention(query, key, value, attention_mask)`. Queries and keys are
rotated there, and keys and values repeated to all query heads. The cache is [B, 2, S, Nkv, H] with
rotated keys; what a filter keeps beyond it, `attend_cached` adds.
"""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.adapters.paged import NoPagedAttention
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.converted_filter import ConvertedGraphFilter
from keras_graphattn.hub.converted_p_laplacian import ConvertedPLaplacian

Tensor = Any


def constructor_config(layer: Any) -> dict[str, Any]:
    """The arguments of a layer's constructor, which are attributes of the same names.

    The `get_config` of some of KerasHub's decoder layers fails or leaves arguments out (KerasHub
    0.32). So models made of such layers could not be saved or cloned, or came back different.
    """
    config: dict[str, Any] = keras.Layer.get_config(layer)
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            config[name] = keras.saving.serialize_keras_object(getattr(layer, name))
    return config


def part(layer: Any, name: str) -> Any:
    """A sublayer of an attention layer; some families keep it in a private attribute."""
    return getattr(layer, f"_{name}") if hasattr(layer, f"_{name}") else getattr(layer, name)


class RotaryHook(NoPagedAttention):
    """The methods of the original that a converted layer overrides."""

    attend: Any
    attend_cached: Any

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        cache_update_index: Any = None,
    ) -> Tensor:
        return self.attend(query, key, value, attention_mask)

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


class RotaryAdapter(InPlaceAdapter):
    """Base of the adapters of these decoders. A subclass sets the names."""

    module = "keras_hub."
    has_cache = True
    hook: type = RotaryHook
    replacements: ClassVar[Mapping[str, type[ConvertedAttention]]] = {
        "graph_filter": ConvertedGraphFilter,
        "p_laplacian": ConvertedPLaplacian,
    }

    def sizes(self, layer: Any) -> Sizes:
        heads, size = part(layer, "query_dense").partial_output_shape[-2:]
        return Sizes(
            num_heads=heads,
            num_key_value_heads=part(layer, "key_dense").partial_output_shape[-2],
            key_dim=size,
            value_dim=size,
            scale=layer._inv_norm_factor,
            dropout=part(layer, "dropout_layer").rate,
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": part(layer, "query_dense"),
            "key": part(layer, "key_dense"),
            "value": part(layer, "value_dense"),
            "attention_output": part(layer, "output_dense"),
        }

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return True

    def queries_and_keys(self, layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, t, N, H) and keys (B, t, Nkv, H) before they are rotated."""
        return part(layer, "query_dense")(inputs), part(layer, "key_dense")(inputs)

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        rotate = layer.rotary_embedding_layer
        query, key = self.queries_and_keys(layer, inputs)
        return (
            rotate(query, start_index=index),
            rotate(key, start_index=index),
            part(layer, "value_dense")(inputs),
        )

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        outputs = part(layer, "dropout_layer")(outputs, training=training)
        return part(layer, "output_dense")(outputs)
