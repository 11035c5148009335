"""The base of all attention layers: the arguments and the call of Keras' own attention.

A call reads downwards: check the arguments, put zeros in padding, project, make the operator,
filter the values with it, project out. A subclass only makes its operator, its weights and its
configuration.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, NoReturn, cast

import keras
from keras import ops

from keras_graphattn import biases
from keras_graphattn.biases import Bias
from keras_graphattn.checks import (
    Rule,
    Sizes,
    as_tensor,
    cached,
    check_dtype_policy,
    check_shape,
    checked,
    flag,
    floats,
    integers,
    is_list,
    is_whole,
    known_value,
    number,
    one_of,
    optional,
    plain,
    size,
    switch,
    tensor,
    whole,
)
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.coefficient_rate import CoefficientRate, Filtered
from keras_graphattn.filters import Filter
from keras_graphattn.filters import get as get_filter
from keras_graphattn.keras_internals import keras_mask_of, replaced_attributes
from keras_graphattn.layers.attention_axes import AttentionAxes
from keras_graphattn.layers.conversion_mark import ConversionMark
from keras_graphattn.layers.quantisation import NOT_CALIBRATED, policies_of, refuse_calibrated
from keras_graphattn.masks.mask import PairMatrix
from keras_graphattn.numerics.precision import (
    at_least_float32,
    in_one_dtype,
    positions_of,
    without_padding,
)
from keras_graphattn.operators.cached import Cache, CachedOperator, updated_booleans
from keras_graphattn.operators.operator import Operator, Visibility, all_of, four_dimensional
from keras_graphattn.operators.softmax import Logits, PairRows, SoftmaxOperator, scores_of
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

Shape = Sequence[int | None]


class Call(NamedTuple):
    """The arguments of one call other than its tokens, with all masks of Keras joined.

    Attributes:
        visibility: Which queries see which keys, by padding, causality, a window and the caller's
            `attention_mask`.
        training: Whether to apply dropout.
        returns_matrix: Whether the caller asked for attention scores or a filter matrix.
        mask_inputs: The tensors that a mask of factors needs at this call.
        non_finite: Tokens that held NaN or infinity and are zeros now.
        attention_bias: Numbers that are added to the scores.
        bias_inputs: The tensors that the layer's bias needs at this call.
    """

    visibility: Visibility
    training: bool | None = None
    returns_matrix: bool = False
    mask_inputs: dict[str, Tensor] | None = None
    non_finite: Bool[Tensor, "B T"] | None = None
    attention_bias: Float[Tensor, "..."] | None = None
    bias_inputs: dict[str, Tensor] | None = None


class Tokens(NamedTuple):
    """The tokens of a call and their projections, in one dtype."""

    inputs: Float[Tensor, "B T _"]
    query: Float[Tensor, "B T N H"]
    key: Float[Tensor, "B S N H"]
    value: Float[Tensor, "B S N D"]  # 0 in padding


class AttentionLayer(CoefficientRate, ConversionMark, Filtered, keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """Base of all attention layers: the projections and the call of multi-head attention.

    A subclass writes `operator`. If it has a `filter`, the layer applies it to the operator. If its
    operator is a softmax of scores, it is a `SoftmaxAttention`.
    """

    filter: Filter | str | None = None
    is_square = True  # whether query and value must have the same length
    across_sequences = "Use keras.layers.MultiHeadAttention for cross-attention."
    refused: ClassVar[tuple[str, ...]] = ()  # options of multi-head attention that it lacks
    instead = "Leave it out."
    takes_mask_inputs = False  # whether its mask of factors, or its graph, comes with a call
    max_rank: ClassVar[int | None] = None  # most dimensions of an input, if there is a limit

    def __init__(self, *args: Any, flash_attention: bool | None = None, **kwargs: Any) -> None:
        if optional(flag)("flash_attention", flash_attention, {}):
            raise ValueError(
                f"{type(self).__name__} does not run on a flash attention kernel. Received: "
                f"flash_attention={flash_attention}. Leave it out."
            )
        for name in self.refused:
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{type(self).__name__} does not support `{name}`. Received: "
                    f"{name}={kwargs[name]!r}. {self.instead}"
                )
        if "bias" in kwargs:
            raise ValueError(
                f"{type(self).__name__} has no softmax of scores to add a bias to. Received: bias="
                f"{kwargs['bias']!r}. Layers with a softmax take it, such as "
                "GraphFilterAttention and PLaplacianAttention. A `mask` multiplies kernels."
            )
        if "mask" in kwargs:
            raise ValueError(
                f"{type(self).__name__} has no mask of factors. Received: mask={kwargs['mask']!r}. "
                "MaskedKernelAttention and GraphKernelAttention take it. To hide pairs of "
                "positions, call the layer with attention_mask."
            )
        # Keras takes no integers and no arrays of NumPy
        args = plain(args)
        kwargs |= {name: plain(kwargs[name]) for name in PLAIN if name in kwargs}
        positional = zip(("num_heads", "key_dim", "value_dim", "dropout"), args, strict=False)
        check_options(dict(positional) | kwargs)
        super().__init__(*args, **kwargs)
        # Keras wraps `build` in each instance, too.
        self.build = undone_if_refused(self)(self.build)  # type: ignore[method-assign]
        self._flash_attention = False

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        policies = policies_of(self)
        if policies is not None:
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return {name: value for name, value in config.items() if name not in self.refused}

    # For subclasses to write

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        """The operator A of one call."""
        raise NotImplementedError(f"{type(self).__name__} must write `operator`.")

    def attended(
        self, operator: Operator, values: Float[Tensor, "B S N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        """H(A) values if the layer has a filter, else A values."""
        if self.filter is None:
            return operator(values)
        return self.filtered(cast("Filter", self.filter), operator, values)

    def without_non_finite(
        self, *tensors: Float[Tensor, "B ..."]
    ) -> tuple[tuple[Float[Tensor, "B ..."], ...], Bool[Tensor, "B ..."] | None]:
        """The inputs, and, if asked for, which tokens held NaN or infinity and are zeros now."""
        return tensors, None

    # The call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = _names_of_call(type(self).call)
        if len(args) > len(names):
            return super().__call__(*args, **kwargs)  # raises Python's own error
        arguments = check_call(dict(zip(names, args, strict=False)) | kwargs)
        if isinstance(arguments["query"], keras.KerasTensor):
            arguments.setdefault("value")  # a call by keywords: Keras leaves masks out of the graph
        args = tuple(map(arguments.pop, names[: len(args)]))
        if self.built:
            return super().__call__(*args, **arguments)
        with undone_if_refused(self):
            return super().__call__(*args, **arguments)

    def call(
        self,
        query: Float[Tensor, "B ..."],
        value: Float[Tensor, "B ..."] | None = None,
        key: Float[Tensor, "B ..."] | None = None,
        query_mask: Num[Tensor, "B ..."] | None = None,
        value_mask: Num[Tensor, "B ..."] | None = None,
        key_mask: Num[Tensor, "B ..."] | None = None,
        attention_mask: Num[Tensor, "..."] | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        *,
        return_filter_matrix: bool = False,
        mask_inputs: dict[str, Tensor] | None = None,
        attention_bias: Float[Tensor, "..."] | None = None,
        bias_inputs: dict[str, Tensor] | None = None,
        mask: Num[Tensor, "B ..."] | None = None,
    ) -> Float[Tensor, "B ..."] | tuple[Float[Tensor, "..."], ...]:
        query_mask = query_mask if mask is None else mask
        if value is None:
            value = query
            # Keras finds `mask` for a call with one tensor, `query_mask` and `value_mask` only for
            # one with several. The form of a call must not change the outputs.
            attached = padding_of(query, mask)
            query_mask = attached if query_mask is None else query_mask
            value_mask = query_mask if value_mask is None else value_mask
        key = value if key is None else key
        self._check_shapes(query.shape, value.shape, key.shape)
        # Padding becomes zeros before anything is computed with it. So it has no influence on
        # values and gradients, even if it holds NaN or infinity.
        visible_keys, is_value = all_of(value_mask, key_mask), key is value
        if query_mask is not None:
            query = without_padding(query, query_mask)
        if visible_keys is not None:
            value = without_padding(value, visible_keys)
            key = value if is_value else without_padding(key, visible_keys)
        (query, value, key), non_finite = self.without_non_finite(query, value, key)
        axes = self._axes_of(query)
        queries, keys, window = query_mask, visible_keys, self.sliding_window
        if axes is not None:
            if attention_mask is not None:
                attention_mask = axes.joined_entries("attention_mask", attention_mask)
            is_positional = use_causal_mask or any(x is not None for x in (window, queries, keys))
            if is_positional and not axes.is_last:
                raise ValueError(
                    "Token masks, `use_causal_mask` and `sliding_window` are defined for attention "
                    "over one axis, the last before the features. Received: attention_axes="
                    f"{self.attention_axes}. Pass one `attention_mask` instead."
                )
            queries, keys = axes.joined_tokens(queries), axes.joined_tokens(keys)
        visibility = Visibility(attention_mask, queries, keys, use_causal_mask, window)
        returns_matrix = return_attention_scores or return_filter_matrix
        if returns_matrix:
            self._check_matrix()
        if attention_bias is not None or bias_inputs is not None:
            self._check_scores(attention_bias, bias_inputs)
            if axes is not None and attention_bias is not None:
                attention_bias = axes.joined_entries("attention_bias", attention_bias)
        if mask_inputs and not self.takes_mask_inputs:
            self._refuse_mask_inputs(mask_inputs)
        call = Call(
            *(visibility, training, returns_matrix, mask_inputs, non_finite),
            *(attention_bias, bias_inputs),
        )
        tokens = self._projected(query, key, value, visible_keys)
        if axes is not None:
            tokens = Tokens(tokens.inputs, *(axes.joined(x) for x in tokens[1:]))
        operator = self.operator(tokens, call)
        outputs = operator.finished(self.attended(operator, tokens.value, call))
        outputs = outputs if axes is None else axes.apart(outputs)
        outputs = self._project_out(outputs, query, operator)
        if not returns_matrix:
            return outputs
        scores = operator.matrix()  # (B, N, T, S)
        matrices = [scores] if return_attention_scores else []
        if return_filter_matrix:
            matrices.append(self.filter_matrix(scores))
        matrices = [ops.cast(matrix, self.compute_dtype) for matrix in matrices]
        if axes is not None:
            matrices = [axes.matrix_apart(matrix) for matrix in matrices]
        return (outputs, *matrices)

    def filter_matrix(self, attention_scores: Float[Tensor, "B N T T"]) -> Float[Tensor, "B N T T"]:
        """The filter's matrix H of A, if the layer has a filter of a matrix."""
        self._check_filter_matrix(self.attention_axes)
        raise NotImplementedError(f"{type(self).__name__} must write `filter_matrix`.")

    def _check_filter_matrix(self, axes: Sequence[int]) -> None:
        """Raises a `ValueError` if the layer has no filter of a matrix over these axes."""
        raise ValueError(
            f"{type(self).__name__} has no filter of its attention matrix. Received: "
            "return_filter_matrix=True. Leave it out, or use GraphFilterAttention with a `filter`."
        )

    def _projected(
        self,
        query: Float[Tensor, "B ..."],
        key: Float[Tensor, "B ..."],
        value: Float[Tensor, "B ..."],
        visible_keys: Num[Tensor, "B ..."] | None,
    ) -> Tokens:
        """Queries, keys and values of all heads, (B, ..., T, N, H) each, in one dtype.

        A `DTypePolicyMap` may give each projection its own dtype. Values are 0 in padding: a
        bias would change that.
        """
        projections = self.query_dense, self.key_dense, self.value_dense, self.output_dense
        for projection in projections:
            if projection.quantization_mode in NOT_CALIBRATED:
                refuse_calibrated(self, projection)
        queries, keys, values = projections[0](query), projections[1](key), projections[2](value)
        if visible_keys is not None:
            values = without_padding(values, visible_keys)
        return Tokens(query, *in_one_dtype(queries, keys, values))

    def _project_out(
        self,
        outputs: Float[Tensor, "B ..."],
        query: Float[Tensor, "B ..."],
        operator: Operator | None = None,
    ) -> Float[Tensor, "B ..."]:
        """The outputs of the heads, (B, ..., T, N, D), through the gate and the projection."""
        if self._use_gate:
            outputs = outputs * self._gate_dense(query)  # a gate for each entry
        return self.output_dense(outputs)

    def _dropout_in(
        self, training: bool | None
    ) -> Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]] | None:
        """The dropout of this call as a function; `None` if nothing is dropped."""
        if not (self.dropout > 0.0 and training):
            return None
        return functools.partial(self._dropout_layer, training=training)

    @property
    def num_signals(self) -> int:
        """How often A is applied: the number of signals of past tokens that decoding keeps."""
        return 1 if self.filter is None else cast("Filter", self.filter).num_applications

    @property
    def score_scale(self) -> float:
        """The factor of the scores Q K^T: 1 / sqrt(key_dim)."""
        return float(self._inverse_sqrt_key_dim)

    @property
    def sliding_window(self) -> int | None:
        """A query sees a key only if |t - s| < sliding_window; `None` if there is no window."""
        window: int | None = self._sliding_window
        return window

    # Building

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> None:
        value_shape = query_shape if value_shape is None else value_shape
        self._check_shapes(query_shape, value_shape, key_shape)
        self.add_coefficients(query_shape)
        self._build_projections(query_shape, value_shape, key_shape)
        self.add_sublayers(query_shape)
        self.built = True

    def add_coefficients(self, query_shape: Shape) -> None:
        """Makes the layer's weights besides those of its projections: the filter's, by default."""
        if isinstance(self.filter, Filter):
            self.add_filter_weights(self.filter, self.num_heads)

    def add_sublayers(self, query_shape: Shape) -> None:
        """Makes and builds the layer's sublayers besides its four projections, after these."""

    def _build_projections(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None
    ) -> None:
        super().build(query_shape, value_shape, key_shape)

    def build_around(self, source: keras.layers.MultiHeadAttention) -> None:
        """Builds the layer with the projections of a built layer of the same sizes.

        No weight is created or copied. Both layers hold the same sublayers, with the same
        variables, paths, quantisation and LoRA factors.
        """
        projections = projections_of(source)

        def adopt(query_shape: Shape, *_: Shape | None) -> None:
            for name in ("query", "key", "gate", "value", "attention_output"):
                if name in projections:
                    attribute = f"_{name.removeprefix('attention_')}_dense"
                    setattr(self, attribute, projections[name])
            self._build_attention(len(query_shape) + 1)

        with replaced_attributes([(self, "_build_projections", adopt)]):
            self.build(*input_shapes(projections))

    def _token_projection(
        self,
        name: str,
        shape: Shape,
        size: int,
        num_heads: int | None = None,
        activation: str | None = None,
    ) -> keras.Layer:
        """A built projection (B, T, d) -> (B, T, num_heads, size), with the options of Keras'."""
        projection = keras.layers.EinsumDense(
            "abc,cde->abde",
            output_shape=[None, self.num_heads if num_heads is None else num_heads, size],
            bias_axes="de" if self.use_bias else None,
            activation=activation,
            name=name,
            **self._get_common_kwargs_for_sublayer(),
        )
        projection.build(shape)
        return projection

    # Shapes

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> tuple[int | None, ...]:
        value_shape = query_shape if value_shape is None else value_shape
        shape = super().compute_output_shape(query_shape, value_shape, key_shape)
        return cast("tuple[int | None, ...]", shape)

    def compute_output_spec(
        self, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        """The outputs of `call`, for its arguments."""
        given = dict(zip(_names_of_call(AttentionLayer.call), args, strict=False)) | kwargs
        query, value, key = map(cast("Any", given.get), ("query", "value", "key"))
        value = query if value is None else value
        key = value if key is None else key
        count = sum(bool(given.get(f"return_{x}")) for x in ("attention_scores", "filter_matrix"))
        self._check_shapes(query.shape, value.shape, key.shape)
        axes = self._normalised_axes(len(query.shape))
        if count:
            self._check_matrix()
        if given.get("return_filter_matrix"):
            self._check_filter_matrix(axes)
        additions = given.get("attention_bias"), given.get("bias_inputs")
        if any(x is not None for x in additions):
            self._check_scores(*additions)
        for name in ("attention_mask", "attention_bias"):
            if len(query.shape) > 3 and given.get(name) is not None:
                AttentionAxes(axes, query.shape[:-1]).groups_of_entries(name, given[name].shape)
        if given.get("mask_inputs") and not self.takes_mask_inputs:
            self._refuse_mask_inputs(given["mask_inputs"])
        outputs = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape, key.shape), self.compute_dtype
        )
        if not count:
            return outputs
        # in Keras' layout: axes that attention does not mix, heads, query axes, key axes
        others = [size for axis, size in enumerate(query.shape[:-1]) if axis not in axes]
        targets, sources = ([x.shape[axis] for axis in axes] for x in (query, value))
        matrix = keras.KerasTensor(
            (*others, self.num_heads, *targets, *sources), self.compute_dtype
        )
        return (outputs, *[matrix] * count)

    def _visible_keys(
        self, tokens: Tokens, visibility: Visibility, fix: str
    ) -> Bool[Tensor, "B S"] | None:
        """The keys that are not padding, with an attention mask (B, 1, S) or (B, 1, 1, S)."""
        entries: Any = visibility.entries
        if not is_key_mask(entries.shape):
            raise ValueError(
                f"{type(self).__name__} has no attention matrix to mask entry by entry: "
                "`attention_mask` must have shape (B, 1, S), one mask of keys for all queries. "
                f"Received: attention_mask.shape={tuple(entries.shape)}. {fix}"
            )
        return all_of(visibility.keys, key_mask_of(entries, tokens.key))

    def _check_matrix(self) -> None:
        """Raises a `ValueError` if the layer never forms its matrix."""

    def _refuse_mask_inputs(self, mask_inputs: dict[str, Any]) -> None:
        raise ValueError(
            f"{type(self).__name__} has no mask of factors. Received: mask_inputs with "
            f"{sorted(mask_inputs)}. Leave it out. MaskedKernelAttention and GraphKernelAttention "
            "take it; a `bias` has `bias_inputs`."
        )

    def _check_scores(self, attention_bias: object, bias_inputs: object) -> None:
        """Raises a `ValueError` for additions to scores that the layer does not have."""
        for name, given in (("attention_bias", attention_bias), ("bias_inputs", bias_inputs)):
            if given is not None:
                raise ValueError(
                    f"{type(self).__name__} has no softmax of scores to add a bias to. Received: "
                    f"`{name}`. Leave it out. A `mask` of factors multiplies kernels."
                )

    def _normalised_axes(self, rank: int) -> tuple[int, ...]:
        """The attention axes as non-negative axes of an input of `rank` dimensions."""
        if self._attention_axes is None:
            return tuple(range(1, rank - 1))
        return tuple([axis % rank for axis in self._attention_axes])

    def _axes_of(self, query: Float[Tensor, "B ..."]) -> AttentionAxes | None:
        """The attention axes of an input (B, ..., d); `None` for (B, T, d) and attention over T."""
        rank = len(query.shape)
        if rank == 3 and self._attention_axes in (None, (1,), [1], (-2,), [-2]):
            return None
        return AttentionAxes(self._normalised_axes(rank), ops.shape(query)[:-1])

    def _check_shapes(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None
    ) -> None:
        name, rank = type(self).__name__, len(query_shape)
        for argument, shape in (("query", query_shape), ("value", value_shape)):
            if len(shape) < 3:
                raise ValueError(
                    f"{name} attends over a sequence: `{argument}` must have at least three "
                    "dimensions (batch, length, features). Received: "
                    f"{argument}.shape={tuple(shape)}"
                )
        if self.max_rank is not None and max(rank, len(value_shape)) > self.max_rank:
            raise ValueError(
                f"{name} attends over one axis: inputs must have shape (batch, length, features). "
                f"Received: query.shape={tuple(query_shape)}, value.shape={tuple(value_shape)}"
            )
        if self._attention_axes not in (None, (1,)):
            axes = self._attention_axes
            valid = {axis % rank for axis in axes if -rank <= axis < rank} - {rank - 1}
            if len(valid) < len(axes):
                raise ValueError(
                    "`attention_axes` must be different axes of `query`, and the last axis, that "
                    f"of features, must not be one of them. Received: attention_axes={list(axes)}, "
                    f"query.shape={tuple(query_shape)}"
                )
        ours, theirs = query_shape[1:-1], value_shape[1:-1]
        pairs = itertools.zip_longest(ours, theirs, fillvalue=-1)
        is_equal = ours == theirs or all(t == s or None in (t, s) for t, s in pairs)
        if self.is_square and not is_equal:
            self._refuse_lengths(query_shape[:-1], value_shape[:-1])

    def _refuse_lengths(self, query_shape: Shape, value_shape: Shape) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} attends within one sequence here: query and value must have "
            f"the same length. Received: query of length {tuple(query_shape[1:])}, value of "
            f"length {tuple(value_shape[1:])}. {self.across_sequences}"
        )


def projections_of(attention: keras.layers.MultiHeadAttention) -> dict[str, keras.Layer]:
    """The projections of a built multi-head attention layer, by the names of its weights."""
    projections = {
        "query": attention.query_dense,
        "key": attention.key_dense,
        "value": attention.value_dense,
        "attention_output": attention.output_dense,
    }
    if attention._use_gate:
        projections["gate"] = attention._gate_dense
    return projections


def input_shapes(projections: dict[str, keras.Layer]) -> list[tuple[int | None, ...]]:
    """The shapes of query, value and key for which the projections were built.

    They do not come from kernels: a projection quantised with GPTQ or AWQ may have none.
    """
    configs = [projections[name].get_build_config() for name in ("query", "value", "key")]
    shapes = [config["input_shape"] for config in configs]
    return [(*[None] * (len(shape) - 1), shape[-1]) for shape in shapes]


def padding_of(
    tokens: Float[Tensor, "B ..."], mask: Num[Tensor, "B ..."] | None
) -> Num[Tensor, "B ..."] | None:
    """The mask given for tokens (B, ..., T, d), or else the one that Keras has attached."""
    return keras_mask_of(tokens) if mask is None else mask


class Vectors(keras.layers.Layer):  # type: ignore[misc]
    """Two learned tensors of one shape, a part of an attention layer: `query` and `key`.

    They learn as fast as projections. `options` are those of a projection's kernel.
    """

    def __init__(self, name: str, shape: Shape, **options: Any) -> None:
        super().__init__(name=name, dtype=options["dtype"])
        self._shape = shape
        parts = ("initializer", "regularizer", "constraint")
        self._options = {part: options.get(f"kernel_{part}") for part in parts}

    def build(self, _: Shape | None = None) -> None:
        self.query = self.add_weight(name="query", shape=self._shape, **self._options)
        self.key = self.add_weight(name="key", shape=self._shape, **self._options)
        self.built = True


def inputs_of(source: PairMatrix, tokens: Float[Tensor, "B T d"], call: Call) -> dict[str, Tensor]:
    """The tensors of a call for a mask or bias, with those that it reads from the tokens."""
    kind = source.kind
    inputs = dict((call.bias_inputs if kind == "bias" else call.mask_inputs) or {})
    if not source.reads_tokens:
        return inputs
    entries, queries, keys, _, _ = call.visibility
    if entries is not None and not is_key_mask(entries.shape):
        raise ValueError(
            f"The {kind} {type(source).__name__} has gates for tokens, which would count where an "
            "`attention_mask` of pairs hides their tokens. Received: attention_mask.shape="
            f"{tuple(entries.shape)}. Use `query_mask` and `value_mask`, or a mask of keys of "
            "shape (B, 1, T)."
        )
    if entries is not None:
        keys = all_of(keys, key_mask_of(entries, tokens))
    read = source.inputs_of_tokens(tokens, all_of(queries, keys))
    twice = sorted(set(read) & set(inputs))
    if twice:
        raise ValueError(
            f"The layer computes {sorted(read)} from its tokens. Received: {kind}_inputs with "
            f"{twice}. Leave them out."
        )
    return inputs | read


def finite_tokens(
    *tensors: Float[Tensor, "B ..."],
) -> tuple[tuple[Float[Tensor, "B ..."], ...], Bool[Tensor, "B ..."]]:
    """The inputs with zeros for tokens that hold NaN or infinity, and which tokens these are.

    A token that does so in one input is zero in all of them.
    """
    distinct = {id(x): x for x in tensors}
    finite: Any = None
    for x in distinct.values():
        finite = all_of(finite, ops.all(ops.isfinite(x), axis=-1, keepdims=True))  # (B, T, 1)
    clean = {key: ops.where(finite, x, ops.cast(0.0, x.dtype)) for key, x in distinct.items()}
    return tuple([clean[id(x)] for x in tensors]), ops.logical_not(finite[..., 0])


def is_key_mask(shape: Shape) -> bool:
    """Whether the shape is (B, 1, S) or (B, 1, 1, S)."""
    return len(shape) in (3, 4) and all(size == 1 for size in shape[1:-1])


def key_mask_of(
    entries: Num[Tensor, "..."], tokens: Float[Tensor, "B S ..."]
) -> Num[Tensor, "B S"]:
    """An attention mask of keys, (B, 1, S) or (B, 1, 1, S), as (B, S); B may be 1 for all."""
    keys = ops.reshape(entries, (ops.shape(entries)[0], ops.shape(entries)[-1]))
    return ops.broadcast_to(keys, ops.shape(tokens)[:2])


def optional_filter(
    filter: str | Filter | dict[str, Any] | None,
    num_heads: int,
    order: int | None,
    dropout_on: str | None = None,
) -> Filter | None:
    """The filter for the arguments of a layer that may have none."""
    if filter is not None:
        chosen = get_filter(filter, order)
        chosen.coefficients(num_heads)  # refuses start values for another number of heads
        return chosen
    for name, value in (("order", order), ("dropout_on", dropout_on)):
        if value is not None:
            raise ValueError(
                f"`{name}` is an option of a filter. Received: filter=None, {name}={value!r}. Set "
                f"`filter`, or leave out `{name}`."
            )
    return None


class SoftmaxAttention(AttentionLayer):
    """Base of the layers with a softmax of scores: a bias may be added to them."""

    bias: Bias | None

    def __init__(self, *args: Any, bias: Any = None, **kwargs: Any) -> None:
        chosen = None if bias is None else biases.get(bias)
        super().__init__(*args, **kwargs)
        if chosen is not None and self._attention_axes not in (None, (1,), [1]):
            raise ValueError(
                "A `bias` is defined for attention over one axis. Received: attention_axes="
                f"{self.attention_axes}. Give the call an `attention_bias` instead."
            )
        self.bias = chosen
        self._share_multiplier()

    def add_coefficients(self, query_shape: Shape) -> None:
        super().add_coefficients(query_shape)
        if self.bias is not None and len(query_shape) > 3:
            raise ValueError(
                "A `bias` is defined for attention over one axis. Received: query.shape="
                f"{tuple(query_shape)}. Give the call an `attention_bias` instead."
            )
        if self.bias is not None:
            shape = (*query_shape[:2], self.num_heads, self.value_dim)
            self.bias.build_in(self, shape, tuple(query_shape))

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        """The softmax of the scores, formed once."""
        _, query, key, _ = tokens
        return SoftmaxOperator(
            scores_of(query, key, self.score_scale),
            call.visibility.joined(ops.shape(key)[1]),
            dtype=query.dtype,
            logits=self.logits(tokens, call),
            dropout=self._dropout_in(call.training),
            overwrite=True,
        )

    def logits(
        self, tokens: Tokens, call: Call, earlier: dict[str, Tensor] | None = None
    ) -> Logits | None:
        """What becomes of the scores of one call; `None` if they stay.

        `earlier` has what the bias has read from all tokens of a cache, these tokens included.
        """
        if self.bias is None and call.attention_bias is None:
            return None
        source = None
        if self.bias is not None:
            batch, length = ops.shape(tokens.key)[:2]
            known = {"B": (batch, "query"), "T": (length, "query")}
            sizes = {letter: one for letter, one in known.items() if isinstance(one[0], int)}
            inputs = earlier or inputs_of(self.bias, tokens.inputs, call)
            parameters, tensors, wrong, _ = self.bias.of_call(inputs, sizes, length)
            source = PairRows(self.bias, parameters, tensors, wrong)
        given = call.attention_bias
        matrix = None if given is None else four_dimensional(at_least_float32(given))
        hides_keys = matrix is not None or (self.bias is not None and self.bias.hides_keys)
        return Logits(bias=matrix, source=source, hides_keys=hides_keys)

    def _check_scores(self, attention_bias: object, bias_inputs: object) -> None:
        if bias_inputs is not None and self.bias is None:
            raise ValueError(
                "`bias_inputs` are for a bias, and this layer has none. Received: bias_inputs with "
                f"{sorted(cast('dict[str, object]', bias_inputs))}. Set `bias`."
            )

    def get_config(self) -> dict[str, Any]:
        bias = keras.saving.serialize_keras_object(self.bias)
        return {**super().get_config(), "bias": bias}


class SelfAttention(SoftmaxAttention):
    """Base of `GraphFilterAttention` and `PLaplacianAttention`: paths, groups of heads, decoding.

    A path changes memory and speed only, not the numbers: "dense" forms the attention matrix,
    "blockwise" forms it for a block of query rows at a time, and "fused" uses the backend's kernel.
    A subclass writes `operator` and `operator_of_rows`.
    """

    paths: ClassVar[tuple[str, ...]] = ("dense", "blockwise")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        attention_path: str | None = "dense",
        block_size: int = 512,
        num_key_value_heads: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        optional(one_of(*self.paths))("attention_path", attention_path, {})
        if attention_path not in (None, "dense") and self.dropout > 0.0:
            raise ValueError(
                "Dropout drops entries of the attention matrix, which only "
                f'attention_path="dense" forms. Received: attention_path={attention_path!r}, '
                f'dropout={self.dropout}. Use attention_path="dense", or dropout=0.0.'
            )
        groups = num_key_value_heads
        if groups is not None and not (is_whole(groups) and groups > 0 and num_heads % groups == 0):
            raise ValueError(
                "`num_key_value_heads` must be a positive integer that divides `num_heads`. "
                f"Received: num_heads={num_heads}, num_key_value_heads={groups!r}"
            )
        self.attention_path = attention_path
        self.block_size = whole()("block_size", block_size, {})
        self.num_key_value_heads = None if groups is None else int(groups)

    def operator_of_rows(
        self,
        tokens: Tokens,
        visible: Bool[Tensor, "B 1 t L"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        logits: Logits | None = None,
    ) -> CachedOperator:
        """The rows of A for new tokens. The keys of `tokens` are all in the cache, (B, L, N, H).

        The rows of `logits` are those of the new tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} must write `operator_of_rows`.")

    @property
    def projected_heads(self) -> tuple[int, int, int]:
        """The numbers of heads that the projections of queries, keys and values make."""
        groups = self.num_key_value_heads or self.num_heads
        return self.num_heads, groups, groups

    def _build_projections(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None
    ) -> None:
        queries, keys, values = self.projected_heads
        if queries == keys == values:
            super()._build_projections(query_shape, value_shape, key_shape)
            return
        # as Keras does, but with other numbers of heads
        self.compute_output_shape(query_shape, value_shape, key_shape)  # Keras checks the shapes
        key_shape = value_shape if key_shape is None else key_shape
        make, size = self._token_projection, self.value_dim
        self._query_dense = make("query", query_shape, self.key_dim, queries)
        self._key_dense = make("key", key_shape, self.key_dim, keys)
        if self._use_gate:
            self._gate_dense = make("gate", query_shape, size, None, "sigmoid")
        self._value_dense = make("value", value_shape, size, values)
        self._build_attention(len(query_shape) + 1)
        self._output_dense = self._make_output_dense(
            query_shape, self._get_common_kwargs_for_sublayer(), "attention_output"
        )
        self._output_dense.build((None, None, self.num_heads, self.value_dim))  # (B, T, N, D)

    def _projected(
        self,
        query: Float[Tensor, "B ..."],
        key: Float[Tensor, "B ..."],
        value: Float[Tensor, "B ..."],
        visible_keys: Num[Tensor, "B ..."] | None,
    ) -> Tokens:
        tokens = super()._projected(query, key, value, visible_keys)
        if self.num_key_value_heads is None:
            return tokens
        key, value = self._in_all_heads(tokens.key), self._in_all_heads(tokens.value)
        return tokens._replace(key=key, value=value)

    def _in_all_heads(self, x: Float[Tensor, "B S _ H"]) -> Float[Tensor, "B S N H"]:
        """Keys or values with `num_key_value_heads` heads, repeated to `num_heads` heads."""
        if self.num_key_value_heads is None:
            return x
        return ops.repeat(x, self.num_heads // self.num_key_value_heads, axis=2)

    def _check_matrix(self) -> None:
        if self.attention_path not in (None, "dense"):
            raise ValueError(
                f"The {self.attention_path} path never forms the attention matrix and cannot "
                "return scores or a filter matrix. Received: return_attention_scores=True or "
                f"return_filter_matrix=True in a {type(self).__name__} with attention_path="
                f'{self.attention_path!r}. Use attention_path="dense".'
            )

    @checked(batch_size=size(0), max_length=whole(0))
    def get_initial_cache(self, batch_size: int, max_length: int) -> Cache:
        """An empty cache for `decode`, of a fixed size.

        Args:
            batch_size: Number of sequences.
            max_length: Number of tokens that the cache can hold, with the prompt.

        Returns:
            A dictionary of tensors: `key` of shape (batch_size, max_length, heads, key_dim);
            `signals` of shape (batch_size, signals, max_length, num_heads, value_dim): the
            values, and all further signals to which a filter applies A; `padding_mask` of shape
            (batch_size, max_length).
        """
        if self._normalised_axes(3) != (1,):
            raise ValueError(
                "`decode` takes tokens along axis 1. Received: a layer with attention_axes="
                f"{self.attention_axes}. Leave `attention_axes` out."
            )
        heads = self.projected_heads[1]
        signals = (batch_size, self.num_signals, max_length, self.num_heads, self.value_dim)
        return {
            "key": ops.zeros((batch_size, max_length, heads, self.key_dim), self.compute_dtype),
            "signals": ops.zeros(signals, self.compute_dtype),
            "padding_mask": ops.zeros((batch_size, max_length), "bool"),
            **self._empty_inputs(batch_size, max_length),
        }

    def _empty_inputs(self, batch_size: int, max_length: int) -> Cache:
        """What the bias reads from tokens, for a cache without tokens."""
        if self.bias is None or not self.bias.reads_tokens:
            return {}
        return self.bias.empty_inputs(batch_size, max_length, self.num_heads)

    def decode(
        self,
        tokens: Float[Tensor, "B t _"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        padding_mask: Bool[Tensor, "B t"] | None = None,
        *,
        attention_bias: Float[Tensor, "..."] | None = None,
        bias_inputs: dict[str, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "B t _"], Cache]:
        """Causal self-attention of new tokens over all tokens so far.

        The outputs equal the rows of the new tokens in a full pass with `use_causal_mask=True`. A
        new token costs O(max_length) instead of O(max_length^2).

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            cache: The cache that `get_initial_cache` or the previous step returned.
            index: Position of the first new token, an integer or a scalar tensor. From there on,
                the contents of the cache are overwritten or not used.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on
                either side, which no later token sees. By default the tokens' Keras mask.
            attention_bias: Optional numbers that are added to the scores of the new tokens, of
                shape (t, L), (B, t, L) or (B, num_heads, t, L), L the length of the cache.
            bias_inputs: Dictionary of the tensors that the layer's bias needs, for L tokens.

        Returns:
            The outputs, of shape (B, t, d), and the new cache.

        Raises:
            ValueError: If the tokens do not fit in the cache. Compiled code cannot raise it if
                `index` is a tensor: there, the outputs of such tokens are NaN.

        Example:

        >>> from keras_graphattn.layers import GraphFilterAttention
        >>> layer = GraphFilterAttention(num_heads=2, key_dim=8)
        >>> prompt = keras.random.normal((1, 10, 16))
        >>> cache = layer.get_initial_cache(batch_size=1, max_length=64)
        >>> outputs, cache = layer.decode(prompt, cache, 0)
        >>> next_token = keras.random.normal((1, 1, 16))
        >>> outputs, cache = layer.decode(next_token, cache, 10)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        sizes: Sizes = {}
        tokens = floats("B t d")("tokens", tokens, sizes)
        cache, index = a_cache("cache", cache, sizes), position("index", index, sizes)
        padding_mask = optional(mask_of("B t"))("padding_mask", padding_mask, sizes)
        attention_bias = optional(a_bias("t", "L"))("attention_bias", attention_bias, sizes)
        optional(tensors_by_name)("bias_inputs", bias_inputs, sizes)
        self._check_scores(attention_bias, bias_inputs)
        if not self.built:
            self.build(tokens.shape)
        padding_mask = padding_of(tokens, padding_mask)
        tokens = without_padding(tokens, padding_mask)
        count, length = ops.shape(tokens)[1], cache["key"].shape[1]
        is_known = isinstance(index, int) and isinstance(count, int)
        if is_known and not 0 <= index <= length - count:
            raise ValueError(
                f"The cache holds {length} tokens. Received: {count} tokens at index={index}. "
                "Make it longer with `get_initial_cache(batch_size, max_length)`."
            )
        if padding_mask is None:
            padding_mask = ops.ones((ops.shape(tokens)[0], count), "bool")
        padding_mask = ops.cast(padding_mask, "bool")
        # the cache's keys (B, L, N, H) with those of the new tokens
        keys = ops.cast(self.key_dense(tokens), cache["key"].dtype)
        keys = ops.slice_update(cache["key"], (0, index, 0, 0), keys)
        past = updated_booleans(cache["padding_mask"], padding_mask, index)
        rows = index + positions_of(count)
        columns = positions_of(length)
        visibility = Visibility(None, padding_mask, past, True, self.sliding_window)
        values = self._in_all_heads(self.value_dense(tokens))
        queries = ops.cast(self.query_dense(tokens), keys.dtype)
        call = Call(visibility, attention_bias=attention_bias, bias_inputs=bias_inputs)
        projected = Tokens(tokens, queries, self._in_all_heads(keys), values)
        read: Cache = {}  # what the bias reads from all tokens so far
        if self.bias is not None and self.bias.reads_tokens:
            alone = Call(Visibility(queries=padding_mask), bias_inputs=bias_inputs)
            inputs = inputs_of(self.bias, tokens, alone)
            for name in self._empty_inputs(1, 1):
                start = (0, index, *[0] * (len(inputs[name].shape) - 2))
                new = ops.cast(inputs[name], cache[name].dtype)
                read[name] = ops.slice_update(cache[name], start, new)
        logits = self.logits(projected, call, {**(bias_inputs or {}), **read})
        operator = self.operator_of_rows(
            projected,
            visibility.block(rows, columns),
            cache,
            index,
            None if logits is None else logits.formed(length, rows),
        )
        outputs = operator.finished(self.attended(operator, values, call))  # (B, t, N, D)
        outputs = self._project_out(outputs, tokens)
        if not isinstance(index, int):  # only known at run time
            fits = ops.logical_and(index >= 0, index <= ops.cast(length - count, index.dtype))
            outputs = ops.where(fits, outputs, ops.cast(float("nan"), outputs.dtype))
        return outputs, {"key": keys, "signals": operator.signals, "padding_mask": past, **read}

    def _check_shapes(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None
    ) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        if len(query_shape) != 3 and not (
            self.attention_path == "dense" and self.num_key_value_heads is None
        ):
            raise ValueError(
                'An attention_path other than "dense", and `num_key_value_heads`, need inputs of '
                f"shape (batch, length, features). Received: query.shape={tuple(query_shape)}, "
                f"attention_path={self.attention_path!r}, "
                f"num_key_value_heads={self.num_key_value_heads}"
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "attention_path": self.attention_path,
            "block_size": self.block_size,
            "num_key_value_heads": self.num_key_value_heads,
        }


def a_cache(name: str, value: object, sizes: Sizes) -> Cache:
    """The rule of a cache: a dictionary made by `get_initial_cache`."""
    shapes = {"key": "B L K H", "signals": "B _ L N D", "padding_mask": "B L"}
    if not isinstance(value, dict) or not set(shapes) <= set(value):
        raise ValueError(
            f"`{name}` must be a dictionary with {list(shapes)}, made by `get_initial_cache`. "
            f"Received: {name}={value!r}"
        )
    for part, shape in shapes.items():
        check_shape(f"{name}[{part!r}]", value[part], (shape,), sizes)
    return value


def a_bias(rows: str, columns: str) -> Rule:
    """The rule of numbers that are added to the scores of rows and columns."""
    pair = f"{rows}? {columns}?"
    return a_bias_of(pair, f"B? {pair}", f"B? N? {pair}")


def a_bias_of(*shapes: str) -> Rule:
    """The rule of numbers of one of the shapes that are added to scores."""

    def check(name: str, value: object, sizes: Sizes) -> Tensor:
        if "bool" in str(getattr(value, "dtype", "")):
            raise ValueError(
                f"`{name}` must be numbers that are added to the scores. Received: booleans. Hide "
                "pairs of positions with `attention_mask`."
            )
        return tensor(*shapes)(name, value, sizes)

    return check


def position(name: str, value: object, sizes: Sizes) -> int | Int[Tensor, ""]:
    """The rule of a position in a cache: an integer of at least 0, or a scalar tensor.

    A tensor whose value is known becomes an integer.
    """
    if is_whole(value) or isinstance(value, (bool, float)) or not hasattr(value, "shape"):
        return whole(0)(name, value, sizes)
    scalar, array = integers("")(name, value, sizes), known_value(value)
    return scalar if array is None else whole(0)(name, int(array), sizes)


# Checks of options and calls

MASK_SHAPES = {
    "mask": ("B T",),
    "query_mask": ("B T",),
    "value_mask": ("B S",),
    "key_mask": ("B S",),
    "attention_mask": ("T? S?", "B? T? S?", "B? N? T? S?"),
}
SIZES = ("num_heads", "key_dim", "value_dim")
PLAIN = (  # options that are numbers, booleans or lists of integers
    *(*SIZES, "output_shape", "attention_axes", "sliding_window", "seed"),
    *("dropout", "use_bias", "use_gate"),
)
FLAGS = ("return_attention_scores", "return_filter_matrix", "use_causal_mask")
OF_PROJECTIONS = (
    *("kernel_initializer", "kernel_regularizer", "kernel_constraint", "activity_regularizer"),
    *("bias_initializer", "bias_regularizer", "bias_constraint"),
)


@cached
def _names_of_call(call: Callable[..., Any]) -> list[str]:
    """The names of the positional parameters of a method, without `self`."""
    parameters = list(inspect.signature(call).parameters.values())[1:]
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def check_call(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call as tensors, checked one by one and against each other.

    Raises:
        ValueError: For tokens of integers, for sizes that do not fit each other, and for invalid
            masks and flags.
        TypeError: For an argument that must be a tensor but is not.
    """
    checked_arguments, sizes = dict(arguments), cast("Sizes", {})  # letters B, T, S and N
    for name in ("query", "value", "key"):
        if arguments.get(name) is None and name != "query":
            continue
        checked_arguments[name] = x = as_tensor(name, arguments.get(name), "float")
        own = "B T" if name == "query" or arguments.get("value") is None else "B S"
        # query, value and key may differ in length and features, not in rank
        rank = len(checked_arguments["query"].shape)
        axes = " ".join("UVWXYZ"[: rank - 3]) if rank > 3 else ""  # further ones of the query
        rest = "_ " * (rank - 2)
        if name == "query":
            rest = f"{axes} _" if rank > 2 else "..."
        try:
            check_shape(name, x, (f"{own} {rest}",), sizes)
        except ValueError as error:
            same = "All dimensions of `value` and `key`, except the last one, must be equal. "
            raise ValueError(f"{same if name == 'key' else ''}{error}") from None
    if arguments.get("value") is None and "T" in sizes:
        sizes["S"] = sizes["T"]
    if arguments.get("mask") is not None and arguments.get("query_mask") is not None:
        raise ValueError(
            "`mask` and `query_mask` are two names of one mask. Received: both. Leave one of them "
            "out."
        )
    # with a cache, there are more keys than in the call
    is_sequence = len(checked_arguments["query"].shape) == 3 and arguments.get("cache") is None
    for name, shapes in MASK_SHAPES.items():
        if arguments.get(name) is not None:
            checked_arguments[name] = x = as_tensor(name, arguments[name], "boolean")
            if is_sequence:
                check_shape(name, x, shapes, sizes)
            elif rank > 3 and (name.endswith("query_mask") or name == "mask"):
                check_shape(name, x, (f"B T {axes}",), sizes)
    if arguments.get("attention_bias") is not None:
        given = arguments["attention_bias"]
        rule = a_bias("T", "S") if is_sequence else a_bias_of()
        checked_arguments["attention_bias"] = rule("attention_bias", given, sizes)
    for name in ("mask_inputs", "bias_inputs"):
        if arguments.get(name) is not None:
            tensors_by_name(name, arguments[name], sizes)
    for name in FLAGS:
        if name in arguments:
            checked_arguments[name] = switch(name, arguments[name])
    return checked_arguments


def tensors_by_name(name: str, value: object, sizes: Sizes) -> object:
    """The rule of `mask_inputs` and `bias_inputs`: a dictionary."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"`{name}` must be a dictionary from the names of tensors to tensors, such as "
            f'{name}={{"<name>": tensor}}. Received: {name} of type {type(value).__name__}'
        )
    return value


def check_options(options: dict[str, Any]) -> None:
    """Raises a `ValueError` for the first invalid option of `keras.layers.MultiHeadAttention`."""
    window = options.get("sliding_window")
    if window is not None and not (is_whole(window) and 0 < window < 2**31):
        raise ValueError(
            "`sliding_window` must be `None` or a positive integer. Received: "
            f"sliding_window={window!r}"
        )
    axes = options.get("attention_axes")
    listed = axes if is_list(axes) else [axes]
    if axes is not None and not (
        listed and all(is_whole(axis) and -(2**31) < axis < 2**31 for axis in listed)
    ):
        raise ValueError(
            "`attention_axes` must be an int, list, or tuple of at least one axis. Received: "
            f"attention_axes={axes!r}"
        )
    for name in SIZES:
        if name in options and (options[name] is not None or name != "value_dim"):
            whole()(name, options[name], {})
    if "dropout" in options:
        number(least=0.0, below=1.0)("dropout", options["dropout"], {})
    check_dtype_policy(options.get("dtype"))
    for name in ("use_bias", "use_gate"):
        if name in options:
            flag(name, options[name])
    optional(whole(0))("seed", options.get("seed"), {})
    shape = options.get("output_shape")
    if shape is not None and not (is_list(shape) or is_whole(shape)):
        raise ValueError(
            f"Invalid `output_shape`: {shape!r}. When specified, the `output_shape` should be of "
            "type tuple, list, or int."
        )
    if shape is not None:
        for part in shape if is_list(shape) and len(shape) else [shape]:
            whole()("output_shape", part, {})
    for name in OF_PROJECTIONS:
        value, kind = options.get(name), name.partition("_")[2]
        # `None` is valid for a regularizer or a constraint, but not for an initializer
        if value is None and (name not in options or not name.endswith("initializer")):
            continue
        if value is None:
            raise ValueError(f"`{name}` must be an initializer. Received: {name}=None")
        try:
            getattr(keras, f"{kind}s").get(value)
        except Exception as error:
            raise ValueError(
                f"`{name}` cannot be used. Received: {name}={value!r}. The cause: {error}"
            ) from error


class _Built(NamedTuple):
    """A layer, whether it was built, and the objects that Keras tracked in it."""

    layer: keras.Layer
    built: bool
    tracked: dict[str, list[object]]

    @classmethod
    def of(cls, layer: keras.Layer) -> "_Built":
        stores = layer._tracker.config.items()
        return cls(layer, layer.built, {name: list(store) for name, (_, store) in stores})

    def restore(self) -> None:
        """Removes variables and sublayers that the layer did not have before."""
        layer = self.layer
        layer._tracker.unlock()
        new: dict[int, object] = {}
        for name, (_, store) in layer._tracker.config.items():
            before = {id(value) for value in self.tracked[name]}
            new.update({id(value): value for value in store if id(value) not in before})
        on_torch = vars(layer).get("_modules", {})  # sublayers are there on torch
        for name, value in [*vars(layer).items(), *on_torch.items()]:
            if id(value) in new:
                delattr(layer, name)
        for value in new.values():
            if isinstance(value, keras.Variable):
                layer._untrack_variable(value)  # torch forgets it as well
            else:
                layer._tracker.untrack(value)
        layer.built = self.built


@contextmanager
def undone_if_refused(layer: keras.Layer) -> Iterator[None]:
    """If the body raises, undoes the build of a layer and of the layers in it.

    Otherwise weights that were made before the error would stay, and the next call would make a
    second set of them. A built layer stays as it is.
    """
    if layer.built:
        yield
        return
    states = [_Built.of(inner) for inner in layer._flatten_layers()]
    try:
        yield
    except Exception:
        for state in states:
            if not state.built:
                state.restore()
        raise
