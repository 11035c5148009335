"""One pass of a model that tells what goes into its attention layers and what comes out."""

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.analysis.smoothing.probes import Patch, Reading, probes_of, to_numpy
from keras_graphattn.keras_internals import (
    keras_mask_of,
    replaced_attributes,
    walk,
    without_rematerialisation,
)
from keras_graphattn.layers.conversion_mark import ConversionMark

Tensor = Any
Array = np.ndarray[Any, Any]
STOCK = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, ConversionMark)
TOKEN_MASKS = ("query_mask", "value_mask", "key_mask", "padding_mask", "mask")


class Call:
    """One call of an attention layer in a pass.

    Attributes:
        layer: The attention layer.
        tokens: What it got, (B, T, d).
        outputs: What it returned, (B, T, d').
        block: The tokens after its block, (B, T, d), or `None` without any.
        valid: Which tokens are not padding, (B, T), or `None` for all.
        reading: The operator of the call.
    """

    def __init__(self, layer: Any, tokens: Tensor, valid: Array | None, reading: Reading) -> None:
        self.layer, self.tokens, self.valid, self.reading = layer, tokens, valid, reading
        self.outputs: Tensor = None
        self.block: Tensor = None

    def is_like(self, x: Tensor) -> bool:
        """Whether a tensor has the shape of the tokens."""
        return tuple(getattr(x, "shape", ())) == tuple(self.tokens.shape)


def attention_layers(model: Any) -> list[Any]:
    """The attention layers in a model, those that hold others left out.

    These are Keras' and KerasHub's multi-head and grouped attention, the layers of this package,
    converted layers, and all layers with "Attention" in the name of their class.
    """
    return [
        layer
        for layer in walk(model)
        if _attends(layer)
        and not any(_attends(inner) for inner in walk(layer) if inner is not layer)
    ]


def _attends(layer: Any) -> bool:
    name = type(layer).__name__
    named = isinstance(layer, STOCK) or ("Attention" in name and "AttentionMask" not in name)
    return named and not isinstance(layer, keras.Model)


class Recorder:
    """Runs a model with hooks around its layers. The hooks are gone after each pass.

    Args:
        model: A built model.
        most_tokens: Operators of longer sequences are not read.
    """

    def __init__(self, model: Any, most_tokens: int) -> None:
        self.model, self.most_tokens = model, most_tokens
        self.layers = attention_layers(model)
        self.not_measured: dict[str, str] = {}
        self._calls: list[Call] = []
        self._open: list[Call] = []  # attention calls that are under way
        self._around: list[list[Call]] = []  # for each other layer under way: the calls within
        self._without_probe: set[int] = set()
        self._wanted = 0
        self._valid: Array | None = None
        self._last: Tensor = None  # the last output like the tokens of the last call

    def run(self, inputs: Any, wanted: int, valid: Array | None = None) -> list[Call]:
        """The calls of attention layers in one pass, in their order.

        Args:
            inputs: One batch of the model's inputs.
            wanted: From how many sequences of the batch operators are to be read.
            valid: Which tokens are not padding, (B, T); found at each layer by default.
        """
        self._calls, self._open, self._around, self._last = [], [], [], None
        self._wanted, self._valid = wanted, valid
        with _without_gradients(), replaced_attributes(self._patches()):
            self.model(inputs, training=False)
        calls, self._calls = self._calls, []
        if calls and calls[-1].block is None:
            calls[-1].block = self._last
        return calls

    def _patches(self) -> Iterator[Patch]:
        for layer in self.layers:
            probes = probes_of(layer, self._reading)
            self._without_probe |= set() if probes else {id(layer)}
            yield from probes or ()
        ours = {id(layer) for layer in self.layers}
        for layer in walk(self.model):
            yield from without_rematerialisation(layer)
            if id(layer) in ours:
                yield layer, "call", self._watched_attention(layer, layer.call)
            elif layer is not self.model:
                yield layer, "call", self._watched(layer.call)

    def _reading(self) -> Reading:
        """The reading of the call under way; one that wants nothing in calls without tokens."""
        return self._open[-1].reading if self._open else Reading(0, 0)

    def _watched_attention(self, layer: Any, call: Any) -> Any:
        signature = inspect.signature(call)

        def run(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            tokens: Any = next(iter(given.values()), None)
            if len(getattr(tokens, "shape", ())) != 3:
                self.not_measured[layer.path or layer.name] = (
                    f"{type(layer).__name__} got no tokens of the shape (B, T, d)"
                )
                return call(*args, **kwargs)
            reading = Reading(self._wanted, self.most_tokens)
            if id(layer) in self._without_probe:
                reading.reason = (
                    f"{type(layer).__name__} has no `_compute_attention(query, key, value, ...)`"
                )
            elif _is_cross(given, tokens):
                reading.reason = "it attends to other tokens than those of its queries"
            valid = _valid_tokens(given, tokens) if self._valid is None else self._valid
            if valid is not None and valid.shape != tuple(tokens.shape[:2]):
                valid = None  # the mask of other tokens, such as those of an encoder
            current = Call(layer, tokens, valid, reading)
            for before in self._calls:
                if before.block is None and before.is_like(tokens):
                    before.block = tokens
            self._calls.append(current)
            self._last = None
            for calls in self._around:
                calls.append(current)
            self._open.append(current)
            try:
                results = call(*args, **kwargs)
            finally:
                self._open.pop()
            current.outputs = keras.tree.flatten(results)[0]
            return results

        return run

    def _watched(self, call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._open:  # a part of an attention layer
                return call(*args, **kwargs)
            self._around.append([])
            try:
                results = call(*args, **kwargs)
            finally:
                within = self._around.pop()
            outputs = next(iter(keras.tree.flatten(results)), None)
            if len(within) == 1 and within[0].is_like(outputs):
                within[0].block = outputs
            if self._calls and self._calls[-1].is_like(outputs):
                self._last = outputs
            return results

        return run


def _is_cross(given: dict[str, Any], tokens: Tensor) -> bool:
    """Whether a layer that is called with a query and a value has others as values."""
    value = given.get("value")
    if value is None or value is tokens:
        return False
    return not np.array_equal(to_numpy(value), to_numpy(tokens), equal_nan=True)


def _valid_tokens(given: dict[str, Any], tokens: Tensor) -> Array | None:
    """Which tokens (B, T) are not padding, by the masks that a layer got.

    These are the layer's masks of tokens, the mask that Keras attached to them if the values have
    no other, and masks of pairs (B, T, T) or (B, N, T, T), in which no token sees padding. Masks of
    numbers that are added to the scores tell nothing.
    """
    given = {**given, **given.get("kwargs", {})}
    batch, length = tokens.shape[:2]
    found = [given.get(name) for name in TOKEN_MASKS]
    if given.get("value_mask") is None:
        found.append(keras_mask_of(tokens))
    found = [x for x in found if tuple(getattr(x, "shape", ())) == (batch, length)]
    for name, mask in given.items():
        shape = tuple(getattr(mask, "shape", ()))
        if "mask" in name and len(shape) in (3, 4) and shape[-1] == length:
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(mask.dtype)):
                continue
            found.append(ops.any(ops.cast(mask, "bool"), axis=tuple(range(1, len(shape) - 1))))
    if not found:
        return None
    masks = [np.asarray(to_numpy(mask) > 0.5) for mask in found]
    return np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*masks)), (batch, length))


def _without_gradients() -> AbstractContextManager[Any]:
    if keras.backend.backend() != "torch":
        return nullcontext()
    import torch

    context: AbstractContextManager[Any] = torch.no_grad()
    return context
