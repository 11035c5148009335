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

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, constructor_config, joined_heads
from keras_graphattn.hub.logits import DROPOUT

Tensor = Any


class GPTNeoXAdapter(DecoderAdapter):
    """For `GPTNeoXAttention`.

    The `get_config` of its decoder adds `decoder_sequence_shape`, which the constructor refuses
    (KerasHub 0.32).
    """

    classes: Sequence[str] = ("GPTNeoXAttention",)
    backbones: Sequence[str] = ("GPTNeoXBackbone",)
    inner_layers: Sequence[str] = ("GPTNeoXDecoder",)
    holder_configs: ClassVar[Mapping[str, Any]] = {"GPTNeoXDecoder": constructor_config}

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.attn_head_size,
            scale=layer._inv_norm_factor,
            dropout=layer.dropout,
            beyond_softmax=(DROPOUT,),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        """The fused projection is that of the queries, of the keys and of the values."""
        names = ("query", "key", "value")
        return {**dict.fromkeys(names, layer._qkv_dense), "attention_output": layer._output_dense}

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._attn_dropout_layer(matrix, training=training)

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = ops.split(layer._qkv_dense(inputs), 3, axis=-1)
        return self.rotated(layer, query, index), key, value

    def cached_keys(self, layer: Any, keys: Tensor) -> Tensor:
        return self.rotated(layer, keys, 0)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer._output_dense(joined_heads(outputs))

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        size = layer.rotary_dim
        turned = layer.rotary_embedding_layer(x[..., :size], start_index=index)
        return ops.concatenate([turned, x[..., size:]], axis=-1)
