"""Reads the operator of an attention layer during a call: what it does to unit signals.

Each kind of layer has one method through which the values of the tokens go. A probe hides it on
the instance for the time of a pass. The method then answers twice: to the layer's own values, and
to unit signals in their place. The answers to these are the columns of the operator. So no layer
has to form a matrix, and the layer's own result does not change.
"""

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.p_laplacian import PLaplacianOperator
from keras_graphattn.operators.singular import SingularOperator
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of

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
    if isinstance(getattr(layer, "apply", None), MethodType):
        return [_operator_probe(layer, current)]
    parameters = inspect.signature(getattr(layer, "_compute_attention", len)).parameters
    name = next((name for name in VALUES if name in parameters), None)
    return None if name is None else [_method_probe(layer, name, current)]


def _operator_probe(layer: Any, current: Current) -> Patch:
    """For layers of this package: `apply(operator, values, ...)` filters the values."""
    apply = layer.apply

    def probed(operator: Operator, values: Tensor, *rest: Any) -> Tensor:
        outputs, reading = apply(operator, values, *rest), current()
        if reading.takes(values):
            attention = _attention_of(operator)
            if isinstance(operator, PLaplacianOperator):  # its matrix follows from the values
                reading.read(values, outputs, operator.matrix(), attention)
            else:
                reading.read(values, outputs, lambda x: apply(operator, x, *rest), attention)
        return outputs

    return layer, "apply", probed


def _attention_of(operator: Operator) -> Any:
    """A without a filter or a re-weighting, as a matrix or an operator; `None` for AGF."""
    if isinstance(operator, PLaplacianOperator):
        visible = operator.visibility.joined(ops.shape(operator.key)[1])
        scores = scores_of(operator.query, operator.key, 1.0)
        return SoftmaxOperator(scores, visible, logits=operator.logits).matrix()
    if isinstance(operator, SoftmaxOperator):
        return operator.scores
    return None if isinstance(operator, SingularOperator) else operator


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

        reading.read(values, _first(results), operator, operator)
        return results

    return layer, "_compute_attention", probed


def _copied(arguments: Any) -> Any:
    """Copies of the tensors: KerasHub's Gemma scales its queries in place on torch."""
    return keras.tree.map_structure(
        lambda x: ops.copy(x) if keras.ops.is_tensor(x) else x, arguments
    )


def _first(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results
