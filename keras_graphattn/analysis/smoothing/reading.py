"""Reads the operators of an attention layer in one call: A, and H, which it applies to its values.

The call runs once more, watched where the values of the heads meet the attention: at
`attended(operator, values)` of this package's layers, or at `_compute_attention` of Keras' layers.
H is read from the answers to unit signals, which are its columns: so no layer has to form a matrix.
It is checked against what the layer made of its own values.

What the report relies on in layers is in here.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple, TypeVar

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

VALUES = ("value", "v", "value_states")  # names of the values in `_compute_attention`
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}  # of the values times the operator

Arguments = TypeVar("Arguments")
Apply = Callable[[Float[Tensor, "B T N D"]], Float[Tensor, "B T N D"]]


class NotReadable(Exception):
    """The operator of a call cannot be read; the message says why."""


class Operators(NamedTuple):
    """The operators of one call; `attention` is the same array as `operator` without a filter."""

    operator: Float[Array, "B N T T"]  # H, the matrix from values to outputs
    attention: Float[Array, "B N T T"] | None  # A

    def between(self, index: int, tokens: Int[Array, " n"]) -> "Operators":
        """Those of one sequence between some of its tokens, (N, n, n)."""
        square = np.ix_(np.arange(self.operator.shape[1]), tokens, tokens)
        attention = None if self.attention is None else self.attention[index][square]
        return Operators(self.operator[index][square], attention)


class Seen(NamedTuple):
    """What a watched call has shown: values (B, T, Nv, D) of heads in groups, outputs (B, T, N, D).

    H is a function of signals like the values, A one too, or a matrix (B, N, T, T).
    """

    values: Float[Tensor, "B T _ D"]
    outputs: Float[Tensor, "B T N D"]
    operator: Apply
    attention: Apply | Float[Tensor, "B N T T"] | None


def to_numpy(x: Num[Tensor, "..."]) -> Array:
    """A tensor of any precision as a NumPy array of float32."""
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")))


def read_operators(
    layer: keras.Layer, call: Callable[..., object], valid: Bool[Array, "B T"], sequences: int
) -> Operators:
    """The operators of a layer for its first sequences; `call` calls it again on its tokens.

    They cannot be read if H times the values is not what the layer made of them, or if tokens see
    padding: the report is of the part between valid tokens.
    """
    is_ours = hasattr(layer, "attended")
    seen = _at_attended(layer, call) if is_ours else _at_the_method(layer, call)
    if len(seen.values.shape) != 4 or seen.outputs.shape[:2] != seen.values.shape[:2]:
        raise NotReadable(
            f"it maps values of the shape {tuple(seen.values.shape)} to outputs of the shape "
            f"{tuple(seen.outputs.shape)}: no square matrix of tokens"
        )
    operator = _matrix(seen.operator, seen.values, sequences)
    attention = operator if seen.attention is seen.operator else None
    if seen.attention is not None and attention is None:
        attention = _matrix(seen.attention, seen.values, sequences)
    values, outputs = to_numpy(seen.values[:sequences]), to_numpy(seen.outputs[:sequences])
    values = np.repeat(values, outputs.shape[2] // values.shape[2], axis=2)  # (B, T, N, D)
    tolerance = TOLERANCE.get(layer.compute_dtype, 1e-3)
    _check(operator, values, outputs, valid[:sequences], tolerance)
    return Operators(operator, attention)


def _at_attended(layer: keras.Layer, call: Callable[..., object]) -> Seen:
    """H from `attended(operator, values, ...)`, which filters the operator; A from the operator."""
    attended, calls = layer.attended, []

    def watched(
        operator: Operator, values: Float[Tensor, "B T N D"], *rest: object
    ) -> Float[Tensor, "B T N D"]:
        outputs = attended(operator, values, *rest)
        attention = _attention_of(operator)
        calls.append(Seen(values, outputs, lambda x: attended(operator, x, *rest), attention))
        return outputs

    with replaced_attributes([(layer, "attended", watched)]):
        call()
    if not calls:
        raise NotReadable("it did not apply an operator")
    return calls[0]


def _attention_of(operator: Operator) -> Apply | Float[Tensor, "B N T T"] | None:
    """A without a filter or a re-weighting; `None` without A."""
    if isinstance(operator, SingularOperator):
        return None
    if isinstance(operator, PLaplacianOperator):
        visible = operator.visibility.joined(ops.shape(operator.key)[1])
        scores = scores_of(operator.query, operator.key, 1.0)
        return SoftmaxOperator(scores, visible, logits=operator.logits).scores
    return operator.scores if isinstance(operator, SoftmaxOperator) else operator


def _at_the_method(layer: keras.Layer, call: Callable[..., object]) -> Seen:
    """H from `_compute_attention(query, key, value, ...)`, as Keras and KerasHub have it."""
    method: Callable[..., object] = getattr(layer, "_compute_attention", len)
    signature = inspect.signature(method)
    name = next((name for name in VALUES if name in signature.parameters), None)
    if name is None:
        raise NotReadable(
            f"{type(layer).__name__} has no `_compute_attention(query, key, value, ...)`"
        )
    calls: list[tuple[inspect.BoundArguments, object]] = []

    def watched(*args: object, **kwargs: object) -> object:
        arguments = signature.bind(*_copied(args), **_copied(kwargs))
        results = method(*args, **kwargs)
        calls.append((arguments, results))
        return results

    with replaced_attributes([(layer, "_compute_attention", watched)]):
        call()
    if not calls:
        raise NotReadable("it did not call its `_compute_attention`")
    arguments, results = calls[0]
    values, outputs = arguments.arguments[name], _first(results)

    def operator(x: Float[Tensor, "B T _ D"]) -> Float[Tensor, "B T N D"]:
        arguments.arguments[name] = x
        return _first(method(*_copied(arguments.args), **_copied(arguments.kwargs)))

    return Seen(values, outputs, operator, operator)


def _copied(arguments: Arguments) -> Arguments:
    """Copies of the tensors: KerasHub's Gemma scales its queries in place on torch."""
    copies: Arguments = keras.tree.map_structure(
        lambda x: ops.copy(x) if ops.is_tensor(x) else x, arguments
    )
    return copies


def _first(results: object) -> Float[Tensor, "..."]:
    return results[0] if isinstance(results, tuple) else results


def _matrix(
    operator: Apply | Float[Tensor, "B N T T"], values: Float[Tensor, "_ T _ D"], sequences: int
) -> Float[Array, "_ N T T"]:
    """The matrix itself: its columns are the answers to D unit signals at a time."""
    if not callable(operator):
        return to_numpy(operator[:sequences])
    batch, length, heads, width = values.shape
    answers = []
    for start in range(0, length, width):
        signals = np.eye(length, width, -start, dtype="float32")  # (T, D)
        signals = np.broadcast_to(signals[None, :, None], (batch, length, heads, width))
        answers.append(to_numpy(operator(ops.cast(signals, values.dtype))[:sequences]))
    matrix = np.concatenate(answers, axis=-1)[..., :length]  # (B, T, N, T)
    return np.moveaxis(matrix, 2, 1)


def _check(
    operator: Float[Array, "B N T T"],
    values: Float[Array, "B T N D"],
    outputs: Float[Array, "B T N D"],
    valid: Bool[Array, "B T"],
    tolerance: float,
) -> None:
    """Raises `NotReadable` unless H times the values is the outputs, and 0 from padding."""
    if not np.isfinite(operator).all():
        raise NotReadable("its operator has entries that are not finite")
    finite = np.where(np.isfinite(values), values, 0.0).astype("float64")  # not so in padding
    product = np.einsum("bnts,bsnd->btnd", operator.astype("float64"), finite)
    difference = np.sqrt(np.mean((product - outputs)[valid] ** 2)) if valid.any() else 0.0
    size = np.sqrt(np.mean(outputs[valid].astype("float64") ** 2)) if valid.any() else 0.0
    if not difference <= tolerance * size + 1e-6:
        raise NotReadable(
            "its outputs are not the product of one matrix for each head and its values"
        )
    to_padding = valid[:, None, :, None] & ~valid[:, None, None, :]  # (B, 1, T, T)
    if np.max(np.abs(operator), where=to_padding, initial=0.0) > tolerance:
        raise NotReadable("its tokens see padding")
