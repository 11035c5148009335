"""The adapter of the attention of Gemma, Gemma 2 and PaliGemma: soft cap, window, groups of heads.

The hook is `_compute_attention(q, k, v, attention_mask, ...)`. Queries and keys are rotated there,
in Gemma's own order of the features. Keys and values have their own number of heads. The layer
caps its scores, s -> c tanh(s / c), and has a window of its own in every other layer of Gemma 2.
The cache is [B, 2, S, Nkv, H] with rotated keys. PaliGemma's decoder has the same layers; its
vision tower has an adapter of its own.

On every backend, KerasHub applies soft cap and window in the full pass and in decoding, and puts
zeros in rows that see nothing. So does a converted layer. Its dropout is that of A.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import DecoderAdapter
from keras_graphattn.hub.grouped_cache import in_all_heads
from keras_graphattn.hub.logits import DROPOUT, SOFT_CAP, Logits
from keras_graphattn.hub.paged import NoPagedAttention

Tensor = Any


class GroupedHook(NoPagedAttention):
    """The method that attends, of Gemma's attention and of Gemma 3's."""

    attend: Any
    attend_cached: Any
    num_key_value_groups: int

    def _compute_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None,
        training: bool | None = False,
        cache_update_index: Any = 0,
    ) -> Tensor:
        groups = self.num_key_value_groups
        k, v = in_all_heads(k, groups), in_all_heads(v, groups)  # (B, T, N, H)
        return self.attend(q, k, v, attention_mask, training)


class GemmaHook(GroupedHook):
    """The methods of `CachedGemmaAttention` that a converted one overrides."""

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: Any = 0,
        training: bool | None = False,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                x, attention_mask, None, cache_update_index, training
            )
        return self.attend_cached(x, attention_mask, cache, cache_update_index, training)


class GemmaAdapter(DecoderAdapter):
    """For `CachedGemmaAttention`."""

    classes: Sequence[str] = ("CachedGemmaAttention",)
    backbones: Sequence[str] = ("GemmaBackbone", "PaliGemmaBackbone")
    inner_layers: Sequence[str] = ("GemmaDecoderBlock", "PaliGemmaDecoderBlock")
    hook: type = GemmaHook

    def sizes(self, layer: Any) -> Sizes:
        soft_cap = () if layer.logit_soft_cap is None else (SOFT_CAP,)
        return Sizes(
            num_heads=layer.num_query_heads,
            num_key_value_heads=layer.num_key_value_heads,
            key_dim=layer.head_dim,
            scale=self.scale(layer),
            dropout=layer.dropout,
            beyond_softmax=(*soft_cap, DROPOUT),
        )

    def scale(self, layer: Any) -> float:
        """The factor of the scores."""
        normal = layer.head_dim
        if not layer.query_head_dim_normalize:
            normal = layer.hidden_dim // layer.num_query_heads
        return float(normal**-0.5)

    def logits(self, layer: Any, length: Any, given: Any = None) -> Logits:
        return Logits(soft_cap=layer.logit_soft_cap)

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        if not layer.use_sliding_window_attention:
            return None
        return layer.sliding_window_size - 1, layer.sliding_window_size - 1

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer.dropout_layer(matrix, training=training) if layer.dropout else matrix

    def rotated(self, layer: Any, x: Tensor, index: Any) -> Tensor:
        return layer._apply_rope(x, index)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.output_dense(outputs)
