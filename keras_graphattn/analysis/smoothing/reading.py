"""Reads the operators of an attention layer in one call: A, and H, which it applies to its values.

The call runs once more, watched at the one place where the values of the heads meet the attention:
`apply(operator, values)` of this package's layers, or Keras' extension point `_compute_attention`.
H is read from the answers to unit signals, which are its columns: so no layer has to form a matrix.
The layer's own outputs check it: H times its values must equal them.

Only this file knows how layers work inside.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import Array
from keras_graphattn.keras_internals import replaced_attributes
from keras_graphattn.operators import (
    Operator,
    PLaplacianOperator,
    SingularOperator,
    SoftmaxOperator,
)
from keras_graphattn.operators.softmax import scores_of
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

VALUES = ("values", "value", "v", "value_states")  # names of the argument
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}  # of the values times the operator

Apply = Callable[[Float[Tensor, "B T N D"]], Float[Tensor, "B T N D"]]


class NotReadable(Exception):
    """The operator of a call cannot be read; the message says why."""


class Operators(NamedTuple):
    """The operators of one call; `attention` is the same array as `operator` without a filter."""

    operator: Float[Array, "B N T T"]  # H, the matrix from values to outputs
    attention: Float[Array, "B N T T"] | None  # A
    values: Float[Array, "B N T D"]  # of each head, also where heads share them

    def between(self, index: int, tokens: Int[Array, " n"]) -> "Operators":
        """The operators of one sequence between some of its tokens, (N, n, n)."""
        square = np.ix_(np.arange(self.operator.shape[1]), tokens, tokens)
        attention = None if self.attention is None else self.attention[index][square]
        return Operators(self.operator[index][square], attention, self.values[index][:, tokens])


def to_numpy(x: Num[Tensor, "..."]) -> Array:
    """A tensor of any precision as a NumPy array of float32."""
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


def read_operators(
    layer: keras.Layer, call: Callable[..., object], valid: Bool[Array, "B T"], sequences: int
) -> Operators:
    """The operators of a layer for its first sequences; `call` calls it again on its tokens.

    They cannot be read if H times the values does not equal the outputs of the layer, or if tokens
    see padding: the report shows only the part between valid tokens.
    """
    arguments, outputs, operator = _watched(layer, call)
    values = arguments["values"]
    if len(values.shape) != 4 or outputs.shape[:2] != values.shape[:2]:
        raise NotReadable(
            f"it maps values of the shape {tuple(values.shape)} to outputs of the shape "
            f"{tuple(outputs.shape)}: no square matrix of tokens"
        )
    matrix = _matrix(operator, values, sequences)
    attention: Array | None = matrix
    if "operator" in arguments:  # it is filtered, or weighted by distances
        attention = _attention_of(arguments["operator"], values, sequences)
    if not np.isfinite(matrix).all():
        raise NotReadable("its operator has entries that are not finite")
    valid, tolerance = valid[:sequences], TOLERANCE.get(layer.compute_dtype, 1e-3)
    of_heads = to_numpy(values[:sequences])
    of_heads = np.where(np.isfinite(of_heads), of_heads, 0.0)  # padding may be NaN
    of_heads = np.repeat(of_heads, matrix.shape[1] // values.shape[2], axis=2)  # (B, T, N, D)
    product = np.einsum("bnts,bsnd->btnd", matrix, of_heads, dtype="float64")[valid]
    expected = to_numpy(outputs[:sequences])[valid].astype("float64")
    largest = tolerance * np.linalg.norm(expected) + 1e-6 * np.sqrt(expected.size)
    if not np.linalg.norm(product - expected) <= largest:
        raise NotReadable(
            "its outputs are not the product of one matrix for each head and its values"
        )
    to_padding = valid[:, None, :, None] & ~valid[:, None, None, :]  # (B, 1, T, T)
    if np.max(np.abs(matrix), where=to_padding, initial=0.0) > tolerance:
        raise NotReadable("its tokens see padding")
    return Operators(matrix, attention, np.moveaxis(of_heads, 2, 1))


def _watched(
    layer: keras.Layer, call: Callable[..., object]
) -> tuple[dict[str, Any], Float[Tensor, "B T N D"], Apply]:
    """The watched values and perhaps the operator of the layer, its outputs, and H.

    H is a function of signals like the values, (B, T, N, D), in which heads may share values. The
    watched method is `attended(operator, values, ...)` of this package's layers, which filters the
    operator, or `_compute_attention(query, key, value, ...)`, as Keras and KerasHub have it.
    """
    name = "attended" if hasattr(layer, "attended") else "_compute_attention"
    method: Callable[..., object] = getattr(layer, name, len)
    signature = inspect.signature(method)
    place = next((place for place in VALUES if place in signature.parameters), None)
    if place is None:
        raise NotReadable(
            f"{type(layer).__name__} has no `_compute_attention(query, key, value, ...)`"
        )
    calls: list[tuple[inspect.BoundArguments, object]] = []

    def watched(*args: object, **kwargs: object) -> object:
        arguments = signature.bind(*_copied(args), **_copied(kwargs))
        results = method(*args, **kwargs)
        calls.append((arguments, results))
        return results

    with replaced_attributes([(layer, name, watched)]):
        call()
    if not calls:
        raise NotReadable(f"it did not call its `{name}`")
    arguments, results = calls[0]

    def operator(x: Float[Tensor, "B T _ D"]) -> Float[Tensor, "B T N D"]:
        arguments.arguments[place] = x
        return _first(method(*_copied(arguments.args), **_copied(arguments.kwargs)))

    return arguments.arguments | {"values": arguments.arguments[place]}, _first(results), operator


def _attention_of(
    operator: Operator, values: Float[Tensor, "_ T _ D"], sequences: int
) -> Float[Array, "_ N T T"] | None:
    """A without a filter or a re-weighting; `None` without A."""
    if isinstance(operator, SingularOperator):
        return None
    if isinstance(operator, PLaplacianOperator):
        visible = operator.visibility.joined(ops.shape(operator.key)[1])
        scores = scores_of(operator.query, operator.key, 1.0)
        operator = SoftmaxOperator(scores, visible, logits=operator.logits)
    if isinstance(operator, SoftmaxOperator):
        return to_numpy(operator.scores[:sequences])
    return _matrix(operator, values, sequences)


def _copied(arguments: Any) -> Any:
    """Copies of the tensors: KerasHub's Gemma scales its queries in place on torch."""
    return keras.tree.map_structure(lambda x: ops.copy(x) if ops.is_tensor(x) else x, arguments)


def _first(results: object) -> Float[Tensor, "..."]:
    return results[0] if isinstance(results, tuple) else results


def _matrix(
    operator: Apply, values: Float[Tensor, "_ T _ D"], sequences: int
) -> Float[Array, "_ N T T"]:
    """The matrix itself: its columns are the answers to D unit signals at a time."""
    batch, length, heads, width = values.shape
    answers = []
    for start in range(0, length, width):
        signals = np.eye(length, width, -start, dtype="float32")  # (T, D)
        signals = np.broadcast_to(signals[None, :, None], (batch, length, heads, width))
        answers.append(to_numpy(operator(ops.cast(signals, values.dtype))[:sequences]))
    matrix = np.concatenate(answers, axis=-1)[..., :length]  # (B, T, N, T)
    return np.moveaxis(matrix, 2, 1)
