"""The adapter of Falcon's attention: a bias (ALiBi) that the decoder makes and hands on.

`FalconAttention` has no method that attends, so the hook is `call`. The bias (B, N, 1, S) is an
argument of it, and is added before the scores are scaled: the logits are (Q K^T + bias) * scale.
The cache is [B, 2, S, N, H]. The layer drops entries of A.

The decoder counts positions by the padding mask in the full pass, and by the cache in decoding.
Both agree for padding on the right, which is what `generate` makes.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, joined_heads
from keras_graphattn.hub.logits import BIAS, DROPOUT, Logits

Tensor = Any


class FalconHook:
    """The method of `FalconAttention` that a converted one overrides."""

    attend_cached: Any
    attend_inputs: Any

    def call(
        self,
        inputs: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
    ) -> Any:
        if cache is None:
            return self.attend_inputs(inputs, attention_mask, cache_update_index, given=alibi)
        return self.attend_cached(
            inputs, attention_mask, cache, cache_update_index, None, given=alibi
        )


class FalconAdapter(DecoderAdapter):
    """For `FalconAttention`."""

    classes: Sequence[str] = ("FalconAttention",)
    backbones: Sequence[str] = ("FalconBackbone",)
    inner_layers: Sequence[str] = ("FalconTransformerDecoder",)
    hook = FalconHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.inv_norm_factor,
            dropout=layer.attention_dropout_rate,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        return Logits(bias=given * layer.inv_norm_factor)  # (B, N, 1, S)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.attention_dropout(matrix)  # Keras knows `training`, which `call` does not take

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.output_dense(joined_heads(outputs))
