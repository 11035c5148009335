"""`export_saved_model`: writes a model as the next version in a folder of TensorFlow Serving.

On TensorFlow and JAX, this process makes the graph. On other backends the model is saved, and
`python -m keras_graphattn.export` loads and exports it on TensorFlow.
"""

import errno
import importlib.util
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_graphattn.checks import checked, folder, optional, whole
from keras_graphattn.export.signature import DEFAULT, Signature, Wanted, served_signatures
from keras_graphattn.keras_internals import replaced_attributes, walk
from keras_graphattn.types import Tensor
from keras_graphattn.version import INSTALL_EXTRA

try:
    import fcntl
except ImportError:  # no file locks on this system: folders of killed exports are not removed
    fcntl = None  # type: ignore[assignment]

PREFIX = ".export-"  # a server ignores folders whose names are not numbers
# Texts in the errors of TensorFlow, h5py and the operating system when a disk is full.
FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
# A graph from JAX runs only on the platforms that the export names, so it names all of these.
JAX_PLATFORMS = ("cpu", "cuda")
# JAX writes StableHLO for readers that are a month old. This is the version of TensorFlow 2.21.
STABLEHLO = "1.13.7"
# The pass that writes functions such as `erf` as their arithmetic
ARITHMETIC = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
# Modules that are imported anyway, or that only hold base classes
COMMON = ("keras", "keras_graphattn", "tensorflow", "torch", "builtins", "typing", "abc")


@checked(directory=folder, version=optional(whole(0, below=2**63)))
def export_saved_model(
    model: keras.Model,
    directory: str | os.PathLike[str],
    version: int | None = None,
    signature: Wanted = DEFAULT,
) -> Path:
    """Writes a model as `directory/<version>`, ready for TensorFlow Serving.

    The signatures have the method `tensorflow/serving/predict`. A signature has one named tensor
    for each input of the model: the name is the key in a dict of inputs, or else the name given to
    `keras.Input`. It also has one for each output: the name is the key in a dict of outputs, or
    else the name of the layer that makes the output. If a layer makes several outputs, `_1`, `_2`
    ... are added. The batch dimension is open. Lengths given as `None` stay open unless
    `signature` fixes them. Dropout is off. Half-precision outputs are cast to float32. On a server,
    the graph needs neither Keras, nor this package, nor the backend that trained the model.

    With the TensorFlow and JAX backends, this process makes the graph. With any other backend, the
    model is saved, and a TensorFlow process loads and exports it.

    The version is first written to a folder whose name servers ignore. This folder is renamed at
    the end, so a server that watches `directory` never sees an unfinished version. Exports to one
    folder wait for each other. If one is killed, the next export removes its unfinished folder.

    Args:
        model: A built Functional or Sequential model.
        directory: Folder of the served model, with one folder per version. It is created if it
            does not exist.
        version: Version number, an integer of at least 0. By default, it is one more than the
            highest version in `directory`, or 1 if there is no version.
        signature: Name of the signature, or a mapping that defines several. The mapping is from
            names to the shapes of some inputs, without the batch dimension. The shapes fix open
            lengths: `{"short": {"tokens": (64,)}, "long": {"tokens": (512,)}}`. `None` instead of
            the shapes keeps those of the model. All signatures share the weights. A server uses
            `serving_default` for requests that name no signature. If no signature has this name,
            the first one is exported under it as well.

    Returns:
        The path of the version's folder.

    Raises:
        ValueError: If the inputs of the model are not known, a name cannot be served, a length
            cannot stay open, a shape in `signature` does not match the model, or a class of the
            model is defined in `__main__`. Also if `directory` is not a local folder, or `version`
            is not a valid number.
        FileExistsError: If `version` already exists: versions are never overwritten.
        OSError: If `directory` is not writable.
        ImportError: If TensorFlow is not installed.
        RuntimeError: If the TensorFlow process for another backend fails.

    Example:

    >>> inputs = keras.Input((16, 8), name="series")
    >>> outputs = GraphFilterAttention(num_heads=2, key_dim=4, name="attention")(inputs)
    >>> model = keras.Model(inputs, outputs)
    >>> export_saved_model(model, "served/my_model")
    PosixPath('served/my_model/1')
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "`export_saved_model` writes a TensorFlow graph, which needs TensorFlow. "
            f"Install the extra `serving` in a checkout: {INSTALL_EXTRA.format('serving')}"
        )
    served_signatures(model, signature)  # refuses what is wrong before anything is written
    directory = Path(directory)
    with _scratch_folder(directory) as scratch:
        _free_version(directory, version)
        written = scratch / "saved_model"
        write_graph(model, written, signature)
        return written.rename(directory / str(_free_version(directory, version)))


def _free_version(directory: Path, version: int | None) -> int:
    """The version to write: `version`, or one more than the highest that a server would find."""
    names = (entry.name for entry in directory.iterdir())
    versions = [int(name) for name in names if name.isascii() and name.isdigit()]
    if version in versions:
        raise FileExistsError(
            f"Version {version} already exists in '{directory}'. Versions are never overwritten. "
            "Leave out `version` to write the next one."
        )
    return max(versions, default=0) + 1 if version is None else version


@contextmanager
def _scratch_folder(directory: Path) -> Iterator[Path]:
    """Makes a temporary folder inside `directory`, and removes it afterwards.

    If the export fails, the folders that were created for `directory` are removed as well.
    """
    refusal = f"Cannot write a model to `directory`='{directory}':"
    missing: list[Path] = []
    try:
        with ExitStack() as stack:
            try:
                missing += [path for path in (directory, *directory.parents) if not path.exists()]
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_locked(directory))
                scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
            except (FileExistsError, NotADirectoryError) as error:
                raise NotADirectoryError(f"{refusal} it or a parent is a file.") from error
            except OSError as error:
                raise type(error)(f"{refusal} {error.strerror}.") from error
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            yield scratch
    except BaseException as error:
        for path in missing:
            with suppress(OSError):  # not empty: another export wrote to it
                path.rmdir()
        full = next((word for word in FULL if word in str(error)), None)
        if full is None or str(error).startswith(refusal):
            raise
        raise OSError(f"{refusal} {full}. Finished versions are intact.") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Waits for other exports to the folder, and removes unfinished folders of killed exports.

    The operating system releases the lock when a process ends, even if it is killed.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
            for killed in directory.glob(f"{PREFIX}*"):
                shutil.rmtree(killed, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def write_graph(model: keras.Model, path: Path, signature: Wanted = DEFAULT) -> None:
    """Writes the forward pass of a built model as a SavedModel."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        _write_by_tensorflow_process(model, path, signature)
        return
    signatures = served_signatures(model, signature)
    try:
        if backend == "jax":
            _write_from_jax(model, signatures, path)
        else:
            _write_from_tensorflow(model, signatures, path)
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


def _forward_function(
    model: keras.Model, signature: Signature
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The model's inference from named tensors to named tensors, none in half precision."""

    def in_float32(output: Tensor) -> Tensor:
        half = keras.backend.standardize_dtype(output.dtype) in ("float16", "bfloat16")
        return keras.ops.cast(output, "float32") if half else output

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        structure = keras.tree.map_structure(lambda name: inputs[name], signature.input_structure)
        outputs = keras.tree.flatten(model(structure, training=False))
        return dict(zip(signature.outputs, map(in_float32, outputs), strict=True))

    return forward


def _tensor_specs(signature: Signature) -> dict[str, Any]:
    import tensorflow as tf

    return {
        name: tf.TensorSpec(shape, dtype, name=name)
        for name, (shape, dtype) in signature.inputs.items()
    }


def _write_from_tensorflow(
    model: keras.Model, signatures: dict[str, Signature], path: Path
) -> None:
    from tensorflow.saved_model.experimental import TrackableResource

    archive = keras.export.ExportArchive()
    # The archive would find vocabularies in layers if it tracked the model. But then it would also
    # trace the model with the lengths that it was built with, and ignore those of the signatures.
    for attribute in (value for layer in walk(model) for value in vars(layer).values()):
        if isinstance(attribute, TrackableResource):
            archive.track(attribute)
    for name, signature in signatures.items():
        specs = [_tensor_specs(signature)]
        archive.add_endpoint(name, _forward_function(model, signature), input_signature=specs)
    archive.write_out(str(path), verbose=False)


def _write_from_jax(model: keras.Model, signatures: dict[str, Signature], path: Path) -> None:
    """A `keras.export.ExportArchive` whose graph assigns no variables when it is called.

    The archive's graph writes all state back at each request, also metrics and random seeds.
    """
    import tensorflow as tf

    module = tf.Module()
    module.weights = [
        tf.Variable(keras.ops.convert_to_numpy(weight), trainable=False) for weight in model.weights
    ]
    module.functions = {}
    graphs: dict[str, Any] = {}
    with readable_by_tensorflow():
        for name, signature in signatures.items():
            module.functions[name], graphs[name] = _graph_from_jax(model, signature, module.weights)
        tf.saved_model.save(module, str(path), signatures=graphs)  # traces once more


def readable_by_tensorflow() -> AbstractContextManager[None]:
    """A context in which JAX writes what the oldest supported TensorFlow reads.

    This is an older StableHLO, in which functions such as `erf` are written as their arithmetic.
    From JAX 0.12 they are calls, for which TensorFlow cannot derive open sizes.
    """
    from jax._src.export import _export
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager

    def arithmetic_to_bytecode(module: Any) -> bytes:
        with module.context:
            PassManager.parse(ARITHMETIC).run(module.operation)
        written: bytes = to_bytecode(module)
        return written

    stablehlo.register_stablehlo_passes()
    to_bytecode = _export._module_to_bytecode
    version = "get_version_from_compatibility_requirement"
    return replaced_attributes(
        [
            (stablehlo, version, lambda requirement: STABLEHLO),
            (_export, "_module_to_bytecode", arithmetic_to_bytecode),
        ]
    )


def _graph_from_jax(
    model: keras.Model, signature: Signature, variables: list[Any]
) -> tuple[Any, Any]:
    """Returns a TensorFlow function and its graph, with the first choice of names that works."""
    *others, last = (
        _function_from_jax(model, signature, shapes, variables)
        for shapes in _symbolic_shapes(signature)
    )
    for function in others:
        # Keras logs a traceback if jax refuses a choice; only that of `last` is shown.
        silent = replaced_attributes([(logging.getLogger("absl"), "disabled", True)])
        with suppress(Exception), silent:
            return function, function.get_concrete_function()
    return last, last.get_concrete_function()


def _function_from_jax(
    model: keras.Model, signature: Signature, shapes: dict[str, str], variables: list[Any]
) -> Any:
    """The model as a function of TensorFlow, with these names of open sizes."""
    import tensorflow as tf
    from jax.experimental import jax2tf

    forward = _forward_function(model, signature)

    def stateless(weights: list[Tensor], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with keras.StatelessScope(state_mapping=zip(model.weights, weights, strict=True)):
            return forward(inputs)

    converted = jax2tf.convert(
        stateless,
        polymorphic_shapes=[None, shapes],
        with_gradient=False,
        native_serialization_platforms=JAX_PLATFORMS,
    )
    return tf.function(
        lambda inputs: converted(list(variables), inputs),
        input_signature=[_tensor_specs(signature)],
        autograph=False,
    )


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


def _write_by_tensorflow_process(model: keras.Model, path: Path, signature: Wanted) -> None:
    """Saves the model next to `path`; `python -m keras_graphattn.export` loads and exports it.

    That process loads in safe mode, and imports the modules that define the model's own classes.
    It sees no GPU, because this process uses the GPU.
    """
    modules = defining_modules(model)
    file = path.with_suffix(".keras")
    model.save(file)
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
    }
    options = ["--signature", json.dumps(signature, default=_plain)]
    finished = subprocess.run(
        [sys.executable, "-m", "keras_graphattn.export", str(file), str(path), *modules, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if finished.returncode:
        # the message of the last exception, without its traceback
        *_, message = re.split(r"^(?=[\w.]+(?:Error|Exception)\b)", finished.stderr, flags=re.M)
        lines = "\n".join(line[:300] for line in message.splitlines()[:12])
        raise RuntimeError(
            f"The TensorFlow process that exports the model '{model.name}' failed with status "
            f"{finished.returncode}:\n{lines}"
        )


def _plain(value: Any) -> object:
    """Converts what JSON does not know: NumPy's integers, and mappings that are not dicts."""
    return int(value) if isinstance(value, np.integer) else dict(value)


def defining_modules(model: keras.Model) -> list[str]:
    """The modules that define the registered classes and functions in a model's config.

    Keras, this package and other modules that are always imported are left out. Base classes count:
    a converted model's class is registered when the module of its plain class is imported.
    """
    config = {**keras.saving.serialize_keras_object(model), "compile_config": None}
    names = re.findall(r'"([^">]+>[^"]+)"', json.dumps(config, default=str))
    registered = (keras.saving.get_registered_object(name) for name in names)
    parts = [
        part for one in registered if one is not None for part in getattr(one, "__mro__", [one])
    ]
    local = [part.__name__ for part in parts if part.__module__ == "__main__"]
    if local:
        raise ValueError(
            f"The model '{model.name}' uses '{local[0]}', which is defined in `__main__`. The "
            "TensorFlow process that exports the model cannot import it from there. Move the "
            "definition to a module and import it from that module."
        )
    modules = {part.__module__ for part in parts}
    return sorted(one for one in modules & set(sys.modules) if one.partition(".")[0] not in COMMON)
