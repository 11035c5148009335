"""Attentive graph filter (AGF): linear-time attention in a learned singular-value domain."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.layers.multi_head import Masks, MultiHeadLayer
from keras_graphattn.ops.polynomials import recurrence
from keras_graphattn.ops.singular import (
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
    singular_value_attention,
    singular_value_filter,
    singular_value_matrix,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class AttentiveGraphFilter(MultiHeadLayer):
    """Attention as a learned filter of singular values, linear in the sequence length (AGF).

    Per head, with H the `key_dim`,

        U = softmax over features of (X W_U + b_U)      left singular vectors, (T, H)
        V = softmax over tokens of (X W_V + b_V)        right singular vectors, (S, H)
        S = sigmoid(X W_S + b_S)                        singular values, (T, H)
        out = (U * g(S)) @ (V^T values),   g(S) = P_0(S) + sum_{k=1..K} tanh(theta_k) P_k(S)

    No T x S matrix exists: time O(n d^2), memory O(n d + d^2). `theta` starts at 0, so a new
    layer is efficient (softmax-softmax) attention.

    Args:
        num_heads: Number of heads.
        key_dim: Size H of each head for U, V and S: the number of singular directions.
        value_dim: Size of each head for the values; `key_dim` by default.
        dropout: Dropout probability of the filtered left vectors U * g(S), the counterpart of
            dropping entries of an attention matrix.
        order: Degree K of the polynomial g, an integer of at least 1.
        basis: Polynomials P_k: `"jacobi"`, `"legendre"`, `"chebyshev"` or `"monomial"`.
        alpha: Jacobi parameter a; `"jacobi"` only, 0 by default.
        beta: Jacobi parameter b; `"jacobi"` only, 0 by default.
        orthogonality_weight: Weight (the paper's gamma) of the loss
            `mean |U^T U - I| + mean |V^T V - I|` that the layer adds with `add_loss`. Several
            layers add up: divide by their number to average as the paper's code does.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`). `attention_axes`, `sliding_window` and `flash_attention` need an
            attention matrix and are refused.

    Call arguments:
        query: Tensor of shape (B, T, d); makes U and S.
        value: Tensor of shape (B, S, d'); `query` by default.
        key: Tensor of shape (B, S, d''); makes V; `value` by default.
        query_mask: Boolean tensor of shape (B, T); `False` marks padding, whose rows of U are 0.
        value_mask, key_mask: Boolean tensors of shape (B, S); padding is left out of the softmax
            over tokens. All masks are taken from the inputs' Keras masks when not given.
        attention_mask: Boolean tensor of shape (B, 1, S): a mask of key positions. A mask that
            differs between query positions has no linear-time form and is refused.
        return_attention_scores: Whether to return the matrix H = (U * g(S)) V^T as well. It is
            formed for this alone, in O(T S) memory.
        training: Whether to apply dropout.
        use_causal_mask: Refused when true: V is normalised over the whole sequence.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` in place of d; with
        `return_attention_scores=True` also H, of shape (B, num_heads, T, S). Padded query
        positions contribute exactly 0 to the output projection.

    Weights:
        `theta` of shape (order,): raw values for k = 1 ... K (tanh is applied; theta_0 is 1), kept
        in the variable dtype; the projections `query` (U), `key` (V), `value`, `singular` (S)
        and `attention_output`, all but `singular` shaped as in `MultiHeadAttention`.

    Raises:
        ValueError: For sizes, order, basis or Jacobi parameters that cannot be used, and for masks
            that the layer cannot honour.

    Example:

    >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, order=4, basis="jacobi")
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Wi et al., "Learning Advanced Self-Attention for Linear Transformers in the Singular
    Value Domain", arXiv 2505.08516 (IJCAI 2025), Eq. 7-11 and 22-26 (the sign of Eq. 24 mended).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        order: int = 4,
        basis: str = "jacobi",
        alpha: float | None = None,
        beta: float | None = None,
        orthogonality_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        for name in ("attention_axes", "sliding_window"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"AttentiveGraphFilter has no attention matrix and cannot honour `{name}`. "
                    f"Received: {name}={kwargs[name]!r}. Leave it out."
                )
        self.steps = recurrence(basis, order, alpha, beta)
        self.order, self.basis, self.alpha, self.beta = order, basis, alpha, beta
        if not isinstance(orthogonality_weight, (int, float)) or not orthogonality_weight >= 0:
            raise ValueError(
                "`orthogonality_weight` must be a number of at least 0. Received: "
                f"orthogonality_weight={orthogonality_weight!r}"
            )
        self.orthogonality_weight = float(orthogonality_weight)
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        self.theta = self.add_weight(
            name="theta", shape=(self.order,), initializer="zeros", autocast=False
        )
        super().build(query_shape, value_shape, key_shape)
        self._singular_dense = self._token_projection("singular", self.key_dim)
        self._singular_dense.build(query_shape)

    @property
    def singular_dense(self) -> Any:
        """The projection whose sigmoid makes the singular values S."""
        return self._singular_dense

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        if masks.causal:
            raise ValueError(
                "AttentiveGraphFilter normalises over the whole sequence and has no causal form. "
                "Received: use_causal_mask=True. Use GraphFilterAttention."
            )
        source_mask = _all_of(masks.value, masks.key, _source_mask(masks.attention))
        left = left_singular_vectors(self.query_dense(query), masks.query)
        right = right_singular_vectors(self.key_dense(key), source_mask)
        if self.orthogonality_weight:
            penalty = orthogonality_penalty(left) + orthogonality_penalty(right)
            self.add_loss(self.orthogonality_weight * penalty)
        one = ops.ones((1,), dtype=self.theta.dtype)
        coefficients = ops.concatenate([one, ops.tanh(self.theta)])
        gain = singular_value_filter(self._singular_dense(query), coefficients, self.steps)
        filtered = left * gain
        outputs = singular_value_attention(
            self._dropped(filtered, training), right, self.value_dense(value)
        )
        if not return_attention_scores:
            return outputs, None
        return outputs, ops.cast(singular_value_matrix(filtered, right), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["attention_axes"], config["sliding_window"]
        return {
            **config,
            "order": self.order,
            "basis": self.basis,
            "alpha": self.alpha,
            "beta": self.beta,
            "orthogonality_weight": self.orthogonality_weight,
        }

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        if len(query_shape) != 3 or len(value_shape) != 3:
            raise ValueError(
                "AttentiveGraphFilter attends over one axis: inputs must have shape (batch, "
                f"length, features). Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}"
            )


def _source_mask(attention_mask: Tensor | None) -> Tensor | None:
    """(B, 1, S) -> (B, S); anything that depends on the query position is refused."""
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if len(shape) == 4 and shape[1] == 1:
        attention_mask = ops.squeeze(attention_mask, 1)
    if len(attention_mask.shape) != 3 or attention_mask.shape[1] != 1:
        raise ValueError(
            "AttentiveGraphFilter has no attention matrix to mask entry by entry: "
            "`attention_mask` must have shape (B, 1, S), one mask of key positions for all "
            f"queries. Received: attention_mask.shape={shape}. Pass padding as `query_mask` "
            "and `value_mask`, or use GraphFilterAttention."
        )
    return ops.squeeze(attention_mask, 1)


def _all_of(*masks: Tensor | None) -> Tensor | None:
    joined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined
