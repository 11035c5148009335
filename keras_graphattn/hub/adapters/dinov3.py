"""The adapter of DINOv3's attention: rotary embedding in two dimensions, of patches only.

`DINOV3Attention` has no method that attends, so the hook is `call`. The angles of the patches are
an argument of it. The first tokens, the class token and the registers, are not rotated. The
layer's dropout is one of its output.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, in_heads

Tensor = Any


class DINOV3Hook:
    """The method of `DINOV3Attention` that a converted one overrides."""

    adapter: Any
    attend: Any
    _apply_rotary: Any

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        num_prefix_tokens: int = 0,
        training: bool | None = None,
    ) -> Tensor:
        query, key, value = self.adapter.projected(self, inputs, 0)
        if position_embeddings is not None:
            cosine, sine = position_embeddings  # (T - num_prefix_tokens, H)
            query, key = self._apply_rotary(query, key, cosine, sine, num_prefix_tokens)
        outputs = self.attend(query, key, value, attention_mask, training)
        return self.adapter.output(self, outputs, training)


class DINOV3Adapter(EncoderAdapter):
    """For `DINOV3Attention`."""

    classes: Sequence[str] = ("DINOV3Attention",)
    backbones: Sequence[str] = ("DINOV3Backbone",)
    inner_layers: Sequence[str] = ("DINOV3Encoder", "DINOV3Layer")
    hook = DINOV3Hook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.scale,
            dropout=layer.dropout_rate,
        )

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return (
            in_heads(layer.query_dense(inputs), layer.num_heads),
            in_heads(layer.key_dense(inputs), layer.num_heads),
            in_heads(layer.value_dense(inputs), layer.num_heads),
        )

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        outputs = layer.dropout(joined_heads(outputs), training=training)
        return layer.output_dense(outputs)

    def calls_backend(self, layer: Any) -> bool:
        return True
