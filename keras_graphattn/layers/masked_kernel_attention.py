"""Kernel attention under a mask of relative positions, segments or a topology."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn import feature_maps, filters
from keras_graphattn.checks.arguments import is_one_of, optional, whole
from keras_graphattn.layers.copying import copy_projections
from keras_graphattn.layers.filter_weights import add_coefficients, filtered
from keras_graphattn.layers.kernel_decoding import KernelDecoding
from keras_graphattn.layers.kernel_features import (
    add_feature_weights,
    key_features,
    query_features,
)
from keras_graphattn.layers.mask_call import MaskCall
from keras_graphattn.layers.mask_forms import mask_form
from keras_graphattn.layers.multi_head import Masks, MultiHeadLayer
from keras_graphattn.masks.mask import Mask
from keras_graphattn.ops.kernel.attention import (
    NormalisedOperator,
    masked_scores,
    unmasked_attention,
)
from keras_graphattn.ops.precision.float32 import nan_where
from keras_graphattn.ops.softmax.masks import all_of
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class MaskedKernelAttention(MaskCall, KernelDecoding, MultiHeadLayer):
    """Kernel attention with a factor for each pair of positions, without the n x n matrix.

    Per head, with features phi in place of the softmax and a mask M of factors,

        A = D^-1 [(phi(Q) phi(K)^T) o M],    out = A V,    D the row sums

    A mask applies M to signals in less than quadratic time, and so does the layer: linear for
    causal, segment and exponential masks, O(n log n) for Toeplitz masks. A filter of A, as
    in `GraphFilterAttention`, is one option: it only ever needs "apply A", and stays
    sub-quadratic too.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of the heads' outputs. There is no attention matrix to drop.
        mask: A mask of `keras_graphattn.masks`, or `None`: every factor is 1. The layer makes its
            weights, for its heads.
        feature_map: A map of `keras_graphattn.feature_maps`, such as `Favor(num_features=64)`, or
            its name: `"relu"`, `"squared_relu"`, `"elu"`, or `"favor"` (positive orthogonal random
            features, an unbiased estimate of softmax attention); or a function registered with
            Keras that maps (B, T, N, H) to non-negative features (B, T, N, m).
        path: `"auto"`, or one of the mask's `paths`: `"dense"` forms A, `"blockwise"` forms it for
            some query rows at a time, others never do. Without a mask `"auto"` or `"dense"`. A path
            changes time and memory, never a number.
        feature_chunk: Number of features at a time, on paths that work on an (n, m, D) tensor: less
            memory, the same numbers. All at once by default.
        filter: `None`, or a filter of A, an object of `keras_graphattn.filters` or its name, as in
            `GraphFilterAttention`.
        order: Order K of a `filter` given by its name; the filter's own default if `None`.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` (`use_bias`,
            `output_shape`, initializers, regularizers, constraints, `use_gate`, `seed`, `name`,
            `dtype`). `attention_axes`, `sliding_window` and `flash_attention` are refused. And
            `coefficient_learning_rate_multiplier`, 1 by default: how many times as fast as other
            weights the filter's coefficients and the mask's weights learn under
            `keras_graphattn.optimizers.with_coefficient_rates`.

    Call arguments:
        query: Tensor of shape (B, T, d).
        value: Tensor of shape (B, S, d'); `query` by default. S = T under a mask or a filter.
        key: Tensor of shape (B, S, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T) and (B, S); `False` marks
            padding. Taken from the inputs' Keras masks when not given.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T), on the
            dense and blockwise paths alone; or (B, 1, S), a mask of keys, on any.
        return_attention_scores: Whether to return A as well. It is formed for this alone.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees positions 0 ... t alone.
        mask_inputs: Dictionary of the tensors that the mask needs at each call, such as
            `{"segment_ids": ids}`. A wrong entry is an error where its value is known; in compiled
            code the outputs of its example are NaN (see `Mask`, and `Mask.check_inputs` for data
            pipelines).

    Returns:
        A tensor of shape (B, T, d), or `output_shape` in place of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, S). A query position that
        may see nothing contributes exactly 0 to the output projection.

    Weights:
        Those of the mask; `directions` (num_heads, key_dim, m) of random features, not trained;
        the filter's coefficients; the projections `query`, `key`, `value` and
        `attention_output`.

    Raises:
        ValueError: For arguments out of the ranges above, and for masks that the path cannot
            honour.

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
        for name in ("attention_axes", "sliding_window"):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"MaskedKernelAttention cannot honour `{name}`. Received: "
                    f"{name}={kwargs[name]!r}. Leave it out, or make it a `mask`."
                )
        _check_options(mask, path)
        feature_chunk = optional(whole())("feature_chunk", feature_chunk, {})
        if filter is None and order is not None:
            raise ValueError(
                f"`order` belongs to a filter. Received: filter=None, order={order!r}. Set "
                "`filter`."
            )
        found = None if filter is None else filters.get(filter, order)
        if found is not None:
            found.coefficients(num_heads)  # refuses start values for another number of heads
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        self.mask, self.attention_path, self.feature_chunk = mask, path, feature_chunk
        self.feature_map = feature_maps.get(feature_map)
        self.filter = found

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if self.filter is not None:
            add_coefficients(self, self.filter)
        add_feature_weights(self)
        if self.mask is not None and not self.mask.built:
            self.mask.build((query_shape[0], query_shape[1], self.num_heads, self.value_dim))
        self._mark([] if self.mask is None else self.mask.weights)
        super().build(query_shape, value_shape, key_shape)

    def redraw_features(self, seed: int | None = None) -> None:
        """Draws the random weights of the feature map again, such as those of `"favor"`.

        Call it between epochs: under `fit` on JAX, weights are out of reach within an epoch.

        Args:
            seed: Seed of the draw; a fresh one by default.

        Raises:
            ValueError: For a feature map without random weights, and before the layer is built.
        """
        names = getattr(self, "_feature_weight_names", ())
        if not names:
            raise ValueError(
                "Only a built layer whose feature map draws weights at random, such as "
                f'feature_map="favor", can draw them again. Received: {self.feature_map!r}'
            )
        seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        drawn = self.feature_map.weights(self.num_heads, self.key_dim, seed)
        for name, value in drawn.items():
            getattr(self, name).assign(value)

    def copy_projections_from(self, attention: Any) -> None:
        """Starts from softmax attention: copies `query`, `key`, `value` and `attention_output`.

        With `feature_map="favor"`, the layer then estimates what `attention` computes, times the
        mask's factors.

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
        mask, inputs, key_mask = self._mask_of_call(query, masks)
        query_mask = all_of(masks.query)
        fixed_scale = mask is not None and mask.hides_keys
        phi_query = query_features(self, self.query_dense(query), query_mask, fixed_scale)
        phi_key = key_features(self, self.key_dense(key), key_mask, fixed_scale)

        values = self._values(value, masks)
        prepared = None if mask is None else mask.prepare(values, **inputs)

        def attend(x: Tensor) -> Tensor:
            if mask is not None:
                path, chunk = self.attention_path, self.feature_chunk
                return mask.attend(phi_query, phi_key, x, path, chunk, prepared)
            if self.attention_path == "dense":
                return masked_scores(phi_query, phi_key, x, ops.ones((1, 1, 1, 1), x.dtype))
            return unmasked_attention(phi_query, phi_key, x)

        sighted = _sighted(key_mask, mask is not None and mask.is_causal)
        sighted = all_of(sighted, None if query_mask is None else query_mask[:, :, None])
        operator = NormalisedOperator(attend, sighted, masks.broken)
        outputs = self._outputs(operator, values)
        outputs = self._dropped(outputs, training)
        if not return_attention_scores:
            return outputs, None
        matrix = ops.einsum("btnm,bsnm->bnts", phi_query, phi_key)
        if mask is not None:
            matrix = matrix * ops.cast(mask.dense(ops.shape(query)[1], **inputs), matrix.dtype)
        total = ops.sum(matrix, axis=-1, keepdims=True)
        matrix = matrix / ops.where(total == 0.0, ops.cast(1.0, total.dtype), total)
        if operator.broken is not None:
            matrix = nan_where(ops.transpose(operator.broken > 0.0, (0, 2, 1, 3)), matrix)
        return outputs, ops.cast(matrix, self.compute_dtype)

    def _outputs(self, operator: NormalisedOperator, values: Tensor) -> Tensor:
        """A V, or the filter of A; rows that see nothing are 0, and those that see NaN are NaN."""
        if self.filter is None:
            outputs = operator(values)
        else:
            outputs = filtered(self, self.filter, operator, values)
            outputs = ops.where(operator.seen, outputs, ops.cast(0.0, outputs.dtype))
        return outputs if operator.broken is None else nan_where(operator.broken > 0.0, outputs)

    @property
    def _num_applications(self) -> int:
        """How often A is applied."""
        return 1 if self.filter is None else self.filter.num_applications

    def _mask_of_call(
        self, query: Tensor, masks: Masks
    ) -> tuple[Mask | None, dict[str, Tensor], Tensor | None]:
        """The mask of one call with its inputs, and which keys are not padding."""
        mask, inputs = self.mask, dict(masks.inputs or {})
        if mask is None and inputs:
            raise ValueError(
                "`mask_inputs` are for a mask, and this layer has none. Received: "
                f"mask_inputs with {sorted(inputs)}. Set `mask`."
            )
        if masks.causal:
            mask = mask_form(self, causal=True)
        entries: Any = masks.attention
        if entries is not None and _is_key_mask(entries.shape):
            keys = ops.reshape(entries, (-1, ops.shape(entries)[-1]))
            return mask, inputs, all_of(masks.value, masks.key, keys)
        if entries is not None:
            if self.attention_path not in ("auto", *Mask.paths):
                raise ValueError(
                    "An `attention_mask` for each pair of positions needs the pairs formed. "
                    f"Received: attention_mask.shape={tuple(entries.shape)}, path="
                    f"{self.attention_path!r}. "
                    'Use path="auto", "dense" or "blockwise", or a `mask`.'
                )
            mask = mask_form(self, causal=masks.causal, entries=True)
            inputs["entries"] = ops.cast(entries, "bool")
        return mask, inputs, all_of(masks.value, masks.key)

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
        if len(query_shape) != 3 or len(value_shape) != 3:
            raise ValueError(
                "MaskedKernelAttention attends over one axis: inputs must have shape (batch, "
                f"length, features). Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}"
            )
        lengths = (query_shape[1], value_shape[1])
        square = self.mask is not None or self.filter is not None
        if square and None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "A mask or a filter belongs to one sequence: query and value must have the same "
                f"length. Received: query.shape={tuple(query_shape)}, "
                f"value.shape={tuple(value_shape)}"
            )


def _check_options(mask: Any, path: str) -> None:
    if mask is not None and not isinstance(mask, Mask):
        raise ValueError(
            f"`mask` must be a mask of keras_graphattn.masks or None. Received: mask={mask!r}"
        )
    paths = ("auto", "dense") if mask is None else ("auto", *mask.paths)
    if not is_one_of(path, paths):
        kind = "Without a mask" if mask is None else f"With the mask {type(mask).__name__}"
        raise ValueError(f"{kind}, `path` must be one of {list(paths)}. Received: path={path!r}")


def _is_key_mask(shape: Any) -> bool:
    """Whether the shape is (B, 1, S) or (B, 1, 1, S)."""
    return len(shape) in (3, 4) and all(size == 1 for size in shape[1:-1])


def _sighted(key_mask: Tensor | None, causal: bool) -> Tensor | None:
    """Which rows see a key that is not padding, as far as padding and causality go: (B, T, 1)."""
    if key_mask is None:
        return None
    counts = ops.cast(key_mask, "int32")
    counts = ops.cumsum(counts, axis=1) if causal else ops.sum(counts, axis=1, keepdims=True)
    return (counts > 0)[:, :, None]
