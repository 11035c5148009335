"""The gated delta rule: causal attention in linear time that replaces what it remembers."""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.checks import Sizes, check_shape, checked, floats, optional, size, whole
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import (
    AttentionLayer,
    Call,
    Shape,
    Tokens,
    finite_tokens,
    optional_filter,
    padding_of,
    tensors_by_name,
)
from keras_graphattn.layers.short_convolution import Neighbours, ShortConvolution
from keras_graphattn.masks.chunked import Form, Segments, attention_by_form, runs_of
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import (
    any_of,
    at_least_float32,
    nan_where,
    without_padding,
    zero_where_masked,
)
from keras_graphattn.operators.delta_rule import FORGETS, DeltaRuleOperator
from keras_graphattn.operators.operator import Operator, Visibility, all_of
from keras_graphattn.types import Bool, Float, Int, Tensor

EPSILON = 1e-5  # of the norm of each head
NAMES = ("query", "key", "value")


class DeltaRuleState(NamedTuple):
    """What `decode` keeps of all earlier tokens, of the same size at any length.

    Attributes:
        sums: The states S of the delta rule, of shape (B, N, H, applications * D).
        query, key, value: The last inputs of each convolution, (B, convolution - 1, N, H or D).
        segment: The segment of the last token; not used without segments.
    """

    sums: Float[Tensor, "B N H _"]
    query: Float[Tensor, "B _ N H"]
    key: Float[Tensor, "B _ N H"]
    value: Float[Tensor, "B _ N D"]
    segment: Int[Tensor, " B"]


class Places(NamedTuple):
    """What a call says about its tokens."""

    visible: Bool[Tensor, "B T"] | None  # not padding
    segment_ids: Int[Tensor, "B T"] | None
    non_finite: Bool[Tensor, "B T"]  # rows that see NaN or infinity
    neighbours: Neighbours

    @property
    def runs(self) -> Int[Tensor, "B T"] | None:
        """The number of each token's segment; 0 is that of the state."""
        return self.neighbours.runs


class _Steps(DeltaRuleOperator):
    """The operator of one call, and what else the call needs."""

    places: Places
    before: "DeltaRuleState | None"
    inputs: "list[Float[Tensor, 'B _ N H']]"  # the last inputs of the convolutions


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GatedDeltaRule(AttentionLayer):
    """Causal attention in linear time whose state forgets and replaces (Gated DeltaNet).

    Each head has a state S, a matrix that maps keys to values. A token lets it decay, takes out
    what it holds for the token's key, and writes the token's value there:

        S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T
        out_t = RMSNorm(S_t^T q_t) * silu(W_g x_t)
        a_t = exp(-exp(A) softplus(W_a x_t + dt)),    b_t = sigmoid(W_b x_t)

    Queries, keys and values pass a short causal convolution and SiLU; queries and keys are then
    divided by their length, and queries by sqrt(key_dim). A full pass works on chunks of tokens,
    without a loop over tokens. `decode` has a state of fixed size.

    The outputs S_t^T q_t are A v for a lower triangular matrix A. So a `filter` of A works as in
    `GraphFilterAttention`. The rows of A do not sum to one.

    Args:
        num_heads: Number N of heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size D of each head for value; `key_dim` by default. The published models have
            twice the `key_dim`.
        dropout: Dropout probability of the heads' outputs, as there is no attention matrix.
        convolution: Number of tokens in the convolution, 4 as published. `None` leaves it out.
            SiLU stays.
        use_gate: Whether the heads' outputs are multiplied by silu(W_g x), as published.
        filter: `None`, or a filter of A, an object of `keras_graphattn.filters` or its name, as in
            `GraphFilterAttention`.
        order: Order K of a `filter` given by its name; the filter's own default if `None`.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`, which is
            `False` in the published models, `output_shape`, initializers, regularizers,
            constraints, `seed`, `name`, `dtype`) except `attention_axes`, `sliding_window` and
            `flash_attention`. And `coefficient_learning_rate_multiplier`, as for
            `GraphFilterAttention`.

    Call arguments:
        query: Tensor of shape (B, T, d). The gates are made of it too.
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T). A token that one of them
            marks `False` is padding: it changes nothing, wherever it is. By default the inputs'
            Keras masks.
        attention_mask: Boolean tensor of shape (B, 1, T), a mask of keys, which counts as padding.
            A mask that differs between query positions is refused.
        return_attention_scores: Whether to return A as well. It is formed only for this.
        training: Whether to apply dropout.
        use_causal_mask: Changes nothing: the layer is causal.
        mask_inputs: `{"segment_ids": ids}` for packed sequences, with integers of shape (B, T).
            A segment is a run of equal ids, and starts with an empty state. A negative id marks
            padding, as in `keras_graphattn.masks.Segments`.
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). Padding contributes
        exactly 0 to the output projection. A token that is NaN or infinite makes the later rows of
        its segment NaN.

    Weights:
        `log_rate` (A) and `rate_bias` (dt) of shape (num_heads,), `norm_scale` of shape
        (value_dim,), `kernel` of shape (convolution, num_heads, key_dim or value_dim) of
        `query_convolution`, `key_convolution` and `value_convolution`, whose last row belongs to
        the token itself; the filter's coefficients;
        the projections `query`, `key`, `value`, `gate`, `decay` (W_a), `strength` (W_b) and
        `attention_output`.

    Raises:
        ValueError: For arguments outside the ranges above, and for masks that the layer cannot
            apply.

    Example:

    >>> layer = GatedDeltaRule(num_heads=2, key_dim=8)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464
    (ICLR 2025), Eq. 10 and Section 3. The gate a_t and the start of A and dt are those of Dao and
    Gu, "Transformers are SSMs", arXiv 2405.21060. Filters and exact padding are ours.
    """

    takes_mask_inputs = True

    filter: Filter | None
    max_rank = 3
    refused = ("attention_axes", "sliding_window")
    across_sequences = "Use MaskedKernelAttention without a mask for cross-attention."

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        convolution: int | None = 4,
        use_gate: bool = True,
        filter: str | Filter | dict[str, Any] | None = None,
        order: int | None = None,
        **kwargs: Any,
    ) -> None:
        convolution = optional(whole())("convolution", convolution, {})
        super().__init__(num_heads, key_dim, value_dim, dropout, use_gate=use_gate, **kwargs)
        self.convolution, self.filter = convolution, optional_filter(filter, num_heads, order)

    def add_sublayers(self, query_shape: Shape) -> None:
        if self._use_gate:
            self._gate_dense.activation = keras.activations.silu
        heads = self.num_heads
        for name in ("decay", "strength"):
            dense = keras.layers.EinsumDense(
                "abc,cd->abd", [None, heads], name=name, **self._get_common_kwargs_for_sublayer()
            )
            dense.build(query_shape)
            dense.supports_masking = True
            setattr(self, f"_{name}_dense", dense)
        if self.convolution is not None:
            sizes = (self.key_dim, self.key_dim, self.value_dim)
            for name, width in zip(NAMES, sizes, strict=True):
                layer = ShortConvolution(
                    self.convolution, name=f"{name}_convolution", dtype=self.dtype_policy
                )
                layer.build((None, None, heads, width))
                setattr(self, f"_{name}_convolution", layer)
        kept_with(self, _segments)  # torch makes no layer while it compiles
        self.log_rate = self._own_weight("log_rate", (heads,), _log_rates)
        self.rate_bias = self._own_weight("rate_bias", (heads,), _rate_biases)
        self.norm_scale = self._own_weight("norm_scale", (self.value_dim,), "ones")

    def _own_weight(self, name: str, shape: Shape, initializer: Any) -> keras.Variable:
        """A weight in the variable dtype that learns as fast as those of projections."""
        weight: keras.Variable = keras.layers.Layer.add_weight(
            self, name=name, shape=shape, initializer=initializer, autocast=False
        )
        return weight

    def without_non_finite(
        self, *tensors: Float[Tensor, "B ..."]
    ) -> tuple[tuple[Float[Tensor, "B ..."], ...], Bool[Tensor, "B ..."] | None]:
        return finite_tokens(*tensors)

    # One call

    def operator(self, tokens: Tokens, call: Call) -> "_Steps":
        return self._steps(tokens, call, None)

    def _steps(self, tokens: Tokens, call: Call, state: DeltaRuleState | None) -> "_Steps":
        """The operator for tokens after those of `state`."""
        places = self._places(tokens, call, state)
        query, query_inputs = self._convolved("query", tokens.query, places, state)
        key, key_inputs = self._convolved("key", tokens.key, places, state)
        query, key = (x * ops.rsqrt(_sum_of_squares(x) + 1e-6) for x in (query, key))
        rate = ops.exp(at_least_float32(self.log_rate))
        raw = at_least_float32(self._decay_dense(tokens.inputs))
        log_decay = -rate * ops.softplus(raw + at_least_float32(self.rate_bias))
        strength = ops.sigmoid(at_least_float32(self._strength_dense(tokens.inputs)))
        log_decay, strength = (without_padding(x, places.visible) for x in (log_decay, strength))
        if places.runs is not None:  # a segment starts with an empty state
            first = ops.zeros_like(places.runs[:, :1])
            before = ops.concatenate([first, places.runs], axis=1)[:, :-1]
            continues = ops.equal(places.runs, before)[:, :, None]
            log_decay = ops.where(continues, log_decay, ops.cast(FORGETS, log_decay.dtype))
        operator = _Steps(
            query * self.score_scale,
            key,
            log_decay,
            strength,
            None if state is None else zero_where_masked(state.sums, _is_finite(state.sums)),
            rows=places.visible,
            non_finite=places.non_finite,
        )
        operator.places, operator.before = places, state
        operator.inputs = [query_inputs, key_inputs]
        return operator

    def _places(self, tokens: Tokens, call: Call, state: DeltaRuleState | None) -> Places:
        """Padding, segments and NaN of a call."""
        visibility, ids, runs, wrong = call.visibility, None, None, None
        keys = visibility.keys
        if visibility.entries is not None:
            fix = "Leave it out: the layer is causal. Or use GraphFilterAttention."
            keys = self._visible_keys(tokens, visibility, fix)
        visible = all_of(visibility.queries, keys)
        if call.mask_inputs:
            ids, wrong = self._segment_ids(tokens.value, call.mask_inputs)
            runs, kept = runs_of(ids, None if state is None else state.segment)
            visible = all_of(visible, kept)
        marks = ops.cast(call.non_finite, "float32")[:, :, None, None]
        ones, form = ops.ones_like(marks), Form(causal=True, segment_ids=runs)
        marked = attention_by_form(ones, ones, marks, form)[:, :, 0, 0] > 0.0
        if state is not None:
            held = ops.logical_not(_is_finite(state.sums))[:, :, 0, 0]  # (B, 1)
            held = held if runs is None else ops.logical_and(held, ops.equal(runs, 0))
            marked = ops.logical_or(marked, held)
        if wrong is not None:
            marked = ops.logical_or(marked, wrong[:, None])
        return Places(visible, ids, marked, Neighbours.of(visible, runs))

    def _segment_ids(
        self, x: Float[Tensor, "B T N D"], inputs: dict[str, Tensor]
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, " B"] | None]:
        """The checked segments of a call, and the examples that compiled code cannot refuse."""
        if set(inputs) != {"segment_ids"}:
            raise ValueError(
                'GatedDeltaRule takes `mask_inputs={"segment_ids": ids}` only. Received: '
                f"mask_inputs with {sorted(inputs)}."
            )
        tensors, wrong, _ = kept_with(self, _segments).prepare(x, **inputs)
        return tensors["segment_ids"], wrong

    def _convolved(
        self, name: str, x: Float[Tensor, "B T N H"], places: Places, state: DeltaRuleState | None
    ) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B _ N H"] | None]:
        """Queries, keys or values after convolution and SiLU, and the last inputs."""
        before = None if state is None else getattr(state, name)
        if self.convolution is None:
            return ops.silu(at_least_float32(x)), before
        convolution: ShortConvolution = getattr(self, f"_{name}_convolution")
        return convolution.convolved(x, places.neighbours, before)

    def attended(
        self, operator: Operator, values: Float[Tensor, "B T N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        assert isinstance(operator, _Steps)
        dtype = values.dtype
        values, inputs = self._convolved("value", values, operator.places, operator.before)
        operator.inputs.append(inputs)
        outputs = super().attended(operator, values, call)
        outputs = outputs * ops.rsqrt(_sum_of_squares(outputs) / self.value_dim + EPSILON)
        outputs = ops.cast(outputs * at_least_float32(self.norm_scale), dtype)
        drop = self._dropout_in(call.training)
        return outputs if drop is None else drop(outputs)

    # Decoding

    @checked(batch_size=size(0))
    def get_initial_state(self, batch_size: int) -> DeltaRuleState:
        """The state of `decode` before the first token, of the same size at any length.

        Args:
            batch_size: Number of sequences.

        Returns:
            A named tuple. `sums` has shape (batch_size, num_heads, key_dim, applications *
            value_dim), with one application of A without a filter, else as many as the filter
            makes. `query`, `key` and `value` are the last inputs of the convolutions, `segment`
            the id of the last token.
        """
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        past, heads = (self.convolution or 1) - 1, self.num_heads
        key, value = (
            ops.zeros((batch_size, past, heads, width), dtype)
            for width in (self.key_dim, self.value_dim)
        )
        sums = ops.zeros(
            (batch_size, heads, self.key_dim, self.num_signals * self.value_dim), dtype
        )
        return DeltaRuleState(sums, key, key, value, ops.full((batch_size,), -1, "int32"))

    @checked(
        tokens=floats("B t d"),
        padding_mask=optional(mask_of("B t")),
        mask_inputs=optional(tensors_by_name),
    )
    def decode(
        self,
        tokens: Tensor,
        state: DeltaRuleState,
        padding_mask: Tensor | None = None,
        mask_inputs: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, DeltaRuleState]:
        """Outputs of new tokens, given the state after all tokens before them.

        The outputs equal the rows of the new tokens in a full pass. A new token costs the same at
        any length. Dropout is for training and is not applied.

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            state: The state that `get_initial_state` or the previous step returned.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding anywhere,
                which changes nothing. By default the tokens' Keras mask.
            mask_inputs: `{"segment_ids": ids}` of the new tokens, of shape (B, t).

        Returns:
            The outputs, of shape (B, t, d), and the new state.

        Raises:
            ValueError: If `tokens` has another rank, or `state` is not of this layer.

        Example:

        >>> layer = GatedDeltaRule(num_heads=2, key_dim=8)
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        self._check_shapes(tokens.shape, tokens.shape, None)
        if not self.built:
            self.build(tuple(tokens.shape))
        state = self._checked_state(state, tokens)
        padding_mask = all_of(padding_of(tokens, padding_mask))
        tokens = without_padding(ops.cast(tokens, self.compute_dtype), padding_mask)
        (tokens,), non_finite = self.without_non_finite(tokens)
        visibility = Visibility(None, padding_mask, padding_mask, True)
        call = Call(visibility, mask_inputs=mask_inputs, non_finite=non_finite)
        projected = self._projected(tokens, tokens, tokens, padding_mask)
        operator = self._steps(projected, call, state)
        outputs = operator.finished(self.attended(operator, projected.value, call))
        sums = ops.concatenate(operator.following, axis=-1)
        places = operator.places
        sums = nan_where(ops.any(places.non_finite[:, -1:], axis=1)[:, None, None, None], sums)
        ids = places.segment_ids
        segment = state.segment if ids is None else ids[:, -1]
        query, key, value = operator.inputs
        following = DeltaRuleState(sums, query, key, value, segment)
        return self._project_out(outputs, tokens), following

    def _checked_state(self, state: object, tokens: Tensor) -> DeltaRuleState:
        """Returns the state; raises an error if it is not one of this layer."""
        expected = self.get_initial_state(0)
        if not isinstance(state, DeltaRuleState):
            raise ValueError(
                "`state` must be a DeltaRuleState, from `get_initial_state` or an earlier call. "
                f"Received: state={state!r}"
            )
        sizes: Sizes = {}
        check_shape("tokens", tokens, ("B t d",), sizes)
        for name, part in expected._asdict().items():
            shape = " ".join(["B", *map(str, part.shape[1:])])
            check_shape(f"state.{name}", getattr(state, name), (shape,), sizes)
        return state

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        chosen = keras.saving.serialize_keras_object(self.filter)
        return {**config, "convolution": self.convolution, "filter": chosen}


def _sum_of_squares(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return ops.sum(ops.square(x), axis=-1, keepdims=True)


def _is_finite(sums: Float[Tensor, "B N H _"]) -> Bool[Tensor, "B 1 1 1"]:
    non_finite = any_of(ops.logical_not(ops.isfinite(sums)), (1, 2, 3))
    return ops.logical_not(non_finite)[:, None, None, None]


def _segments(layer: GatedDeltaRule) -> Segments:
    """The mask that checks segments."""
    mask = Segments()
    mask.build((None, None, layer.num_heads, layer.value_dim))
    return mask


def _log_rates(shape: Shape, dtype: str) -> Float[Tensor, " N"]:
    """A: exp(A) is uniform between 1 and 16."""
    return ops.log(keras.initializers.RandomUniform(1.0, 16.0)(shape, dtype))


def _rate_biases(shape: Shape, dtype: str) -> Float[Tensor, " N"]:
    """dt: softplus(dt) is between 0.001 and 0.1, uniform in its logarithm."""
    draw = keras.initializers.RandomUniform(math.log(0.001), math.log(0.1))
    steps = ops.exp(draw(shape, dtype))
    return steps + ops.log(-ops.expm1(-steps))
