"""The result of `check_layout_map`: one row for each weight, printed as a table."""

from typing import NamedTuple


class Row(NamedTuple):
    """One weight, and how much of it each device holds."""

    path: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    entries_per_device: int


class Table(list[Row]):
    """A list of rows. `str` formats it as a table."""

    def __str__(self) -> str:
        lines = [("path", "shape", "axes", "entries per device")]
        lines += [
            (row.path, str(row.shape), _axes(row.axes), f"{row.entries_per_device:,}")
            for row in self
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        padded = [
            [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    __repr__ = __str__


def _axes(axes: tuple[str | None, ...]) -> str:
    return "whole" if all(axis is None for axis in axes) else ", ".join(str(a or "-") for a in axes)
