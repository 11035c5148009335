"""The base of all multi-head layers: the arguments and the call of Keras' own attention.

`MultiHeadLayer` keeps the arguments, projections, names and call contract of
`keras.layers.MultiHeadAttention`. A subclass defines only `_attend`.
"""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.checks import check_dtype_policy, flag, optional
from keras_graphattn.coefficient_rate import CoefficientRate
from keras_graphattn.keras_internals import keras_mask_of
from keras_graphattn.layers.parts.attention_axes import AttentionAxes
from keras_graphattn.layers.parts.conversion_mark import ConversionMark
from keras_graphattn.layers.parts.first_call import undone_if_refused
from keras_graphattn.layers.parts.layer_calls import check_call, names_of_call
from keras_graphattn.layers.parts.layer_options import check_options
from keras_graphattn.layers.parts.projections import Adopted, adopt, projections_of
from keras_graphattn.numerics.precision import in_one_dtype, zero_where_masked
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


class Masks(NamedTuple):
    """The masks of one call, given by the caller or found by Keras on the inputs."""

    query: Tensor | None = None  # (B, T)
    value: Tensor | None = None  # (B, S)
    key: Tensor | None = None  # (B, S)
    attention: Tensor | None = None  # (T, S), (B, T, S) or (B, N, T, S)
    causal: bool = False
    inputs: dict[str, Tensor] | None = None  # tensors that a mask of keras_graphattn.masks needs
    broken: Tensor | None = None  # (B, T), tokens that held NaN or infinity and are zeros now

    def of_tokens(self, query: Tensor, mask: Tensor | None) -> "Masks":
        """The masks of a call whose value is its query.

        Keras finds `mask` for a call with one tensor, `query_mask` and `value_mask` only for one
        with several. The form of a call must not change the outputs.

        Args:
            query: Tensor of shape (B, T, d), with or without a mask of Keras.
            mask: The call's `mask` (B, T), or `None`.
        """
        found = padding_of(query, mask)
        query_mask = found if self.query is None else self.query
        found = query_mask if found is None else found
        return self._replace(query=query_mask, value=found if self.value is None else self.value)


def padding_of(tokens: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask (B, T) given for tokens (B, T, d), or else the one that Keras has attached."""
    return keras_mask_of(tokens) if mask is None else mask


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens (B, ..., T, d), with zeros where the mask (B, ..., T) is `False`."""
    return x if mask is None else zero_where_masked(x, mask[..., None])


class MultiHeadLayer(CoefficientRate, ConversionMark, keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """Base of all layers: the projections and the call contract of multi-head attention.

    A subclass computes in `_attend` the outputs of each head, between the input projections and
    the output projection.
    """

    _adopted: Adopted | None = None

    def __init__(
        self,
        *args: Any,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if optional(flag)("flash_attention", flash_attention, {}):
            raise ValueError(
                f"{type(self).__name__} does not run on a flash attention kernel. Received: "
                f"flash_attention={flash_attention}. Leave it out."
            )
        positional = zip(("num_heads", "key_dim", "value_dim", "dropout"), args, strict=False)
        check_options(dict(positional) | kwargs)
        super().__init__(*args, **kwargs)
        # Keras wraps `build` in each instance, too.
        self.build = self._undone_if_refused(self.build)  # type: ignore[method-assign]
        self._flash_attention = False
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(
                "`dropout` is a probability and must be in [0, 1). Received: "
                f"dropout={self.dropout!r}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = names_of_call(type(self).call)
        if len(args) > len(names):
            return super().__call__(*args, **kwargs)  # raises Python's own error
        found = check_call(dict(zip(names, args, strict=False)) | kwargs)
        if isinstance(found["query"], keras.KerasTensor):
            found.setdefault("value")  # a call by keywords: Keras leaves masks out of the graph
        args = tuple(found.pop(name) for name in names[: len(args)])
        with undone_if_refused(self):
            return super().__call__(*args, **found)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        check_dtype_policy(config.get("dtype"))  # Keras reads it before `__init__` can check it
        return super().from_config(config)

    @property
    def score_scale(self) -> float:
        """The factor of the scores Q K^T: 1 / sqrt(key_dim)."""
        return float(self._inverse_sqrt_key_dim)

    @property
    def sliding_window(self) -> int | None:
        """A query sees a key only if |t - s| < sliding_window; `None` if there is no window."""
        window: int | None = self._sliding_window
        return window

    def _undone_if_refused(self, build: Any) -> Any:
        @functools.wraps(build)
        def build_or_undo(*args: Any, **kwargs: Any) -> None:
            with undone_if_refused(self):
                build(*args, **kwargs)

        return build_or_undo

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        value_shape = query_shape if value_shape is None else value_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        if self._adopted is None:
            self._build_projections(query_shape, value_shape, key_shape)
        else:
            adopt(self, self._adopted.projections, len(query_shape))
        for projection in projections_of(self).values():
            projection.supports_masking = True  # masks pass through it; no warning
        self.built = True

    def _build_projections(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super().build(query_shape, value_shape, key_shape)

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        *,
        mask: Tensor | None = None,
    ) -> Any:
        masks = Masks(query_mask, value_mask, key_mask, attention_mask, use_causal_mask)
        return self._call(query, value, key, masks, mask, return_attention_scores, training)

    def _call(
        self,
        query: Tensor,
        value: Tensor | None,
        key: Tensor | None,
        masks: Masks,
        mask: Tensor | None,
        return_attention_scores: bool,
        training: bool | None,
    ) -> Any:
        """`call` with its masks gathered: value and key default to the query, as do their masks.

        Padding becomes zeros before anything is computed with it. So it has no influence on values
        and gradients, even if it holds NaN or infinity.
        """
        if mask is not None:
            masks = masks._replace(query=mask)
        if value is None:
            value, masks = query, masks.of_tokens(query, mask)
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        is_shared, seen = key is value, all_of(masks.value, masks.key)
        query = without_padding(query, masks.query)  # (B, T, d)
        value = without_padding(value, seen)  # (B, S, d')
        key = value if is_shared else without_padding(key, seen)
        query, value, key, masks = self._without_broken(query, value, key, masks)
        # outputs of heads (B, T, N, value_dim), scores (B, N, T, S) or None
        outputs, scores = self._attend(query, value, key, masks, return_attention_scores, training)
        outputs = self._project_out(outputs, query)
        return (outputs, scores) if return_attention_scores else outputs

    def _without_broken(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor, Masks]:
        """Returns the inputs unchanged; layers with a mask of factors take broken tokens out."""
        return query, value, key, masks

    def _projected(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all heads, (B, ..., T, N, H) each, in one dtype.

        A `DTypePolicyMap` may give each projection a dtype of its own.
        """
        queries, keys, values = in_one_dtype(
            self.query_dense(query), self.key_dense(key), self._values(value, masks)
        )
        return queries, keys, values

    def _values(self, value: Tensor, masks: Masks) -> Tensor:
        """Projected values (B, ..., S, N, value_dim), 0 in padding: a bias would change that."""
        values, seen = self.value_dense(value), all_of(masks.value, masks.key)
        return values if seen is None else zero_where_masked(values, seen[..., None, None])

    def _project_out(self, outputs: Tensor, query: Tensor) -> Tensor:
        """Per-head outputs (B, T, N, value_dim) through the gate and the output projection."""
        if self._use_gate:
            outputs = outputs * self._gate_dense(query)  # a gate for each entry
        return self.output_dense(outputs)  # (B, T, d)

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Per-head outputs (B, T, N, value_dim) and, if asked for, attention scores."""
        raise NotImplementedError

    def _dropped(self, x: Tensor, training: bool | None) -> Tensor:
        return self._dropout_layer(x, training=training) if self.dropout > 0.0 else x

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> Any:
        value_shape = query_shape if value_shape is None else value_shape
        return super().compute_output_shape(query_shape, value_shape, key_shape)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        *,
        mask: Tensor | None = None,
    ) -> Any:
        value = query if value is None else value
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        outputs = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape, key.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return outputs
        axes = self._normalised_axes(len(query.shape))
        # in Keras' layout: axes that attention does not mix, heads, query axes, key axes
        others = [size for axis, size in enumerate(query.shape[:-1]) if axis not in axes]
        targets = [query.shape[axis] for axis in axes]
        sources = [value.shape[axis] for axis in axes]
        scores = keras.KerasTensor(
            (*others, self.num_heads, *targets, *sources), self.compute_dtype
        )
        return outputs, scores

    def _normalised_axes(self, rank: int) -> tuple[int, ...]:
        """The attention axes as non-negative axes of an input of `rank` dimensions."""
        if self._attention_axes is None:
            return tuple(range(1, rank - 1))
        return tuple(axis % rank for axis in self._attention_axes)

    def _axes_of(self, query: Tensor) -> AttentionAxes:
        """The attention axes of an input (B, ..., d), with its sizes."""
        return AttentionAxes(self._normalised_axes(len(query.shape)), ops.shape(query)[:-1])

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        for name, shape in (("query", query_shape), ("value", value_shape)):
            if len(shape) < 3:
                raise ValueError(
                    f"{type(self).__name__} attends over a sequence: `{name}` must have at "
                    "least three dimensions (batch, length, features). Received: "
                    f"{name}.shape={tuple(shape)}"
                )
        rank, axes = len(query_shape), self._attention_axes or ()
        known = {axis % rank for axis in axes if -rank <= axis < rank} - {rank - 1}
        if len(known) < len(axes):
            raise ValueError(
                "`attention_axes` must be different axes of `query`, and the last axis, that of "
                f"features, must not be one of them. Received: attention_axes={list(axes)}, "
                f"query.shape={tuple(query_shape)}"
            )
