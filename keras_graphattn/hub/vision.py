"""The families of vision towers. Most attend in `call` itself.

KerasHub 0.32 fills windows at the border of an image with zeros, and tokens see them: in Swin and
ViTDet, converted or not.
"""

from dataclasses import replace
from itertools import pairwise

import keras
from keras import ops

from keras_graphattn.hub.converted import (
    AttentionFamily,
    Bias,
    Heads,
    HeadSizes,
    Index,
    Mask,
    Result,
    Spelling,
    Tokens,
    part,
)
from keras_graphattn.types import Float, Int, Tensor

Map = Float[Tensor, "B _ _ _"]  # tokens in rows and columns
Angles = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]  # their cosines and sines


FUSED = Spelling(
    *("qkv", "qkv", "qkv", "proj"), num_heads="num_heads", key_dim="head_dim", joins_heads=True
)


class FusedTower(AttentionFamily):
    """Base of the towers with one projection of queries, keys and values, (B, T, 3 * N * H)."""

    def projection_layers(self) -> dict[str, keras.Layer]:
        layers = super().projection_layers()
        return {name: layers[name] for name in ("query", "attention_output")}

    def projected_heads(self, inputs: Tokens, index: Index) -> tuple[Heads, ...]:
        x = part(self, self.spelling.query)(inputs)
        x = ops.reshape(x, (*ops.shape(x)[:2], 3, self.num_heads, -1))
        query, key, value = ops.unstack(x, 3, axis=2)
        return query, key, value


class SwinAttention(FusedTower):
    """Swin: one square A for each window, with two biases of the scores.

    The tokens (B * W, T, C) are those of W windows of each of B images. One bias is of the relative
    positions, from a table of the layer. The other is -100 in shifted windows between tokens that
    come from different parts of the image. Both are kept as they are.
    """

    spelling = replace(
        FUSED, scale="scale", matrix_dropout="attention_dropout_layer", dropout_after="proj_drop"
    )
    adds_bias = True

    def call(
        self, x: Tokens, mask: Float[Tensor, "W T T"] | None = None, return_attns: bool = False
    ) -> Tokens:
        if return_attns:
            raise ValueError(
                f"{type(self).__name__} returns no attention matrix. Received: return_attns=True. "
                "Call keras_graphattn.revert(model) for the matrix of the original."
            )
        bias = self._get_rel_pos_bias()[None]  # (1, N, T, T)
        if mask is not None:
            repeats = (ops.shape(x)[0] // ops.shape(mask)[0], 1, 1, 1)
            mask = ops.tile(ops.expand_dims(mask, 1), repeats)  # (B * W, 1, T, T)
            bias = bias + ops.cast(mask, bias.dtype)
        return self.attend_inputs(x, bias=bias)


class ViTDetAttention(FusedTower):
    """ViTDet, SAM's image encoder: a bias of rows and of columns.

    The tokens are a map (B, h, w, C): of a window in most layers, of the whole image in the global
    ones. The bias of a query is its product with an embedding of the distance in rows, plus that
    with an embedding of the distance in columns. The attention of SAM's mask decoder is not
    converted: most of it looks from prompts at the image.
    """

    spelling = replace(FUSED, output="projection", key_dim="key_dim", scale="scale")

    @property
    def adds_bias(self) -> bool:  # type: ignore[override]
        """Whether this layer has the embeddings."""
        return bool(self.use_rel_pos)

    def call(self, x: Map) -> Map:
        batch, height, width, channels = ops.shape(x)
        tokens = ops.reshape(x, (batch, height * width, channels))
        query, key, value = self.projected_heads(tokens, 0)
        bias = self._bias_of(query, (height, width)) if self.use_rel_pos else None
        outputs = self.merged_heads(self.attend(query, key, value, bias=bias), None)
        return ops.reshape(outputs, (batch, height, width, channels))

    def _bias_of(self, query: Heads, size: tuple[Index, Index]) -> Bias:
        """The bias (B, N, T, T) of the scores of queries (B, T, N, H) on a map."""
        batch, length, num_heads, key_dim = ops.shape(query)
        rows = ops.transpose(query, (0, 2, 1, 3))
        rows = ops.reshape(rows, (batch * num_heads, length, key_dim))
        nothing = ops.zeros((1, length, length), query.dtype)
        nothing = ops.broadcast_to(nothing, (batch * num_heads, length, length))
        bias = self.add_decomposed_relative_pe(nothing, rows, query_size=size, key_size=size)
        return ops.reshape(bias, (batch, num_heads, length, length))


class Qwen35VisionAttention(FusedTower):
    """The vision tower of Qwen3.5: all patches of a batch in one row.

    The input is (T, d), without an axis of examples: the patches of all images and frames, one
    after the other. `cu_seqlens` says where each starts, and patches see those of their own frame
    only. So A is a square matrix for each frame. Queries and keys are rotated by row and by column.

    The tower reads the sizes of the images while it runs. So neither a function of it nor a model
    with it can be compiled: it runs eagerly, as the original does.
    """

    spelling = FUSED

    def call(
        self,
        x: Float[Tensor, "T _"],
        position_embeddings: Angles,
        cu_seqlens: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "T _"]:
        query, key, value = self.projected_heads(x[None], 0)  # (1, T, N, H)
        query, key = (self._apply_rotary(y[0], *position_embeddings)[None] for y in (query, key))
        if cu_seqlens is None or len(cu_seqlens) <= 2:
            outputs = self.attend(query, key, value)
        else:
            ends = [int(end) for end in ops.convert_to_numpy(cu_seqlens)]
            frames = [slice(start, end) for start, end in pairwise(ends)]
            outputs = ops.concatenate(
                [self.attend(query[:, at], key[:, at], value[:, at]) for at in frames], axis=1
            )
        return self.merged_heads(outputs, None)[0]


class DinoAttention(AttentionFamily):
    """DINOv3: rotary embedding in two dimensions, of patches only.

    The angles of the patches are an argument of `call`. The first tokens, the class token and the
    registers, are not rotated.
    """

    spelling = Spelling(
        num_heads="num_heads",
        key_dim="head_dim",
        scale="scale",
        dropout_before="dropout",
        joins_heads=True,
    )

    def calls_backend(self) -> bool:
        return True

    def call(
        self,
        inputs: Tokens,
        attention_mask: Mask | None = None,
        position_embeddings: Angles | None = None,
        num_prefix_tokens: int = 0,
        training: bool | None = None,
    ) -> Tokens:
        query, key, value = self.projected_heads(inputs, 0)
        if position_embeddings is not None:
            cosine, sine = position_embeddings  # (T - num_prefix_tokens, H)
            query, key = self._apply_rotary(query, key, cosine, sine, num_prefix_tokens)
        outputs = self.attend(query, key, value, attention_mask, training)
        return self.merged_heads(outputs, training)


class MiTAttention(AttentionFamily):
    """MiT, SegFormer's image encoder, where its A is square.

    With an `sr_ratio` above 1, a convolution with this stride shortens keys and values: n tokens
    look at n / sr_ratio^2 others, and a filter of such a matrix is undefined. In MiT as published,
    only the last stage is square. The layer drops entries of A, always a tenth of them in training.
    """

    spelling = Spelling(
        *("q", "k", "v", "proj"),
        num_heads="num_heads",
        scale="scale",
        matrix_dropout="dropout",
        dropout_after="proj_drop",
        joins_heads=True,
    )

    def refusal_reason(self) -> str | None:
        if self.sr_ratio == 1:
            return None
        return (
            f"{type(self).__name__} with sr_ratio={self.sr_ratio} looks from n tokens at "
            f"n / {self.sr_ratio**2} others: its attention matrix is not square"
        )

    def head_sizes(self) -> HeadSizes:
        size = self.q.units // self.num_heads
        return HeadSizes(self.num_heads, self.num_heads, size, size, float(self.scale))

    def call(self, x: Tokens) -> Tokens:
        return self.attend_inputs(x)


class DFineAttention(AttentionFamily):
    """D-FINE: image features in the encoder, queries of objects in the decoder.

    Position embeddings are added before queries and keys are projected. In both places the layer is
    self-attention, and A is square. With `output_attentions` it also returns A, to which the filter
    is applied. The deformable cross-attention of the decoder stays as it is.

    KerasHub 0.32 adds the mask of the denoising queries to the scores as it is: 1 where a query is
    to be hidden. So does a converted layer.
    """

    spelling = Spelling(
        *("q_proj", "k_proj", "v_proj", "out_proj"),
        num_heads="num_heads",
        key_dim="head_dim",
        scale="scaling",
        matrix_dropout="dropout",
        joins_heads=True,
    )
    adds_bias = True

    def call(
        self,
        hidden_states: Tokens,
        position_embeddings: Float[Tensor, "B? _ _"] | None = None,
        attention_mask: Bias | None = None,
        output_attentions: bool = False,
        training: bool | None = None,
    ) -> Result:
        placed, bias = hidden_states, attention_mask  # (T, T), or (B or 1, T, T)
        if position_embeddings is not None:
            placed = hidden_states + position_embeddings
        if bias is not None:
            bias = ops.expand_dims(bias[None] if len(bias.shape) == 2 else bias, 1)
        query, key = self.heads_of("q_proj", placed), self.heads_of("k_proj", placed)
        value = self.heads_of("v_proj", hidden_states)
        heads = self.attend(query, key, value, training=training, bias=bias)
        outputs = self.merged_heads(heads, training)
        return (outputs, self.matrix_of(query, key, bias)) if output_attentions else outputs


class VideoPrismAttention(AttentionFamily):
    """VideoPrism: a soft cap, in towers of frames, videos and texts.

    The encoders call it on one tensor. The patches of a frame see each other, then the frames at a
    patch, then all of a video; the tokens of a text see those before them. With `use_per_dim_scale`
    it has a learned scale of each feature of the queries. The layer drops entries of A.

    The layer that pools a video into one vector has the same class of attention with one query, for
    which A is not square. It stays as it is.
    """

    spelling = Spelling(soft_cap="attention_logit_soft_cap", matrix_dropout="dropout_layer")

    def head_sizes(self) -> HeadSizes:
        sizes = super().head_sizes()
        return sizes._replace(scale=1.0) if self.use_per_dim_scale else sizes

    def call(
        self,
        query: Tokens,
        value: Tokens,
        key: Tokens | None = None,
        attention_mask: Mask | None = None,
        training: bool | None = None,
    ) -> Tokens:
        key = query if key is None else key
        lengths = query.shape[1], key.shape[1], value.shape[1]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"{type(self).__name__} is self-attention: queries, keys and values must be as "
                f"many, or A is not square. Received: {lengths[0]} queries, {lengths[1]} keys and "
                f"{lengths[2]} values."
            )
        if attention_mask is not None and len(attention_mask.shape) == 2:  # (B, S)
            attention_mask = ops.expand_dims(attention_mask, 1)
        queries = self.query_dense(query)
        if self.use_per_dim_scale:
            queries = self.per_dim_scale_layer(queries)
        outputs = self.attend(
            queries, self.key_dense(key), self.value_dense(value), attention_mask, training
        )
        return self.merged_heads(outputs, training)
