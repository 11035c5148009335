"""`export_saved_model`: writes a model as the next version in a folder of TensorFlow Serving."""

import errno
import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.checks import checked, folder, optional
from keras_graphattn.export.graph import write_graph
from keras_graphattn.export.requests import VERSION
from keras_graphattn.export.scratch import locked_scratch
from keras_graphattn.export.signature import DEFAULT, served_signatures
from keras_graphattn.export.through_tensorflow import write_graph_through_tensorflow
from keras_graphattn.export.warmup import warmup_requests, write_warmup
from keras_graphattn.version import INSTALL_EXTRA

Model = Any

# Texts in the errors of TensorFlow, h5py and the operating system when a disk is full.
FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


@checked(directory=folder, version=optional(VERSION))
def export_saved_model(
    model: Model,
    directory: str | os.PathLike[str],
    version: int | None = None,
    signature: Any = DEFAULT,
    warmup: Any = None,
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
    the end, so a server that watches `directory` never sees an unfinished version. If an export is
    killed, the next export removes its unfinished folder.

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
        warmup: Batches that a server runs before it answers with this version. Without them, the
            first requests wait for this. Give one batch or a list of batches, each a dictionary
            from inputs to arrays of shape (B, ...). If the model has only one input, a batch may
            be the array itself. Each batch is written to `assets.extra`, once for every signature
            that accepts its shapes. The export first runs the model on each batch, because a
            server refuses a version whose warm-up fails. By default, there is no warm-up.

    Returns:
        The path of the version's folder.

    Raises:
        ValueError: If the inputs of the model are not known, a name cannot be served, a length
            cannot stay open, a shape in `signature` does not match the model, a batch of `warmup`
            fits no signature, or a class of the model is defined in `__main__`. Also if
            `directory` is not a local folder, or `version` is not a valid number.
        FileExistsError: If `version` already exists: versions are never overwritten.
        OSError: If `directory` is not writable.
        ImportError: If TensorFlow is not installed, or tensorflow-serving-api for `warmup`.
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
    signatures = served_signatures(model, signature)  # before anything is written
    directory = Path(directory)
    requests = None if warmup is None else warmup_requests(model, signatures, warmup)
    direct = keras.backend.backend() in ("tensorflow", "jax")
    with _scratch_folder(directory) as scratch:
        if version is not None:
            _check_version(directory, version)
        written = scratch / "saved_model"
        if direct:
            write_graph(model, written, signature)
        else:
            write_graph_through_tensorflow(model, written, signature)
        if requests is not None:
            write_warmup(requests, written, directory.resolve().name)
        return _publish(written, directory, version)


def _versions(directory: Path) -> list[int]:
    """Returns the versions that a server would find: folder names that are whole numbers."""
    names = (entry.name for entry in directory.iterdir())
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _check_version(directory: Path, version: int) -> None:
    if version in _versions(directory):
        raise FileExistsError(
            f"Version {version} already exists in '{directory}'. Versions are never overwritten. "
            "Leave out `version` to write the next one."
        )


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
                scratch = stack.enter_context(locked_scratch(directory))
            except (FileExistsError, NotADirectoryError) as error:
                raise NotADirectoryError(f"{refusal} it or a parent is a file.") from error
            except OSError as error:
                raise type(error)(f"{refusal} {error.strerror}.") from error
            yield scratch
    except BaseException as error:
        for path in missing:
            with suppress(OSError):  # not empty: another export wrote to it
                path.rmdir()
        full = next((word for word in FULL if word in str(error)), None)
        if full is None or str(error).startswith(refusal):
            raise
        raise OSError(f"{refusal} {full}. Finished versions are intact.") from error


def _publish(written: Path, directory: Path, version: int | None) -> Path:
    """Renames the folder of the finished export to its version, in one step."""
    while True:
        number = max(_versions(directory), default=0) + 1 if version is None else version
        _check_version(directory, number)
        target = directory / str(number)
        try:
            return written.rename(target)
        except OSError:
            if not target.exists():
                raise
            # Another export took the number meanwhile: try the next one, or raise an error.
