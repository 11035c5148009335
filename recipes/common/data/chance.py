"""What can be had without looking at the inputs: the line that a curve has to rise above."""

from typing import NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError


class Chance(NamedTuple):
    """A metric's level for answers that look at no input."""

    label: str  # as the legend names it
    levels: dict[str, float]  # by the name of the data: validation, test, training


def refuse_one_class(labels: np.ndarray, classes: list[str] | tuple[str, ...], data: str) -> None:
    """Refuses training data of one class: any model has an accuracy of 1 there.

    Args:
        labels: Class numbers, of shape (N,).
        classes: Names of the classes.
        data: What the data is called.

    Raises:
        UsageError: If all examples have the same class.
    """
    found = np.unique(labels)
    if len(found) < 2:
        raise UsageError(
            f"{data}: all {len(labels)} training examples are of the class "
            f"{classes[int(found[0])]!r}; at least two classes are needed to tell them apart"
        )


def of_accuracy(**labels: np.ndarray) -> Chance:
    """The accuracy of the most frequent class, by the name of the data.

    Args:
        **labels: Class numbers, of shape (N,), of each part of the data.
    """
    shares = {name: float(np.bincount(one).max() / len(one)) for name, one in labels.items()}
    return Chance("always the most frequent class", shares)


def of_absolute_error(train: np.ndarray, **labels: np.ndarray) -> Chance:
    """The mean absolute error of the median of the training data, by the name of the data.

    Args:
        train: Numbers to predict, of shape (N,), of the training data.
        **labels: The same for each further part of the data.
    """
    parts = {"training": train, **labels}
    errors = {name: float(np.abs(one - np.median(train)).mean()) for name, one in parts.items()}
    return Chance("always the median of the training data", errors)


def of_correlation(*names: str) -> Chance:
    """A correlation of 0, in the data of these names."""
    return Chance("no relation to the labels", dict.fromkeys(names, 0.0))
