"""The families of text encoders: DeBERTa, XLNet, RoFormer and ESM. All tokens see each other."""

import sys
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.converted import AttentionFamily, Heads, Index, Mask, Spelling, Tokens
from keras_graphattn.types import Float, Tensor

Encodings = Float[Tensor, "..."]  # of distances or segments, or biases of queries


class DebertaAttention(AttentionFamily):
    """The disentangled attention of DeBERTaV3: scores of content and of positions.

    The scores are the sum of three: content to content, content to position, and position to
    content, all scaled by 1 / sqrt(3 H). So A is a softmax of scaled scores Q K^T with a bias (B,
    N, T, T), which the layer's own method makes of queries, keys and `rel_embeddings`. The layer
    drops entries of `rel_embeddings` and of A.
    """

    spelling = Spelling(scale="scale_factor", matrix_dropout="attn_dropout_layer")
    adds_bias = True

    def call(
        self, *tensors: Tokens, return_attention_scores: bool = False, **arguments: Any
    ) -> Tokens:
        if return_attention_scores:
            raise ValueError(
                f"{type(self).__name__} has no attention scores to return: its outputs are not one "
                "matrix of scores times the values. Received: return_attention_scores=True. Leave "
                "it out, or call keras_graphattn.revert(model)."
            )
        return super().call(*tensors, **arguments)  # type: ignore[misc]

    def _compute_attention(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        rel_embeddings: Encodings,
        attention_mask: Mask | None = None,
        training: bool | None = None,
    ) -> tuple[Heads, None]:
        bias = self._compute_disentangled_attention(
            query=query,
            key=key,
            rel_embeddings=self._position_dropout_layer(rel_embeddings, training=training),
        )  # (B, N, T, T), scaled
        return self.attend(query, key, value, attention_mask, training, bias), None


class XLNetAttention(AttentionFamily):
    """XLNet's content stream, with scores of positions and segments.

    The scores of a query are the sum of three: with the content of a token, with the distance to
    it, and with whether it is in the same segment. Each has a bias of the query. All are scaled by
    1 / sqrt(H). So A is a softmax of scaled scores Q K^T with a bias (B, N, T, T).

    The backbone has the content stream only. A query stream applies its rows of A to values of the
    content stream, so A^2 has no meaning there. With a state of earlier segments there are more
    keys than queries. A converted layer refuses both.

    KerasHub 0.32 reshapes the padding mask and the encodings of distances where it means to
    transpose them: in a batch, a text gets the padding and the distances of other texts.
    """

    spelling = Spelling(matrix_dropout="dropout_layer")
    adds_bias = True

    def projection_layers(self) -> dict[str, keras.Layer]:
        return {**super().projection_layers(), "encoding": self._encoding_dense}

    def call(
        self,
        content_stream: Tokens,
        *,
        query_stream: Tokens | None = None,
        state: Tokens | None = None,
        **arguments: Any,
    ) -> tuple[Tokens, None]:
        if query_stream is not None or state is not None:
            name = "query_stream" if query_stream is not None else "state"
            raise ValueError(
                f"{type(self).__name__} is self-attention of the content stream. A query stream "
                "attends to the values of another stream, and with a state there are more keys "
                f"than queries: the powers of A are undefined. Received: `{name}`. Leave it out, "
                "or call keras_graphattn.revert(model)."
            )
        return super().call(content_stream, **arguments)  # type: ignore[misc,no-any-return]

    def compute_attention(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        position: Encodings,
        content_attention_bias: Encodings,
        positional_attention_bias: Encodings,
        segment_matrix: Mask | None = None,
        segment_encoding: Encodings | None = None,
        segment_attention_bias: Encodings | None = None,
        attention_mask: Mask | None = None,
    ) -> Heads:
        # Scores (B, N, T, T), with the encodings (B, 2 T, N, H) of the distances T, ..., 1 - T.
        bias = ops.einsum("blnh,btnh->bntl", position, query + positional_attention_bias)
        module = sys.modules["keras_hub.src.models.xlnet.relative_attention"]
        bias = module._rel_shift(bias, klen=ops.shape(query)[1])
        if segment_matrix is not None:
            # (B, N, T, 1) each: with the encoding of the same segment, then of another
            scores = ops.einsum("btnh,snh->bnts", query + segment_attention_bias, segment_encoding)
            same, other = ops.split(scores, 2, axis=-1)
            bias = bias + ops.where(ops.expand_dims(segment_matrix, 1), other, same)
        bias = bias * self.settings.sizes.scale
        query = query + content_attention_bias
        return self.attend(query, key, value, attention_mask, None, bias)


class RoformerAttention(AttentionFamily):
    """RoFormer V2: rotary embedding, and padding by the backend. Only `call` attends.

    The mask (B, T) says which tokens are not padding. On PyTorch, no token sees padding. On
    TensorFlow and JAX (KerasHub 0.32) the mask has the shape (B, 1, T, 1): it hides everything from
    padding, and nothing from the other tokens. A softmax over hidden tokens only is uniform: this
    is what scores of 0 in the rows of padding give. A converted layer does the same, so padding
    takes part in its A and in the powers of A.
    """

    spelling = Spelling(
        *("q_dense", "k_dense", "v_dense", "o_dense"),
        num_heads="heads",
        key_dim="head_size",
        joins_heads=True,
    )

    def calls_backend(self) -> bool:
        return True

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        query, key = self.rotary_embedding_layer([query, key])
        return query, key

    def call(self, x: Tokens, attention_mask: Mask | None = None) -> Tokens:
        query, key, value = self.projected_heads(x, 0)
        mask = None
        if attention_mask is not None:
            real = ops.cast(ops.reshape(attention_mask, ops.shape(x)[:2]), "bool")  # (B, T)
            if keras.config.backend() == "torch":
                mask = real[:, None]  # (B, 1, T)
            else:
                query = ops.where(real[:, :, None, None], query, ops.zeros_like(query))
        return self.merged_heads(self.attend(query, key, value, mask), None)


class EsmAttention(RoformerAttention):
    """ESM and ESM-2: like RoFormer, with another rotary embedding, and none in ESM-1."""

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        if not self.use_rotary:
            return query, key
        query, key = self.rotary_embedding_layer(query, key)
        return query, key
