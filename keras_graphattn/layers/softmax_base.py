"""The base of layers whose operators are softmax attention: its three paths and its filter."""

from typing import Any, ClassVar, cast

import keras
from keras import ops

from keras_graphattn.checks import flag
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import SelfAttention
from keras_graphattn.operators.blockwise import BlockwiseOperator
from keras_graphattn.operators.fused import FusedOperator
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.softmax import OnIdentity, SoftmaxOperator, scores_of
from keras_graphattn.types import Float, Tensor


class SoftmaxAttention(SelfAttention):
    """Base of `GraphFilterAttention` and `DifferentialAttention`.

    It adds the fused path, and the matrix of the filter.
    """

    paths: ClassVar[tuple[str | None, ...]] = ("dense", "blockwise", "fused")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        attention_path: str | None = None,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
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

    def softmax_operator(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        visibility: Visibility,
        dropout: Any = None,
    ) -> Operator:
        """A = softmax(Q K^T / sqrt(H)) on the layer's path; only the dense path has dropout."""
        if self.attention_path == "blockwise":
            return BlockwiseOperator(query, key, visibility, self.score_scale, self.block_size)
        if self.attention_path == "fused":
            flash = self.flash_attention
            flash = keras.config.is_flash_attention_enabled() if flash is None else flash
            return FusedOperator(query, key, visibility, self.score_scale, flash)
        return SoftmaxOperator(
            scores_of(query, key, self.score_scale),
            visibility.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            dropout=dropout,
        )

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
        return self.filtered(cast("Filter", self.filter), products, products.identity, 2)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "flash_attention": self.flash_attention}
