"""`inspect_smoothing`: what each attention layer of a model does to its tokens.

A model runs over the data with hooks around its layers. The hooks see the tokens at three places of
each attention layer, and `reading` reads its operators. Figures are computed at once.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.analysis.smoothing import measures
from keras_graphattn.analysis.smoothing.measures import token_similarity
from keras_graphattn.analysis.smoothing.reading import (
    NotReadable,
    Operators,
    read_operators,
    to_numpy,
)
from keras_graphattn.analysis.smoothing.report import (
    HeadMeasures,
    LayerReport,
    SmoothingReport,
    TokenMeasures,
)
from keras_graphattn.checks import Array, checked, whole
from keras_graphattn.keras_internals import (
    keras_mask_of,
    replaced_attributes,
    walk,
    without_rematerialisation,
)
from keras_graphattn.types import Bool, Float, Num, Tensor

STOCK = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
TOKEN_MASKS = ("query_mask", "value_mask", "key_mask", "padding_mask", "mask")
Inputs = Num[Tensor, "..."] | Mapping[str, Tensor] | Sequence[Tensor]  # of a batch
Data = Inputs | Iterable[object]


@checked(batch_size=whole(), max_sequences=whole(), max_tokens=whole())
def inspect_smoothing(
    model: keras.Layer,
    data: Data,
    *,
    batch_size: int = 32,
    max_sequences: int = 8,
    max_tokens: int = 512,
) -> SmoothingReport:
    """Measures oversmoothing in a model: what each attention layer does to the tokens.

    The model may be any Keras or KerasHub model. It runs once over the data, not compiled, with
    `training=False`. Hooks around its layers see what goes in and out. They are removed after each
    batch, also after an error, and the model does not change.

    For each attention layer, the report has the similarity of the tokens, their constant component
    and their effective rank, at three places: before the attention, after it (before any residual
    connection), and after its block. The block is the largest layer around this attention only,
    such as a `TransformerEncoder`. If no such layer has outputs of the tokens' shape, the block
    ends at the input of the next attention layer with tokens of this shape. The last block then
    ends at the model's output, if it has this shape, or at the last tokens of this shape that went
    into a layer or came out of one.

    For each head, it has the attention matrix A, the operator H that the layer applies to its
    values, and their response to the frequencies of the Fourier basis. No layer has to form a
    matrix: H is read by probing, which applies the layer to unit signals. The report has it only if
    H times the layer's values is what the layer has computed from them, and if no token sees
    padding. Else it says why not. Padding, by the mask that the layers get, is left out.

    Memory does not grow with the number of batches.

    Args:
        model: A `keras.Model`, or a layer that contains attention layers.
        data: Inputs of the model, as arrays (or a dictionary or list of them); a tuple of inputs
            and targets; or an iterable of batches, such as a `keras.utils.PyDataset` or a
            `tf.data.Dataset`, with or without targets. Inputs of KerasHub tasks must be
            preprocessed.
        batch_size: Number of sequences in a batch, for arrays.
        max_sequences: Number of sequences, the first of the data, whose operators and ranks are
            measured, which takes more time. All else uses all sequences. At least 1.
        max_tokens: Operators of longer sequences are not measured.

    Returns:
        A `SmoothingReport`.

    Raises:
        ValueError: For a model without attention layers, data without a batch, inputs that are
            text, and arguments out of their ranges.

    Example:

    >>> inputs = keras.Input((6, 8))
    >>> outputs = keras.layers.LayerNormalization()(GraphFilterAttention(2, 4)(inputs))
    >>> model = keras.Model(inputs, outputs)
    >>> report = inspect_smoothing(model, np.random.default_rng(0).normal(size=(3, 6, 8)))
    >>> layer = report.layers[0]
    >>> layer.kind, layer.heads.operator_fourier.shape, 0.0 < layer.block.dc_share < 1.0
    ('GraphFilterAttention', (2, 4), True)

    Source: the figures are those of Choi et al., arXiv 2312.04234, and Wang et al., arXiv
    2203.05962; `keras_graphattn.analysis.smoothing.measures` has each formula with its source.
    """
    if not isinstance(model, keras.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    check_data(data)
    layers: list[keras.Layer] = []
    figures: dict[str, LayerFigures] = {}
    not_measured: dict[str, str] = {}
    sequences = sampled = 0
    for inputs in _batches(data, batch_size):
        size = len(keras.tree.flatten(inputs)[0])
        count = min(size, max_sequences - sampled)
        layers = layers or attention_layers(model, inputs)
        this_pass = Pass(model, layers, count, max_tokens)
        this_pass.run(inputs)
        not_measured |= this_pass.not_measured
        for call in this_pass.calls:
            figures.setdefault(call.path, LayerFigures(call)).add(call, count)
        sequences, sampled = sequences + size, sampled + count
    if not sequences:
        raise ValueError("`data` must have at least one batch. Received none.")
    reports = [one.report(path) for path, one in figures.items()]
    return SmoothingReport(model.name, reports, not_measured, sequences, sampled)


def attention_layers(model: keras.Layer, inputs: Inputs) -> list[keras.Layer]:
    """The attention layers in a model, without those that contain other attention layers.

    These are Keras' and KerasHub's multi-head and grouped attention, the layers of this package,
    converted layers, and all layers with "Attention" in the name of their class.
    """
    if not model.built:
        model(inputs, training=False)  # makes the layers in which attention is looked for

    def attends(layer: keras.Layer) -> bool:
        name = type(layer).__name__
        is_named = "Attention" in name and "AttentionMask" not in name
        return (isinstance(layer, STOCK) or is_named) and not isinstance(layer, keras.Model)

    layers = [
        layer
        for layer in walk(model)
        if attends(layer) and not any(attends(x) for x in walk(layer) if x is not layer)
    ]
    if not layers:
        raise ValueError(
            f"`model` has no attention layers that Keras tracks. Received: model='{model.name}' "
            f"({type(model).__name__}). Layers must be attributes of a model or a layer, and the "
            'names of their own classes must contain "Attention" if they are not derived from '
            "keras.layers.MultiHeadAttention."
        )
    return layers


@dataclass
class Call:
    """One call of an attention layer in a pass."""

    layer: keras.Layer
    path: str  # with a number at its end if it is not the first call
    before: Float[Tensor, "B T d"]  # the tokens that it got
    valid: Bool[Array, "B T"]  # which tokens are not padding
    after: Float[Tensor, "B T _"] | None = None
    block: Float[Tensor, "B T d"] | None = None  # the tokens after its block
    operators: Operators | str | None = None  # of its first sequences, or why they are not read

    def has_shape_of(self, x: Tensor) -> bool:
        """Whether a tensor has the shape of the tokens."""
        return tuple(getattr(x, "shape", ())) == tuple(self.before.shape)


class Pass:
    """One pass of a built model with hooks around its layers, which are removed after it.

    Operators are read from the first `sequences` of the batch, if they have `max_tokens` at most.
    """

    def __init__(
        self, model: keras.Layer, layers: list[keras.Layer], sequences: int, max_tokens: int
    ) -> None:
        self.model, self.layers = model, layers
        self.sequences, self.max_tokens = sequences, max_tokens
        self.calls: list[Call] = []  # of attention layers, in their order
        self.not_measured: dict[str, str] = {}  # attention layers without tokens: why, by path
        self._around: list[list[Call]] = []  # for each other layer under way: the calls within
        # the last tokens with the shape of the last call's tokens
        self._last: Float[Tensor, "B T d"] | None = None

    def run(self, inputs: Inputs) -> None:
        """Runs the model on one batch of its inputs."""
        gradients: AbstractContextManager[object] = nullcontext()
        if keras.backend.backend() == "torch":
            import torch

            gradients = torch.no_grad()
        with gradients, replaced_attributes(self._hooks()):
            self._seen(self.model(inputs, training=False))
        if self.calls and self.calls[-1].block is None:
            self.calls[-1].block = self._last

    def _hooks(self) -> Iterator[tuple[object, str, object]]:
        attending = {id(layer) for layer in self.layers}
        parts = {id(part) for layer in self.layers for part in walk(layer)}
        for layer in walk(self.model):
            yield from without_rematerialisation(layer)
            if id(layer) in attending:
                yield layer, "call", functools.partial(self._attend, layer, layer.call)
            elif id(layer) not in parts and layer is not self.model:
                yield layer, "call", functools.partial(self._other, layer.call)

    def _attend(
        self, layer: keras.Layer, call: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        """A call of an attention layer."""
        arguments = inspect.signature(call).bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        tokens: Any = next(iter(arguments.values()), None)
        path = layer.path or layer.name
        if len(getattr(tokens, "shape", ())) != 3:
            reason = f"{type(layer).__name__} got no tokens of the shape (B, T, d)"
            self.not_measured[path] = reason
            return call(*args, **kwargs)
        number = 1 + sum((x.layer.path or x.layer.name) == path for x in self.calls)
        path = path if number == 1 else f"{path} ({number})"
        current = Call(layer, path, tokens, _valid_tokens(arguments, tokens))
        for other in self.calls:
            if other.block is None and other.has_shape_of(tokens):
                other.block = tokens
        for calls in (self.calls, *self._around):
            calls.append(current)
        self._last = None
        results = call(*args, **kwargs)
        if self.sequences > 0:
            again = functools.partial(call, *args, **kwargs)
            current.operators = self._operators(current, arguments.get("value"), again)
        current.after = keras.tree.flatten(results)[0]
        return results

    def _operators(
        self, current: Call, value: Tensor | None, call: Callable[..., object]
    ) -> Operators | str:
        tokens, length = current.before, current.before.shape[1]
        is_self = value is None or value is tokens  # or equal to them, as a copy is
        if not (is_self or np.array_equal(to_numpy(value), to_numpy(tokens), equal_nan=True)):
            return "it attends to other tokens than those of its queries"
        if length > self.max_tokens:
            return f"its sequences have {length} tokens, more than {self.max_tokens}"
        try:
            return read_operators(current.layer, call, current.valid, self.sequences)
        except NotReadable as error:
            return str(error)

    def _other(self, call: Callable[..., object], *args: object, **kwargs: object) -> object:
        """A call of another layer, which may be a block."""
        self._seen((args, kwargs))  # a sum that no layer computed is seen as the next one's input
        self._around.append([])
        results = call(*args, **kwargs)
        within = self._around.pop()
        outputs = self._seen(results)
        if len(within) == 1 and within[0].has_shape_of(outputs):
            within[0].block = outputs
        return results

    def _seen(self, structure: object) -> Any:
        """The first tensor, which may be the tokens after the last attention so far."""
        tokens = next(iter(keras.tree.flatten(structure)), None)
        if self.calls and self.calls[-1].after is not None and self.calls[-1].has_shape_of(tokens):
            self._last = tokens
        return tokens


def _valid_tokens(arguments: dict[str, Any], tokens: Float[Tensor, "B T d"]) -> Bool[Array, "B T"]:
    """Which tokens are not padding, by the masks that a layer got.

    These are the layer's masks of tokens, the mask that Keras attached to them if the values have
    no other, and masks of pairs (B, T, T) or (B, N, T, T), in which no token sees padding. Masks of
    numbers that are added to the scores say nothing about padding, and masks of other tokens do not
    either.
    """
    batch, length = tokens.shape[:2]
    masks = [arguments.get(name) for name in TOKEN_MASKS]
    if arguments.get("value_mask") is None:
        masks.append(keras_mask_of(tokens))
    masks = [x for x in masks if tuple(getattr(x, "shape", ())) == (batch, length)]
    for name, mask in arguments.items():
        shape = tuple(getattr(mask, "shape", ()))
        is_of_pairs = "mask" in name and len(shape) in (3, 4) and shape[-1] == length
        if is_of_pairs and "float" not in keras.backend.standardize_dtype(mask.dtype):
            masks.append(ops.any(ops.cast(mask, "bool"), axis=tuple(range(1, len(shape) - 1))))
    valid = np.ones((batch, length), bool)
    for mask in masks:
        valid = valid & (to_numpy(mask) > 0.5)
    return valid


class LayerFigures:
    """The figures of one attention layer, or of one of its calls, over all batches."""

    def __init__(self, call: Call) -> None:
        self.layer = call.layer
        # Sums of the figures of `TokenMeasures`, and the numbers of sequences in them
        self.places = {name: np.zeros((2, 3)) for name in ("before", "after", "block")}
        # Of A and H in each sequence that was read: frequencies (F,) and gains (N, F)
        self.responses: dict[str, list[tuple[Array, Array]]] = {}
        self.maps: Operators | None = None  # A and H in the first
        self.reason: str | None = None
        self.not_finite = 0  # sequences with tokens that are NaN or infinite

    def add(self, call: Call, sampled: int) -> None:
        """Adds one call, with ranks and operators of its first `sampled` sequences."""
        finite = np.ones(len(call.valid), bool)
        for name, sums in self.places.items():
            x = getattr(call, name)
            if x is not None and x.shape[:-1] == call.before.shape[:-1]:
                rows, is_finite = _token_figures(to_numpy(x), call.valid, sampled)
                sums += [np.nansum(rows, axis=0), np.sum(~np.isnan(rows), axis=0)]
                finite &= is_finite
        self.not_finite += int(np.sum(~finite))
        if isinstance(call.operators, str):
            self.reason = call.operators
        elif call.operators is not None:
            lengths = call.valid[:sampled].sum(axis=1)
            for index in np.flatnonzero(lengths > 1):
                maps = call.operators.between(index, np.flatnonzero(call.valid[index]))
                self.maps = self.maps or maps
                frequencies = np.arange(lengths[index] // 2 + 1) / lengths[index]
                for name, matrix in (("operator", maps.operator), ("attention", maps.attention)):
                    if matrix is not None:
                        response = (frequencies, measures.fourier_response(matrix))
                        self.responses.setdefault(name, []).append(response)

    def report(self, path: str) -> LayerReport:
        """The figures of all calls so far: NaN where nothing was added."""
        with np.errstate(invalid="ignore"):
            places = {
                name: TokenMeasures(*map(float, sums / counts)) if counts.any() else None
                for name, (sums, counts) in self.places.items()
            }
        return LayerReport(
            path=path,
            kind=type(self.layer).__name__,
            **places,
            heads=None if self.maps is None or self.reason else self._heads(self.maps),
            reason=self.reason,
            not_finite=self.not_finite,
            coefficients={x.name: to_numpy(x) for x in getattr(self.layer, "coefficients", ())},
        )

    def _heads(self, maps: Operators) -> HeadMeasures:
        """Means over sequences, with all responses at the frequencies of the longest one."""
        frequencies = min((x for x, _ in self.responses["operator"]), key=lambda x: float(x[1]))
        means = {
            name: np.mean(
                [[np.interp(frequencies, x, gains) for gains in heads] for x, heads in responses],
                axis=0,
            )
            for name, responses in self.responses.items()
        }
        return HeadMeasures(
            frequencies,
            means["operator"],
            maps.operator,
            maps.values,
            means.get("attention"),
            maps.attention,
        )


def _token_figures(
    tokens: Float[Array, "B T d"], valid: Bool[Array, "B T"], sampled: int
) -> tuple[Float[Array, "B 3"], Bool[Array, " B"]]:
    """Figures of each sequence in the order of `TokenMeasures`, and which sequences are finite."""
    finite = np.all(np.isfinite(tokens) | ~valid[..., None], axis=(1, 2))
    kept = valid & finite[:, None]
    rows = np.full((len(tokens), 3), np.nan)
    similarity = to_numpy(token_similarity(tokens, kept))
    rows[:, 0] = np.where(kept.sum(axis=1) > 1, similarity, np.nan)
    for index in np.flatnonzero(kept.any(axis=1)):
        rows[index, 1] = measures.dc_share(tokens[index][kept[index]])
        if index < sampled:
            rows[index, 2] = measures.effective_rank(tokens[index][kept[index]])
    return rows, finite


def check_data(data: object) -> None:
    """Raises a `ValueError` for data that are neither arrays nor an iterable of batches."""
    if isinstance(data, (dict, list, tuple)):
        arrays = [x for x in keras.tree.flatten(data) if x is not None]
        is_data = bool(arrays) and all(len(getattr(x, "shape", ())) for x in arrays)
    else:
        is_data = isinstance(data, keras.utils.PyDataset) or hasattr(data, "__iter__")
        is_data = is_data and not isinstance(data, (str, bytes, set))
    if not is_data or getattr(data, "shape", None) == ():
        raise ValueError(
            "`data` must be the model's inputs as arrays, or an iterable of batches. Received: "
            f"data={data!r}"
        )


def _batches(data: Any, batch_size: int) -> Iterator[Inputs]:
    """The inputs of each batch, numbers without targets."""
    if isinstance(data, (dict, list, tuple)) or hasattr(data, "shape"):
        arrays = data if isinstance(data, list) else keras.utils.unpack_x_y_sample_weight(data)[0]
        data = (
            (keras.tree.map_structure(lambda x, s=start: x[s : s + batch_size], arrays),)
            for start in range(0, len(keras.tree.flatten(arrays)[0]), batch_size)
        )
    elif isinstance(data, keras.utils.PyDataset) and data.num_batches is not None:
        data = map(data.__getitem__, range(data.num_batches))
    for batch in data:
        inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
        kinds = [getattr(x.dtype, "kind", str(x.dtype)) for x in keras.tree.flatten(inputs)]
        if any(kind in "USO" or "string" in kind for kind in kinds):
            raise ValueError(
                "`data` must hold numbers, not text. Run the model's preprocessor first: "
                "`inspect_smoothing(model, model.preprocessor(texts))`."
            )
        yield inputs
