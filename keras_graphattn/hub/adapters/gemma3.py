"""The adapter of Gemma 3's attention: as Gemma's, with norms of queries and keys.

Most layers have a window. In embedding models it lies on both sides of a token, and no causal mask
is joined with it; the tokens of an image see each other in both directions.

The cache of a layer is a tuple (key, value) of tensors [B, S, Nkv, H]. The caches of the layers are
not stacked, so only converted layers get further entries in their tuples, one per slot. Where
`cache_update_mask` is false, as for tokens of a longer prompt, the cache keeps keys, values and
further signals from the first pass, in which image tokens have seen all of their image.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.gemma import GemmaAdapter, GroupedHook

Tensor = Any


class Gemma3Hook(GroupedHook):
    """The methods of `CachedGemma3Attention` that a converted one overrides."""

    def call(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        cache_update_index: Any = 0,
        cache_update_mask: Tensor | None = None,
        training: bool | None = False,
    ) -> Any:
        if cache is None:
            return super().call(  # type: ignore[misc]
                x, attention_mask, None, cache_update_index, cache_update_mask, training
            )
        outputs, stacked = self.attend_cached(
            x,
            attention_mask,
            ops.stack(cache, axis=1),  # (B, slots, S, Nkv, H)
            cache_update_index,
            training,
            update=cache_update_mask,
        )
        return outputs, tuple(ops.unstack(stacked, axis=1))


class Gemma3Adapter(GemmaAdapter):
    """For `CachedGemma3Attention`."""

    classes: Sequence[str] = ("CachedGemma3Attention",)
    backbones: Sequence[str] = ("Gemma3Backbone",)
    inner_layers: Sequence[str] = ("Gemma3DecoderBlock",)
    has_cache = False  # none that is stacked with those of other layers
    hook: type = Gemma3Hook

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return not layer.use_bidirectional_attention

    def window(self, layer: Any) -> tuple[int | None, int | None] | None:
        size = layer.sliding_window_size
        if layer.use_sliding_window_attention and layer.use_bidirectional_attention:
            return size - size // 2 - 1, size // 2
        return super().window(layer)

    def queries_and_keys(self, layer: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().queries_and_keys(layer, inputs)
        if layer.use_query_key_norm:
            query, key = layer.query_norm(query), layer.key_norm(key)
        return query, key
