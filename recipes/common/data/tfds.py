"""Data sets of tensorflow-datasets; whatever goes wrong there is an error of one line."""

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
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise UsageError(
            f"{name} is read through tensorflow-datasets: "
            "pip install 'keras-graphattn[recipes]' tensorflow"
        ) from error
    try:
        data = tensorflow_datasets.load(name, split=split, data_dir=folder and str(folder))
        return list(tensorflow_datasets.as_numpy(data))
    except Exception as error:  # TFDS raises whatever the network or the disk met
        raise UsageError(
            f"{name} cannot be loaded by tensorflow-datasets: {type(error).__name__}: "
            f"{str(error)[:300]} (without a network, give its folder as --data-dir)"
        ) from error
