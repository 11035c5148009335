"""The adapter of the attention of ViTDet, SAM's image encoder: a bias of rows and of columns.

`MultiHeadAttentionWithRelativePE` has no method that attends, so the hook is `call`. Its tokens
are a map (B, h, w, C): of a window in most layers, of the whole image in the global ones. The
bias of a query is its product with an embedding of the distance in rows, plus that with an
embedding of the distance in columns. The layer's own `AddRelativePositionalEmbedding` makes it.

KerasHub 0.32 fills windows at the border with zeros, and tokens see them. So do converted layers.
The attention of SAM's mask decoder is not converted: most of it looks from prompts at the image.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, fused_in_heads
from keras_graphattn.hub.logits import BIAS

Tensor = Any


class ViTDetHook:
    """The method of `MultiHeadAttentionWithRelativePE` that a converted one overrides."""

    adapter: Any
    attend: Any
    use_rel_pos: bool
    add_decomposed_relative_pe: Any

    def call(self, x: Tensor) -> Tensor:
        batch, height, width, channels = ops.shape(x)
        tokens = ops.reshape(x, (batch, height * width, channels))
        query, key, value = self.adapter.projected(self, tokens, 0)
        bias = self._bias(query, (height, width)) if self.use_rel_pos else None
        outputs = self.adapter.output(self, self.attend(query, key, value, given=bias), None)
        return ops.reshape(outputs, (batch, height, width, channels))

    def _bias(self, query: Tensor, size: tuple[Any, Any]) -> Tensor:
        """What is added to the scores of queries (B, T, N, H) on a map: (B, N, T, T)."""
        batch, length, num_heads, key_dim = ops.shape(query)
        rows = ops.transpose(query, (0, 2, 1, 3))
        rows = ops.reshape(rows, (batch * num_heads, length, key_dim))
        nothing = ops.zeros((1, length, length), query.dtype)
        nothing = ops.broadcast_to(nothing, (batch * num_heads, length, length))
        bias = self.add_decomposed_relative_pe(nothing, rows, query_size=size, key_size=size)
        return ops.reshape(bias, (batch, num_heads, length, length))


class ViTDetAdapter(EncoderAdapter):
    """For `MultiHeadAttentionWithRelativePE`."""

    classes: Sequence[str] = ("MultiHeadAttentionWithRelativePE",)
    backbones: Sequence[str] = ("ViTDetBackbone", "SAMBackbone")
    inner_layers: Sequence[str] = ("WindowedTransformerEncoder",)
    hook = ViTDetHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.key_dim,
            scale=layer.scale,
            beyond_softmax=(BIAS,) if layer.use_rel_pos else (),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {"query": layer.qkv, "attention_output": layer.projection}

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return fused_in_heads(layer.qkv(inputs), layer.num_heads)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.projection(joined_heads(outputs))
