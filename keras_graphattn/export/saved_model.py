"""The public verb: a model becomes the next version in a folder that TensorFlow Serving watches."""

import errno
import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.checks.arguments import checked, folder, optional
from keras_graphattn.export.graph import write_graph
from keras_graphattn.export.requests import VERSION
from keras_graphattn.export.scratch import locked_scratch
from keras_graphattn.export.signature import DEFAULT, served_signatures
from keras_graphattn.export.through_tensorflow import write_graph_through_tensorflow
from keras_graphattn.export.warmup import warmup_requests, write_warmup

Model = Any

# What the errors of TensorFlow, of h5py and of the system have in common where a disk is full
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

    A signature of the method `tensorflow/serving/predict` has one named tensor per input of the
    model (the key of a dict of inputs, else the name given to `keras.Input`) and one per output
    (the key of a dict of outputs, else the name of the layer that makes it, with `_1`, `_2` ...
    where a layer makes several). The batch dimension is open; lengths given as `None` stay open
    unless `signature` fixes them. Dropout is off, and half-precision outputs leave as float32.
    On a server the graph needs neither Keras nor this package nor the backend that trained it.

    With the TensorFlow and JAX backends the graph is made in this process; with any other
    backend the model is saved, loaded in a TensorFlow process and exported there.

    The version is written aside, under a name that a server ignores, and renamed at the end: a
    server that watches `directory` never sees half of it. What a killed export left aside is
    removed by the next one.

    Args:
        model: A built Functional or Sequential model.
        directory: Folder of the served model, made if missing; it holds one folder per version.
        version: Version number, an integer of at least 0; one more than the highest that
            `directory` holds by default, and 1 in an empty folder.
        signature: Name of the signature, or a mapping from names to the shapes of some inputs,
            without the batch, which fix open lengths: `{"short": {"tokens": (64,)}, "long":
            {"tokens": (512,)}}`, or `None` for the model's own. All share the weights. There is
            always a `serving_default`, which a server takes where a request names none: the
            first one, if none has the name.
        warmup: Batches that a server runs before it answers with this version, which else its
            first requests wait for: one batch or a list of batches, each a dictionary from
            inputs to arrays of shape (B, ...), or for one input the array. Each is written for
            every signature that takes its shapes, into `assets.extra`. The model runs on each
            first: a server refuses a version whose warm-up fails. `None` for no warm-up.

    Returns:
        The path of the version's folder.

    Raises:
        ValueError: If the inputs of the model are not known, a name cannot be served, a length
            cannot stay open, a shape in `signature` is not one of the model's, a batch of
            `warmup` fits no signature, or a class of the model is defined in `__main__`; and for
            a `directory` that is no local one, or a `version` that is no number.
        FileExistsError: If `version` exists: versions are never overwritten.
        OSError: If `directory` cannot be written to.
        ImportError: If TensorFlow, or for `warmup` tensorflow-serving-api, is not installed.
        RuntimeError: If the TensorFlow process of another backend fails.

    Example:

    >>> inputs = keras.Input((16, 8), name="series")
    >>> outputs = GraphFilterAttention(num_heads=2, key_dim=4, name="attention")(inputs)
    >>> model = keras.Model(inputs, outputs)
    >>> export_saved_model(model, "served/my_model")
    PosixPath('served/my_model/1')
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "export_saved_model writes a TensorFlow graph and needs TensorFlow. "
            "Install it with `pip install keras-graphattn[serving]`."
        )
    signatures = served_signatures(model, signature)  # refuses early what cannot be exported
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
    """The versions that a server would find: names that are whole numbers."""
    names = (entry.name for entry in directory.iterdir())
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _check_version(directory: Path, version: int) -> None:
    if version in _versions(directory):
        raise FileExistsError(
            f"Version {version} exists in '{directory}' and a version is never overwritten. "
            "Leave `version` out to write the next one."
        )


@contextmanager
def _scratch_folder(directory: Path) -> Iterator[Path]:
    """A temporary folder inside `directory`, gone afterwards, with all that a failure leaves."""
    refusal = f"Cannot write a model to `directory`='{directory}':"
    missing: list[Path] = []
    try:
        with ExitStack() as stack:
            try:
                missing += [path for path in (directory, *directory.parents) if not path.exists()]
                directory.mkdir(parents=True, exist_ok=True)
                scratch = stack.enter_context(locked_scratch(directory))
            except (FileExistsError, NotADirectoryError) as error:
                raise NotADirectoryError(f"{refusal} it, or a parent, is a file.") from error
            except OSError as error:
                raise type(error)(f"{refusal} {error.strerror}.") from error
            yield scratch
    except BaseException as error:
        for path in missing:
            with suppress(OSError):  # not empty: another export has arrived meanwhile
                path.rmdir()
        full = next((word for word in FULL if word in str(error)), None)
        if full is None or str(error).startswith(refusal):
            raise
        raise OSError(f"{refusal} {full}. The versions that it holds are whole.") from error


def _publish(written: Path, directory: Path, version: int | None) -> Path:
    """Renames the finished export to its version, in one step."""
    while True:
        number = max(_versions(directory), default=0) + 1 if version is None else version
        _check_version(directory, number)
        target = directory / str(number)
        try:
            return written.rename(target)
        except OSError:
            if not target.exists():
                raise
            # Another export took the number meanwhile: the next round refuses or counts on.
