"""The adapter of Bloom's attention: heads of their own, a bias of the scores (ALiBi).

`BloomAttention` has no method that attends, so the hook is `call`. The bias, a slope of each head
times the position of the key, is added to the scaled scores. The slopes come from the layer's own
`AlibiBias`, whose bias differs between lengths by a number per head: the softmax does not see it.
The cache is [B, 2, S, N, H]. The layer drops entries of A, and then of its output.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter, joined_heads
from keras_graphattn.hub.logits import BIAS, DROPOUT, Logits

Tensor = Any


class BloomHook:
    """The method of `BloomAttention` that a converted one overrides."""

    attend_cached: Any
    attend_inputs: Any

    def call(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = None,
    ) -> Any:
        if cache is None:
            return self.attend_inputs(hidden_states, attention_mask, cache_update_index)
        return self.attend_cached(hidden_states, attention_mask, cache, cache_update_index, None)


class BloomAdapter(DecoderAdapter):
    """For `BloomAttention`."""

    classes: Sequence[str] = ("BloomAttention",)
    backbones: Sequence[str] = ("BloomBackbone",)
    inner_layers: Sequence[str] = ("BloomDecoder",)
    hook = BloomHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.head_dim,
            scale=layer.inv_norm_factor,
            dropout=layer.dropout,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        nothing = ops.zeros((1, layer.num_heads, 1, length), layer.compute_dtype)
        return Logits(bias=layer._alibi_layer(nothing))  # (1, N, 1, S)

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._dropout_layer(matrix)  # Keras knows `training`, which `call` does not take

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer._dropout_layer(layer._output_dense(joined_heads(outputs)))
