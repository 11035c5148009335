"""What `inspect` returns: rows that print as a table."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Row:
    """One self-attention layer."""

    index: int
    path: str
    class_name: str
    parameters_added: int


class Table(list[Row]):
    """A list of rows; `str` lays it out."""

    def __str__(self) -> str:
        header = ("index", "path", "class", "added")
        lines = [header, *(tuple(str(field) for field in astuple(row)) for row in self)]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        return "\n".join(
            f"{index:>{widths[0]}}  {path:<{widths[1]}}  {name:<{widths[2]}}  {added:>{widths[3]}}"
            for index, path, name, added in lines
        )

    __repr__ = __str__
