"""The families of Gemma: its decoders, T5Gemma's two towers, and the vision towers of Gemma.

The decoders' method that attends, `_compute_attention(q, k, v, attention_mask, ...)`, gets rotated
queries and keys, and keys and values with their own number of heads. The layers cap their scores,
s -> c tanh(s / c), and drop entries of A. On every backend, KerasHub applies soft cap and window in
the full pass and in decoding, and puts zeros in rows that see nothing. So does a converted layer;
also where KerasHub spreads such a row over all tokens, as in Gemma 3n and T5Gemma.
"""

from dataclasses import replace
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.converted import (
    AttentionFamily,
    Bias,
    Cache,
    Heads,
    HeadSizes,
    Index,
    Mask,
    Result,
    Spelling,
    Tokens,
    open_slots,
)
from keras_graphattn.hub.decoders import Decoder, Sides, visible_where
from keras_graphattn.types import Float, Num, Tensor


class GemmaAttention(Decoder):
    """Gemma, Gemma 2 and PaliGemma's decoder: a window in every other layer of Gemma 2."""

    spelling = Spelling(
        rotary="_apply_rope", soft_cap="logit_soft_cap", matrix_dropout="dropout_layer"
    )

    def head_sizes(self) -> HeadSizes:
        sizes = super().head_sizes()
        if self.query_head_dim_normalize or self.spelling.scale:
            return sizes
        return sizes._replace(scale=float((self.hidden_dim // self.num_query_heads) ** -0.5))

    def window_sides(self) -> Sides:
        if not self.use_sliding_window_attention:
            return None
        return self.sliding_window_size - 1, self.sliding_window_size - 1


class Gemma3Attention(GemmaAttention):
    """Gemma 3: norms of queries and keys; a window in most layers.

    In embedding models the window lies on both sides of a token, and no causal mask is joined with
    it; the tokens of an image see each other in both directions.

    The cache of a layer is a tuple (key, value) of tensors [B, S, Nkv, H]. The caches of the layers
    are not stacked, so only converted layers get further entries in their tuples, one per slot.
    Where `cache_update_mask` is false, as for tokens of a longer prompt, the cache keeps keys,
    values and further signals from the first pass, in which image tokens have seen all of their
    image.
    """

    spelling = replace(GemmaAttention.spelling, query_norm="query_norm", key_norm="key_norm")
    stacks_caches = False

    def window_sides(self) -> Sides:
        size = self.sliding_window_size
        if self.use_sliding_window_attention and self.use_bidirectional_attention:
            return size - size // 2 - 1, size // 2
        return super().window_sides()

    def attend_cached(  # type: ignore[override]
        self, inputs: Tokens, mask: Mask | None, cache: Cache | tuple[Heads, ...], **arguments: Any
    ) -> Result:
        stacked = ops.stack(cache, axis=1)  # (B, slots, S, Nkv, H)
        arguments = {"cache_update_index": 0, **arguments}
        outputs, stacked = super().attend_cached(inputs, mask, stacked, **arguments)
        return outputs, tuple(ops.unstack(stacked, axis=1))


class Gemma3nAttention(Decoder):
    """Gemma 3n's text decoder: heads before tokens, unscaled scores, norms, windows.

    The cache is [B, 2, Nkv, S, H] with rotated keys, and `call` returns outputs, A and the cache; a
    converted layer returns `None` in place of A.

    The last layers of the model borrow keys and values of an earlier layer, and are refused. The
    audio tower attends in blocks with a context before and after them, so A is not square and the
    tower stays as it is.
    """

    spelling = Spelling(
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        num_heads="num_attention_heads",
        num_key_value_heads="num_key_value_heads",
        key_dim="head_dim",
        query_norm="q_norm",
        key_norm="k_norm",
        rotary="rotary_embedding",
        scale=1.0,
        matrix_dropout="dropout",
        joins_heads=True,
    )

    def refusal_reason(self) -> str | None:
        if not self.is_kv_shared_layer:
            return None
        return (
            f"{type(self).__name__} with is_kv_shared_layer=True is given the cache of the layer "
            "whose keys and values it borrows, and no cache of its own: what a filter needs of "
            "past tokens cannot be kept while it decodes"
        )

    def window_sides(self) -> Sides:
        size = self.sliding_window
        return None if size is None else (size - 1, size - 1)

    def projected_heads(self, inputs: Tokens, index: Index) -> tuple[Heads, ...]:
        query, key, value = super().projected_heads(inputs, index)
        return query, key, self.v_norm(value)

    def _compute_attention(  # type: ignore[override]
        self, query: Heads, key: Heads, value: Heads, mask: Mask | None, training: bool | None
    ) -> tuple[Heads, None]:
        query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))
        return self.attend(query, key, value, mask, training), None

    def attend_cached(  # type: ignore[override]
        self, inputs: Tokens, mask: Mask | None, cache: Cache, **arguments: Any
    ) -> Result:
        arguments = {"cache_update_index": 0, **arguments}
        cache = ops.swapaxes(cache, -3, -2)  # (B, slots, S, Nkv, H)
        outputs, cache = super().attend_cached(inputs, mask, cache, **arguments)
        return outputs, None, ops.swapaxes(cache, -3, -2)


NO_CACHE = (
    "it belongs to an assistant, which borrows keys and values of another model's cache and has "
    "none of its own: what a filter needs of past tokens cannot be kept"
)


class Gemma4Attention(GemmaAttention):
    """Gemma 4's text decoder: norms, unscaled scores, borrowed keys and values, two head sizes.

    Some layers use their keys as values, before norm and rotation. Layers that see all tokens may
    have another number and another size of heads than those with a window, and rotate part of the
    features only. The window is in the mask of the decoder. The A of the audio tower is not square,
    so the tower stays as it is.

    The last layers of some models borrow keys and values: they get those of an earlier layer as
    `shared_kv`, and have projections of queries only. A filter of their A is applied to the
    borrowed values. What it keeps of past tokens is in the layer's own part of the cache.
    `Gemma4AssistantCausalLM` has no cache of its own: its layers are refused.

    The cache of all layers is stacked: [B, 2, S, Nkv, H] with the largest number and size of heads,
    whose first entries a layer uses. `cache_update_mask` is that of Gemma 3.
    """

    def is_of_assistant(self) -> bool:
        """Whether the layer borrows keys and values, although it was built with its own."""
        return self.is_kv_shared_layer and self.key_dense is not None

    def refusal_reason(self) -> str | None:
        return NO_CACHE if self.is_of_assistant() else None

    def head_sizes(self) -> HeadSizes:
        heads, size = self.query_dense.partial_output_shape[-2:]
        return HeadSizes(heads, self.effective_num_kv_heads, size, size, 1.0)

    def window_sides(self) -> Sides:
        return None

    def projection_layers(self) -> dict[str, keras.Layer]:
        found = super().projection_layers()
        found["value"] = found["value"] or found["key"]
        return {name: layer for name, layer in found.items() if layer is not None}

    def call(  # type: ignore[override]
        self,
        x: Tokens,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        cache_update_index: Index = 0,
        cache_update_mask: Mask | None = None,
        shared_kv: Cache | None = None,
        training: bool | None = False,
        positions: Num[Tensor, "..."] | None = None,
    ) -> Result:
        if self.is_of_assistant():  # made of a backbone that was converted before
            raise ValueError(
                f"{type(self).__name__} '{self.path}' is converted, and {NO_CACHE}. "
                "Call keras_graphattn.revert on the assistant."
            )
        index, update = cache_update_index, cache_update_mask
        if cache is None or (self.is_kv_shared_layer and shared_kv is None):  # which it refuses
            return super(Decoder, self).call(  # type: ignore[misc]
                x, attention_mask, cache, index, update, shared_kv, training, positions
            )
        self.check_index(index)
        own = cache[:, :, :, : self.effective_num_kv_heads, : self.head_dim]
        if shared_kv is not None and self.is_kv_shared_layer:
            borrowed = shared_kv[:, :2, :, : self.effective_num_kv_heads, : self.head_dim]
            own = ops.concatenate([borrowed, own[:, 2:]], axis=1)
        projected = self._projected_at(x, index, positions, own)
        outputs, own = self.attend_cached(
            x, attention_mask, own, index, training, cache_update_mask=update, projected=projected
        )
        whole = open_slots(cache, own.shape[1])
        return outputs, ops.slice_update(whole, (0, 0, 0, 0, 0), ops.cast(own, whole.dtype))

    def _projected_at(
        self, inputs: Tokens, index: Index, positions: Num[Tensor, "..."] | None, cache: Cache
    ) -> tuple[Heads, ...]:
        """Queries, keys and values of new tokens; borrowed ones are in the cache already.

        Positions (B, t) are given if the new tokens do not follow one another.
        """
        query = self.query_norm(self.query_dense(inputs))
        query = self._apply_rope(query, index, positions=positions)
        if self.is_kv_shared_layer:
            shape = (*ops.shape(inputs)[:2], self.effective_num_kv_heads, self.head_dim)
            start = (0, index, 0, 0)
            return query, ops.slice(cache[:, 0], start, shape), ops.slice(cache[:, 1], start, shape)
        key = self.key_dense(inputs)
        value = key if self.attention_k_eq_v else self.value_dense(inputs)
        key = self._apply_rope(self.key_norm(key), index, positions=positions)
        return query, key, self.value_norm(value)


class T5GemmaAttention(GemmaAttention):
    """T5Gemma's attention over its own tokens, in the encoder and in the decoder.

    The masks are numbers that are added to the scores: 0 where a token is seen, -1e9 where it is
    not. The layers always return a cache. The window is in the mask of the decoder; the encoder of
    KerasHub 0.32 ignores it, converted or not. Cross-attention is of the same class, and stays as
    it is.
    """

    spelling = replace(GemmaAttention.spelling, rotary="rotary_embedding", scale="scaling")

    def _compute_attention(  # type: ignore[override]
        self, query: Heads, key: Heads, value: Heads, mask: Mask | None, training: bool | None
    ) -> Heads:
        return self.attend(query, key, value, visible_where(mask), training)

    def call(  # type: ignore[override]
        self,
        inputs: Tokens,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        **arguments: Any,
    ) -> Result:
        if cache is not None:
            attention_mask = visible_where(attention_mask)
        return super().call(inputs, attention_mask, cache, **arguments)


MERGED = "T5Gemma2MergedAttention"


class T5Gemma2Attention(T5GemmaAttention):
    """T5Gemma 2's encoder: like T5Gemma's, with norms; the window is in the mask of the encoder.

    The decoder has one attention for its own tokens and those of the encoder: T decoder tokens look
    at T + S others in one softmax. This matrix is not square, and a filter of it is undefined. So
    layers of class `T5Gemma2MergedAttention` are refused. The vision tower is Gemma 3's.

    Caches are in the decoder only.
    """

    spelling = replace(T5GemmaAttention.spelling, query_norm="query_norm", key_norm="key_norm")
    stacks_caches = False

    def refusal_reason(self) -> str | None:
        if type(self).__name__ != MERGED:
            return None
        return (
            f"{MERGED} looks from the decoder's tokens at these and at all of the encoder's: its "
            "attention matrix is not square"
        )


class GemmaVisionAttention(AttentionFamily):
    """The vision towers of PaliGemma and Gemma 3: all patches of an image see each other.

    Both have the same class under two names, which attends in `call` itself. The layer
    drops entries of A. A mask of the call is added to the scores; the towers give none. The
    original always returns A in addition to its outputs; a converted layer does so only with
    `return_attention_scores`: the A to which the filter is applied.
    """

    spelling = Spelling(
        *("query_proj", "key_proj", "value_proj", "out_proj"),
        num_heads="num_heads",
        key_dim="head_dim",
        scale="scale",
        matrix_dropout="dropout_layer",
        joins_heads=True,
    )

    def call(
        self,
        x: Tokens,
        attention_mask: Bias | None = None,
        return_attention_scores: bool | None = None,
        training: bool | None = False,
    ) -> tuple[Tokens, Float[Tensor, "B N T T"] | None]:
        bias = attention_mask
        while bias is not None and len(bias.shape) < 4:  # aligned from the right, as it is added
            bias = bias[None]
        query, key, value = self.projected_heads(x, 0)
        heads = self.attend(query, key, value, training=training, bias=bias)
        outputs = self.merged_heads(heads, training)
        return outputs, self.matrix_of(query, key, bias) if return_attention_scores else None


class Gemma4VisionAttention(AttentionFamily):
    """Gemma 4's vision tower: groups of heads, norms, two rotations, unscaled scores, a soft cap.

    Queries and keys are rotated by row and by column before `_compute_attention`. The layer drops
    entries of A. The mask (B, S) hides the patches that fill an image up. The rows of those patches
    stay, as in the original: the tower puts zeros there after each block. An image of such patches
    only is an exception: the original answers with the mean of their values, and a converted layer
    with zeros.
    """

    spelling = Spelling(
        num_heads="num_query_heads",
        num_key_value_heads="num_key_value_heads",
        key_dim="head_dim",
        scale=1.0,
        soft_cap="logit_soft_cap",
        matrix_dropout="dropout_layer",
    )

    def _compute_attention(
        self, query: Heads, key: Heads, value: Heads, mask: Mask | None, training: bool | None
    ) -> Heads:
        mask = None if mask is None else ops.expand_dims(mask, 1)  # (B, 1, S)
        return self.attend(query, key, value, mask, training)
