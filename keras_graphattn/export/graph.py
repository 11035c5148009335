"""A model's forward pass as a TensorFlow graph, on the TensorFlow and JAX backends."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.export.signature import Signature, model_signature

Model = Any
Tensor = Any
Tensors = dict[str, Tensor]

SIGNATURE = "serving_default"
# The graph that JAX makes runs on these and no others, wherever it was made.
JAX_PLATFORMS = ("cpu", "cuda")


def write_graph(model: Model, path: Path) -> None:
    """Writes a SavedModel with the signature `serving_default`.

    Args:
        model: A built Functional or Sequential model of the TensorFlow or JAX backend.
        path: Folder to write, which must not exist.

    Raises:
        ValueError: If the model has open lengths (`None`) that do not go into the graph.
    """
    signature = model_signature(model)
    write = _write_from_jax if keras.backend.backend() == "jax" else _write_from_tensorflow
    try:
        write(model, signature, path)
    except Exception as error:
        if not signature.open_lengths:
            raise
        raise ValueError(
            f"The model '{model.name}' could not be exported with the open lengths (None) of its "
            f"inputs {signature.open_lengths}: build it with a fixed length, and pad. "
            f"The cause: {type(error).__name__}: {error}"
        ) from error


def _forward(model: Model, signature: Signature) -> Callable[[Tensors], Tensors]:
    """The model at inference as a function of named tensors, half-precision outputs widened."""

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


def _write_from_tensorflow(model: Model, signature: Signature, path: Path) -> None:
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        SIGNATURE, _forward(model, signature), input_signature=[_tensor_specs(signature)]
    )
    archive.write_out(str(path), verbose=False)


def _write_from_jax(model: Model, signature: Signature, path: Path) -> None:
    """Like `keras.export.ExportArchive`, but the graph assigns no variable when it is called.

    The archive writes every state back on each request, metrics and random seeds among them.
    """
    import tensorflow as tf

    module = tf.Module()
    module.weights = [
        tf.Variable(keras.ops.convert_to_numpy(weight), trainable=False) for weight in model.weights
    ]
    failures = []
    for shapes in _symbolic_shapes(signature):
        module.function = _function_from_jax(model, signature, shapes, module.weights)
        try:
            concrete = module.function.get_concrete_function()
        except Exception as error:
            failures.append(error)
        else:
            tf.saved_model.save(module, str(path), signatures={SIGNATURE: concrete})
            return
    raise failures[0]


def _function_from_jax(
    model: Model, signature: Signature, shapes: dict[str, str], variables: list[Any]
) -> Any:
    import tensorflow as tf
    from jax.experimental import jax2tf

    forward = _forward(model, signature)

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
