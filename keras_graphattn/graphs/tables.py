"""Files of numbers, one row in a line, with errors that name the line."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_graphattn.graphs.graph import Array


class Table(NamedTuple):
    """The numbers of a file: a row for each line that is not blank."""

    file: Path
    rows: Array  # (rows, columns)
    lines: list[int]  # from 1

    def check(self, right: Array, expected: str) -> None:
        """Raises an error that names the first line whose row is not right."""
        wrong = np.flatnonzero(~right)
        if len(wrong):
            row = " ".join(map(str, self.rows[wrong[0]].tolist()))
            raise wrong_line(self.file, self.lines[wrong[0]], expected, row)

    def check_once(self, expected: str) -> None:
        """Raises an error that names the first line whose number an earlier line has."""
        first = np.unique(self.rows[:, 0], return_index=True)[1]
        self.check(np.isin(np.arange(len(self.rows)), first), expected)


def wrong_line(file: Path, line: int, expected: str, received: str) -> ValueError:
    """The error for a line of another form than expected."""
    return ValueError(f"{file.name}, line {line} must be {expected}. Received: {received[:60]!r}")


def numbers_of(words: list[str], kind: type) -> list[Any]:
    """The words as finite numbers; an empty list if one of them is something else."""
    try:
        found = [kind(word) for word in words]
    except ValueError:
        return []
    return found if all(map(math.isfinite, found)) else []


def read_table(file: Path, kind: type = int, columns: int = 0) -> Table:
    """Reads numbers separated by commas, as many in each line; 0 for as many as in the first."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}. Give the folder of the whole data set.")
    rows, lines = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            columns = columns or line.count(",") + 1
            rows.append(numbers_of(line.split(","), kind))
            lines.append(number)
            if len(rows[-1]) != columns:
                kinds = "integers" if kind is int else "finite numbers"
                raise wrong_line(file, number, f"{columns} {kinds}, separated by commas", line)
    array = np.array(rows, "int64" if kind is int else "float64")
    return Table(file, array.reshape((len(rows), columns)), lines)
