"""The adapter of the disentangled attention of DeBERTaV3: scores of content and of positions.

The hook is `_compute_attention(query, key, value, rel_embeddings, ...)`. The scores are the sum of
three: content to content, content to position, and position to content. All are scaled by
1 / sqrt(3 H), and one softmax is taken of the sum. So A is a softmax of scaled scores Q K^T with a
bias (B, N, T, T), which the layer's own method makes from queries, keys and `rel_embeddings`.

The layer drops entries of `rel_embeddings` and of A. Its hook returns scores too. A converted layer
has no such scores to return: what it applies is a polynomial of A, or A with other weights.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.logits import BIAS, DROPOUT

Tensor = Any


class DisentangledHook:
    """The methods of `DisentangledSelfAttention` that a converted one overrides."""

    attend: Any
    _position_dropout_layer: Any
    _compute_disentangled_attention: Any

    def call(
        self,
        inputs: Tensor,
        rel_embeddings: Tensor,
        attention_mask: Tensor | None = None,
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
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rel_embeddings: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, None]:
        bias = self._compute_disentangled_attention(
            query=query,
            key=key,
            rel_embeddings=self._position_dropout_layer(rel_embeddings, training=training),
        )  # (B, N, T, T), scaled
        return self.attend(query, key, value, attention_mask, training, bias), None


class DisentangledAdapter(EncoderAdapter):
    """For `DisentangledSelfAttention`."""

    classes: Sequence[str] = ("DisentangledSelfAttention",)
    backbones: Sequence[str] = ("DebertaV3Backbone",)
    inner_layers: Sequence[str] = ("DisentangledAttentionEncoder",)
    hook = DisentangledHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.num_heads,
            key_dim=layer.attn_head_size,
            scale=layer.scale_factor,
            dropout=layer.dropout,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._attn_dropout_layer(matrix, training=training)
