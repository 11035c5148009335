"""Data sets of tensorflow-datasets; whatever goes wrong there is an error of one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recipes.common.command.parsing import UsageError


def load_tfds(name: str, split: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """All examples of a split, as NumPy.

    Args:
        name: The data set, such as `"cifar10"` or `"glue/cola"`.
        split: The split.
        folder: Where tensorflow-datasets keeps its data; its own choice when None.

    Raises:
        UsageError: When the package is missing, or the data cannot be read or downloaded.
    """
    with _one_line_errors(name) as tfds:
        data = tfds.load(name, split=split, data_dir=folder and str(folder))
        return list(tfds.as_numpy(data))


def tfds_builder(name: str, folder: Path | None = None) -> Any:
    """The builder of a data set that is downloaded and prepared.

    Args:
        name: The data set, such as `"cifar10"` or `"imagenet_resized/64x64"`.
        folder: Where tensorflow-datasets keeps its data; its own choice when None.

    Raises:
        UsageError: When the package is missing, or the data cannot be read or downloaded.
    """
    with _one_line_errors(name) as tfds:
        builder = tfds.builder(name, data_dir=folder and str(folder))
        builder.download_and_prepare()
        return builder


@contextmanager
def _one_line_errors(name: str) -> Iterator[Any]:
    """The package; what it raises becomes a `UsageError`."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        from keras_graphattn.version import INSTALL_EXTRA

        raise UsageError(
            f"{name} is read through tensorflow-datasets: "
            f"{INSTALL_EXTRA.format('recipes,tensorflow')}"
        ) from error
    try:
        yield tensorflow_datasets
    except ModuleNotFoundError as error:  # it imports some packages only when they are needed
        raise UsageError(
            f"{name}: tensorflow-datasets needs the package {error.name}. Call "
            f"`pip install {error.name}`, or give the data's folder as --data-dir"
        ) from error
    except Exception as error:  # TFDS raises whatever the network or the disk met
        raise UsageError(
            f"{name} cannot be loaded by tensorflow-datasets: {type(error).__name__}: "
            f"{str(error)[:300]} (without a network, give its folder as --data-dir)"
        ) from error
