"""The level of constant answers, and divisions of data class by class."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError


class Chance(NamedTuple):
    """A metric's level for constant answers: a curve has to rise above it."""

    label: str  # as the legend names it
    levels: dict[str, float]  # by the name of the data: validation, test, training


def of_accuracy(**labels: np.ndarray) -> Chance:
    """The accuracy of the most frequent class, for the labels (N,) of each named data set."""
    shares = {name: float(np.bincount(one).max() / len(one)) for name, one in labels.items()}
    return Chance("always the most frequent class", shares)


def refuse_one_class(labels: np.ndarray, classes: Sequence[str], data: str) -> None:
    """Refuses training labels (N,) of one class: any model has an accuracy of 1 there."""
    present = np.unique(labels)
    if len(present) < 2:
        raise UsageError(
            f"{data}: all {len(labels)} training examples are of the class "
            f"{classes[int(present[0])]!r}; at least two classes are needed to tell them apart"
        )


def held_out(
    labels: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rest and of a share, drawn class by class; the rest has some of each class."""
    taken = []
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        taken.append(members[: min(max(round(share * len(members)), 1), len(members) - 1)])
    chosen = np.sort(np.concatenate(taken))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen
