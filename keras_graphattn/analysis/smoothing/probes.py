"""Reads the operator of an attention layer during a call: what it does to unit signals.

Each kind of layer has one method through which the values of the tokens go. A probe hides it on
the instance for the time of a pass. The method then answers twice: to the layer's own values, and
to unit signals in their place. The answers to these are the columns of the operator. So no layer
has to form a matrix, and the layer's own result does not change.
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.analysis.smoothing.curves import filter_holder
from keras_graphattn.keras_internals import replaced_attributes
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    PLaplacianAttention,
    ScaledHighFrequencyAttention,
)
from keras_graphattn.layers.parts.dense import joined, with_causal
from keras_graphattn.layers.parts.multi_head import MultiHeadLayer
from keras_graphattn.ops.softmax.attention import attention_matrix

Tensor = Any
Array = np.ndarray[Any, Any]
VALUES = ("value", "v", "value_states")  # names of the values' argument


def to_numpy(x: Tensor) -> Array:
    """A tensor of any precision as a NumPy array of float32."""
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


class Reading:
    """What a probe saw in one call of an attention layer.

    Attributes:
        wanted: How many sequences of the batch are to be read, from the first one on.
        most_tokens: Operators of longer sequences are not read.
        values: The values of the heads, (B, T, N, D), once they are known.
        heads: The outputs of the heads, (B, T, N, D).
        operator: H, the matrix from values to outputs, (B, N, T, T).
        attention: A, (B, N, T, T), where the layer has one; the same array as H without a filter.
        reason: Why there is no operator, in words.
    """

    def __init__(self, wanted: int, most_tokens: int) -> None:
        self.wanted, self.most_tokens = wanted, most_tokens
        self.values: Array | None = None
        self.heads: Array | None = None
        self.operator: Array | None = None
        self.attention: Array | None = None
        self.reason: str | None = None

    def takes(self, values: Tensor) -> bool:
        """Whether the operator is to be read from a call with these values."""
        if self.wanted < 1 or self.heads is not None or self.reason is not None:
            return False
        shape = tuple(ops.shape(values))
        if len(shape) != 4:
            self.reason = f"its values have the shape {shape} instead of (B, T, N, D)"
        elif shape[1] > self.most_tokens:
            self.reason = f"its sequences have {shape[1]} tokens, more than {self.most_tokens}"
        return self.reason is None

    def read(
        self,
        values: Tensor,
        heads: Tensor,
        operator: Callable[[Tensor], Tensor] | Tensor,
        attention: Callable[[Tensor], Tensor] | Tensor | None = None,
    ) -> None:
        """Keeps values, outputs and operators. An operator is a matrix or a function of signals."""
        if len(heads.shape) != 4 or heads.shape[1] != values.shape[1]:
            self.reason = (
                f"it maps values of the shape {tuple(values.shape)} to outputs of the shape "
                f"{tuple(heads.shape)}: no square matrix of tokens"
            )
            return
        self.values = self._array(values)
        self.heads = self._array(heads)
        if self.values.shape[2] != self.heads.shape[2]:  # heads in groups share their values
            groups = self.heads.shape[2] // self.values.shape[2]
            self.values = np.repeat(self.values, groups, axis=2)
        self.operator = self._matrix(operator, values)
        self.attention = self.operator if attention is operator else None
        if attention is not None and attention is not operator:
            self.attention = self._matrix(attention, values)

    def _array(self, x: Tensor) -> Array:
        return to_numpy(x[: self.wanted])

    def _matrix(self, operator: Callable[[Tensor], Tensor] | Tensor, values: Tensor) -> Array:
        """The matrix (B, N, T, T): its columns are the answers to D unit signals at a time."""
        if not callable(operator):
            return self._array(operator)
        batch, length, heads, width = ops.shape(values)
        answers = []
        for start in range(0, length, width):
            signals = np.eye(length, width, -start, dtype="float32")  # (T, D)
            signals = np.broadcast_to(signals[None, :, None], (batch, length, heads, width))
            answers.append(self._array(operator(ops.cast(signals, values.dtype))))
        matrix = np.concatenate(answers, axis=-1)[..., :length]  # (B, T, N, T)
        return np.moveaxis(matrix, 2, 1)


Current = Callable[[], Reading]
Patch = tuple[Any, str, Any]  # an object, the name of an attribute, what hides it


def probes_of(layer: Any, current: Current) -> list[Patch] | None:
    """What has to be replaced to read the operator of a layer; `None` where nothing is known.

    Args:
        layer: An attention layer.
        current: Returns the reading of the call that is under way.
    """
    if filter_holder(layer) is not None:
        return [_filter_probe(layer, current)]
    if isinstance(layer, PLaplacianAttention):
        return _p_laplacian_probes(layer, current)
    if hasattr(layer, "attend") and hasattr(getattr(layer, "settings", None), "exponents"):
        return [_converted_p_laplacian_probe(layer, current)]
    if isinstance(layer, MultiHeadLayer) and not isinstance(layer, ScaledHighFrequencyAttention):
        return _value_probes(layer, current)
    parameters = inspect.signature(getattr(layer, "_compute_attention", len)).parameters
    name = next((name for name in VALUES if name in parameters), None)
    return None if name is None else [_method_probe(layer, name, current)]


class _ProbedFilter:
    """A filter that applies A and itself to unit signals as well."""

    def __init__(self, filter: Any, current: Current) -> None:
        self._filter, self._current = filter, current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filter, name)

    def __call__(self, apply: Any, values: Tensor, coefficients: Any) -> Tensor:
        outputs = self._filter(apply, values, coefficients)
        reading = self._current()
        if reading.takes(values):
            reading.read(
                values, outputs, lambda x: self._filter(apply, x, coefficients), lambda x: apply(x)
            )
        return outputs


def _filter_probe(layer: Any, current: Current) -> Patch:
    holder = filter_holder(layer)
    return holder, "filter", _ProbedFilter(holder.filter, current)


def _method_probe(layer: Any, name: str, current: Current) -> Patch:
    """For `_compute_attention(query, key, value, ...)` of Keras and KerasHub."""
    attend = layer._compute_attention
    signature = inspect.signature(attend)

    def probed(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*_copied(args), **_copied(kwargs))
        results = attend(*args, **kwargs)
        values, reading = given.arguments[name], current()
        if not reading.takes(values):
            return results

        def operator(x: Tensor) -> Tensor:
            given.arguments[name] = x
            return _first(attend(*_copied(given.args), **_copied(given.kwargs)))

        attention: Any = operator
        if isinstance(layer, ScaledHighFrequencyAttention):
            attention = results[1]  # A, of which the layer scales a part
        reading.read(values, _first(results), operator, attention)
        return results

    return layer, "_compute_attention", probed


def _copied(arguments: Any) -> Any:
    """Copies of the tensors: KerasHub's Gemma scales its queries in place on torch."""
    return keras.tree.map_structure(
        lambda x: ops.copy(x) if keras.ops.is_tensor(x) else x, arguments
    )


def _first(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results


def _p_laplacian_probes(layer: Any, current: Current) -> list[Patch]:
    """For `PLaplacianAttention`: its matrix follows from the values, so it has to be formed."""
    dense, lean = layer._compute_attention, layer._attend_lean

    def read(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads: Tensor) -> None:
        reading = current()
        if reading.takes(value):
            positions = ops.arange(ops.shape(key)[1], dtype="int32")
            both = (value, value)
            weights = layer._weights(query, key, both, mask, positions, positions)
            attention = attention_matrix(query, key, mask, layer.score_scale)
            reading.read(value, heads, weights, attention)

    def probed(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        causal = {"use_causal_mask": use_causal_mask}
        results = dense(
            query, key, value, attention_mask, training, return_attention_scores, **causal
        )
        read(
            query, key, value, with_causal(layer, attention_mask, key, use_causal_mask), results[0]
        )
        return results

    def probed_lean(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        outputs = lean(query, key, value, mask)
        if value.shape[1] <= current().most_tokens:  # a longer mask is not formed
            read(query, key, value, joined(mask, key), outputs)
        else:
            current().takes(value)
        return outputs

    return [(layer, "_compute_attention", probed), (layer, "_attend_lean", probed_lean)]


def _converted_p_laplacian_probe(layer: Any, current: Current) -> Patch:
    attend = layer.attend

    def probed(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        given: Any = None,
    ) -> Tensor:
        outputs = attend(query, key, value, mask, training, given)
        reading = current()
        if reading.takes(value):
            entries = layer.mask_of(query, mask).entries
            positions, scale = ops.arange(ops.shape(key)[1], dtype="int32"), layer.sizes.scale
            logits = layer.adapter.logits(layer, ops.shape(key)[1], given)
            weights = layer._weights(query * scale, key, (value, value), entries, positions, logits)
            reading.read(value, outputs, weights, logits.matrix(query, key, entries, scale))
        return outputs

    return layer, "attend", probed


def _value_probes(layer: Any, current: Current) -> list[Patch]:
    """For layers that project the values within `_attend`, and never hand them on."""
    attend, projection = layer._attend, layer.value_dense
    project = projection.call
    signal: list[Tensor] = []  # what the projection returns, if anything
    projected: list[Tensor] = []

    def probed_projection(*args: Any, **kwargs: Any) -> Tensor:
        if signal:
            return signal[0]
        projected[:] = [project(*args, **kwargs)]
        return projected[0]

    def probed(*args: Any, **kwargs: Any) -> Any:
        results = attend(*args, **kwargs)
        values, reading = projected.pop(), current()
        if not reading.takes(values):
            return results

        def operator(x: Tensor) -> Tensor:
            signal[:] = [x]
            try:
                return attend(*args, **kwargs)[0]
            finally:
                signal.clear()

        if not isinstance(layer, AttentiveGraphFilter):
            reading.read(values, results[0], operator, operator)
            return results
        with replaced_attributes([(layer, "orthogonality_weight", 0.0)]):  # one loss for each call
            reading.read(values, results[0], operator)  # no A: the filter is of singular values
        return results

    return [(projection, "call", probed_projection), (layer, "_attend", probed)]
