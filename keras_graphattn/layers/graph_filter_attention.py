"""Graph-filter self-attention (GFSA)."""

from typing import Any

import keras

from keras_graphattn import filters
from keras_graphattn.filters import Filter
from keras_graphattn.layers.softmax_base import SoftmaxAttention


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphFilterAttention(SoftmaxAttention):
    """Multi-head self-attention whose matrix goes through a graph filter (GFSA).

    With A the softmax attention matrix of one head and K the `order`, the layer applies

        H = w_0 I + w_1 A + w_K (A + (K - 1)(A^2 - A))

    to the values instead of A. The three coefficients are learned, one of each per head, and
    start at 0, 1 and 0: a new layer is plain attention, with the arguments, the projections
    and the outputs of `keras.layers.MultiHeadAttention`. The layer forms A once and applies it
    twice. It never forms A A.

    This is `filter="first_order"`. Any other filter of `keras_graphattn.filters` can replace it.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the matrix that `dropout_on` names.
        order: Order K of a `filter` given by its name, an integer of at least 1. The papers'
            models use 2 to 10. `None` means the filter's own default, which is 3 for most filters.
        filter: A filter of `keras_graphattn.filters`, or its name in `filters.FILTERS`, such as
            `"first_order"` (the paper's, above) or `"chebyshev"`. All other settings are the
            constructor's, such as `FirstOrder(3, trainable_coefficients=["power"])` or
            `Chebyshev(4, start="high_pass")`.
        dropout_on: `"attention"` drops entries of A and filters the dropped A, as the paper's
            text and graph models do. `"filter"` drops entries of H, as its vision, speech and
            code models do. The layer then forms H in training, at O(n^3), and only there.
        attention_path: `"dense"` forms A. `"blockwise"` forms it for `block_size` query rows at a
            time, in both directions. `"fused"` calls `keras.ops.dot_product_attention` for each
            application. The last two never form A, so they have no dropout, no scores and no
            filter matrix.
            `"dense"` by default, `"fused"` with `flash_attention=True`.
        block_size: Number of query rows at a time on the blockwise path.
        num_key_value_heads: The number of heads for keys and values, `num_heads` by default.
            Each of them is shared by num_heads / num_key_value_heads query heads (grouped-query
            attention). The projections are then those of `keras.layers.GroupQueryAttention`.
        flash_attention: On the fused path, `True` requires the backend's flash kernel and `False`
            forbids it. `None` follows `keras.config`, and otherwise lets the backend choose.
        **kwargs: All further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, `attention_axes`, `sliding_window`, initializers, regularizers,
            constraints, `use_gate`, `seed`, `name`, `dtype`), and
            `coefficient_learning_rate_multiplier`, 10 by default: the coefficients learn this
            many times as fast as other weights, if the optimizer is one of
            `keras_graphattn.optimizers.with_coefficient_rates`. Any other optimizer ignores it.

    Call arguments:
        query: Tensor of shape (B, T, d).
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks
            padding. Taken from the inputs' Keras masks when not given. A value that is left out
            has the mask of the query.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T);
            `True` lets a query position (row) see a key position (column).
        return_attention_scores: Whether to return A as well.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees only positions 0 ... t.
        return_filter_matrix: Whether to return H as well (of the A without dropout). It is
            formed only for this, at O(n^3).
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d. With
        `return_attention_scores=True` also A, with `return_filter_matrix=True` also H, in this
        order, each of shape (B, num_heads, T, T). A query position that may see nothing
        contributes exactly 0 to the output projection.

    Weights:
        `identity_coefficient` (w_0), `linear_coefficient` (w_1) and `power_coefficient` (w_K),
        each of shape (num_heads,), or those that another filter names. They are kept in the
        variable dtype. The projections are `query`, `key`, `value` and `attention_output`.

    Raises:
        ValueError: For arguments outside the ranges above, for query and value of different
            lengths (the filter of a matrix that is not square is undefined), for masks of the
            wrong rank, and when the caller asks for a matrix that the path never forms.

    Example:

    >>> layer = GraphFilterAttention(num_heads=2, key_dim=8, order=3)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens, tokens).shape)
    (4, 10, 16)

    Source: Choi et al., "Graph Convolutions Enrich the Self-Attention in Transformers!",
    arXiv 2312.04234 (NeurIPS 2024), Eq. 4-6 and Algorithm 1. Ours: a second
    application of A replaces A A, with the same result at O(n^2 d) instead of O(n^3).
    """

    filter: Filter

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        order: int | None = None,
        filter: str | Filter | dict[str, Any] = "first_order",
        **kwargs: Any,
    ) -> None:
        chosen = filters.get(filter, order)
        super().__init__(num_heads, key_dim, value_dim, dropout, filter=chosen, **kwargs)

    @property
    def order(self) -> int:
        """The order of the filter."""
        return self.filter.order
