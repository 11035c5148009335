"""Names, shapes and types of a model's inputs and outputs, as a server sees them."""

import keyword
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_graphattn.checks import optional, whole

Model = Any
Structure = Any
Specs = dict[str, tuple[tuple[int | None, ...], str]]

DEFAULT = "serving_default"
NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")
# Attributes of the exported object that TensorFlow and Keras use themselves.
RESERVED = ("signatures", "variables", "trainable_variables", "non_trainable_variables")


class Signature(NamedTuple):
    """The inputs and outputs of one signature.

    Args:
        inputs: Mapping from each input's name to its (shape, dtype). The batch dimension is
            `None`.
        input_structure: The structure of the model's inputs, with names instead of tensors.
        outputs: Names of the flattened outputs.
    """

    inputs: Specs
    input_structure: Structure
    outputs: list[str]

    @property
    def open_lengths(self) -> list[str]:
        """Names of the inputs that have an open dimension other than the batch."""
        return [name for name, (shape, _) in self.inputs.items() if None in shape[1:]]


def model_signature(model: Model) -> Signature:
    """Reads the signature of a model.

    Args:
        model: A built Functional or Sequential model.

    Returns:
        Its `Signature`.

    Raises:
        ValueError: If the inputs are not known, or a name is not valid for a served input.

    Example:

    >>> inputs = keras.Input((4,), name="series")
    >>> model = keras.Model(inputs, keras.layers.Dense(2, name="classes")(inputs))
    >>> model_signature(model).outputs
    ['classes']
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: model={model!r}")
    sequential = isinstance(model, keras.Sequential)
    tensors = getattr(model, "inputs", None) if sequential or _is_functional(model) else None
    if not tensors:
        raise ValueError(
            f"The inputs of the model '{model.name}' ({type(model).__name__}) are not known. "
            "Add a keras.Input as the first layer of a Sequential model. Wrap a subclassed model: "
            "`inputs = keras.Input(shape, name=...)`, `keras.Model(inputs, model(inputs))`."
        )
    structure = tensors[0] if sequential else model.input
    # Use the name of the input's layer: saving may change a tensor's automatic name.
    tensors = keras.tree.flatten(structure)
    layer_names = [tensor._keras_history.operation.name for tensor in tensors]
    input_structure = _names(structure, layer_names)
    names = keras.tree.flatten(input_structure)
    _check_names(names)
    inputs = {
        name: ((None, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))
        for name, tensor in zip(names, tensors, strict=True)
    }
    if sequential:
        return Signature(inputs, input_structure, [model.layers[-1].name])
    outputs = _names(model.output, _numbered(model.output_names))
    return Signature(inputs, input_structure, keras.tree.flatten(outputs))


def served_signatures(model: Model, signature: Any = DEFAULT) -> dict[str, Signature]:
    """Returns the signatures to export, by name.

    Args:
        model: A built Functional or Sequential model.
        signature: The argument of `export_saved_model`: a name, or a mapping from names to `None`
            or to the shapes of some inputs. The shapes exclude the batch, as in `keras.Input`.

    Returns:
        A mapping from each name to its `Signature`. If no signature is named `serving_default`,
        the first one is added under this name.

    Raises:
        ValueError: If the model or a name cannot be served, or a shape does not match the input's.

    Example:

    >>> tokens = keras.Input((None,), dtype="int32", name="tokens")
    >>> model = keras.Model(tokens, keras.layers.Embedding(9, 2)(tokens))
    >>> served_signatures(model, {"short": {"tokens": (16,)}})["short"].inputs
    {'tokens': ((None, 16), 'int32')}
    """
    found = model_signature(model)
    wanted = {signature: None} if isinstance(signature, str) else signature
    if not isinstance(wanted, Mapping) or not wanted:
        raise ValueError(
            "`signature` must be a name, or a mapping from names to None or to shapes of inputs, "
            f"such as {{'short': {{'tokens': (64,)}}}}. Received: signature={signature!r}"
        )
    for name in wanted:
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(
                "The name of a signature must be a letter followed by letters, digits and "
                f"underscores. It must not be one of {', '.join(RESERVED)}. Received: {name!r}"
            )
    served = {name: _with_shapes(found, name, shapes) for name, shapes in wanted.items()}
    first = next(iter(served.values()))
    return served if DEFAULT in served else {DEFAULT: first, **served}


def _with_shapes(signature: Signature, name: str, shapes: Any) -> Signature:
    """Returns the signature after fixing the open lengths of some inputs."""
    shapes = {} if shapes is None else shapes
    if not isinstance(shapes, Mapping):
        raise ValueError(
            f"The signature '{name}' must be None or a mapping from inputs to shapes. "
            f"Received: {shapes!r}"
        )
    unknown = [given for given in shapes if given not in signature.inputs]
    if unknown:
        raise ValueError(
            f"The signature '{name}' names inputs that the model does not have: "
            f"{', '.join(map(repr, unknown))}. It has: {', '.join(map(repr, signature.inputs))}."
        )
    inputs = dict(signature.inputs)
    for given, shape in shapes.items():
        (_, *known), dtype = inputs[given]
        sizes = _narrowed(shape, known)
        if sizes is None:
            raise ValueError(
                f"The signature '{name}' gives the input '{given}' the shape {shape!r}. The "
                f"model's shape is {tuple(known)} without the batch. Replace only None, by a "
                "positive integer, and keep all other sizes."
            )
        inputs[given] = ((None, *sizes), dtype)
    return signature._replace(inputs=inputs)


def _narrowed(shape: Any, known: list[int | None]) -> list[int | None] | None:
    """Returns `shape` if it equals `known` except for open sizes that it fixes, else None."""
    if not isinstance(shape, (list, tuple)) or len(shape) != len(known):
        return None
    try:
        sizes = [optional(whole())("shape", size, {}) for size in shape]
    except ValueError:
        return None
    return sizes if all(k in (None, size) for size, k in zip(sizes, known, strict=True)) else None


def _is_functional(model: Model) -> bool:
    """Returns whether the model was built from symbolic tensors, also for subclasses."""
    return hasattr(model, "output_names") and hasattr(model, "inputs")


def _names(structure: Structure, names: list[str]) -> Structure:
    """Replaces the tensors by their keys if `structure` is a flat dict, else by `names`."""
    if isinstance(structure, dict) and not any(
        keras.tree.is_nested(value) for value in structure.values()
    ):
        return {key: str(key) for key in structure}
    return keras.tree.pack_sequence_as(structure, names)


def _numbered(names: list[str]) -> list[str]:
    """Makes names unique: `a, a, b`, where a layer has two outputs, becomes `a, a_1, b`."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return numbered


def _check_names(names: list[str]) -> None:
    """Refuses names that TensorFlow would silently change, or fail on."""
    wrong = [
        name
        for name in names
        if not NAME.fullmatch(name) or keyword.iskeyword(name) or name == "self"
    ]
    if wrong:
        raise ValueError(
            "The name of a served input must be a letter followed by letters, digits and "
            "underscores. It must not be `self` or a keyword of Python. Received: "
            f"{', '.join(map(repr, wrong))}. Rename it with `keras.Input(..., name=...)`."
        )
