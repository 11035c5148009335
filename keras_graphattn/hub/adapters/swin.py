"""The adapter of Swin's attention: one square A for each window, with biases of the scores.

`WindowAttention` has no method that attends, so the hook is `call`. Its tokens (B * W, T, C) are
those of W windows of each of B images. Two biases are added to the scaled scores: one of the
relative positions, from a table of the layer, and in shifted windows one of -100 between tokens
that come from different parts of the image. Both are kept as they are. The layer drops entries
of A.

KerasHub 0.32 fills windows at the border with zeros, and tokens see them. So do converted layers.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, fused_in_heads
from keras_graphattn.hub.logits import BIAS, DROPOUT, Logits

Tensor = Any


class SwinHook:
    """The method of `WindowAttention` that a converted one overrides."""

    attend_inputs: Any

    def call(self, x: Tensor, mask: Tensor | None = None, return_attns: bool = False) -> Tensor:
        if return_attns:
            raise ValueError(
                f"{type(self).__name__} returns no attention matrix. Received: return_attns=True. "
                "Call keras_graphattn.revert(model) for the matrix of the original."
            )
        return self.attend_inputs(x, None, given=(mask, ops.shape(x)[0]))


class SwinAdapter(EncoderAdapter):
    """For `WindowAttention` of `SwinTransformerBlock`."""

    classes: Sequence[str] = ("WindowAttention",)
    backbones: Sequence[str] = ("SwinTransformerBackbone",)
    inner_layers: Sequence[str] = ("SwinTransformerStage", "SwinTransformerBlock")
    module = "keras_hub.src.models.swin_transformer."
    hook = SwinHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.scale,
            dropout=layer.attn_drop_rate,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {"query": layer.qkv, "attention_output": layer.proj}

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return fused_in_heads(layer.qkv(inputs), layer.num_heads)

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        mask, count = given  # (W, T, T), and B * W
        bias = layer._get_rel_pos_bias()[None]  # (1, N, T, T)
        if mask is None:
            return Logits(bias=bias)
        repeats = (count // ops.shape(mask)[0], 1, 1, 1)
        of_windows = ops.tile(ops.expand_dims(mask, 1), repeats)  # (B * W, 1, T, T)
        return Logits(bias=bias + ops.cast(of_windows, bias.dtype))

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.attention_dropout_layer(matrix)  # Keras knows `training`

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.proj_drop(layer.proj(joined_heads(outputs)))
