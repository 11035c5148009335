"""Graph-filter self-attention (GFSA)."""

from typing import Any

import keras

from keras_graphattn.layers.multi_head import DenseSelfAttention
from keras_graphattn.ops.filters import first_order_filter
from keras_graphattn.ops.polynomials import check_order

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphFilterAttention(DenseSelfAttention):
    """Multi-head self-attention whose matrix goes through a graph filter (GFSA).

    With A the softmax attention matrix of one head and K the `order`, the layer applies

        H = w_0 I + w_1 A + w_K (A + (K - 1)(A^2 - A))

    to the values instead of A. The three coefficients are learned, one of each per head, and
    start at 0, 1 and 0: a new layer is plain attention, with the arguments, the projections
    and the outputs of `keras.layers.MultiHeadAttention`. A is formed once and applied twice;
    A A is never formed.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of A. The filter uses the same dropped A throughout.
        order: The power K, an integer of at least 1. The papers' models use 2 to 10.
        **kwargs: All further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, `attention_axes`, `sliding_window`, initializers, regularizers,
            constraints, `use_gate`, `seed`, `name`, `dtype`).

    Call arguments:
        query: Tensor of shape (B, T, d).
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks
            padding. Taken from the inputs' Keras masks when not given.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T);
            `True` lets a query position (row) see a key position (column).
        return_attention_scores: Whether to return A as well.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees positions 0 ... t alone.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` in place of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). A query
        position that may see nothing contributes exactly 0 to the output projection.

    Weights:
        `identity_coefficient` (w_0), `linear_coefficient` (w_1) and `power_coefficient` (w_K),
        each of shape (num_heads,), kept in the variable dtype; the projections `query`, `key`,
        `value` and `attention_output`.

    Raises:
        ValueError: For an `order` that is not an integer of at least 1, for query and value of
            different lengths (the filter of a matrix that is not square is undefined), and for
            masks of the wrong rank.

    Example:

    >>> layer = GraphFilterAttention(num_heads=2, key_dim=8, order=3)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens, tokens).shape)
    (4, 10, 16)

    Source: Choi et al., "Graph Convolutions Enrich the Self-Attention in Transformers!",
    arXiv 2312.04234 (NeurIPS 2024), Eq. 4-6 and Algorithm 1. Ours: A A is replaced by a second
    application of A, which is the same number at O(n^2 d) in place of O(n^3).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        order: int = 3,
        **kwargs: Any,
    ) -> None:
        self.order = check_order(order)
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        self.identity_coefficient = self._add_coefficient("identity_coefficient", 0.0)
        self.linear_coefficient = self._add_coefficient("linear_coefficient", 1.0)
        self.power_coefficient = self._add_coefficient("power_coefficient", 0.0)
        super().build(query_shape, value_shape, key_shape)

    def _add_coefficient(self, name: str, start: float) -> Any:
        return self.add_weight(
            name=name,
            shape=(self.num_heads,),
            initializer=keras.initializers.Constant(start),
            autocast=False,
        )

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Tensor, Tensor]:
        attention_scores = self._attention_matrix(query, key, attention_mask)
        dropped = self._dropped(attention_scores, training)
        outputs = first_order_filter(
            lambda x: self._apply_matrix(dropped, x),
            value,
            self.identity_coefficient[:, None],
            self.linear_coefficient[:, None],
            self.power_coefficient[:, None],
            self.order,
        )
        return self._zero_blind_rows(outputs, attention_mask), attention_scores

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "order": self.order}
