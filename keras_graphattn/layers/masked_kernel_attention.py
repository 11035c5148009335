"""Kernel attention under a mask of relative positions, segments or a topology."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import feature_maps
from keras_graphattn.checks import checked, floats, one_of, optional, size, whole
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.feature_maps import FeatureMap
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import (
    Call,
    Tokens,
    inputs_of,
    optional_filter,
    padding_of,
    tensors_by_name,
)
from keras_graphattn.layers.kernel_base import KernelLayer
from keras_graphattn.masks import get
from keras_graphattn.masks.mask import Mask
from keras_graphattn.numerics.precision import without_padding
from keras_graphattn.operators.kernel import KernelOperator
from keras_graphattn.operators.operator import Operator, Visibility, all_of
from keras_graphattn.types import Float, Tensor

State = tuple[Any, ...]


@keras.saving.register_keras_serializable(package="keras_graphattn")
class MaskedKernelAttention(KernelLayer):
    """Kernel attention with a factor for each pair of positions, without the n x n matrix.

    Per head, with features phi instead of the softmax and a mask M of factors,

        A = D^-1 [(phi(Q) phi(K)^T) o M],    out = A V,    D the row sums

    Most masks apply M to signals in less than quadratic time, and so does the layer: in linear time
    for causal, segment and exponential masks, in O(n log n) for Toeplitz masks by FFT, O(n^1.5)
    where they are causal. `Entries` and `DistanceTable` are quadratic. The option `filter` adds a
    filter of A, as in `GraphFilterAttention`. A filter only applies A: the complexity is the same.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the heads' outputs, as there is no attention matrix.
        mask: A mask of `keras_graphattn.masks`; the name of one that needs no argument, such as
            `"causal"`; or `None`: every factor is 1. The layer builds the mask for its number of
            heads. A mask with weights belongs to one layer.
        feature_map: A map of `keras_graphattn.feature_maps`, such as `Favor(num_features=64)`, or
            its name in `feature_maps.FEATURE_MAPS`, such as `"relu"` or `"favor"` (positive
            orthogonal random features, an unbiased estimate of softmax attention); or a function
            registered with Keras that maps (B, T, N, H) to non-negative features (B, T, N, m).
        path: `"auto"`, or one of the mask's `paths`: `"dense"` forms A, `"blockwise"` forms it for
            some query rows at a time, and the others never form it. Without a mask, `"auto"` or
            `"dense"`. A path changes time and memory only, not the numbers.
        feature_chunk: Number of features at a time, on paths that work on an (n, m, D) tensor. It
            saves memory and keeps the numbers. All features at once by default.
        filter: `None`, or a filter of A, an object of `keras_graphattn.filters` or its name, as in
            `GraphFilterAttention`.
        order: Order K of a `filter` given by its name; the filter's own default if `None`.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`) except `attention_axes`, `sliding_window` and `flash_attention`. And
            `coefficient_learning_rate_multiplier`, as for `GraphFilterAttention`. A mask has its
            own, 30 by default. If the mask was given none, a number given here holds for the
            mask's weights too.

    Call arguments:
        query: Tensor of shape (B, T, d).
        value: Tensor of shape (B, S, d'); `query` by default. S = T under a mask or a filter.
        key: Tensor of shape (B, S, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T) and (B, S); `False` marks
            padding. By default the inputs' Keras masks.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T), on the
            dense and blockwise paths only; or (B, 1, S), a mask of keys, on any path.
        return_attention_scores: Whether to return A as well. It is formed only for this.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees only positions 0 ... t.
        mask_inputs: Dictionary of the tensors that the mask needs at each call, such as
            `{"segment_ids": ids}`. A wrong entry is an error if its value is known. In compiled
            code it makes the outputs of its example NaN (see `Mask`, and `Mask.check_inputs` for
            data pipelines).
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, S). A query position that
        may see nothing contributes exactly 0 to the output projection.

    Weights:
        Those of the mask; `directions` (num_heads, key_dim, m) of random features, not trained;
        the filter's coefficients; the projections `query`, `key`, `value` and
        `attention_output`.

    Raises:
        ValueError: For arguments outside the ranges above, and for masks that the path cannot
            apply.

    Example:

    >>> from keras_graphattn.masks import Exponential
    >>> layer = MaskedKernelAttention(num_heads=2, key_dim=8, mask=Exponential())
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Choromanski et al., "From block-Toeplitz matrices to differential equations on graphs",
    arXiv 2107.07999 (ICML 2022), Eq. 2 and Algorithm 1. Filters of the operator, exponential
    masks and decoding are ours.
    """

    filter: Filter | None
    feature_map: FeatureMap
    refused = ("attention_axes", "sliding_window")
    instead = "Leave it out, or express it as a `mask`."

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        mask: str | Mask | dict[str, Any] | None = None,
        feature_map: Any = "relu",
        path: str = "auto",
        feature_chunk: int | None = None,
        filter: str | Filter | dict[str, Any] | None = None,
        order: int | None = None,
        **kwargs: Any,
    ) -> None:
        mask = None if mask is None else get(mask)
        paths = ("auto", "dense") if mask is None else ("auto", *mask.paths)
        one_of(*paths)("path", path, {})  # those of the mask
        feature_chunk = optional(whole())("feature_chunk", feature_chunk, {})
        if mask is None and feature_chunk is not None:
            raise ValueError(
                "`feature_chunk` is an option of attention with a mask. Received: "
                f"feature_chunk={feature_chunk}, mask=None. Set `mask`, or leave out "
                "`feature_chunk`."
            )
        feature_map = feature_maps.get(feature_map)
        super().__init__(num_heads, key_dim, value_dim, dropout, feature_map=feature_map, **kwargs)
        self.mask, self.attention_path, self.feature_chunk = mask, path, feature_chunk
        self.filter = optional_filter(filter, num_heads, order)
        self.is_square = mask is not None or filter is not None
        self._share_multiplier()

    def operator(self, tokens: Tokens, call: Call) -> KernelOperator:
        return self.kernel_operator(tokens, call)

    def attended(
        self, operator: Operator, values: Float[Tensor, "B S N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        outputs, drop = super().attended(operator, values, call), self._dropout_in(call.training)
        return outputs if drop is None else drop(outputs)

    @checked(batch_size=size(0))
    def get_initial_state(self, batch_size: int) -> State:
        """The state of `decode` before the first token, of the same size at any length.

        Args:
            batch_size: Number of sequences.

        Returns:
            A tuple with a `ChunkedState` for each application of attention: one without a filter,
            else one for each application that the filter makes. Its `sums` have shape
            (batch_size, num_heads, R m, value_dim). The first state has one more column, for the
            normaliser. R is the number of the mask's exponentials, m the number of features.

        Raises:
            ValueError: If the mask, made causal, has no state of fixed size.
        """
        mask: Any = self.joined_mask(causal=True)
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        count = self.feature_map.num_features(self.num_heads, self.key_dim)
        states = (
            # the first state has one more column, for the normaliser
            mask.get_initial_state(batch_size, self.num_heads, count, self.value_dim + (call == 0))
            for call in range(self.num_signals)
        )
        return tuple(state._replace(sums=ops.cast(state.sums, dtype)) for state in states)

    @checked(
        tokens=floats("B t d"),
        padding_mask=optional(mask_of("B t")),
        mask_inputs=optional(tensors_by_name),
    )
    def decode(
        self,
        tokens: Tensor,
        state: State,
        padding_mask: Tensor | None = None,
        mask_inputs: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """Outputs of new tokens, given the sums over all tokens before them.

        The outputs equal the rows of the new tokens in a full pass with `use_causal_mask=True`. A
        new token costs the same at any length. Dropout is for training and is not applied.

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            state: The state that `get_initial_state` or the previous step returned.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on either
                side, which no later token sees. By default the tokens' Keras mask.
            mask_inputs: The tensors that the mask needs for the new tokens, such as `segment_ids`
                (B, t).

        Returns:
            The outputs, of shape (B, t, d), and the new state.

        Raises:
            ValueError: If the mask has no state of fixed size or `tokens` has another rank.

        Example:

        >>> from keras_graphattn.masks import Exponential
        >>> layer = MaskedKernelAttention(2, 8, mask=Exponential(causal=True))
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        mask: Any = self.joined_mask(causal=True)
        self._check_shapes(tokens.shape, tokens.shape, None)
        if not self.built:
            self.build(tuple(tokens.shape))
        padding_mask = all_of(padding_of(tokens, padding_mask))
        tokens = without_padding(ops.cast(tokens, self.compute_dtype), padding_mask)
        query, key = self.query_dense(tokens), self.key_dense(tokens)
        features = self.features(query, key, padding_mask, padding_mask, fixed_scale=True)
        call = Call(Visibility(queries=padding_mask), mask_inputs=mask_inputs)
        inputs = inputs_of(mask, tokens, call)
        operator = _Steps(*features, mask, inputs, states=state)
        value = self.value_dense(tokens)
        outputs = operator.finished(super().attended(operator, value, call))
        return self._project_out(outputs, tokens), tuple(operator.following)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["feature_chunk"] = self.feature_chunk
        for name in ("mask", "feature_map", "filter"):
            config[name] = keras.saving.serialize_keras_object(getattr(self, name))
        return {**config, "path": self.attention_path}


class _Steps(KernelOperator):
    """The rows of new tokens, from one state of earlier tokens for each application."""

    def __init__(self, *args: Any, states: State) -> None:
        super().__init__(*args)
        self.states = states
        self.following: list[Any] = []

    def _sums(self, x: Float[Tensor, "B t N D"]) -> Float[Tensor, "B t N D"]:
        mask: Any = self.mask
        state = self.states[len(self.following)]
        outputs, following = mask.step(
            state, self.query_features, self.key_features, x, **self.inputs
        )
        self.following.append(following)
        return outputs
