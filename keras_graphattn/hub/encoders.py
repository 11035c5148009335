"""The families of text encoders: DeBERTa, XLNet, RoFormer and ESM. All tokens see each other."""

import sys
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.converted import (
    AttentionFamily,
    Heads,
    Index,
    Mask,
    Spelling,
    Tokens,
)
from keras_graphattn.types import Tensor


class DebertaAttention(AttentionFamily):
    """The disentangled attention of DeBERTaV3: scores of content and of positions.

    The scores are the sum of three: content to content, content to position, and position to
    content. All are scaled by 1 / sqrt(3 H), and one softmax is taken of the sum. So A is a softmax
    of scaled scores Q K^T with a bias (B, N, T, T), which the layer's own method makes of queries,
    keys and `rel_embeddings`.

    The layer drops entries of `rel_embeddings` and of A. Its method that attends returns scores,
    too. A converted layer has none to return: what it applies is a polynomial of A, or A with other
    weights.
    """

    spelling = Spelling(scale="scale_factor", matrix_dropout="attn_dropout_layer")
    adds_bias = True
    _position_dropout_layer: keras.Layer
    _compute_disentangled_attention: Callable[..., Tensor]

    def call(
        self,
        inputs: Tokens,
        rel_embeddings: Tensor,
        attention_mask: Mask | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        if return_attention_scores:
            raise ValueError(
                f"{type(self).__name__} has no attention scores to return: its outputs are not one "
                "matrix of scores times the values. Received: return_attention_scores=True. Leave "
                "it out, or call keras_graphattn.revert(model)."
            )
        return super().call(  # type: ignore[misc]
            inputs, rel_embeddings, attention_mask, training=training
        )

    def _compute_attention(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        rel_embeddings: Tensor,
        attention_mask: Mask | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, None]:
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
    1 / sqrt(H), and one softmax is taken of the sum. So A is a softmax of scaled scores Q K^T with
    a bias (B, N, T, T).

    XLNet can have two streams. The content stream is self-attention of the tokens, and the backbone
    has only this one. The query stream asks with its own vectors what the content stream knows: its
    rows of A are applied to values of the content stream, and its outputs are not such values. So
    there is no A^2 for it, and a converted layer refuses it. It refuses a state of earlier segments
    too: then there are more keys than queries.

    KerasHub 0.32 reshapes the padding mask and the encodings of distances where it means to
    transpose them. In a batch of more than one text, a text is given the padding of others, and
    distances that are not its own. This is made outside of the attention, and stays as it is.
    """

    spelling = Spelling(matrix_dropout="dropout_layer")
    adds_bias = True
    _encoding_dense: keras.Layer

    def projection_layers(self) -> dict[str, Any]:
        return {**super().projection_layers(), "encoding": self._encoding_dense}

    def call(
        self,
        content_stream: Tokens,
        content_attention_bias: Tensor,
        positional_attention_bias: Tensor,
        relative_position_encoding: Tensor,
        query_stream: Tensor | None = None,
        target_mapping: Tensor | None = None,
        segment_matrix: Tensor | None = None,
        segment_encoding: Tensor | None = None,
        segment_attention_bias: Tensor | None = None,
        state: Tensor | None = None,
        content_attention_mask: Mask | None = None,
        query_attention_mask: Mask | None = None,
    ) -> tuple[Tensor, None]:
        if query_stream is not None or state is not None:
            name = "query_stream" if query_stream is not None else "state"
            raise ValueError(
                f"{type(self).__name__} is self-attention of the content stream. A query stream "
                "attends to the values of another stream, and with a state there are more keys "
                f"than queries: the powers of A are undefined. Received: `{name}`. Leave it out, "
                "or call keras_graphattn.revert(model)."
            )
        return super().call(  # type: ignore[misc,no-any-return]
            content_stream,
            content_attention_bias,
            positional_attention_bias,
            relative_position_encoding,
            segment_matrix=segment_matrix,
            segment_encoding=segment_encoding,
            segment_attention_bias=segment_attention_bias,
            content_attention_mask=content_attention_mask,
        )

    def compute_attention(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        position: Tensor,
        content_attention_bias: Tensor,
        positional_attention_bias: Tensor,
        segment_matrix: Tensor | None = None,
        segment_encoding: Tensor | None = None,
        segment_attention_bias: Tensor | None = None,
        attention_mask: Mask | None = None,
    ) -> Tensor:
        bias = self._scores_of_distances(query + positional_attention_bias, position)
        if segment_matrix is not None:
            # (B, N, T, 1) each: with the encoding of the same segment, then of another
            scores = ops.einsum("btnh,snh->bnts", query + segment_attention_bias, segment_encoding)
            same, other = ops.split(scores, 2, axis=-1)
            bias = bias + ops.where(ops.expand_dims(segment_matrix, 1), other, same)
        bias = bias * self.settings.sizes.scale
        query = query + content_attention_bias
        return self.attend(query, key, value, attention_mask, None, bias)

    def _scores_of_distances(self, query: Tensor, position: Tensor) -> Tensor:
        """Scores (B, N, T, T) of queries with the encodings (B, 2 T, N, H) of T, ..., 1 - T."""
        scores = ops.einsum("blnh,btnh->bntl", position, query)
        module = sys.modules["keras_hub.src.models.xlnet.relative_attention"]
        return module._rel_shift(scores, klen=ops.shape(query)[1])


class RoformerAttention(AttentionFamily):
    """RoFormer V2: rotary embedding, and padding by the backend. `call` is all that attends.

    The mask (B, T) says which tokens are not padding. What it hides depends on the backend
    (KerasHub 0.32). On PyTorch, no token sees padding. On TensorFlow and JAX the mask has the shape
    (B, 1, T, 1): it hides everything from padding, and nothing from the other tokens. A softmax
    over hidden tokens only is uniform. So there the matrix A of the original has uniform rows for
    padding, and all tokens see padding. This is what scores of 0 in the rows of padding give.

    A converted layer does what the original does on the same backend: its outputs are the
    original's at the start. So on TensorFlow and JAX, padding takes part in A and in its powers.
    Texts without padding give the same numbers on all backends.
    """

    spelling = Spelling(
        *("q_dense", "k_dense", "v_dense", "o_dense"),
        num_heads="heads",
        key_dim="head_size",
        joins_heads=True,
    )
    rotary_embedding_layer: keras.Layer

    def calls_backend(self) -> bool:
        return True

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        query, key = self.rotary_embedding_layer([query, key])
        return query, key

    def call(self, x: Tokens, attention_mask: Mask | None = None) -> Tensor:
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
    """ESM and ESM-2: as RoFormer's, with another rotary embedding, and none in ESM-1."""

    use_rotary: bool

    def placed_heads(self, query: Heads, key: Heads, index: Index) -> tuple[Heads, Heads]:
        if not self.use_rotary:
            return query, key
        query, key = self.rotary_embedding_layer(query, key)
        return query, key
