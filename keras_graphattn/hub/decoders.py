"""The families of decoders: rotary embedding, ALiBi, sinks, and T5's shared bias.

Their caches are [B, 2, S, Nkv, H]. Most have the method `_compute_attention(query, key, value,
mask)`, which attends for the full pass. If KerasHub applies a step only on some backends, a
converted layer applies it on the same backends and devices, so its outputs at the start are those
of the original.
"""

import functools
import sys
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from keras_graphattn import biases
from keras_graphattn.hub.converted import (
    AttentionFamily,
    Bias,
    Cache,
    Heads,
    Index,
    Mask,
    Result,
    Spelling,
    Tokens,
    class_passing_slots,
    open_slots,
    part,
    refuse_paged_attention,
)
from keras_graphattn.numerics.precision import positions_of
from keras_graphattn.operators.softmax import Logits, PairRows
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

Sides = tuple[int | None, int | None] | None  # of a window, before and after a token
HIDDEN = -1e9  # what KerasHub adds to the score of a pair that the mask hides


def visible_where(added: Mask | None) -> Bool[Tensor, "..."] | None:
    """The boolean mask from numbers (..., t, S) that are added to the scores."""
    return None if added is None else added > 0.5 * HIDDEN


class Decoder(AttentionFamily):
    """Base of the families of decoders with a cache."""

    spelling = Spelling(dropout_before="dropout_layer")
    uses_backend = True
    stacks_caches = True

    def _compute_attention(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        attention_mask: Mask | None = None,
        *position: Index,
        training: bool | None = None,
        **others: Any,
    ) -> Heads:
        return self.attend(query, key, value, attention_mask, training)

    def _compute_vllm_attention(self, *arguments: object) -> None:
        refuse_paged_attention(self)

    def call(
        self,
        hidden_states: Tokens,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        **arguments: Any,
    ) -> Result:
        if cache is not None:
            return self.attend_cached(hidden_states, attention_mask, cache, **arguments)
        return super().call(hidden_states, attention_mask=attention_mask, **arguments)  # type: ignore[misc]

    def _rotated(self, x: Heads, start_index: Index) -> Heads:
        """Queries or keys (B, t, N, H), the first `rotary_dim` features rotated."""
        size = part(self, "rotary_dim")
        turned = self.rotary_embedding_layer(x[..., :size], start_index=start_index)
        return ops.concatenate([turned, x[..., size:]], axis=-1)


class RotaryDecoder(Decoder):
    """Llama, Mistral, Mixtral and Phi-3: all features of queries and keys are rotated.

    The window of Mistral and Mixtral is part of the mask that the decoder gives to its attention.
    So A has the window, and a filter of order K sees K windows back.

    Phi-3's rotation `"su"` chooses its factors by the position of the last token of a call: beyond
    the length of pretraining it rotates some tokens differently from a full pass.
    """

    spelling = replace(Decoder.spelling, rotary="rotary_embedding_layer")


class QwenDecoder(RotaryDecoder):
    """Qwen, and Qwen with experts: a window in the layer itself.

    The originals apply it where they form A, and ignore it where they call the backend's own
    attention (KerasHub 0.32). Qwen and Qwen3 form A on TensorFlow only, Qwen with experts
    everywhere but on most GPUs and on TPUs.
    """

    def window_sides(self) -> Sides:
        size = self.sliding_window_size
        if not getattr(self, "use_sliding_window_attention", size) or self.calls_backend():
            return None
        return (size - 1, size - 1) if size else None


class Qwen3Decoder(QwenDecoder):
    """Qwen3, and Qwen3 with experts: queries and keys have norms before the rotation."""

    spelling = replace(
        QwenDecoder.spelling, query_norm="_query_dense_layer_norm", key_norm="_key_dense_layer_norm"
    )


class Qwen35Decoder(QwenDecoder):
    """The full attention of Qwen3.5, also with experts: norms, some features rotated, a gate.

    The projection of the queries also yields a gate: the outputs of the heads are multiplied by its
    sigmoid before the output projection. A filter acts on A, and the gate acts on the outputs.

    Most layers of these models are of class `Qwen3_5GatedDeltaNet`, a recurrence without a matrix
    A. They stay as they are, and pass on the slots that a filter needs (`passing_on`): the caches
    of all layers are stacked. In KerasHub 0.32, the first step of `generate` feeds the last token
    of the prompt to the recurrence a second time.
    """

    def attend_cached(  # type: ignore[override]
        self,
        inputs: Tokens,
        mask: Mask | None,
        cache: Cache,
        *,
        position_ids: Num[Tensor, "..."] | None = None,
        **arguments: Any,
    ) -> Result:
        index = arguments.get("cache_update_index")
        self.check_index(index)
        query, gate = ops.split(self._query_dense(inputs), 2, axis=-1)  # (B, t, N, H)
        query, key = (
            self._apply_partial_rope(x, index, position_ids)
            for x in (self._query_norm(query), self._key_norm(self._key_dense(inputs)))
        )
        projected = query, key, self._value_dense(inputs)
        arguments |= {"projected": projected, "gate": ops.sigmoid(gate)}
        return super().attend_cached(inputs, mask, cache, **arguments)


@functools.cache
def passing_on(plain: type) -> type:
    """A class of decoder layers without attention, which passes on the cache slots of other layers.

    The method `call_and_update_cache` of the class `plain` gets the caches of all kinds.
    """
    plain_call = plain.call_and_update_cache  # type: ignore[attr-defined]

    @functools.wraps(plain_call)
    def call_and_update_cache(
        self: keras.Layer, decoder_sequence: Tokens, kv_cache: Cache, *args: Any, **kwargs: Any
    ) -> Result:
        kv_cache = open_slots(kv_cache, self.cache_slots)
        return plain_call(self, decoder_sequence, kv_cache, *args, **kwargs)

    return class_passing_slots(plain, call_and_update_cache=call_and_update_cache)


def recurrence_beside(layer: keras.Layer, slots: int) -> type | None:
    """The class of a recurrent layer of Qwen3.5 for caches with this number of slots."""
    if getattr(layer, "layer_type", None) != "linear_attention":
        return None
    plain: type = getattr(type(layer), "plain_class", type(layer))
    return passing_on(plain) if slots > 2 else plain


class SmolLM3Decoder(Decoder):
    """SmolLM3: `rope_layer_enabled_list` says which layers rotate.

    The original ignores its `attention_dropout`, and so does a converted layer.
    """

    spelling = Spelling(
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        num_heads="num_attention_heads",
        num_key_value_heads="num_key_value_heads",
        key_dim="head_dim",
    )

    def call(  # type: ignore[override]
        self,
        hidden_states: Tokens,
        training: bool = False,
        attention_mask: Mask | None = None,
        self_attention_cache: Cache | None = None,
        **others: Any,
    ) -> Result:
        if self_attention_cache is None:
            return super().call(hidden_states, attention_mask, training=training, **others)
        index = others.get("self_attention_cache_update_index")
        self.check_index(index, "self_attention_cache")
        return self.attend_cached(
            hidden_states, attention_mask, self_attention_cache, index, training
        )

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        if not self.use_rope:
            return query, key
        cosine, sine = self.rotary_embedding(query, start_index=index)  # (B, t, H)
        rotate = sys.modules["keras_hub.src.models.smollm3.smollm3_utils"].apply_rotary_pos_emb
        return rotate(query, key, cosine, sine, expansion_axis=2)  # type: ignore[no-any-return]


class GPTNeoXDecoder(Decoder):
    """GPT-NeoX: one fused projection, some features rotated, dropout of A.

    The cache holds keys that are not rotated. `call` returns a pair with the cache, or with `None`.

    The original rotates each decoded query as if it stood at position 0 (keras-hub#2870, open in
    KerasHub 0.32). A converted layer rotates it at its own position, so that decoding equals the
    full pass: so `generate` may give other tokens than the original does.
    """

    spelling = Spelling(
        *("qkv_dense", "qkv_dense", "qkv_dense", "output_dense"),
        num_heads="num_heads",
        key_dim="attn_head_size",
        matrix_dropout="attn_dropout_layer",
        joins_heads=True,
    )

    def projected_heads(self, inputs: Tokens, index: Index) -> tuple[Heads, ...]:
        query, key, value = ops.split(self._qkv_dense(inputs), 3, axis=-1)
        return self._rotated(query, index), key, value

    def cached_keys(self, keys: Heads) -> Heads:
        return self._rotated(keys, 0)


class GptOssDecoder(Decoder):
    """GPT-OSS: a learned sink, YaRN, a window, heads in groups.

    Each head has a learned logit that takes part in the softmax and is dropped after it. So a row
    of A sums to less than 1: the rest is the share of the sink. Think of the sink as one more
    token, with value 0, that sees only itself: the matrix of this larger graph is [[A, 1 - A 1],
    [0, 1]], its powers have A^k in place of A, and H(A) V is the same filter of it, read off at the
    tokens. With each further application of A, the share of the sink grows.

    In KerasHub 0.32 a token sees itself and `sliding_window` tokens before it, in layers with a
    window. A converted layer keeps that.
    """

    spelling = replace(Decoder.spelling, rotary="_rotated")
    has_sink = True

    def score_logits(self, length: Index, bias: Bias | None = None) -> Logits:
        return Logits(sink=self.sinks)

    def window_sides(self) -> Sides:
        return (self.sliding_window, None) if self.sliding_window else None


class BloomDecoder(Decoder):
    """Bloom: a bias of the scores (ALiBi); dropout of A, and of the result.

    The bias, a slope of each head times the position of the key, differs between lengths only by a
    number per head, which does not change the softmax.
    """

    spelling = Spelling(
        matrix_dropout="dropout_layer", dropout_after="dropout_layer", joins_heads=True
    )
    adds_bias = True

    def call(  # type: ignore[override]
        self,
        hidden_states: Tokens,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        cache_update_index: Index | None = None,
    ) -> Result:
        return self.attend_inputs(hidden_states, attention_mask, cache, cache_update_index)

    def score_logits(self, length: Index, bias: Bias | None = None) -> Logits:
        nothing = ops.zeros((1, self.settings.sizes.num_heads, 1, length), self.compute_dtype)
        return Logits(bias=self._alibi_layer(nothing))  # (1, N, 1, S)


class FalconDecoder(Decoder):
    """Falcon: a bias (ALiBi) that the decoder hands on; dropout of A.

    The bias (B, N, 1, S) is added before the scores are scaled: the logits are (Q K^T + bias) *
    scale. The decoder counts positions by the padding mask in the full pass, and by the cache in
    decoding. Both agree for padding on the right, which is what `generate` makes.
    """

    spelling = Spelling(matrix_dropout="attention_dropout", joins_heads=True)
    adds_bias = True

    def call(  # type: ignore[override]
        self,
        inputs: Tokens,
        alibi: Float[Tensor, "B? N 1 S"],
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        cache_update_index: Index | None = None,
    ) -> Result:
        bias = alibi * self.settings.sizes.scale
        return self.attend_inputs(inputs, attention_mask, cache, cache_update_index, bias=bias)


@functools.cache
def relative_positions(num_buckets: int, max_distance: int, bidirectional: bool) -> biases.Bias:
    """T5's bias without weights: the layers of KerasHub have them."""
    return biases.RelativePositions(num_buckets, max_distance, bidirectional)


class T5Attention(Decoder):
    """T5's attention over its own tokens, in the encoder and in the decoder.

    The scores are not scaled. The first layer of a stack makes the bias (B, N, t, S): a learned
    number for each head and each bucket of distances, and -1e9 more where the mask hides a token.
    It returns the bias, and the other layers take it from there. A converted layer takes and
    returns the same, and reads the mask off the bias. `call` always returns three results, the
    last of which is the cache or `None`.

    KerasHub spreads a row that sees nothing over all tokens, padding too. Here it is zero, as in
    every layer of this package.
    """

    spelling = Spelling(
        *("query_projector", "key_projector", "value_projector", "output_projector"),
        num_heads="num_heads",
        key_dim="key_value_dim",
        scale=1.0,
        matrix_dropout="dropout_layer",
        joins_heads=True,
    )
    adds_bias = True

    def call(  # type: ignore[override]
        self,
        hidden_states: Tokens,
        mask: Mask | None = None,
        key_value_states: Tokens | None = None,
        position_bias: Bias | None = None,
        cache: Cache | None = None,
        cache_update_index: Index | None = None,
        training: bool | None = False,
    ) -> Result:
        if key_value_states is not None:
            raise ValueError(
                f"{type(self).__name__} attends to its own tokens only: the matrix of "
                "cross-attention is not square, and has no filter. Received: key_value_states of "
                f"shape {tuple(key_value_states.shape)}. Call keras_graphattn.revert first."
            )
        index = cache_update_index
        if position_bias is None:
            new = ops.shape(hidden_states)[1]
            if cache is None:
                position_bias = self._masked_bias(mask, new, new)
            else:
                rows = (0 if index is None else index) + positions_of(new)
                position_bias = self._masked_bias(mask, new, ops.shape(cache)[2], rows)
        visible = visible_where(position_bias[:, 0])  # (B or 1, t, S), the same for all heads
        found = self.attend_inputs(
            hidden_states, visible, cache, index, training, bias=position_bias
        )
        outputs, cache = (found, None) if cache is None else found
        return outputs, position_bias, cache

    def _masked_bias(
        self, mask: Mask | None, new: Index, length: Index, rows: Int[Tensor, " t"] | None = None
    ) -> Bias:
        """The bias (B or 1, N, t, S) of a stack's first layer, with the mask in it."""
        if self.use_relative_attention_bias:
            sizes = self.relative_attention_buckets, self.relative_attention_max_distance
            source = relative_positions(*sizes, not self.is_decoder)
            bias = PairRows(source, {"buckets": self.relative_attention_bias}, {}).at(rows, length)
        else:
            bias = ops.zeros((1, self.num_heads, new, length), self.compute_dtype)
        if mask is None:
            return bias
        hidden = 1.0 - ops.cast(ops.expand_dims(mask, 1), bias.dtype)  # (B, 1, 1 or t, S)
        return bias + hidden * HIDDEN


class MoonshineAttention(Decoder):
    """Moonshine's attention over its own tokens, in the encoder and in the decoder.

    It is a subclass of KerasHub's cached attention. The model hands the angles of the new tokens,
    (t, R), to `call`; the first R features are rotated. Cross-attention is of the same class, has a
    cache that the model fills once, and stays as it is. The layer drops entries of A.

    Moonshine's blocks hand the dtype of their variables on, and not their policy. So under
    "mixed_bfloat16" attention computes in float32 (KerasHub 0.32), converted or not.
    """

    spelling = Spelling(matrix_dropout="dropout_layer")

    def _compute_attention(  # type: ignore[override]
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        attention_mask: Mask | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> tuple[Heads, None]:
        return self.attend(query, key, value, attention_mask, training), None

    def call(  # type: ignore[override]
        self,
        query: Tokens,
        value: Tokens,
        key: Tokens,
        rotary_embedding: Float[Tensor, "..."] | None = None,
        attention_mask: Mask | None = None,
        cache: Cache | None = None,
        **arguments: Any,
    ) -> Result:
        if cache is None:
            tensors = query, value, key, rotary_embedding, attention_mask
            return super(Decoder, self).call(*tensors, **arguments)  # type: ignore[misc]
        queries, keys, values = self.projected_heads(query, 0)
        if rotary_embedding is not None:
            rotate = sys.modules[self.plain_class.__module__]._apply_rotary_pos_emb
            queries, keys = rotate(queries, rotary_embedding), rotate(keys, rotary_embedding)
        projected = queries, keys, values
        return self.attend_cached(query, attention_mask, cache, projected=projected, **arguments)
