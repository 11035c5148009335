"""Writes a model's forward pass as a TensorFlow graph, on the TensorFlow and JAX backends."""

import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.export.signature import DEFAULT, Signature, served_signatures
from keras_graphattn.keras_internals import replaced_attributes, walk

Model = Any
Tensor = Any
Tensors = dict[str, Tensor]

# A graph from JAX runs only on the platforms that the export names, so it names all of these.
JAX_PLATFORMS = ("cpu", "cuda")


def write_graph(model: Model, path: Path, signature: Any = DEFAULT) -> None:
    """Writes a SavedModel.

    Args:
        model: A built Functional or Sequential model of the TensorFlow or JAX backend.
        path: Folder to write, which must not exist.
        signature: As in `export_saved_model`.

    Raises:
        ValueError: If the model has open lengths (`None`) and the graph cannot keep them open.
    """
    signatures = served_signatures(model, signature)
    write = _write_from_jax if keras.backend.backend() == "jax" else _write_from_tensorflow
    try:
        write(model, signatures, path)
    except Exception as error:
        open_lengths = sorted({name for one in signatures.values() for name in one.open_lengths})
        if not open_lengths:
            raise
        raise ValueError(
            f"The model '{model.name}' could not be exported with the open lengths (None) of its "
            f"inputs {open_lengths}. Build it with fixed lengths, or fix them with `signature`, as "
            f"in signature={{'{DEFAULT}': {{'{open_lengths[0]}': (128, ...)}}}}, and pad the data. "
            f"The cause: {type(error).__name__}: {error}"
        ) from error


def forward_function(model: Model, signature: Signature) -> Callable[[Tensors], Tensors]:
    """Returns the model's inference as a function from named tensors to named tensors.

    The function casts half-precision outputs to float32.

    Args:
        model: A built Functional or Sequential model.
        signature: The names of its inputs and outputs.
    """

    def forward(inputs: Tensors) -> Tensors:
        structure = keras.tree.map_structure(lambda name: inputs[name], signature.input_structure)
        outputs = keras.tree.flatten(model(structure, training=False))
        return {
            name: _served(output) for name, output in zip(signature.outputs, outputs, strict=True)
        }

    return forward


def _served(output: Tensor) -> Tensor:
    half = keras.backend.standardize_dtype(output.dtype) in ("float16", "bfloat16")
    return keras.ops.cast(output, "float32") if half else output


def _tensor_specs(signature: Signature) -> Tensors:
    import tensorflow as tf

    return {
        name: tf.TensorSpec(shape, dtype, name=name)
        for name, (shape, dtype) in signature.inputs.items()
    }


def _write_from_tensorflow(model: Model, signatures: dict[str, Signature], path: Path) -> None:
    archive = keras.export.ExportArchive()
    for table in _lookup_tables(model):
        archive.track(table)
    for name, signature in signatures.items():
        specs = [_tensor_specs(signature)]
        archive.add_endpoint(name, forward_function(model, signature), input_signature=specs)
    archive.write_out(str(path), verbose=False)


def _lookup_tables(model: Model) -> list[Any]:
    """Returns the vocabularies in the model's layers, which the archive cannot find by itself.

    The archive would find them if it tracked the model. But then it would also trace the model
    with the lengths that the model was built with, and ignore those that the signatures fix.
    """
    from tensorflow.saved_model.experimental import TrackableResource

    attributes = (value for layer in walk(model) for value in vars(layer).values())
    return [value for value in attributes if isinstance(value, TrackableResource)]


def _write_from_jax(model: Model, signatures: dict[str, Signature], path: Path) -> None:
    """Writes like `keras.export.ExportArchive`, but calls of the graph assign no variables.

    The archive's graph writes all state back at each request, also metrics and random seeds.
    """
    import tensorflow as tf

    module = tf.Module()
    module.weights = [
        tf.Variable(keras.ops.convert_to_numpy(weight), trainable=False) for weight in model.weights
    ]
    module.functions = {}
    concrete = {}
    for name, signature in signatures.items():
        function, concrete[name] = _concrete_from_jax(model, signature, module.weights)
        module.functions[name] = function
    tf.saved_model.save(module, str(path), signatures=concrete)


def _concrete_from_jax(model: Model, signature: Signature, variables: list[Any]) -> tuple[Any, Any]:
    """Returns a TensorFlow function and its graph, with the first names of sizes that work."""
    *others, last = (
        _function_from_jax(model, signature, shapes, variables)
        for shapes in _symbolic_shapes(signature)
    )
    for function in others:
        # Keras logs a traceback of what jax refuses; `last` does the same where it fails, too.
        silent = replaced_attributes([(logging.getLogger("absl"), "disabled", True)])
        with suppress(Exception), silent:
            return function, function.get_concrete_function()
    return last, last.get_concrete_function()


def _function_from_jax(
    model: Model, signature: Signature, shapes: dict[str, str], variables: list[Any]
) -> Any:
    import tensorflow as tf
    from jax.experimental import jax2tf

    forward = forward_function(model, signature)

    def stateless(weights: list[Tensor], inputs: Tensors) -> Tensors:
        with keras.StatelessScope(state_mapping=zip(model.weights, weights, strict=True)):
            return forward(inputs)

    converted = jax2tf.convert(
        stateless,
        polymorphic_shapes=[None, shapes],
        with_gradient=False,
        native_serialization_platforms=JAX_PLATFORMS,
    )

    def function(inputs: Tensors) -> Any:
        return converted(list(variables), inputs)

    specs = _tensor_specs(signature)
    return tf.function(function, input_signature=[specs], autograph=False)


def _symbolic_shapes(signature: Signature) -> list[dict[str, str]]:
    """Returns two choices of names for open dimensions, in the order to try them.

    The first gives each open dimension a name of its own. The second gives all inputs the same
    name for the same axis. This tells JAX that, for example, a series and its padding mask have
    the same length, which JAX cannot derive. That graph then refuses inputs whose lengths differ.
    """

    def shapes(name_of: Callable[[int], str]) -> dict[str, str]:
        return {
            name: ", ".join(
                ["batch", *(str(size or name_of(axis)) for axis, size in enumerate(shape[1:], 1))]
            )
            for name, (shape, _) in signature.inputs.items()
        }

    counter = itertools.count()
    apart = shapes(lambda axis: f"length_{next(counter)}")
    joined = shapes(lambda axis: f"length_{axis}")
    return [apart] if apart == joined else [apart, joined]
