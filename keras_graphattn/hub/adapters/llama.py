"""The adapter of Llama's attention: heads in groups, rotary embedding, a cache of both.

The hook is `_compute_attention(query, key, value, attention_mask)`. Queries and keys are rotated
there, and keys and values repeated to all query heads. The cache is [B, 2, S, Nkv, H] with
rotated keys; what a filter keeps beyond it, `attend_cached` adds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.converted_filter import ConvertedGraphFilter
from keras_graphattn.hub.converted_p_laplacian import ConvertedPLaplacian

Tensor = Any


class LlamaHook:
    """The methods of `LlamaAttention` that a converted one overrides."""

    attend: Any
    attend_cached: Any

    def _compute_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
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

    def _compute_vllm_attention(self, *arguments: Any) -> Any:
        raise ValueError(
            f"{type(self).__name__} applies its attention more than once, and vLLM's paged kernel "
            "does that once. Serve the original with vLLM: call keras_graphattn.revert(model)."
        )


DECODER = (
    *("intermediate_dim", "num_query_heads", "num_key_value_heads", "dropout"),
    *("rope_max_wavelength", "rope_position_scaling_factor", "rope_frequency_adjustment_factor"),
    *("rope_low_freq_factor", "rope_high_freq_factor", "rope_pretraining_sequence_length"),
    "layer_norm_epsilon",
)


def decoder_config(layer: Any) -> dict[str, Any]:
    """The arguments of a `LlamaTransformerDecoder`.

    Its own `get_config` reads `rope_scaling_factor`, an attribute that it does not have
    (KerasHub 0.32). So models made of its layers could not be saved or cloned.
    """
    return {
        **keras.Layer.get_config(layer),
        **{name: getattr(layer, name) for name in DECODER},
        "activation": keras.activations.serialize(layer.activation),
        "kernel_initializer": keras.initializers.serialize(layer.kernel_initializer),
    }


class LlamaAdapter(InPlaceAdapter):
    """For `LlamaAttention`, the attention of Llama 2 and 3."""

    classes: Sequence[str] = ("LlamaAttention",)
    backbones: Sequence[str] = ("LlamaBackbone", "Llama3Backbone")
    inner_layers: Sequence[str] = ("LlamaTransformerDecoder",)
    module = "keras_hub."
    has_cache = True
    holder_configs: ClassVar[Mapping[str, Any]] = {"LlamaTransformerDecoder": decoder_config}
    hook = LlamaHook
    replacements: ClassVar[Mapping[str, type[ConvertedAttention]]] = {
        "graph_filter": ConvertedGraphFilter,
        "p_laplacian": ConvertedPLaplacian,
    }

    def sizes(self, layer: Any) -> Sizes:
        size = layer._query_dense.partial_output_shape[-1]
        return Sizes(
            num_heads=layer.num_query_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=size,
            value_dim=size,
            scale=layer._inv_norm_factor,
            dropout=layer.dropout,
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer._query_dense,
            "key": layer._key_dense,
            "value": layer._value_dense,
            "attention_output": layer._output_dense,
        }

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return True

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        rotate = layer.rotary_embedding_layer
        return (
            rotate(layer._query_dense(inputs), start_index=index),
            rotate(layer._key_dense(inputs), start_index=index),
            layer._value_dense(inputs),
        )

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer._output_dense(layer._dropout_layer(outputs, training=training))
