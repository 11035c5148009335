"""The adapter of GPT-OSS' attention: a learned sink, YaRN, a window, heads in groups.

The hook is `_compute_attention(query, key, value, attention_mask, start_index)`, with queries and
keys rotated, and keys and values repeated to all query heads. The cache is [B, 2, S, Nkv, H] with
rotated keys.

What a filter means with a sink. Each head has a learned logit that takes part in the softmax and is
dropped after it. So a row of A sums to less than 1: what is missing went to the sink. Think of the
sink as one more token, with value 0, that sees only itself. The matrix of this larger graph is
[[A, 1 - A 1], [0, 1]]: its rows sum to 1, its k-th power has A^k in the place of A, and the sink's
value stays 0. So H(A) V is the same filter of the larger graph, read off at the tokens. With each
further application of A, more goes to the sink: higher powers are smaller, and the mean of all
tokens is no fixed point. The identity w_0 I does not see the sink. p-Laplacian attention re-weights
the entries of A between tokens; the sink has no value, and counts in the softmax only.

In KerasHub 0.32 a token sees itself and `sliding_window` tokens before it, in layers with a window.
A converted layer keeps that.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter
from keras_graphattn.hub.logits import SINK, Logits

Tensor = Any


class GptOssAdapter(DecoderAdapter):
    """For `GptOssAttention`."""

    classes: Sequence[str] = ("GptOssAttention",)
    backbones: Sequence[str] = ("GptOssBackbone",)
    inner_layers: Sequence[str] = ("GptOssTransformerDecoder",)

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_query_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer._head_dim,
            scale=layer._inv_norm_factor,
            dropout=layer.dropout,
            beyond_softmax=(SINK,),
        )

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        return Logits(sink=layer.sinks)

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        return (layer.sliding_window, None) if layer.sliding_window else None

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        size = layer._rotary_dim  # an odd last feature stays
        turned = layer.rotary_embedding_layer(x[..., :size], start_index=index)
        return turned if size == x.shape[-1] else ops.concatenate([turned, x[..., size:]], axis=-1)
