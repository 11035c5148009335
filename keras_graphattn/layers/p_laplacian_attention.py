"""p-Laplacian self-attention (p-LaT)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import is_finite, is_list, is_one_of
from keras_graphattn.layers.parts.dense import with_causal
from keras_graphattn.layers.parts.layer_calls import check_one_axis
from keras_graphattn.layers.parts.self_attention import SelfAttention
from keras_graphattn.numerics.precision import at_least_float32, zero_where_masked
from keras_graphattn.ops.softmax.attention import scaled
from keras_graphattn.ops.softmax.caching import Cache
from keras_graphattn.ops.softmax.masks import AttentionMask, zero_masked_rows
from keras_graphattn.ops.softmax.p_laplacian import p_laplacian_attention, scores_of
from keras_graphattn.ops.softmax.re_weighting import MOST_EPSILON, p_laplacian_weights

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class PLaplacianAttention(SelfAttention):
    """Multi-head self-attention re-weighted by the distances between values (p-LaT).

    Per head, with A the softmax attention matrix and v_j the head's values,

        out_i = sum_j A_ij (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2) v_j

    Heads with p < 2 favour tokens with similar values, heads with p > 2 dissimilar ones; p = 2 is
    plain attention. The weights are not normalised again. The layer has the arguments, weights
    and projections of `keras.layers.MultiHeadAttention`, and no weights of its own.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the re-weighted matrix.
        p: Exponent of at least 1: one number, or one for each head. By default it is 1.5 for the
            first half of the heads (the larger half, if their number is odd) and 2.5 for the
            others.
        epsilon: Smoothing length of the distances, greater than 0. The paper has no such term.
            The weight of a token on itself is epsilon^(p - 2): at p = 1.5 it is 3.2 for 0.1 and
            32 for 0.001. So the choice is part of the model.
        diagonal: `"smooth"`, as above, or `"drop"`: heads with p other than 2 leave a token's own
            value out of its sum.
        attention_path: `"dense"` forms the whole matrix, `"blockwise"` only `block_size` query
            rows of it at a time, in both directions. By default the layer works blockwise
            without dropout when no scores are asked for, and densely otherwise.
        block_size: Number of query rows at a time on the blockwise path.
        num_key_value_heads: Number of heads for keys and values, `num_heads` by default.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, `sliding_window`, initializers, regularizers, constraints, `use_gate`,
            `seed`, `name`, `dtype`).

    Call arguments:
        query: Tensor of shape (B, T, d).
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks
            padding, which may hold anything, even NaN. By default the inputs' Keras masks. The
            value of a padding token counts as 0, in its own row too.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T);
            `True` lets a query position (row) see a key position (column). As in Keras' own
            layer, NaN spreads from tokens that this mask, causality or the window hides and that
            are not padding. Finite numbers of any size do not spread.
        return_attention_scores: Whether to return the re-weighted matrix as well. Its product
            with the values is the output.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees only positions 0 ... t.
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also the matrix, of shape (B, num_heads, T, T). A query
        position that may see nothing contributes exactly 0 to the output projection.

    Raises:
        ValueError: For arguments outside the ranges above, for query and value of different
            lengths, for inputs whose shape is not (batch, length, features), and when the caller
            asks the blockwise path for scores.

    Example:

    >>> layer = PLaplacianAttention(num_heads=2, key_dim=8, p=[1.5, 2.5])
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Nguyen et al., "p-Laplacian Transformer", arXiv 2311.03235, Eq. 11-12: the product of
    softmax and distances is element by element. Ours: `epsilon` and `diagonal`, which define the
    weights that are infinite in the paper, and the blockwise form.
    """

    _paths = (None, "dense", "blockwise")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        p: float | Sequence[float] | None = None,
        epsilon: float = 0.1,
        diagonal: str = "smooth",
        attention_path: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            value_dim,
            dropout,
            attention_path=attention_path,
            **kwargs,
        )
        self.p = list(p) if is_list(p) else p
        self.exponents = exponents(self.p, num_heads)
        check_distances(epsilon, diagonal)
        self.epsilon = float(epsilon)
        self.diagonal = diagonal

    def _path_of(self, return_attention_scores: bool) -> str:
        if self.attention_path is None:
            return "dense" if return_attention_scores or self.dropout > 0.0 else "blockwise"
        return super()._path_of(return_attention_scores)

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Tensor, Tensor]:
        mask = with_causal(self, attention_mask, key, use_causal_mask)
        positions = ops.arange(ops.shape(key)[1], dtype="int32")
        # (B, N, T, T)
        weights = self._weights(query, key, (value, value), mask, positions, positions)
        outputs = apply_weights(self._dropped(weights, training), value)
        outputs = zero_masked_rows(outputs, mask)
        return outputs, ops.cast(weights, self.compute_dtype)

    def _attend_lean(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> Tensor:
        return p_laplacian_attention(
            query,
            key,
            value,
            self.exponents,
            mask,
            epsilon=self.epsilon,
            drop_diagonal=self.diagonal == "drop",
            scale=self.score_scale,
            block_size=self.block_size,
        )

    def _decode_rows(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, cache: Cache, index: Any
    ) -> tuple[Tensor, Tensor]:
        signal = ops.cast(value, cache["signals"].dtype)[:, None]  # (B, 1, t, N, D)
        signals = ops.slice_update(cache["signals"], (0, 0, index, 0, 0), signal)
        values = zero_where_masked(signals[:, 0], ops.any(mask, axis=(1, 2))[..., None, None])
        columns = ops.arange(ops.shape(key)[1], dtype="int32")  # all cached positions
        rows = index + ops.arange(ops.shape(query)[1], dtype="int32")
        # (B, N, t, L): rows of the new tokens only
        weights = self._weights(query, key, (signal[:, 0], values), mask, rows, columns)
        return apply_weights(weights, values), signals

    def _weights(
        self,
        query: Tensor,
        key: Tensor,
        values: tuple[Tensor, Tensor],
        mask: Tensor | None,
        rows: Tensor,
        columns: Tensor,
    ) -> Tensor:
        """The re-weighted matrix, (B, N, rows, columns)."""
        return p_laplacian_weights(
            scores_of(scaled(query, self.score_scale), key),
            values,
            self.exponents,
            mask,
            rows[:, None] == columns[None, :],
            epsilon=self.epsilon,
            drop_diagonal=self.diagonal == "drop",
        )

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        check_one_axis(self, query_shape, value_shape)
        super()._check_shapes(query_shape, value_shape, key_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "p": self.p,
            "epsilon": self.epsilon,
            "diagonal": self.diagonal,
        }


def apply_weights(weights: Tensor, values: Tensor) -> Tensor:
    """The weights (B, N, T, S) times the values (B, S, N, D), summed in float32."""
    outputs = ops.einsum("bnts,bsnh->btnh", at_least_float32(weights), at_least_float32(values))
    return ops.cast(outputs, values.dtype)


def check_distances(epsilon: Any, diagonal: Any) -> None:
    """Refuses values of `epsilon` and `diagonal` that the layer cannot use."""
    if not _is_number(epsilon) or not 0 < epsilon < MOST_EPSILON:
        raise ValueError(
            f"`epsilon` must be a number greater than 0 and below {MOST_EPSILON:g}. Received: "
            f"epsilon={epsilon!r}"
        )
    if not is_one_of(diagonal, ("smooth", "drop")):
        raise ValueError(f'`diagonal` must be "smooth" or "drop". Received: diagonal={diagonal!r}')


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and is_finite(x)


def exponents(p: Any, num_heads: int) -> list[float]:
    """One exponent for each head, from `p` as the layer takes it.

    Raises:
        ValueError: For anything else than a number of at least 1, or a list of one for each head.
    """
    if p is None:
        first = (num_heads + 1) // 2
        return [1.5] * first + [2.5] * (num_heads - first)
    found = p if isinstance(p, list) else [p] * num_heads
    if len(found) != num_heads or not all(_is_number(x) and x >= 1 for x in found):
        raise ValueError(
            f"`p` must be a number of at least 1, or a list with such a number for each of the "
            f"{num_heads} heads. Received: p={p!r}"
        )
    return [float(x) for x in found]
