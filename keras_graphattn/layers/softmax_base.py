"""The base of layers that filter softmax attention: the paths, dropout and decoding."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn import filters
from keras_graphattn.checks import flag, one_of
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import Call, SelfAttention, Tokens
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.cached import Cache, CachedOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.softmax import MatrixOperator, OnIdentity, SoftmaxOperator, scores_of
from keras_graphattn.types import Bool, Float, Int, Tensor


class SoftmaxAttention(SelfAttention):
    """Base of `GraphFilterAttention` and `DifferentialAttention`: H(A), or A without a filter.

    Its `operator` is softmax attention on the path of the layer.
    """

    filter: Filter | None
    paths: ClassVar[tuple[str | None, ...]] = ("dense", "blockwise", "fused")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        order: int | None = None,
        filter: str | Filter | dict[str, Any] | None = None,
        dropout_on: str = "attention",
        attention_path: str | None = None,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = None if filter is None else filters.get(filter, order)
        self.dropout_on = one_of("attention", "filter")("dropout_on", dropout_on, {})
        if chosen is None and (order is not None or dropout_on == "filter"):
            raise ValueError(
                f"`order` and `dropout_on` are options of a filter. Received: order={order}, "
                f"dropout_on={dropout_on!r}, filter=None. Give a filter, or leave them out."
            )
        if flash_attention is not None:
            flag("flash_attention", flash_attention)
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
        if chosen is not None:
            chosen.coefficients(num_heads)  # refuses start values for another number of heads
        self.filter = chosen

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        self._check_matrix(call.returns_matrix)
        _, query, key, _ = tokens
        if self.attention_path == "blockwise":
            return BlockwiseOperator(query, key, call.visibility, self.score_scale, self.block_size)
        if self.attention_path == "fused":
            flash = self.flash_attention
            flash = keras.config.is_flash_attention_enabled() if flash is None else flash
            return FusedOperator(query, key, call.visibility, self.score_scale, flash)
        drops_attention = self.dropout_on == "attention"
        return SoftmaxOperator(
            scores_of(query, key, self.score_scale),
            call.visibility.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            dropout=self._dropout_in(call.training) if drops_attention else None,
        )

    def attended(
        self, operator: Operator, values: Float[Tensor, "B T N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        if self.filter is None:
            return operator(values)
        drop = self._dropout_in(call.training) if self.dropout_on == "filter" else None
        if drop is None:
            return self.filtered(self.filter, operator, values)
        return MatrixOperator(drop(self.filter_matrix(operator.matrix())))(values)  # H

    def operator_of_rows(
        self,
        tokens: Tokens,
        visible: Bool[Tensor, "B 1 t L"],
        cache: Cache,
        index: int | Int[Tensor, ""],
    ) -> CachedOperator:
        _, query, key, _ = tokens
        rows = SoftmaxOperator(scores_of(query, key, self.score_scale), visible, dtype=query.dtype)
        return CachedOperator(rows.matrix(), cache["signals"], index, visible)

    def filter_matrix(self, attention_scores: Float[Tensor, "B N T T"]) -> Float[Tensor, "B N T T"]:
        """The filter's matrix H, formed from A at O(n^3), for inspection.

        Args:
            attention_scores: A, of shape (B, num_heads, T, T), as the layer returns it.

        Returns:
            A tensor of the shape and dtype of `attention_scores`.
        """
        if self.filter is None:
            return super().filter_matrix(attention_scores)
        if len(self.attention_axes) != 1:
            raise ValueError(
                "The matrix of the filter exists only for attention over one axis. Received: "
                f"attention_axes={self.attention_axes}. Leave out `return_filter_matrix` and "
                '`dropout_on="filter"`.'
            )
        products = OnIdentity(attention_scores)
        return self.filtered(self.filter, products, products.identity, 2)

    def get_config(self) -> dict[str, Any]:
        chosen = self.filter
        return {
            **super().get_config(),
            "filter": None if chosen is None else keras.saving.serialize_keras_object(chosen),
            "dropout_on": self.dropout_on,
            "flash_attention": self.flash_attention,
        }
