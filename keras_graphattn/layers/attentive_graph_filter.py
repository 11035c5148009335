"""Attentive graph filter (AGF): linear-time attention in a learned singular-value domain."""

from typing import Any, cast

import keras
import numpy as np
from keras import ops

from keras_graphattn import filters
from keras_graphattn.checks import (
    Sizes,
    check_shape,
    checked,
    did_you_mean,
    flag,
    floats,
    number,
    one_of,
    optional,
    size,
)
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.filters import Filter, Polynomial
from keras_graphattn.filters.polynomial import polynomial
from keras_graphattn.layers.base import AttentionLayer, Call, Shape, Tokens, padding_of
from keras_graphattn.numerics.precision import at_least_float32, tanh, without_padding
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.singular import (
    ACTIVATIONS,
    SCALINGS,
    SingularOperator,
    SingularValues,
    left_singular_vectors,
    orthogonality_penalty,
    right_singular_vectors,
)
from keras_graphattn.operators.singular_causal import RunningSum, empty_running_sum
from keras_graphattn.ops import running_sum
from keras_graphattn.types import Bool, Float, Tensor

ABLATIONS = ("singular_values", "ones")
STARTS = {"plain": 0.0, "high_pass": -0.5}  # tanh(theta_1), for an increasing P_1
ORDER = 4


@keras.saving.register_keras_serializable(package="keras_graphattn")
class AttentiveGraphFilter(AttentionLayer):
    """Attention as a learned filter of singular values, linear in the sequence length (AGF).

    Per head, with H the `key_dim`,

        U = softmax over features of (X W_U + b_U)      left singular vectors, (T, H)
        V = softmax over tokens of (X W_V + b_V)        right singular vectors, (S, H)
        S = sigmoid(X W_S + b_S)                        singular values, (T, H)
        out = (U * g(S)) @ (V^T values),   g(S) = P_0(S) + sum_{k=1..K} tanh(theta_k) P_k(S)

    No T x S matrix is formed: time O(n d^2), memory O(n d + d^2). `theta` starts at 0, so a new
    layer is efficient (softmax-softmax) attention. The causal form normalises V at each token over
    this token and those before it. It uses sums in chunks, so it is linear as well. It decodes
    token by token with a state of fixed size (`get_initial_state`, `decode`).

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
        vector_activation: What makes U and V of X W_U + b_U and X W_V + b_V: `"softmax"`, as above,
            or one of the paper's ablations of rho: `"sigmoid"`, `"tanh"` or `"linear"` (none). With
            these, V^T values is a sum over tokens, and grows with their number. The causal form has
            `"softmax"` only.
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
            an attention matrix. And `coefficient_learning_rate_multiplier` of `theta`, as for
            `GraphFilterAttention`.

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

    filter: Filter | str
    refused = ("attention_axes", "sliding_window")
    instead = "Leave it out: there is no attention matrix."
    across_sequences = "Use causal=False for cross-attention."
    max_rank = 3

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        filter: str | Filter | dict[str, Any] = "jacobi",
        order: int | None = None,
        learned_constant: bool = False,
        causal: bool = False,
        vector_activation: str = "softmax",
        orthogonality_weight: float = 0.0,
        orthogonality_scaling: str = "mean",
        **kwargs: Any,
    ) -> None:
        chosen = _singular_filter(filter, order, learned_constant)
        self.causal = self.is_square = flag("causal", causal)
        self.vector_activation = one_of(*ACTIVATIONS)("vector_activation", vector_activation, {})
        if causal and vector_activation != "softmax":
            raise ValueError(
                "The causal form normalises V over the tokens so far, which is a softmax. "
                f"Received: causal=True, vector_activation={vector_activation!r}. Leave out one "
                "of the two."
            )
        self.orthogonality_weight = number(least=0.0)(
            "orthogonality_weight", orthogonality_weight, {}
        )
        self.orthogonality_scaling = one_of(*SCALINGS)(
            "orthogonality_scaling", orthogonality_scaling, {}
        )
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        if isinstance(chosen, Filter):
            chosen.coefficients(num_heads)  # refuses start values for another number of heads
        self.filter, self.learned_constant = chosen, learned_constant

    def add_coefficients(self, query_shape: Shape) -> None:
        if isinstance(self.filter, Polynomial):
            # g(S) = P_0 + sum_k tanh(theta_k) P_k(S). A decreasing P_1 needs the opposite sign for
            # the same effect on large singular values.
            falls = self.filter.recurrence()[0].slope < 0.0
            start = np.zeros(self.filter.order)
            start[0] = np.arctanh(STARTS[self.filter.start]) * (-1.0 if falls else 1.0)
            self.theta = self.add_array("theta", start, self.filter.trainable_coefficients)
        else:
            super().add_coefficients(query_shape)
        if self.learned_constant:
            self.theta_constant = self.add_array("theta_constant", np.zeros(()))

    def add_sublayers(self, query_shape: Shape) -> None:
        if self.filter != "ones":
            self._singular_dense = self._token_projection("singular", query_shape, self.key_dim)

    @property
    def singular_dense(self) -> keras.layers.EinsumDense:
        """The projection whose sigmoid makes the singular values S."""
        return self._singular_dense

    def operator(self, tokens: Tokens, call: Call) -> SingularOperator:
        queries, causal = call.visibility.queries, self.causal
        if call.visibility.causal and not causal:
            raise ValueError(
                "This AttentiveGraphFilter normalises over the whole sequence and is not causal. "
                "Received: use_causal_mask=True. Make the layer with causal=True."
            )
        keys = call.visibility.keys
        if call.visibility.entries is not None:
            fix = "Pass padding as `query_mask` and `value_mask`, or use GraphFilterAttention."
            keys = self._visible_keys(tokens, call.visibility, fix)
        activation = self.vector_activation
        left = left_singular_vectors(tokens.query, queries, activation)  # U, (B, T, N, H)
        if self.orthogonality_weight:
            right = right_singular_vectors(tokens.key, keys, activation)  # V, (B, S, N, H)
            penalty = orthogonality_penalty(left, queries, self.orthogonality_scaling)
            penalty += orthogonality_penalty(right, keys, self.orthogonality_scaling)
            self.add_loss(self.orthogonality_weight * penalty)
        left, drop = self._filtered_left(left, tokens.inputs), self._dropout_in(call.training)
        options = {"causal": causal, "dropout": drop, "activation": activation}
        return SingularOperator(left, tokens.key, queries, keys, **options)

    def attended(
        self, operator: Operator, values: Float[Tensor, "B S N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        return operator(values)  # the filter is one of S, within the operator

    def _filtered_left(
        self, left: Float[Tensor, "B T N H"], inputs: Float[Tensor, "B T _"]
    ) -> Float[Tensor, "B T N H"]:
        """U * g(S) for tokens with singular values S."""
        if isinstance(self.filter, str) and self.filter == "ones":
            return left
        values = ops.sigmoid(at_least_float32(self._singular_dense(inputs)))  # (B, T, N, H)
        if isinstance(self.filter, str):
            return left * values
        if not isinstance(self.filter, Polynomial):
            return self.filtered(self.filter, SingularValues(values), left)
        theta = at_least_float32(tanh(self.theta))
        constant = at_least_float32(tanh(self.theta_constant)) if self.learned_constant else 1.0
        coefficients = [constant, *ops.unstack(theta, self.filter.order)]
        return left * polynomial(values, coefficients, self.filter.recurrence())

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
        self._check_causal("get_initial_state")
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return empty_running_sum(batch_size, self.num_heads, self.key_dim, self.value_dim, dtype)

    @checked(tokens=floats("B t d"), padding_mask=optional(mask_of("B t")))
    def decode(
        self,
        tokens: Float[Tensor, "B t _"],
        state: RunningSum,
        padding_mask: Bool[Tensor, "B t"] | None = None,
    ) -> tuple[Float[Tensor, "B t _"], RunningSum]:
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
            ValueError: If the layer is not causal, `tokens` has another rank, or `state` is of
                another layer.

        Example:

        >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, causal=True)
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        self._check_causal("decode")
        self._check_shapes(tokens.shape, tokens.shape, None)
        if not self.built:
            self.build(tuple(tokens.shape))
        padding_mask = padding_of(tokens, padding_mask)
        tokens = without_padding(ops.cast(tokens, self.compute_dtype), padding_mask)
        inputs, query, key, value = self._projected(tokens, tokens, tokens, padding_mask)
        left = self._filtered_left(left_singular_vectors(query, padding_mask), inputs)
        sizes: Sizes = {}
        for shape, x in (("B _ N H", key), ("B _ N D", value)):
            check_shape("tokens", x, (shape,), sizes)
        state = running_sum("state", state, sizes)
        operator = SingularOperator(left, key, None, padding_mask, causal=True, state=state)
        outputs = self._project_out(operator(value), tokens)
        return outputs, cast("RunningSum", operator.following)

    def _check_causal(self, method: str) -> None:
        if not self.causal:
            raise ValueError(
                f"`{method}` needs the causal form: without it, every token sees the whole "
                "sequence. Received: causal=False. Make the layer with causal=True."
            )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        names = ["learned_constant", "causal", "vector_activation"]
        names += ["orthogonality_weight", "orthogonality_scaling"]
        config["filter"] = keras.saving.serialize_keras_object(self.filter)
        return config | {name: getattr(self, name) for name in names}


def _singular_filter(
    filter: str | Filter | dict[str, Any], order: int | None, learned_constant: bool
) -> Filter | str:
    """The filter g of the singular values, or the name of an ablation.

    Raises:
        ValueError: For a filter or an order that g cannot have.
    """
    flag("learned_constant", learned_constant)
    if isinstance(filter, str) and filter in ABLATIONS:
        if order is not None or learned_constant:
            raise ValueError(
                f"filter={filter!r} has no polynomial. Received: order={order!r}, "
                f"learned_constant={learned_constant}. Leave them out, or use another filter."
            )
        return filter
    if isinstance(filter, str) and filter not in filters.FILTERS:
        names = [*filters.FILTERS, *ABLATIONS]
        raise ValueError(
            f"`filter` must be one of {names}, or a filter of keras_graphattn.filters. Received: "
            f"filter={filter!r}.{did_you_mean(filter, names)}"
        )
    is_polynomial = isinstance(filter, str) and issubclass(filters.FILTERS[filter], Polynomial)
    chosen = filters.get(filter, ORDER if order is None and is_polynomial else order)
    if not isinstance(chosen, Polynomial):
        if learned_constant:
            raise ValueError(
                "`learned_constant` learns the weight of P_0 of a polynomial. Received: "
                f"learned_constant=True, filter={chosen!r}. Leave it out."
            )
        return chosen
    if chosen.initial_coefficients is not None:
        raise ValueError(
            "AttentiveGraphFilter learns its own weights theta for a polynomial, which start at "
            f"0. Received: initial_coefficients={chosen.initial_coefficients!r}. Leave them out."
        )
    if chosen.start not in STARTS:
        raise ValueError(
            f"`start` of a filter of singular values must be one of {list(STARTS)}. Received: "
            f"start={chosen.start!r}"
        )
    if chosen.start != "plain" and learned_constant:
        raise ValueError(
            "A named start needs a polynomial whose weight of P_0 is 1. Received: "
            f"start={chosen.start!r}, learned_constant=True. Leave out one of the two."
        )
    return chosen
