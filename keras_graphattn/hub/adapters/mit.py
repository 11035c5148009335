"""The adapter of the attention of MiT, SegFormer's image encoder, where its A is square.

`SegFormerMultiheadAttention` has no method that attends, so the hook is `call`. With an `sr_ratio`
above 1, a convolution with this stride shortens keys and values: n tokens look at n / sr_ratio^2
others, and a filter of such a matrix is undefined. In MiT as published, only the last stage is
square. The layer drops entries of A, always a tenth of them in training.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, in_heads
from keras_graphattn.hub.logits import DROPOUT

Tensor = Any


def block_config(block: Any) -> dict[str, Any]:
    """The arguments of a `HierarchicalTransformerEncoder`.

    Its own `get_config` tells others, which its constructor refuses (KerasHub 0.32).
    """
    config: dict[str, Any] = keras.Layer.get_config(block)
    return {
        **config,
        "project_dim": block.project_dim,
        "num_heads": block.num_heads,
        "sr_ratio": block.attn.sr_ratio,
        "drop_prob": float(block.drop_prop),
        "layer_norm_epsilon": block.norm1.epsilon,
    }


class MiTHook:
    """The method of `SegFormerMultiheadAttention` that a converted one overrides."""

    attend_inputs: Any

    def call(self, x: Tensor) -> Tensor:
        return self.attend_inputs(x, None)


class MiTAdapter(EncoderAdapter):
    """For `SegFormerMultiheadAttention` with an `sr_ratio` of 1."""

    classes: Sequence[str] = ("SegFormerMultiheadAttention",)
    backbones: Sequence[str] = ("MiTBackbone", "SegFormerBackbone")
    inner_layers: Sequence[str] = ("HierarchicalTransformerEncoder",)
    holder_configs: ClassVar[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
        "HierarchicalTransformerEncoder": block_config
    }
    hook = MiTHook

    def refusal(self, layer: Any) -> str | None:
        if layer.sr_ratio == 1:
            return None
        return (
            f"{type(layer).__name__} with sr_ratio={layer.sr_ratio} looks from n tokens at "
            f"n / {layer.sr_ratio**2} others: its attention matrix is not square"
        )

    def sizes(self, layer: Any) -> Sizes:
        size = layer.q.units // layer.num_heads
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=size,
            scale=layer.scale,
            dropout=layer.dropout.rate,
            beyond_softmax=(DROPOUT,),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.q,
            "key": layer.k,
            "value": layer.v,
            "attention_output": layer.proj,
        }

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return (
            in_heads(layer.q(inputs), layer.num_heads),
            in_heads(layer.k(inputs), layer.num_heads),
            in_heads(layer.v(inputs), layer.num_heads),
        )

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout(matrix)  # Keras knows `training`, which `call` does not take

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.proj_drop(layer.proj(joined_heads(outputs)))
