"""Time series of the UEA archive as padded arrays. Does not import Keras."""

import argparse
import dataclasses
import difflib
import hashlib
from pathlib import Path

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, held_out, of_accuracy, refuse_one_class


@dataclasses.dataclass
class Split:
    """Series padded to one length, with their padding masks and their classes."""

    series: np.ndarray  # (N, L, C) float32, 0 at padding, NaN where a value is missing
    padding_mask: np.ndarray  # (N, L) bool, True at the series' own steps
    labels: np.ndarray  # (N,) int32

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> "Split":
        return Split(self.series[indices], self.padding_mask[indices], self.labels[indices])

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The arrays under the names of the model's inputs.

        The mask goes as integers: on several replicas of TensorFlow, Keras takes the mean of a
        first batch over them, which is not defined for booleans.
        """
        return {"series": self.series, "padding_mask": self.padding_mask.astype("int8")}


@dataclasses.dataclass
class Problem:
    """A classification data set with the split of its archive."""

    name: str
    classes: list[str]
    train: Split
    test: Split

    @property
    def length(self) -> int:
        return self.train.series.shape[1]

    @property
    def channels(self) -> int:
        return self.train.series.shape[2]

    def chance(self) -> Chance:
        train = self.train.labels
        return of_accuracy(validation=train, training=train, test=self.test.labels)

    def digest(self) -> str:
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for split in (self.train, self.test):
            for array in (split.series, split.padding_mask, split.labels):
                digest.update(str(array.shape).encode() + array.tobytes())
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> Problem:
    """The data set that the options select; refuses one from which nothing can be learned.

    Raises:
        UsageError: When it cannot be read, has one class, or too few series to validate on.
    """
    problem = read(options.dataset, options.data_dir)
    refuse_one_class(problem.train.labels, problem.classes, problem.name)
    validation_split(problem.train.labels, options.validation_fraction, seed=0)
    return problem


def read(name: str, folder: Path | None = None) -> Problem:
    """Reads a data set through aeon.

    Its files are in `folder`, or in a sub-folder with the name of the data set. Without a folder,
    aeon looks in its package, then in its cache, then on the archive's site. Raises `UsageError`
    when the data set is unknown, cannot be reached, or is not for classification.
    """
    try:
        from aeon.datasets import load_classification, load_from_ts_file
    except ImportError as error:
        raise UsageError(
            f"this recipe reads its data through aeon: pip install aeon ({error})"
        ) from error

    def part(split: str) -> tuple:
        if folder is not None:
            return load_from_ts_file(str(_local_file(name, split, folder)))
        return load_classification(name, split=split.lower())

    if folder is None:
        _check_name(name)
    try:
        return _problem(name, part("TRAIN"), part("TEST"))
    except UsageError:
        raise
    except Exception as error:  # aeon raises whatever its parser or the network met
        hint = "" if folder else " (without a network, give its folder as --data-dir)"
        raise UsageError(
            f"the data set {name} cannot be loaded: {type(error).__name__}: {error}{hint}"
        ) from error


def validation_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, ...]:
    """Indices (training, validation), drawn class by class; each class keeps a training example.

    A fraction of 0 holds nothing out.
    """
    if fraction == 0:
        return np.arange(len(labels)), np.arange(0)
    training, validation = held_out(labels, fraction, np.random.default_rng(seed))
    if not len(validation):
        raise UsageError("no class has two training series: nothing is left to validate on")
    return training, validation


def statistics(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each channel over the steps that are neither padding nor missing."""
    steps = split.series[split.padding_mask].astype("float64")
    with np.errstate(all="ignore"):
        mean = np.nan_to_num(np.nanmean(steps, axis=0))
        variance = np.nan_to_num(np.nanvar(steps, axis=0))
    constant = variance <= 1e-12 * np.maximum(mean**2, 1e-12)
    return mean, np.where(constant, 1.0, variance)


def _local_file(name: str, split: str, folder: Path) -> Path:
    for place in (folder, folder / name):
        if (place / f"{name}_{split}.ts").is_file():
            return place / f"{name}_{split}.ts"
    raise UsageError(
        f"--data-dir {folder} has no {name}_{split}.ts, in itself or in a folder {name}"
    )


def _check_name(name: str) -> None:
    from aeon.datasets.tsc_datasets import tsc_zenodo

    if name not in tsc_zenodo:
        near = difflib.get_close_matches(name, tsc_zenodo, n=1)
        hint = f"did you mean {near[0]}?" if near else "give --data-dir for data of your own"
        raise UsageError(f"unknown data set {name!r}: the archive has none of this name; {hint}")


def _problem(name: str, train: tuple, test: tuple) -> Problem:
    (train_series, train_labels), (test_series, test_labels) = train, test
    if not len(train_series) or not len(test_series):
        raise UsageError(f"the data set {name} cannot be loaded: a file without series")
    classes, numbers = np.unique(train_labels, return_inverse=True)
    if set(test_labels) - set(classes):
        raise UsageError(f"{name}: the test data has classes that the training data lacks")
    channels = {np.shape(series)[0] for series in (*train_series, *test_series)}
    if len(channels) != 1:
        raise UsageError(f"{name}: series differ in their number of channels: {sorted(channels)}")
    length = max(np.shape(series)[1] for series in (*train_series, *test_series))
    return Problem(
        name,
        [str(label) for label in classes],
        _padded(train_series, numbers, length),
        _padded(test_series, np.searchsorted(classes, test_labels), length),
    )


def _padded(series: object, labels: np.ndarray, length: int) -> Split:
    """Series of shape (C, T) each, as one array (N, L, C)."""
    padded = np.zeros((len(labels), length, np.shape(series[0])[0]), "float32")
    mask = np.zeros((len(labels), length), bool)
    for row, one in enumerate(series):
        steps = np.shape(one)[1]
        padded[row, :steps] = np.transpose(one)
        mask[row, :steps] = True
    return Split(padded, mask, labels.astype("int32"))
