"""What our layers share with `keras.layers.MultiHeadAttention`. Private Keras stays in here.

`MultiHeadLayer` keeps its arguments, projections, names and call contract, with every mask
given its meaning. `DenseSelfAttention` adds the softmax attention matrix, all masks joined for
every rank and rows that see nothing exactly zero, for layers that filter or re-weight it.
"""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.checks.arguments import check_dtype_policy, flag, optional
from keras_graphattn.checks.layer_calls import check_call, names_of_call
from keras_graphattn.checks.layer_options import check_options
from keras_graphattn.layers.coefficient_rate import CoefficientRate
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.first_call import undone_if_refused
from keras_graphattn.ops.precision.float32 import masked_softmax, zero_where_masked
from keras_graphattn.ops.softmax.attention import score_operands
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any


class Masks(NamedTuple):
    """The masks of one call, as the caller gave them or as Keras found them on the inputs."""

    query: Tensor | None = None  # (B, T)
    value: Tensor | None = None  # (B, S)
    key: Tensor | None = None  # (B, S)
    attention: Tensor | None = None  # (T, S), (B, T, S) or (B, N, T, S)
    causal: bool = False
    inputs: dict[str, Tensor] | None = None  # what a mask of keras_graphattn.masks needs
    broken: Tensor | None = None  # (B, T), tokens that held NaN or infinity and are zeros now


def projections_of(attention: Any) -> dict[str, Any]:
    """The projections of a built multi-head attention layer by the names of its weights."""
    found = {
        "query": attention.query_dense,
        "key": attention.key_dense,
        "value": attention.value_dense,
        "attention_output": attention.output_dense,
    }
    if attention._use_gate:
        found["gate"] = attention._gate_dense
    return found


class _Adopted:
    """Built projections on their way into another layer; Keras does not track what is in here."""

    def __init__(self, projections: dict[str, Any]) -> None:
        self.projections = projections


def build_around(layer: Any, source: Any) -> None:
    """Builds a layer of this package with the projections of a built one as its own.

    No weight is made or copied: both layers hold the same sublayers, with their variables, paths,
    quantisation and LoRA factors as they are.

    Args:
        layer: A `MultiHeadLayer` that is not built, of the sizes of `source`.
        source: A built `keras.layers.MultiHeadAttention`, or subclass.
    """
    projections = projections_of(source)
    shapes = [(None, None, projections[name].kernel.shape[0]) for name in ("query", "value", "key")]
    layer._adopted = _Adopted(projections)
    try:
        layer.build(*shapes)
    finally:
        layer._adopted = None


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens (B, ..., T, d), those that the mask (B, ..., T) leaves out replaced by zeros."""
    return x if mask is None else zero_where_masked(x, mask[..., None])


def is_detached(variable: Any) -> bool:
    """Whether the value is away for now: on JAX, `fit` holds it outside during an epoch."""
    return variable._value is None


class MultiHeadLayer(CoefficientRate, ConversionMark, keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """Base of all layers: the projections and the call contract of multi-head attention.

    Subclasses say in `_attend` what happens between the input and the output projection.
    """

    _adopted: _Adopted | None = None

    def __init__(self, *args: Any, flash_attention: bool | None = None, **kwargs: Any) -> None:
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
                "`dropout` is a probability and must lie in [0, 1). Received: "
                f"dropout={self.dropout!r}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = names_of_call(type(self).call)
        if len(args) > len(names):
            return super().__call__(*args, **kwargs)  # which says so
        found = check_call(dict(zip(names, args, strict=False)) | kwargs)
        args = tuple(found.pop(name) for name in names[: len(args)])
        with undone_if_refused(self):
            return super().__call__(*args, **found)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        check_dtype_policy(config.get("dtype"))  # Keras looks into it before `__init__`
        return super().from_config(config)

    @property
    def score_scale(self) -> float:
        """The factor of the scores Q K^T: 1 / sqrt(key_dim)."""
        return float(self._inverse_sqrt_key_dim)

    @property
    def sliding_window(self) -> int | None:
        """How near a key must be to be seen: |t - s| < sliding_window; all keys if None."""
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
        self._build_projections(query_shape, value_shape, key_shape)
        for projection in projections_of(self).values():
            projection.supports_masking = True  # masks pass through it; no warning
        self.built = True

    def _build_projections(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        if self._adopted is None:
            super().build(query_shape, value_shape, key_shape)
            return
        found = self._adopted.projections
        self._query_dense, self._key_dense = found["query"], found["key"]
        if self._use_gate:
            self._gate_dense = found["gate"]
        self._value_dense, self._output_dense = found["value"], found["attention_output"]
        self._build_attention(len(query_shape) + 1)

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
    ) -> Any:
        masks = Masks(query_mask, value_mask, key_mask, attention_mask, use_causal_mask)
        return self._call(query, value, key, masks, return_attention_scores, training)

    def _call(
        self,
        query: Tensor,
        value: Tensor | None,
        key: Tensor | None,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> Any:
        """`call` with its masks gathered: value and key default to the query, as do their masks.

        Padding becomes zeros before anything is computed with it. So it has no influence on values
        and gradients, whatever it holds, NaN and infinity included.
        """
        if value is None:
            value = query
            masks = masks._replace(value=masks.query if masks.value is None else masks.value)
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        is_shared, seen = key is value, all_of(masks.value, masks.key)
        query = without_padding(query, masks.query)
        value = without_padding(value, seen)
        key = value if is_shared else without_padding(key, seen)
        query, value, key, masks = self._without_broken(query, value, key, masks)
        outputs, scores = self._attend(query, value, key, masks, return_attention_scores, training)
        outputs = self._project_out(outputs, query)
        return (outputs, scores) if return_attention_scores else outputs

    def _without_broken(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor, Masks]:
        """The inputs as they are; layers whose masks separate tokens take broken ones out."""
        return query, value, key, masks

    def _values(self, value: Tensor, masks: Masks) -> Tensor:
        """Projected values (B, ..., S, N, value_dim); 0 in padding, for a filter's identity too."""
        values, seen = self.value_dense(value), all_of(masks.value, masks.key)
        return values if seen is None else zero_where_masked(values, seen[..., None, None])

    def _project_out(self, outputs: Tensor, query: Tensor) -> Tensor:
        """Per-head outputs (B, T, N, value_dim) through the gate and the output projection."""
        if self._use_gate:
            outputs = outputs * self._gate_dense(query)
        return self.output_dense(outputs)

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Per-head outputs (B, T, N, value_dim) and, where asked for, attention scores."""
        raise NotImplementedError

    def _token_projection(
        self, name: str, size: int, num_heads: int | None = None, activation: str | None = None
    ) -> Any:
        """A projection (B, T, d) -> (B, T, num_heads, size), made like Keras' own."""
        return keras.layers.EinsumDense(
            "abc,cde->abde",
            output_shape=[None, self.num_heads if num_heads is None else num_heads, size],
            bias_axes="de" if self.use_bias else None,
            activation=activation,
            name=name,
            **self._get_common_kwargs_for_sublayer(),
        )

    def _build_grouped(
        self, query_shape: Any, value_shape: Any, key_shape: Any, num_key_value_heads: int
    ) -> None:
        """Projections with fewer heads for keys and values, otherwise built as Keras does."""
        self._query_dense = self._token_projection("query", self.key_dim)
        self._query_dense.build(query_shape)
        self._key_dense = self._token_projection("key", self.key_dim, num_key_value_heads)
        self._key_dense.build(value_shape if key_shape is None else key_shape)
        if self._use_gate:
            self._gate_dense = self._token_projection("gate", self.value_dim, None, "sigmoid")
            self._gate_dense.build(query_shape)
        self._value_dense = self._token_projection("value", self.value_dim, num_key_value_heads)
        self._value_dense.build(value_shape)
        self._build_attention(len(query_shape) + 1)
        self._output_dense = self._make_output_dense(
            query_shape, self._get_common_kwargs_for_sublayer(), "attention_output"
        )
        self._output_dense.build((None, None, self.num_heads, self.value_dim))

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

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if shape is not None and len(shape) < 3:
                raise ValueError(
                    f"{type(self).__name__} attends over a sequence: `{name}` must have at "
                    "least three dimensions (batch, length, features). Received: "
                    f"{name}.shape={tuple(shape)}"
                )
        rank, axes = len(query_shape), self._attention_axes or ()
        known = {axis % rank for axis in axes if -rank <= axis < rank} - {rank - 1}
        if len(known) < len(axes):
            raise ValueError(
                "`attention_axes` must be different axes of `query`, the last one, of features, "
                f"not among them. Received: attention_axes={list(axes)}, query.shape="
                f"{tuple(query_shape)}"
            )


class DenseSelfAttention(MultiHeadLayer):
    """Base of the layers that filter or re-weight a dense softmax attention matrix.

    Subclasses override Keras' own extension point `_compute_attention`.
    """

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        mask = self._join_masks(query, value, masks)
        outputs, attention_scores = self._compute_attention(
            self.query_dense(query),
            self.key_dense(key),
            self._values(value, masks),
            mask,
            training,
            return_attention_scores,
        )
        return outputs, attention_scores

    def _attention_matrix(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """A = softmax(Q K^T / sqrt(key_dim)), of shape (B, ..., N, T, S)."""
        dtype = query.dtype
        query, key = score_operands(query, key, self.score_scale)
        scores = ops.einsum(self._dot_product_equation, key, query)
        axes = tuple(range(-len(self._attention_axes), 0))
        weights = masked_softmax(scores, mask, axis=axes[0] if len(axes) == 1 else axes)
        return ops.cast(weights, dtype)

    def _with_heads(self, mask: Tensor, scores_rank: int) -> Tensor:
        """A mask with the axes that it lacks, put where the heads are, as Keras does it."""
        while len(mask.shape) < scores_rank:
            mask = ops.expand_dims(mask, -2 * len(self._attention_axes) - 1)
        return mask

    def _with_causal(self, mask: Tensor | None, query: Tensor, use_causal_mask: bool) -> Tensor:
        """The mask that `_compute_attention` is given, joined with the causal one if asked for.

        `call` joins the two before. This is for those who call `_compute_attention` themselves,
        with projected queries of shape (B, ..., T, N, H).
        """
        if not use_causal_mask:
            return mask
        if len(self._attention_axes) != 1:
            raise ValueError(
                "`use_causal_mask` is defined for attention over one axis. Received: "
                f"attention_axes={self._attention_axes}. Pass one `attention_mask` instead."
            )
        scores_rank = len(query.shape)
        positions = ops.arange(ops.shape(query)[self._attention_axes[0]])
        causal = positions[None, :] <= positions[:, None]  # (T, S)
        mask = None if mask is None else self._with_heads(mask, scores_rank)
        return all_of(mask, self._with_heads(causal, scores_rank))

    def _apply_matrix(self, attention_scores: Tensor, x: Tensor) -> Tensor:
        """A x, with A of shape (B, ..., N, T, S) and x of shape (B, ..., S, N, H)."""
        return ops.einsum(self._combine_equation, attention_scores, x)

    def _zero_blind_rows(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Zeros the outputs of query positions that may see no key at all."""
        if mask is None:
            return outputs
        matrix, _, target = self._combine_equation.replace("->", ",").split(",")
        count = len(self._attention_axes)
        sees = ops.any(mask, axis=tuple(range(-count, 0)))
        # (B, ..., N, T) -> (B, ..., T, N), the layout of the outputs without channels
        order = [matrix[:-count].index(letter) for letter in target[:-1]]
        sees = ops.expand_dims(ops.transpose(sees, order), -1)
        return ops.where(sees, outputs, ops.cast(0.0, outputs.dtype))

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        if len(query_shape) != len(value_shape) or any(
            None not in (t, s) and t != s
            for t, s in zip(query_shape[1:-1], value_shape[1:-1], strict=True)
        ):
            raise ValueError(
                f"{type(self).__name__} is a self-attention layer: its filter is a function of a "
                "square attention matrix, so query and value must have the same length. "
                f"Received: query.shape={tuple(query_shape)}, value.shape={tuple(value_shape)}. "
                "Use keras.layers.MultiHeadAttention for cross-attention."
            )

    def _join_masks(self, query: Tensor, value: Tensor, masks: Masks) -> Tensor | None:
        """Joins all masks into one that broadcasts to the scores (B, ..., N, T, S)."""
        axes = self._normalised_axes(len(query.shape))
        scores_rank = len(query.shape) + len(axes)
        found: list[Tensor] = []

        def join(mask: Tensor) -> None:
            while len(mask.shape) < scores_rank:
                mask = ops.expand_dims(mask, 0)
            found.append(mask)

        if masks.attention is not None:
            attention_rank = len(masks.attention.shape)
            if not 2 * len(axes) <= attention_rank <= scores_rank:
                raise ValueError(
                    "`attention_mask` must have shape (T, S), (B, T, S) or (B, N, T, S), that is "
                    f"{2 * len(axes)} to {scores_rank} dimensions here. Received: "
                    f"attention_mask.shape={tuple(masks.attention.shape)}"
                )
            found.append(self._with_heads(masks.attention, scores_rank))

        positional = masks.causal or self._sliding_window is not None
        if not positional and all(m is None for m in (masks.query, masks.value, masks.key)):
            return all_of(*found)
        if len(axes) != 1 or axes[0] != len(query.shape) - 2:
            raise ValueError(
                "Token masks, `use_causal_mask` and `sliding_window` are defined for attention "
                "over one axis, the last before the features. Received: attention_axes="
                f"{self.attention_axes}. Pass one `attention_mask` instead."
            )
        if masks.query is not None:
            join(masks.query[..., None, :, None])
        for mask in (masks.value, masks.key):
            if mask is not None:
                join(mask[..., None, None, :])
        if positional:
            target = ops.arange(ops.shape(query)[-2])[:, None]
            source = ops.arange(ops.shape(value)[-2])[None, :]
            if masks.causal:
                join(source <= target)
            if self._sliding_window is not None:
                join(ops.abs(target - source) < self._sliding_window)
        return all_of(*found)
