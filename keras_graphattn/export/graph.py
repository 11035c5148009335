"""A model's forward pass as a TensorFlow graph, on the TensorFlow and JAX backends."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.export.signature import DEFAULT, Signature, served_signatures
from keras_graphattn.hub.sites import walk

Model = Any
Tensor = Any
Tensors = dict[str, Tensor]

# The graph that JAX makes runs on these and no others, wherever it was made.
JAX_PLATFORMS = ("cpu", "cuda")


def write_graph(model: Model, path: Path, signature: Any = DEFAULT) -> None:
    """Writes a SavedModel.

    Args:
        model: A built Functional or Sequential model of the TensorFlow or JAX backend.
        path: Folder to write, which must not exist.
        signature: As in `export_saved_model`.

    Raises:
        ValueError: If the model has open lengths (`None`) that do not go into the graph.
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
            f"inputs {open_lengths}: build it with a fixed length, or fix it by `signature`, as in "
            f"signature={{'{DEFAULT}': {{'{open_lengths[0]}': (128, ...)}}}}, and pad. "
            f"The cause: {type(error).__name__}: {error}"
        ) from error


def forward_function(model: Model, signature: Signature) -> Callable[[Tensors], Tensors]:
    """The model at inference as a function of named tensors, half-precision outputs widened.

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
    """Vocabularies in the model's layers, which the archive cannot find by itself.

    It could if it tracked the model, but then it traces the model once more, at the lengths that
    the model was built with, whatever the signatures fix.
    """
    from tensorflow.saved_model.experimental import TrackableResource

    attributes = (value for layer in walk(model) for value in vars(layer).values())
    return [value for value in attributes if isinstance(value, TrackableResource)]


def _write_from_jax(model: Model, signatures: dict[str, Signature], path: Path) -> None:
    """Like `keras.export.ExportArchive`, but the graph assigns no variable when it is called.

    The archive writes every state back on each request, metrics and random seeds among them.
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
    failures = []
    for shapes in _symbolic_shapes(signature):
        function = _function_from_jax(model, signature, shapes, variables)
        try:
            return function, function.get_concrete_function()
        except Exception as error:
            failures.append(error)
    raise failures[-1]


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
    """Names for open dimensions: first each its own, then one for each axis of all inputs.

    The second says that, for instance, a series and its padding mask are equally long. JAX
    cannot find that out, and the graph refuses inputs that differ.
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
