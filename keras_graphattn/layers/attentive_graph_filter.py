"""Attentive graph filter (AGF): linear-time attention in a learned singular-value domain."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.filters import Filter, Polynomial
from keras_graphattn.layers.copying import copy_projections
from keras_graphattn.layers.filter_weights import add_coefficients, filtered
from keras_graphattn.layers.multi_head import Masks, MultiHeadLayer
from keras_graphattn.layers.orthogonality import OrthogonalityMetric, check_orthogonality
from keras_graphattn.layers.singular_decoding import SingularDecoding
from keras_graphattn.layers.singular_options import (
    singular_filter,
    start_of_theta,
    token_mask,
)
from keras_graphattn.ops.precision.float32 import at_least_float32, zero_where_masked
from keras_graphattn.ops.precision.wide import tanh
from keras_graphattn.ops.singular.attention import (
    attend_to_context,
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
    singular_value_context,
    singular_value_filter,
    singular_value_matrix,
)
from keras_graphattn.ops.singular.causal import causal_singular_value_attention
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class AttentiveGraphFilter(SingularDecoding, MultiHeadLayer):
    """Attention as a learned filter of singular values, linear in the sequence length (AGF).

    Per head, with H the `key_dim`,

        U = softmax over features of (X W_U + b_U)      left singular vectors, (T, H)
        V = softmax over tokens of (X W_V + b_V)        right singular vectors, (S, H)
        S = sigmoid(X W_S + b_S)                        singular values, (T, H)
        out = (U * g(S)) @ (V^T values),   g(S) = P_0(S) + sum_{k=1..K} tanh(theta_k) P_k(S)

    No T x S matrix exists: time O(n d^2), memory O(n d + d^2). `theta` starts at 0, so a new
    layer is efficient (softmax-softmax) attention. The causal form normalises V, at each token,
    over the tokens up to it, by sums in chunks: linear as well, and with a state of fixed size
    for decoding token by token (`get_initial_state`, `decode`).

    Args:
        num_heads: Number of heads.
        key_dim: Size H of each head for U, V and S: the number of singular directions.
        value_dim: Size of each head for the values; `key_dim` by default.
        dropout: Dropout probability of the filtered left vectors U * g(S), the counterpart of
            dropping entries of an attention matrix.
        filter: The polynomials P_k: a filter of `keras_graphattn.filters` such as
            `Jacobi(4, alpha=1.0)`, or its name: `"jacobi"` (the default), `"legendre"`,
            `"chebyshev"` or `"monomial"`. With `start="high_pass"` in its constructor, g starts as
            P_0 - P_1 / 2 (+ where P_1 falls), so that large singular values, those of what tokens
            have in common, count less. A filter that is no polynomial, such as `"first_order"`,
            is applied to S entry by entry, with coefficients of its own for each head. Or one of
            the paper's ablations, which learn no g: `"singular_values"`, g(S) = S (the paper's
            H_SVD); or `"ones"`, g = 1, without S (H_UV).
        order: Order K of a `filter` given by its name, an integer of at least 1; 4 by default.
        learned_constant: Whether the weight of P_0 is learned too, as tanh(theta_0), instead of
            being 1. The layer then starts at output 0, as in some of the authors' runs.
        causal: Whether each token sees only itself and tokens before it. Query and value must
            then be the same sequence.
        orthogonality_weight: Weight (the paper's gamma) of the loss on |U^T U - I| and |V^T V - I|
            that the layer adds with `add_loss`. In training it also shows the loss, before the
            weight, as the metric `<name of the layer>_orthogonality` (on JAX: at the end of an
            epoch). Several layers add up: divide by their number to average as the paper's code
            does.
        orthogonality_scaling: `"mean"`, the mean over heads and entries that the released code
            trains with; or `"squared_length"`, the Frobenius norm over n^2 of Eq. 11, n the number
            of tokens that are not padding. Causal layers measure V as the last token sees it.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`). `attention_axes`, `sliding_window` and `flash_attention` need an
            attention matrix and are refused. And `coefficient_learning_rate_multiplier`, 1 by
            default: how many times as fast as other weights `theta` learns under
            `keras_graphattn.optimizers.with_coefficient_rates`.

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
        use_causal_mask: Accepted by a layer made with `causal=True`, which is causal in any case;
            refused otherwise.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` in place of d; with
        `return_attention_scores=True` also H, of shape (B, num_heads, T, S). Padded query
        positions contribute exactly 0 to the output projection.

    Weights:
        `theta` of shape (order,): raw values for k = 1 ... K (tanh is applied), and with
        `learned_constant=True` the scalar `theta_constant` for k = 0, kept in the variable dtype;
        those of a filter that is no polynomial have the names and shapes that it gives them;
        the projections `query` (U), `key` (V), `value`, `singular` (S) and `attention_output`, all
        but `singular` shaped as in `MultiHeadAttention`. Each form has only the weights it uses.

    Raises:
        ValueError: For sizes and filters that cannot be used, and for masks that the layer cannot
            honour.

    Example:

    >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, filter="jacobi", order=4)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Wi et al., "Learning Advanced Self-Attention for Linear Transformers in the Singular
    Value Domain", arXiv 2505.08516 (IJCAI 2025), Eq. 7-11 and 22-26 (the sign of Eq. 24 mended).
    The causal form and decoding are ours.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        filter: Any = "jacobi",
        order: int | None = None,
        learned_constant: bool = False,
        causal: bool = False,
        orthogonality_weight: float = 0.0,
        orthogonality_scaling: str = "mean",
        **kwargs: Any,
    ) -> None:
        for name in ("attention_axes", "sliding_window"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"AttentiveGraphFilter has no attention matrix and cannot honour `{name}`. "
                    f"Received: {name}={kwargs[name]!r}. Leave it out."
                )
        found = singular_filter(filter, order, learned_constant)
        if not isinstance(causal, bool):
            raise ValueError(f"`causal` must be a boolean. Received: causal={causal!r}")
        self.causal = causal
        self.orthogonality_weight = check_orthogonality(orthogonality_weight, orthogonality_scaling)
        self.orthogonality_scaling = orthogonality_scaling
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        if isinstance(found, Filter):
            found.coefficients(num_heads)  # refuses start values for another number of heads
        self.filter, self.learned_constant = found, learned_constant
        self._orthogonality: OrthogonalityMetric | None = None
        if self.orthogonality_weight:
            self._orthogonality = OrthogonalityMetric(name=f"{self.name}_orthogonality")

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if isinstance(self.filter, Polynomial):
            start = start_of_theta(self.filter)
            self.theta = self.add_weight(
                name="theta",
                shape=start.shape,
                initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
                trainable=self.filter.trainable_coefficients,
                autocast=False,
            )
        elif isinstance(self.filter, Filter):
            add_coefficients(self, self.filter)
        if self.learned_constant:
            self.theta_constant = self.add_weight(
                name="theta_constant", shape=(), initializer="zeros", autocast=False
            )
        super().build(query_shape, value_shape, key_shape)
        if self.filter != "ones":
            self._singular_dense = self._token_projection("singular", self.key_dim)
            self._singular_dense.build(query_shape)
            self._singular_dense.supports_masking = True

    @property
    def singular_dense(self) -> Any:
        """The projection whose sigmoid makes the singular values S."""
        return self._singular_dense

    @property
    def variables(self) -> list[Any]:
        """All state: weights, seeds, and the sums of the orthogonality metric."""
        metric = self._orthogonality
        return [*super().variables, *(metric.layer_state if metric is not None else ())]

    def copy_projections_from(self, attention: Any) -> None:
        """Starts from softmax attention: copies `query`, `key`, `value` and `attention_output`.

        The gate is copied as well where both have one. `singular`, `theta` and what the copied
        projections mean are the layer's own: key weights now make logits over tokens.

        Args:
            attention: A built `keras.layers.MultiHeadAttention`, or subclass, of the same sizes.

        Raises:
            ValueError: If `attention` is no such layer, or not built, or of other sizes.
        """
        copy_projections(self, attention)

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        if masks.causal and not self.causal:
            raise ValueError(
                "This AttentiveGraphFilter normalises over the whole sequence and has no causal "
                "form. Received: use_causal_mask=True. Make the layer with causal=True."
            )
        source_mask = all_of(masks.value, masks.key, token_mask(masks.attention))
        left = left_singular_vectors(self.query_dense(query), masks.query)
        logits, values = self.key_dense(key), self.value_dense(value)
        if self.orthogonality_weight:
            self._add_orthogonality(left, logits, masks.query, source_mask, training)
        filtered = self._filtered(left, query)
        dropped = self._dropped(filtered, training)
        if self.causal:
            outputs, _ = causal_singular_value_attention(dropped, logits, values, source_mask)
        else:
            context = singular_value_context(logits, values, source_mask)
            outputs = attend_to_context(dropped, context, self.compute_dtype)
        if masks.query is not None:  # 0 times NaN is not 0
            outputs = zero_where_masked(outputs, masks.query[:, :, None, None])
        if not return_attention_scores:
            return outputs, None
        return outputs, self._matrix(filtered, logits, source_mask)

    def _filtered(self, left: Tensor, query: Tensor) -> Tensor:
        """U * g(S), of shape (B, T, N, H)."""
        if self.filter == "ones":
            return left
        logits = self._singular_dense(query)
        if not isinstance(self.filter, Polynomial):
            singular_values = ops.sigmoid(at_least_float32(logits))  # (B, T, N, H)
            if isinstance(self.filter, str):
                return left * singular_values
            return filtered(self, self.filter, lambda x: singular_values * x, left)
        constant = tanh(self.theta_constant) if self.learned_constant else 1.0
        constant = ops.reshape(ops.cast(constant, self.theta.dtype), (1,))
        coefficients = ops.concatenate([constant, tanh(self.theta)])
        return left * singular_value_filter(logits, coefficients, self.filter.recurrence())

    def _add_orthogonality(
        self,
        left: Tensor,
        logits: Tensor,
        query_mask: Tensor | None,
        source_mask: Tensor | None,
        training: bool | None,
    ) -> None:
        right = right_singular_vectors(logits, source_mask)
        penalty = orthogonality_penalty(left, query_mask, self.orthogonality_scaling)
        penalty += orthogonality_penalty(right, source_mask, self.orthogonality_scaling)
        self.add_loss(self.orthogonality_weight * penalty)
        if training and self._orthogonality is not None:
            self._orthogonality.update_state(ops.stop_gradient(penalty))

    def _matrix(self, filtered: Tensor, logits: Tensor, source_mask: Tensor | None) -> Tensor:
        """H itself: to look at."""
        if self.causal:  # what the operator makes of the identity
            eye = ops.eye(ops.shape(logits)[1], dtype=filtered.dtype)[None, :, None, :]
            eye = eye * ops.ones_like(filtered[:, :, :, :1])
            matrix, _ = causal_singular_value_attention(filtered, logits, eye, source_mask)
            matrix = ops.transpose(matrix, (0, 2, 1, 3))
        else:
            right = right_singular_vectors(logits, source_mask)
            matrix = singular_value_matrix(filtered, right)
        return ops.cast(matrix, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["attention_axes"], config["sliding_window"]
        names = ["learned_constant", "causal", "orthogonality_weight", "orthogonality_scaling"]
        chosen = self.filter
        chosen = chosen if isinstance(chosen, str) else keras.saving.serialize_keras_object(chosen)
        return {**config, **{name: getattr(self, name) for name in names}, "filter": chosen}

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        if len(query_shape) != 3 or len(value_shape) != 3:
            raise ValueError(
                "AttentiveGraphFilter attends over one axis: inputs must have shape (batch, "
                f"length, features). Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}"
            )
        lengths = (query_shape[1], value_shape[1])
        if self.causal and None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "A causal AttentiveGraphFilter attends over its own sequence: query and value "
                f"must have the same length. Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}. Use causal=False for cross-attention."
            )
