"""p-Laplacian self-attention (p-LaT)."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_graphattn.checks import is_finite, is_list, number, one_of
from keras_graphattn.filters.filter import plain_numbers
from keras_graphattn.layers.base import Call, SelfAttention, Tokens
from keras_graphattn.operators.cached import Cache
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.p_laplacian import (
    MOST_EPSILON,
    CachedPLaplacianOperator,
    PLaplacian,
    PLaplacianOperator,
)
from keras_graphattn.operators.ring import ring_of
from keras_graphattn.operators.softmax import Logits
from keras_graphattn.types import Bool, Int, Tensor


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
            Where a `SequenceParallel` distribution splits the tokens, `"blockwise"` and the
            default pass keys and values around a ring of devices; there `"blockwise"` allows no
            bias, and the default gathers all tokens with one.
        block_size: Number of query rows at a time on the blockwise path.
        bias: Numbers that are added to the scores before the softmax: a bias of
            `keras_graphattn.biases`, or the name of one that needs no argument.
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
        attention_bias: Numbers that are added to the scores before the softmax, a tensor of shape
            (T, T), (B, T, T) or (B, num_heads, T, T). Minus infinity hides the key.
        bias_inputs: Dictionary of the tensors that the layer's `bias` needs at each call.
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

    max_rank = 3

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
            num_heads, key_dim, value_dim, dropout, attention_path=attention_path, **kwargs
        )
        self.p = plain_numbers(p)
        self.numbers = re_weighting(self.p, epsilon, diagonal, num_heads)
        self.epsilon, self.diagonal = self.numbers.epsilon, diagonal

    @property
    def exponents(self) -> list[float]:
        """The exponent of each head."""
        return list(self.numbers.p)

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        forms = self.attention_path == "dense"
        if self.attention_path is None:
            forms = call.returns_matrix or self.dropout > 0.0
        _, query, key, value = tokens
        logits, scale = self.logits(tokens, call), self.score_scale
        # a ring refuses a bias: by default, all tokens are gathered with it
        fits = logits is None or logits.is_plain or self.attention_path is not None
        if fits and not forms and keras.backend.backend() == "jax":
            shared = query, key, call.visibility, scale, self.block_size, logits
            ring = ring_of(*shared, (self.numbers, value))
            if ring is not None:
                return ring
        return PLaplacianOperator(
            query,
            key,
            value,
            self.numbers,
            call.visibility,
            scale=scale,
            logits=logits,
            block_size=None if forms else self.block_size,
            dropout=self._dropout_in(call.training),
        )

    def operator_of_rows(
        self,
        tokens: Tokens,
        visible: Bool[Tensor, "B 1 t L"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        logits: Logits | None = None,
    ) -> CachedPLaplacianOperator:
        signals, scale = cache["signals"], self.score_scale
        return CachedPLaplacianOperator(
            *tokens[1:], self.numbers, signals, index, visible, scale, logits
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "p": self.p,
            "epsilon": self.epsilon,
            "diagonal": self.diagonal,
        }


def re_weighting(
    p: float | Sequence[float] | None, epsilon: float, diagonal: str, num_heads: int
) -> PLaplacian:
    """The numbers of the operator, from the options of the layer.

    Raises:
        ValueError: For `p` other than a number of at least 1, or a list of one for each head; and
            for an invalid `epsilon` or `diagonal`.
    """
    epsilon = number(above=0.0, below=MOST_EPSILON)("epsilon", epsilon, {})
    one_of("smooth", "drop")("diagonal", diagonal, {})
    first = (num_heads + 1) // 2
    exponents: list[Any] = [1.5] * first + [2.5] * (num_heads - first)
    if p is not None:
        exponents = list(p) if is_list(p) else [p] * num_heads
    if len(exponents) != num_heads or not all(_is_number(x) and x >= 1 for x in exponents):
        raise ValueError(
            f"`p` must be a number of at least 1, or a list with such a number for each of the "
            f"{num_heads} heads. Received: p={p!r}"
        )
    return PLaplacian(tuple(float(x) for x in exponents), epsilon, diagonal == "drop")


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and is_finite(x)
