"""What `inspect` returns: rows that print as a table."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from keras_graphattn.optimizers import applies_coefficient_rates


@dataclass(frozen=True)
class Row:
    """One self-attention layer."""

    index: int
    path: str
    class_name: str
    parameters_added: int
    coefficient_learning_rate_multiplier: float | None = None


class Table(list[Row]):
    """A list of rows; `str` lays it out, with a note below where there is one."""

    def __init__(self, rows: Iterable[Row] = (), note: str = "") -> None:
        super().__init__(rows)
        self.note = note

    def __str__(self) -> str:
        header = ("index", "path", "class", "added", "rate")
        lines = [header, *(tuple(_cell(field) for field in astuple(row)) for row in self)]
        widths = [max(len(line[column]) for line in lines) for column in range(5)]
        text = [
            f"{index:>{widths[0]}}  {path:<{widths[1]}}  {name:<{widths[2]}}  {added:>{widths[3]}}"
            f"  {rate:>{widths[4]}}".rstrip()
            for index, path, name, added, rate in lines
        ]
        return "\n".join([*text, self.note] if self.note else text)

    __repr__ = __str__


def _cell(field: Any) -> str:
    if field is None:
        return ""
    return f"x{field:g}" if isinstance(field, float) else str(field)


def multiplier_of(layer: Any) -> float | None:
    """The multiplier of the coefficients' learning rate; `None` for a layer without any."""
    has_none = layer.built and not getattr(layer, "coefficients", ())
    return None if has_none else getattr(layer, "coefficient_learning_rate_multiplier", None)


def note_on_optimizer(model: Any, rows: Iterable[Row]) -> str:
    """One line where a compiled model trains coefficients at the rate of all other weights."""
    optimizer = getattr(model, "optimizer", None)
    wanted = {row.coefficient_learning_rate_multiplier for row in rows} - {None, 1.0}
    if optimizer is None or not wanted or applies_coefficient_rates(optimizer):
        return ""
    return (
        f"The optimizer of '{model.name}' does not apply these rates. Compile with "
        "keras_graphattn.optimizers.with_coefficient_rates(optimizer)."
    )
