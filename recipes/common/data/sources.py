"""Data of tensorflow-datasets and presets of KerasHub, whose errors become one line.

Does not import Keras itself.
"""

import argparse
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from recipes.common.command.parsing import UsageError, flags

CONVERTED = "holds converted attention already: give the preset that it was made of"


def load_tfds(name: str, split: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """All examples of a split of a data set of tensorflow-datasets, as NumPy."""
    with tfds_for(name) as tfds:
        data = tfds.load(name, split=split, data_dir=folder and str(folder))
        return list(tfds.as_numpy(data))


@contextmanager
def tfds_for(name: str) -> Iterator[ModuleType]:
    """The package tensorflow-datasets; its errors for a data set become a `UsageError`."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        from keras_graphattn.version import INSTALL_EXTRA

        raise UsageError(
            f"{name} is read through tensorflow-datasets: "
            f"{INSTALL_EXTRA.format('recipes,tensorflow')} ({error})"
        ) from error
    try:
        yield tensorflow_datasets
    except ModuleNotFoundError as error:  # it imports some packages only when they are needed
        raise UsageError(
            f"{name}: tensorflow-datasets needs the package {error.name}. Call "
            f"`pip install {error.name}`, or give the data's folder as --data-dir"
        ) from error
    except Exception as error:  # it raises whatever the network or the disk met
        raise UsageError(
            f"{name} cannot be loaded by tensorflow-datasets: {type(error).__name__}: "
            f"{str(error)[:300]} (without a network, give its folder as --data-dir)"
        ) from error


def refuse_missing(needed: Mapping[str, str]) -> None:
    """Refuses a recipe whose packages are not installed; by module, what to install."""
    missing = [name for module, name in needed.items() if not importlib.util.find_spec(module)]
    if missing:
        raise UsageError(f"this recipe needs: pip install {' '.join(missing)}")


def refuse_beside_preset(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuses options for models from scratch, and a preset without KerasHub."""
    for name in names:
        if getattr(options, name) not in (None, False):
            raise UsageError(
                f"{flags([name])} has no use beside --preset {options.preset}, which says what "
                "the model is"
            )
    if importlib.util.find_spec("keras_hub") is None:
        raise UsageError("--preset needs KerasHub: pip install keras-hub")


@contextmanager
def loading_preset(preset: str | None, form: str = "") -> Iterator[None]:
    """A context in which errors of KerasHub for a preset become a `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # KerasHub raises whatever the network or the disk met
        if "GraphAttention" in str(error):
            raise UsageError(f"--preset {preset} {CONVERTED}") from error
        raise UsageError(
            f"--preset {preset} cannot be loaded{form}: {type(error).__name__}: "
            f"{str(error)[:300]} (without a network, give a preset's folder)"
        ) from error


def refuse_converted(preset: str | None, backbone: Any) -> None:
    """Raises `UsageError` for a backbone that is converted already."""
    if type(backbone).__name__.startswith("GraphAttention"):
        raise UsageError(f"--preset {preset} {CONVERTED}")
