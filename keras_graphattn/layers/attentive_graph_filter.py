"""Attentive graph filter (AGF): linear-time attention in a learned singular-value domain."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import checked, optional, size, tensor
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.filters import Filter, Polynomial
from keras_graphattn.layers.parts import singular_decoding
from keras_graphattn.layers.parts.copying import copy_projections
from keras_graphattn.layers.parts.filter_weights import add_coefficients, filtered
from keras_graphattn.layers.parts.layer_calls import check_one_axis
from keras_graphattn.layers.parts.layer_options import refuse_options
from keras_graphattn.layers.parts.multi_head import Masks, MultiHeadLayer
from keras_graphattn.layers.parts.orthogonality import (
    add_orthogonality,
    check_orthogonality,
)
from keras_graphattn.layers.parts.projections import token_projection
from keras_graphattn.layers.parts.singular_options import (
    singular_filter,
    start_of_theta,
    token_mask,
)
from keras_graphattn.numerics.precision import at_least_float32, tanh, zero_where_masked
from keras_graphattn.ops.singular.attention import (
    attend_to_context,
    left_singular_vectors,
    right_singular_vectors,
    singular_value_context,
    singular_value_filter,
    singular_value_matrix,
)
from keras_graphattn.ops.singular.causal import causal_singular_value_attention
from keras_graphattn.ops.singular.running_sums import RunningSum
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class AttentiveGraphFilter(MultiHeadLayer):
    """Attention as a learned filter of singular values, linear in the sequence length (AGF).

    Per head, with H the `key_dim`,

        U = softmax over features of (X W_U + b_U)      left singular vectors, (T, H)
        V = softmax over tokens of (X W_V + b_V)        right singular vectors, (S, H)
        S = sigmoid(X W_S + b_S)                        singular values, (T, H)
        out = (U * g(S)) @ (V^T values),   g(S) = P_0(S) + sum_{k=1..K} tanh(theta_k) P_k(S)

    No T x S matrix is formed: time O(n d^2), memory O(n d + d^2). `theta` starts at 0, so a new
    layer is efficient (softmax-softmax) attention. The causal form normalises V, at each token,
    over the tokens up to it. It uses sums in chunks, so it is linear as well. It decodes token by
    token with a state of fixed size (`get_initial_state`, `decode`).

    Args:
        num_heads: Number of heads.
        key_dim: Size H of each head for U, V and S: the number of singular directions.
        value_dim: Size of each head for the values; `key_dim` by default.
        dropout: Dropout probability of the filtered left vectors U * g(S), the counterpart of
            dropping entries of an attention matrix.
        filter: The polynomials P_k: a filter of `keras_graphattn.filters` such as
            `Jacobi(4, alpha=1.0)`, or its name: `"jacobi"` (the default), `"legendre"`,
            `"chebyshev"` or `"monomial"`. With `start="high_pass"` in its constructor, g starts as
            P_0 - P_1 / 2 (P_0 + P_1 / 2 if P_1 falls). Large singular values then count less:
            they carry what tokens have in common. A filter that is not a polynomial, such as
            `"first_order"`, is applied to S entry by entry, with its own coefficients for each
            head. The paper's ablations, which learn no g, are also accepted:
            `"singular_values"`, g(S) = S (the paper's H_SVD); and `"ones"`, g = 1, without S
            (H_UV).
        order: Order K of a `filter` given by its name, an integer of at least 1; 4 by default.
        learned_constant: Whether the weight of P_0 is learned too, as tanh(theta_0), instead of
            fixed at 1. The layer then starts at output 0, as in some of the authors' runs.
        causal: Whether each token sees only itself and tokens before it. Query and value must
            then be the same sequence.
        orthogonality_weight: Weight (the paper's gamma) of the loss on |U^T U - I| and |V^T V - I|
            that the layer adds with `add_loss`; `layer.losses` holds it after a call. The losses
            of several layers add up. Divide the weight by their number to average them, as the
            paper's code does.
        orthogonality_scaling: `"mean"`, the mean over heads and entries that the released code
            trains with; or `"squared_length"`, the Frobenius norm over n^2 of Eq. 11, where n is
            the number of tokens that are not padding. Causal layers measure V as the last token
            sees it.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`) except `attention_axes`, `sliding_window` and `flash_attention`, which need
            an attention matrix. And `coefficient_learning_rate_multiplier`, 10 by default:
            `theta` learns this many times as fast as other weights, if the optimizer is one of
            `keras_graphattn.optimizers.with_coefficient_rates`. Any other optimizer ignores it.

    Call arguments:
        query: Tensor of shape (B, T, d), from which U and S are made.
        value: Tensor of shape (B, S, d'); `query` by default.
        key: Tensor of shape (B, S, d''), from which V is made; `value` by default.
        query_mask: Boolean tensor of shape (B, T); `False` marks padding, whose rows of U are 0.
        value_mask, key_mask: Boolean tensors of shape (B, S); padding is left out of the softmax
            over tokens. By default all masks are the inputs' Keras masks.
        attention_mask: Boolean tensor of shape (B, 1, S): a mask of key positions. A mask that
            differs between query positions has no linear-time form and is refused.
        return_attention_scores: Whether to return the matrix H = (U * g(S)) V^T as well. It is
            formed only for this, in O(T S) memory.
        training: Whether to apply dropout.
        use_causal_mask: Allowed with `causal=True` only. Such a layer is causal in any case.
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also H, of shape (B, num_heads, T, S). Padded query
        positions contribute exactly 0 to the output projection.

    Weights:
        `theta` of shape (order,): raw values for k = 1 ... K (tanh is applied), and with
        `learned_constant=True` the scalar `theta_constant` for k = 0, kept in the variable dtype.
        A filter that is not a polynomial gives its weights their names and shapes. The
        projections are `query` (U), `key` (V), `value`, `singular` (S) and `attention_output`. All
        but `singular` have the shapes of `MultiHeadAttention`. Each form has only the weights that
        it uses.

    Raises:
        ValueError: For invalid sizes and filters, and for masks that the layer cannot apply.

    Example:

    >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, filter="jacobi", order=4)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Wi et al., "Learning Advanced Self-Attention for Linear Transformers in the Singular
    Value Domain", arXiv 2505.08516 (IJCAI 2025), Eq. 7-11 and 22-26 (the sign of Eq. 24 corrected).
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
        refused = ["attention_axes", "sliding_window"]
        refuse_options(self, kwargs, refused, "Leave it out: there is no attention matrix.")
        found = singular_filter(filter, order, learned_constant)
        if not isinstance(causal, bool):
            raise ValueError(f"`causal` must be a boolean. Received: causal={causal!r}")
        self.causal = causal
        self.orthogonality_weight = check_orthogonality(orthogonality_weight, orthogonality_scaling)
        self.orthogonality_scaling = orthogonality_scaling
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        if isinstance(found, Filter):
            found.coefficients(num_heads)  # refuses start values for another number of heads
            found.refuse_without_solution("an AttentiveGraphFilter")
        self.filter, self.learned_constant = found, learned_constant

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
            self._singular_dense = token_projection(self, "singular", self.key_dim)
            self._singular_dense.build(query_shape)
            self._singular_dense.supports_masking = True

    @property
    def singular_dense(self) -> Any:
        """The projection whose sigmoid makes the singular values S."""
        return self._singular_dense

    def copy_projections_from(self, attention: Any) -> None:
        """Starts from softmax attention: copies `query`, `key`, `value` and `attention_output`.

        The gate is copied as well if both layers have one. `singular` and `theta` are not copied.
        The copied projections have another meaning here: key weights now make logits over tokens.

        Args:
            attention: A built `keras.layers.MultiHeadAttention`, or subclass, of the same sizes.

        Raises:
            ValueError: If `attention` is another kind of layer, is not built, or has other sizes.
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
                "This AttentiveGraphFilter normalises over the whole sequence and is not causal. "
                "Received: use_causal_mask=True. Make the layer with causal=True."
            )
        source_mask = all_of(masks.value, masks.key, token_mask(masks.attention))
        left = left_singular_vectors(self.query_dense(query), masks.query)  # U, (B, T, N, H)
        logits, values = self.key_dense(key), self.value_dense(value)  # (B, S, N, H or D)
        if self.orthogonality_weight:
            add_orthogonality(self, left, logits, masks.query, source_mask)
        filtered = self._filtered(left, query)
        dropped = self._dropped(filtered, training)
        if self.causal:
            # (B, T, N, D)
            outputs, _ = causal_singular_value_attention(dropped, logits, values, source_mask)
        else:
            context = singular_value_context(logits, values, source_mask)  # (B, N, H, D)
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
        coefficients = ops.concatenate([constant, tanh(self.theta)])  # (K + 1,)
        return left * singular_value_filter(logits, coefficients, self.filter.recurrence())

    def _matrix(self, filtered: Tensor, logits: Tensor, source_mask: Tensor | None) -> Tensor:
        """The matrix H itself, (B, N, T, S), for inspection."""
        if self.causal:  # apply the operator to the identity
            # (1, T, 1, T), broadcast to (B, T, N, T)
            eye = ops.eye(ops.shape(logits)[1], dtype=filtered.dtype)[None, :, None, :]
            eye = eye * ops.ones_like(filtered[:, :, :, :1])
            matrix, _ = causal_singular_value_attention(filtered, logits, eye, source_mask)
            matrix = ops.transpose(matrix, (0, 2, 1, 3))
        else:
            right = right_singular_vectors(logits, source_mask)
            matrix = singular_value_matrix(filtered, right)
        return ops.cast(matrix, self.compute_dtype)

    @checked(batch_size=size(0))
    def get_initial_state(self, batch_size: int) -> RunningSum:
        """The state of `decode` before the first token, of the same size at any length.

        Args:
            batch_size: Number of sequences.

        Returns:
            A named tuple of float32 tensors: `maximum` and `normaliser` of shape
            (batch_size, num_heads, key_dim), `context` of shape
            (batch_size, num_heads, key_dim, value_dim).

        Raises:
            ValueError: If the layer is not causal.
        """
        return singular_decoding.initial_state(self, batch_size)

    @checked(tokens=tensor("B t d"), padding_mask=optional(mask_of("B t")))
    def decode(
        self, tokens: Tensor, state: RunningSum, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, RunningSum]:
        """Outputs of new tokens, given the sums over all tokens before them.

        The outputs equal the rows of the new tokens in a full pass. A new token costs the same at
        any length. Dropout and the orthogonality loss are for training and are not applied.

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            state: The state that `get_initial_state` or the previous step returned.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on either
                side, which no later token sees. By default the tokens' Keras mask.

        Returns:
            The outputs, of shape (B, t, d), and the new state.

        Raises:
            ValueError: If the layer is not causal or `tokens` has another rank.

        Example:

        >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, causal=True)
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        return singular_decoding.decode(self, tokens, state, padding_mask)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["attention_axes"], config["sliding_window"]
        names = ["learned_constant", "causal", "orthogonality_weight", "orthogonality_scaling"]
        chosen = self.filter
        chosen = chosen if isinstance(chosen, str) else keras.saving.serialize_keras_object(chosen)
        return {**config, **{name: getattr(self, name) for name in names}, "filter": chosen}

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_one_axis(self, query_shape, value_shape)
        lengths = (query_shape[1], value_shape[1])
        if self.causal and None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "A causal AttentiveGraphFilter attends over its own sequence: query and value "
                f"must have the same length. Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}. Use causal=False for cross-attention."
            )
