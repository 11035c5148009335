"""Kernel attention under a mask of relative positions, segments or a topology."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import feature_maps, filters
from keras_graphattn.checks import checked, optional, size, tensor, whole
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.layers.parts import kernel_decoding
from keras_graphattn.layers.parts.copying import copy_projections
from keras_graphattn.layers.parts.feature_layer import FeatureLayer
from keras_graphattn.layers.parts.filter_weights import add_coefficients, filtered
from keras_graphattn.layers.parts.kernel_decoding import State
from keras_graphattn.layers.parts.kernel_masks import checked_mask
from keras_graphattn.layers.parts.layer_calls import check_one_axis
from keras_graphattn.layers.parts.layer_options import refuse_options
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.numerics.precision import nan_where
from keras_graphattn.ops.kernel.attention import NormalisedOperator
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class MaskedKernelAttention(FeatureLayer):
    """Kernel attention with a factor for each pair of positions, without the n x n matrix.

    Per head, with features phi instead of the softmax and a mask M of factors,

        A = D^-1 [(phi(Q) phi(K)^T) o M],    out = A V,    D the row sums

    A mask applies M to signals in less than quadratic time, and so does the layer: in linear time
    for causal, segment and exponential masks, in O(n log n) for Toeplitz masks. The option
    `filter` adds a filter of A, as in `GraphFilterAttention`. A filter only applies A, so it is
    sub-quadratic too.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the heads' outputs, as there is no attention matrix.
        mask: A mask of `keras_graphattn.masks`; the name of one that needs no argument, such as
            `"causal"`; or `None`: every factor is 1. The layer builds the mask for its number of
            heads. A mask with weights belongs to one layer.
        feature_map: A map of `keras_graphattn.feature_maps`, such as `Favor(num_features=64)`, or
            its name: `"relu"`, `"squared_relu"`, `"elu"`, or `"favor"` (positive orthogonal random
            features, an unbiased estimate of softmax attention); or a function registered with
            Keras that maps (B, T, N, H) to non-negative features (B, T, N, m).
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
            `coefficient_learning_rate_multiplier`, 10 by default: the filter's coefficients learn
            this many times as fast as other weights, if the optimizer is one of
            `keras_graphattn.optimizers.with_coefficient_rates`. Any other optimizer ignores it. A
            mask has its own, 30 by default. If the mask was given none, a number given here holds
            for the mask's weights too.

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

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        mask: Any = None,
        feature_map: Any = "relu",
        path: str = "auto",
        feature_chunk: int | None = None,
        filter: Any = None,
        order: int | None = None,
        **kwargs: Any,
    ) -> None:
        refused = ["attention_axes", "sliding_window"]
        refuse_options(self, kwargs, refused, "Leave it out, or express it as a `mask`.")
        mask = checked_mask(mask, path)
        feature_chunk = optional(whole())("feature_chunk", feature_chunk, {})
        if filter is None and order is not None:
            raise ValueError(
                f"`order` is an option of a filter. Received: filter=None, order={order!r}. Set "
                "`filter`, or leave out `order`."
            )
        found = None if filter is None else filters.get(filter, order)
        if found is not None:
            found.coefficients(num_heads)  # refuses start values for another number of heads
            found.refuse_without_solution("a MaskedKernelAttention")
        feature_map = feature_maps.get(feature_map)
        super().__init__(num_heads, key_dim, value_dim, dropout, feature_map=feature_map, **kwargs)
        self.mask, self.attention_path, self.feature_chunk = mask, path, feature_chunk
        self.filter = found
        self._share_multiplier()

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if self.filter is not None:
            add_coefficients(self, self.filter)
        super().build(query_shape, value_shape, key_shape)

    def copy_projections_from(self, attention: Any) -> None:
        """Starts from softmax attention: copies `query`, `key`, `value` and `attention_output`.

        With `feature_map="favor"`, the layer then estimates what `attention` computes, times the
        mask's factors.

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
        outputs, scores = self._attend_by_features(
            query, value, key, masks, return_attention_scores
        )
        return self._dropped(outputs, training), scores

    def _outputs(self, operator: NormalisedOperator, values: Tensor) -> Tensor:
        """A V, or the filter of A. Rows that see nothing are 0, and rows that see NaN are NaN."""
        if self.filter is None:
            return super()._outputs(operator, values)
        outputs = filtered(self, self.filter, operator, values)
        outputs = ops.where(operator.seen, outputs, ops.cast(0.0, outputs.dtype))
        return outputs if operator.broken is None else nan_where(operator.broken > 0.0, outputs)

    @property
    def _num_applications(self) -> int:
        """How often A is applied."""
        return 1 if self.filter is None else self.filter.num_applications

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
        return kernel_decoding.initial_state(self, batch_size)

    @checked(tokens=tensor("B t d"), padding_mask=optional(mask_of("B t")))
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
        return kernel_decoding.decode(self, tokens, state, padding_mask, mask_inputs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["attention_axes"], config["sliding_window"]
        config["feature_chunk"] = self.feature_chunk
        for name in ("mask", "feature_map", "filter"):
            value = getattr(self, name)
            config[name] = None if value is None else keras.saving.serialize_keras_object(value)
        return {**config, "path": self.attention_path}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedKernelAttention":
        found: dict[str, Any] = {
            name: restored(name, config[name])
            for name in ("mask", "feature_map", "filter")
            if name in config
        }
        return cls(**{**config, **found})

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_one_axis(self, query_shape, value_shape)
        lengths = (query_shape[1], value_shape[1])
        square = self.mask is not None or self.filter is not None
        if square and None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "A mask or a filter works within one sequence: query and value must have the same "
                f"length. Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}"
            )
