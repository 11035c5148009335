"""Graph classification data (the TU collection) in the text form of the published 10 folds.

    188                     number of graphs
    23 2                    nodes and label of the first graph
    2 2 1 13                of each node: tag, degree, its neighbours, attributes if there are any

The folder may have `10fold_idx/train_idx-1.txt`, `test_idx-1.txt` and so on, one number of a graph
per line.

Source: Kersting et al., "Benchmark data sets for graph kernels" (2016); the folds are those of Xu
et al., "How powerful are graph neural networks?", arXiv 1810.00826.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_graphattn.checks.arguments import folder as local_folder
from keras_graphattn.graphs.graph import Array, Graph


class TUData(NamedTuple):
    """Graphs with the number of their class as label.

    Attributes:
        graphs: The graphs. Node features are the tag as a row of zeros and a one, then attributes.
        classes: The labels in the file, in the order of the class numbers.
        folds: Pairs (training, test) of numbers of graphs; empty where none are given.

    Example:

    >>> TUData([Graph([[0, 1]], label=0)], [-1], []).classes
    [-1]
    """

    graphs: list[Graph]
    classes: list[int]
    folds: list[tuple[Array, Array]]


def read_tu(folder: Any, name: str | None = None) -> TUData:
    """Reads a data set, and its folds if they are there.

    An edge counts if one of its two nodes lists the other.

    Args:
        folder: The folder with `<name>.txt`, and maybe `10fold_idx`.
        name: Name of the data set; by default the name of the folder.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For a file that is not of this form; the error names the line.

    Example:

    >>> _ = Path("PAIR.txt").write_text("1\\n2 7\\n0 1 1\\n3 1 0\\n")
    >>> data = read_tu(".", "PAIR")
    >>> data.graphs[0].node_features.tolist(), data.classes, data.folds
    ([[1.0, 0.0], [0.0, 1.0]], [7], [])
    """
    path = local_folder("folder", folder)
    name = path.resolve().name if name is None else name
    file = path / f"{name}.txt"
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} must have the file {name}.txt. Give the folder of the data set, and `name` "
            "where it differs from the folder's."
        )
    lines = _Lines(file)
    (count,) = lines.integers(1)
    parsed = [_read_one(lines) for _ in range(count)]
    lines.check_end()
    tags = sorted({tag for graph in parsed for tag in graph.tags})
    classes = sorted({graph.label for graph in parsed})
    graphs = []
    for number, graph in enumerate(parsed):
        features = np.zeros((len(graph.tags), len(tags)), "float32")
        features[np.arange(len(graph.tags)), np.searchsorted(tags, graph.tags)] = 1.0
        try:
            found = Graph(
                np.array(graph.edges, "int64").reshape((-1, 2)),
                node_features=np.concatenate([features, graph.attributes], axis=1),
                label=classes.index(graph.label),
            )
        except ValueError as error:
            raise ValueError(f"{file.name}, graph {number}: {error}") from error
        graphs.append(found)
    if len({graph.node_features.shape[1] for graph in graphs}) > 1:
        raise ValueError(f"{file.name}: nodes must have the same number of attributes")
    return TUData(graphs, classes, _read_folds(path / "10fold_idx", count))


class _Parsed(NamedTuple):
    label: int
    tags: list[int]
    edges: list[tuple[int, int]]
    attributes: Array  # (n, attributes)


class _Lines:
    """The lines of a file one by one, with errors that name the line."""

    def __init__(self, file: Path) -> None:
        self.name, self.number = file.name, 0
        self.lines = file.read_text(encoding="utf-8").splitlines()

    def next(self) -> list[str]:
        self.number += 1
        if self.number > len(self.lines):
            raise ValueError(f"{self.name} ends after line {len(self.lines)}, in a graph")
        return self.lines[self.number - 1].split()

    def integers(self, count: int) -> list[int]:
        words = self.next()
        if len(words) != count or not all(re.fullmatch("-?[0-9]+", word) for word in words):
            raise self.wrong(f"{count} integers")
        return [int(word) for word in words]

    def wrong(self, expected: str) -> ValueError:
        line = self.lines[self.number - 1][:60]
        return ValueError(f"{self.name}, line {self.number} must be {expected}. Received: {line!r}")

    def check_end(self) -> None:
        if any(line.strip() for line in self.lines[self.number :]):
            raise ValueError(f"{self.name} has more lines than its graphs, from {self.number + 1}")


def _read_one(lines: _Lines) -> _Parsed:
    count, label = lines.integers(2)
    tags: list[int] = []
    edges: list[tuple[int, int]] = []
    attributes: list[Sequence[float]] = []
    for node in range(count):
        words = lines.next()
        try:
            tag, degree = int(words[0]), int(words[1])
            neighbours = [int(word) for word in words[2 : 2 + degree]]
            attributes.append([float(word) for word in words[2 + degree :]])
        except (ValueError, IndexError):
            raise lines.wrong("tag, degree, neighbours and attributes of a node") from None
        if len(neighbours) != degree:
            raise lines.wrong(f"of a node with {degree} neighbours")
        tags.append(tag)
        edges += [(node, other) for other in neighbours]
    if len(set(map(len, attributes))) > 1:
        raise lines.wrong("the last of a graph whose nodes have equally many attributes")
    width = len(attributes[0]) if attributes else 0
    return _Parsed(label, tags, edges, np.array(attributes, "float32").reshape((count, width)))


def _read_folds(folder: Path, count: int) -> list[tuple[Array, Array]]:
    folds = []
    for number in range(1, len(list(folder.glob("test_idx-*.txt"))) + 1):
        train, test = (
            np.loadtxt(folder / f"{part}_idx-{number}.txt", dtype="int64", ndmin=1)
            for part in ("train", "test")
        )
        both = np.concatenate([train, test])
        if len(np.unique(both)) < len(both) or both.min() < 0 or both.max() >= count:
            raise ValueError(
                f"{folder}, fold {number} must have each graph once, with numbers from 0 to "
                f"{count - 1}. Received: {len(both)} numbers, {len(np.unique(both))} of them "
                f"different, from {both.min()} to {both.max()}"
            )
        folds.append((train, test))
    return folds
