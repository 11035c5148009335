"""Graph-filter self-attention (GFSA)."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import keras

from keras_graphattn.checks import flag, one_of, optional
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import Call, SelfAttention, Tokens, optional_filter
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.cached import Cache, CachedOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.ring import ring_of
from keras_graphattn.operators.softmax import (
    Logits,
    MatrixOperator,
    OnIdentity,
    SoftmaxOperator,
    scores_of,
)
from keras_graphattn.types import Bool, Float, Int, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphFilterAttention(SelfAttention):
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
        filter: `None` for plain attention. Else a filter of `keras_graphattn.filters`, or its name
            in `filters.FILTERS`, such as `"first_order"` (the paper's, above) or `"chebyshev"`. All
            other settings are the constructor's, such as
            `FirstOrder(3, trainable_coefficients=["power"])` or
            `Chebyshev(4, start="high_pass")`.
        dropout_on: `"attention"` drops entries of A and filters the dropped A, as the paper's
            text and graph models do. `"filter"` drops entries of H, as its vision, speech and
            code models do. The layer then forms H in training, at O(n^3), and only there.
        attention_path: `"dense"` forms A. `"blockwise"` forms it for `block_size` query rows at a
            time, in both directions. `"fused"` calls `keras.ops.dot_product_attention` for each
            application. The last two never form A, so they have no dropout, no scores and no
            filter matrix. Under `keras_graphattn.distribution.SequenceParallel`, both send keys and
            values around a ring of devices, and allow no bias.
            `"dense"` by default, `"fused"` with `flash_attention=True`.
        block_size: Number of query rows at a time on the blockwise path.
        bias: Numbers that are added to the scores: a bias of `keras_graphattn.biases`, or the name
            of one that needs no argument. A bias with weights belongs to one layer.
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
        attention_bias: Numbers that are added to the scores Q K^T / sqrt(key_dim), a tensor of
            shape (T, T), (B, T, T) or (B, num_heads, T, T). Minus infinity hides the key.
        bias_inputs: Dictionary of the tensors that the layer's `bias` needs at each call.
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

    filter: Filter | None
    paths: ClassVar[tuple[str, ...]] = ("dense", "blockwise", "fused")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        order: int | None = None,
        filter: str | Filter | dict[str, Any] | None = "first_order",
        dropout_on: str = "attention",
        attention_path: str | None = None,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self.dropout_on = one_of("attention", "filter")("dropout_on", dropout_on, {})
        optional(flag)("flash_attention", flash_attention, {})
        path = attention_path
        if path is None:
            path = "fused" if flash_attention else "dense"
        if flash_attention and path != "fused":
            raise ValueError(
                "A flash kernel runs on the fused path only. Received: flash_attention=True, "
                f'attention_path={attention_path!r}. Use attention_path="fused".'
            )
        if flash_attention and dropout:
            raise ValueError(
                "Dropout is not supported when flash attention is enabled. Please set dropout to "
                "0.0 to use flash attention."
            )
        super().__init__(num_heads, key_dim, value_dim, dropout, attention_path=path, **kwargs)
        self.flash_attention = flash_attention
        of_filter = "filter" if dropout_on == "filter" else None
        self.filter = optional_filter(filter, num_heads, order, of_filter)

    @property
    def order(self) -> int | None:
        """The order of the filter, if there is one."""
        return None if self.filter is None else self.filter.order

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        if self.attention_path == "dense":
            training = call.training if self.dropout_on == "attention" else False
            return super().operator(tokens, call._replace(training=training))
        shared = tokens.query, tokens.key, call.visibility, self.score_scale
        logits = self.logits(tokens, call)
        ring = ring_of(*shared, self.block_size, logits)
        if ring is not None:
            return ring
        if self.attention_path == "blockwise":
            return BlockwiseOperator(*shared, self.block_size, logits)
        flash = self.flash_attention
        flash = keras.config.is_flash_attention_enabled() if flash is None else flash
        return FusedOperator(*shared, flash, logits)

    def attended(
        self, operator: Operator, values: Float[Tensor, "B T N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        drop = self._dropout_in(call.training) if self.dropout_on == "filter" else None
        if drop is None and self.filter is not None:
            return self.filtered(self.filter, operator, values)
        if drop is None:
            return operator(values)
        return MatrixOperator(drop(self.filter_matrix(operator.matrix())))(values)  # H

    def operator_of_rows(
        self,
        tokens: Tokens,
        visible: Bool[Tensor, "B 1 t L"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        logits: Logits | None = None,
    ) -> CachedOperator:
        _, query, key, _ = tokens
        scores = scores_of(query, key, self.score_scale)
        rows = SoftmaxOperator(scores, visible, dtype=query.dtype, logits=logits)
        return CachedOperator(rows.matrix(), cache["signals"], index, rows.visible)

    def filter_matrix(self, attention_scores: Float[Tensor, "B N T T"]) -> Float[Tensor, "B N T T"]:
        """The filter's matrix H, formed from A at O(n^3), for inspection.

        Args:
            attention_scores: A, of shape (B, num_heads, T, T), as the layer returns it.

        Returns:
            A tensor of the shape and dtype of `attention_scores`.
        """
        self._check_filter_matrix(self.attention_axes)
        products = OnIdentity(attention_scores)
        return self.filtered(cast("Filter", self.filter), products, products.identity, 2)

    def _check_filter_matrix(self, axes: Sequence[int]) -> None:
        if self.filter is None:
            super()._check_filter_matrix(axes)
        if len(axes) != 1:
            raise ValueError(
                "The matrix of the filter exists only for attention over one axis. Received: "
                f"attention_axes={tuple(axes)}. Leave out `return_filter_matrix` and "
                '`dropout_on="filter"`.'
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filter": keras.saving.serialize_keras_object(self.filter),
            "dropout_on": self.dropout_on,
            "flash_attention": self.flash_attention,
        }
