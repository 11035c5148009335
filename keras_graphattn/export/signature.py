"""Names, shapes and types of a model's inputs and outputs, as a server sees them."""

import itertools
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from keras_graphattn.checks import is_whole

Specs = dict[str, tuple[tuple[int | None, ...], str]]  # from an input's name to shape and dtype
Wanted = str | Mapping[str, Mapping[str, Sequence[int | None]] | None]  # `signature` of an export

DEFAULT = "serving_default"
NAME = re.compile("[A-Za-z][A-Za-z0-9_]*")
# Attributes of the exported object that TensorFlow and Keras use themselves.
RESERVED = ("signatures", "variables", "trainable_variables", "non_trainable_variables")


class Signature(NamedTuple):
    """The inputs and outputs of one signature."""

    inputs: Specs  # the batch dimension is `None`
    input_structure: Any  # the structure of the model's inputs, with names instead of tensors
    outputs: list[str]  # names of the flattened outputs

    @property
    def open_lengths(self) -> list[str]:
        """Names of the inputs that have an open dimension other than the batch."""
        return [name for name, (shape, _) in self.inputs.items() if None in shape[1:]]


def model_signature(model: keras.Model) -> Signature:
    """Reads the signature of a built Functional or Sequential model."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: model={model!r}")
    sequential = isinstance(model, keras.Sequential)
    functional = hasattr(model, "output_names") and hasattr(model, "inputs")  # also subclasses
    if not (getattr(model, "inputs", None) if sequential or functional else None):
        raise ValueError(
            f"The inputs of the model '{model.name}' ({type(model).__name__}) are not known. "
            "Add a keras.Input as the first layer of a Sequential model. Wrap a subclassed model: "
            "`inputs = keras.Input(shape, name=...)`, `keras.Model(inputs, model(inputs))`."
        )
    structure = model.inputs[0] if sequential else model.input
    tensors = keras.tree.flatten(structure)
    # Use the name of the input's layer: saving may change a tensor's automatic name.
    input_structure = _named(structure, [one._keras_history.operation.name for one in tensors])
    names = keras.tree.flatten(input_structure)
    wrong = [
        name
        for name in names
        if not NAME.fullmatch(name) or keyword.iskeyword(name) or name == "self"
    ]
    if wrong:  # names that TensorFlow would silently change, or fail on
        raise ValueError(
            "The name of a served input must be a letter followed by letters, digits and "
            "underscores. It must not be `self` or a keyword of Python. Received: "
            f"{', '.join(map(repr, wrong))}. Rename it with `keras.Input(..., name=...)`."
        )
    inputs = {
        name: ((None, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))
        for name, tensor in zip(names, tensors, strict=True)
    }
    if sequential:
        return Signature(inputs, input_structure, [model.layers[-1].name])
    outputs = _named(model.output, _numbered(model.output_names))
    return Signature(inputs, input_structure, keras.tree.flatten(outputs))


def served_signatures(model: keras.Model, signature: Wanted = DEFAULT) -> dict[str, Signature]:
    """The signatures to export, by name; the first one also becomes a missing `serving_default`."""
    plain = model_signature(model)
    by_name: object = {signature: None} if isinstance(signature, str) else signature
    if not isinstance(by_name, Mapping) or not by_name:
        raise ValueError(
            "`signature` must be a name, or a mapping from names to None or to shapes of inputs, "
            f"such as {{'short': {{'tokens': (64,)}}}}. Received: signature={signature!r}"
        )
    for name in by_name:
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(
                "The name of a signature must be a letter followed by letters, digits and "
                f"underscores. It must not be one of {', '.join(RESERVED)}. Received: {name!r}"
            )
    served = {name: _with_shapes(plain, name, shapes) for name, shapes in by_name.items()}
    first = next(iter(served.values()))
    return served if DEFAULT in served else {DEFAULT: first, **served}


def _with_shapes(signature: Signature, name: str, shapes: object) -> Signature:
    """The signature after fixing the open lengths of some inputs."""
    shapes = {} if shapes is None else shapes
    if not isinstance(shapes, Mapping):
        raise ValueError(
            f"The signature '{name}' must be None or a mapping from inputs to shapes. "
            f"Received: {shapes!r}"
        )
    unknown = [key for key in shapes if key not in signature.inputs]
    if unknown:
        raise ValueError(
            f"The signature '{name}' names inputs that the model does not have: "
            f"{', '.join(map(repr, unknown))}. It has: {', '.join(map(repr, signature.inputs))}."
        )
    inputs = dict(signature.inputs)
    for key, shape in shapes.items():
        (_, *sizes), dtype = inputs[key]
        if not _narrows(shape, sizes):
            raise ValueError(
                f"The signature '{name}' gives the input '{key}' the shape {shape!r}. The "
                f"model's shape is {tuple(sizes)} without the batch. Replace only None, by a "
                "positive integer, and keep all other sizes."
            )
        inputs[key] = ((None, *(None if size is None else int(size) for size in shape)), dtype)
    return signature._replace(inputs=inputs)


def _narrows(shape: object, sizes: Sequence[int | None]) -> bool:
    """Whether `shape` equals `sizes` except for open sizes that it fixes."""
    if not isinstance(shape, (list, tuple)) or len(shape) != len(sizes):
        return False
    return all(
        size is own if size is None else is_whole(size) and 0 < size < 2**31 and own in (None, size)
        for size, own in zip(shape, sizes, strict=True)
    )


def _named(structure: Any, names: Iterable[str]) -> Any:
    """Replaces the tensors by their keys if `structure` is a flat dict, else by `names`."""
    if isinstance(structure, dict) and not any(map(keras.tree.is_nested, structure.values())):
        return {key: str(key) for key in structure}
    return keras.tree.pack_sequence_as(structure, list(names))


def _numbered(names: Iterable[str]) -> Iterable[str]:
    """Makes names unique: `a, a, b`, where a layer has two outputs, becomes `a, a_1, b`.

    A name that another output has is not given again: `a, a, a_1` becomes `a, a_2, a_1`.
    """
    names = list(names)
    given: set[str] = set()
    for name in names:
        if name in given:
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            name = next(x for x in numbered if x not in given and x not in names)
        given.add(name)
        yield name
