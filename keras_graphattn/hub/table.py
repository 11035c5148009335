"""What `inspect` returns: rows that print as a table."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import keras
import numpy as np

from keras_graphattn.coefficient_rate import NAME
from keras_graphattn.optimizers import applies_coefficient_rates, learning_rate_multiplier

SHOWN = 8  # numbers of a coefficient that are printed one by one


class Coefficient(NamedTuple):
    """One weight with its own learning rate; `str` gives its numbers, or a summary.

    Example:

    >>> str(Coefficient(np.arange(12.0).reshape((3, 4)), 100.0))
    '(3, 4), mean 5.5, from 0 to 11'
    """

    values: np.ndarray
    multiplier: float

    def __str__(self) -> str:
        numbers = self.values.ravel() + 0.0  # prints -0 as 0
        if numbers.size <= SHOWN:
            return ", ".join(f"{number:.4g}" for number in numbers)
        mean, low, high = (f"{one:.4g}" for one in (numbers.mean(), numbers.min(), numbers.max()))
        return f"{self.values.shape}, mean {mean}, from {low} to {high}"


@dataclass(frozen=True)
class Row:
    """One layer."""

    index: int | None
    path: str
    class_name: str
    parameters_added: int
    coefficient_learning_rate_multiplier: float | None = None
    coefficients: dict[str, Coefficient] = field(default_factory=dict, compare=False)


class Table(list[Row]):
    """A list of rows; `str` gives a table, with a note below it if there is one."""

    def __init__(self, rows: Iterable[Row] = (), note: str = "") -> None:
        super().__init__(rows)
        self.note = note

    def __str__(self) -> str:
        lines = [("index", "path", "class", "added", "rate", "values")]
        for row in self:
            rate = row.coefficient_learning_rate_multiplier
            index = "" if row.index is None else str(row.index)
            added = str(row.parameters_added)
            lines.append((index, row.path, row.class_name, added, _rate(rate), ""))
            for name, one in row.coefficients.items():
                lines.append(("", f"  {name}", "", "", _rate(one.multiplier), str(one)))
        widths = [max(len(line[column]) for line in lines) for column in range(5)]
        text = [
            f"{index:>{widths[0]}}  {path:<{widths[1]}}  {name:<{widths[2]}}  {added:>{widths[3]}}"
            f"  {rate:>{widths[4]}}  {values}".rstrip()
            for index, path, name, added, rate, values in lines
        ]
        return "\n".join([*text, self.note] if self.note else text)

    __repr__ = __str__


def _rate(multiplier: float | None) -> str:
    return "" if multiplier is None else f"x{multiplier:g}"


def multiplier_of(layer: keras.Layer) -> float | None:
    """The multiplier of all coefficients; if they differ, that of the layer. `None` without any."""
    multipliers = {learning_rate_multiplier(one) for one in getattr(layer, "coefficients", ())}
    if len(multipliers) == 1:
        return multipliers.pop()
    return getattr(layer, NAME, None) if multipliers or not layer.built else None


def coefficients_of(layer: keras.Layer) -> dict[str, Coefficient]:
    """The coefficients of a layer, including those of its mask, by their paths in the layer."""
    return {
        variable.path.removeprefix(f"{layer.path}/"): Coefficient(
            keras.ops.convert_to_numpy(variable.value), learning_rate_multiplier(variable)
        )
        for variable in getattr(layer, "coefficients", ())  # none before it is built
    }


def note_on_optimizer(model: keras.Layer, rows: Iterable[Row]) -> str:
    """A note, if a compiled model trains coefficients at the rate of all other weights."""
    optimizer = getattr(model, "optimizer", None)
    wanted = {row.coefficient_learning_rate_multiplier for row in rows}
    wanted |= {one.multiplier for row in rows for one in row.coefficients.values()}
    wanted -= {None, 1.0}
    if optimizer is None or not wanted or applies_coefficient_rates(optimizer):
        return ""
    return (
        f"The optimizer of '{model.name}' does not apply these rates. Compile with "
        "keras_graphattn.optimizers.with_coefficient_rates(optimizer)."
    )
