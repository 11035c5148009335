"""The adapter of GPT-NeoX's attention: one fused projection, rotary embedding of some features.

The hook is `_compute_attention(query, key, value, attention_mask, training)`, with queries and
keys rotated. The cache is [B, 2, S, N, H] and holds keys that are not rotated. `call` returns a
pair with the cache, or with `None`.

KerasHub's `GPTNeoXAttention` decodes differently from its full pass: it rotates each decoded
query as if it stood at position 0 (keras-hub#2870, open in KerasHub 0.32). A converted layer
rotates it at its own position, so that decoding equals the full pass. So `generate` of a converted
model, even with its start values, may give other tokens than `generate` of the original: it gives
those of the original's full pass. Layers that `where` leaves out stay as KerasHub made them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.converted import ConvertedAttention
from keras_graphattn.hub.converted_filter import ConvertedGraphFilter
from keras_graphattn.hub.converted_p_laplacian import ConvertedPLaplacian
from keras_graphattn.hub.logits import DROPOUT

Tensor = Any


class GPTNeoXHook:
    """The methods of `GPTNeoXAttention` that a converted one overrides."""

    attend: Any
    attend_cached: Any

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self.attend(query, key, value, attention_mask, training)

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


DECODER = (
    *("intermediate_dim", "num_heads", "dropout", "layer_norm_epsilon", "rotary_percentage"),
    *("rotary_max_wavelength", "max_sequence_length"),
)


def decoder_config(layer: Any) -> dict[str, Any]:
    """The arguments of a `GPTNeoXDecoder`.

    Its own `get_config` adds `decoder_sequence_shape`, which its constructor refuses
    (KerasHub 0.32). So models made of its layers could not be loaded or cloned.
    """
    return {
        **keras.Layer.get_config(layer),
        **{name: getattr(layer, name) for name in DECODER},
        "activation": keras.activations.serialize(layer.activation),
        "kernel_initializer": keras.initializers.serialize(layer.kernel_initializer),
        "bias_initializer": keras.initializers.serialize(layer.bias_initializer),
    }


class GPTNeoXAdapter(InPlaceAdapter):
    """For `GPTNeoXAttention`."""

    classes: Sequence[str] = ("GPTNeoXAttention",)
    backbones: Sequence[str] = ("GPTNeoXBackbone",)
    inner_layers: Sequence[str] = ("GPTNeoXDecoder",)
    module = "keras_hub."
    has_cache = True
    holder_configs: ClassVar[Mapping[str, Any]] = {"GPTNeoXDecoder": decoder_config}
    hook = GPTNeoXHook
    replacements: ClassVar[Mapping[str, type[ConvertedAttention]]] = {
        "graph_filter": ConvertedGraphFilter,
        "p_laplacian": ConvertedPLaplacian,
    }

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            num_key_value_heads=layer.num_heads,
            key_dim=layer.attn_head_size,
            value_dim=layer.attn_head_size,
            scale=layer._inv_norm_factor,
            dropout=layer.dropout,
            beyond_softmax=(DROPOUT,) if layer.dropout else (),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        """The fused projection is that of the queries, of the keys and of the values."""
        names = ("query", "key", "value")
        return {**dict.fromkeys(names, layer._qkv_dense), "attention_output": layer._output_dense}

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return True

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._attn_dropout_layer(matrix, training=training)

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ops.split(layer._qkv_dense(inputs), 3, axis=-1)
        return _rotated(layer, query, index), key, value

    def cached_keys(self, layer: Any, keys: Tensor) -> Tensor:
        return _rotated(layer, keys, 0)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        shape = (*ops.shape(outputs)[:2], layer.hidden_dim)
        return layer._output_dense(ops.reshape(outputs, shape))


def _rotated(layer: Any, x: Tensor, index: Any) -> Tensor:
    """Queries or keys (B, t, N, H), their first features rotated, from position `index` on."""
    size = layer.rotary_dim
    turned = layer.rotary_embedding_layer(x[..., :size], start_index=index)
    return ops.concatenate([turned, x[..., size:]], axis=-1)
