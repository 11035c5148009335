"""Graph classification data (the TU collection) in its two published forms.

The archive's own form has files of numbers separated by commas. Nodes and graphs are numbered from
1 in the order of the lines.

    <name>_A.txt                  of each edge in each direction: its two nodes
    <name>_graph_indicator.txt    of each node: its graph
    <name>_graph_labels.txt       of each graph: its label
    <name>_node_labels.txt        of each node, _node_attributes.txt too: if they are there
    <name>_edge_labels.txt        of each line of <name>_A.txt, _edge_attributes.txt too: likewise

The text form of the published 10 folds is one file, `<name>.txt`:

    188                     number of graphs
    23 2                    nodes and label of the first graph
    2 2 1 13                of each node: tag, degree, its neighbours, attributes if there are any

With either, the folder may have `10fold_idx/train_idx-1.txt`, `test_idx-1.txt` and so on, one
number of a graph per line, from 0. Or it has `<name>_splits.json`: for each fold the numbers of the
graphs under "test", and under "model_selection" those of "train" and "validation".

Source: Kersting et al., "Benchmark data sets for graph kernels" (2016); Xu et al., "How powerful
are graph neural networks?", arXiv 1810.00826; Errica et al., "A fair comparison of graph neural
networks for graph classification", arXiv 1912.09893 (the folds in JSON).
"""

import json
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_graphattn.checks import Array
from keras_graphattn.checks import folder as local_folder
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.types import Float, Int


class TUData(NamedTuple):
    """Graphs with the number of their class as label.

    Attributes:
        graphs: The graphs. Node features are the node's label (its tag) as a one-hot row, then
            attributes. Where nodes have no label, all have the same. Edge features are the same of
            edges, if there are any.
        classes: The labels in the file, in the order of the class numbers.
        folds: Pairs (training, test) of numbers of graphs; empty where none are given.

    Example:

    >>> TUData([Graph([[0, 1]], label=0)], [-1], []).classes
    [-1]
    """

    graphs: list[Graph]
    classes: list[int]
    folds: list[tuple[Int[Array, " _"], Int[Array, " _"]]]


def read_tu(folder: str | os.PathLike[str], name: str | None = None) -> TUData:
    """Reads a data set in either of its forms, and its folds if they are there.

    The archive's form is that of TUDataset (chrsmrrs.github.io/datasets): `<name>_A.txt`,
    `<name>_graph_indicator.txt`, `<name>_graph_labels.txt` and, if they are there, `_node_labels`,
    `_node_attributes`, `_edge_labels` and `_edge_attributes`. Other files of the archive are not
    read. The text form, `<name>.txt`, and the folds `10fold_idx` are those of the repository
    weihua916/powerful-gnns on GitHub, and the folds `<name>_splits.json` those of
    diningphil/gnn-comparison. An edge counts if one of its two directions is there. If the folder
    has both forms, this reads the text form, and if it has both folds, the file in JSON.

    Args:
        folder: The folder with the files.
        name: Name of the data set; by default the name of the folder.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For files that are not of this form. The error names the file, and the line or
            the graph. Each fold must have each graph once, and some in either part.

    Example:

    >>> _ = Path("PAIR.txt").write_text("1\\n2 7\\n0 1 1\\n3 1 0\\n")
    >>> data = read_tu(".", "PAIR")
    >>> data.graphs[0].node_features.tolist(), data.classes, data.folds
    ([[1.0, 0.0], [0.0, 1.0]], [7], [])
    """
    path = local_folder("folder", folder)
    name = path.resolve().name if name is None else name
    if (path / f"{name}.txt").is_file():
        parts = _read_text(path / f"{name}.txt")
    elif (path / f"{name}_A.txt").is_file():
        parts = _read_archive(path, name)
    else:
        raise FileNotFoundError(
            f"{path} must have the file {name}.txt or {name}_A.txt. Give the folder of the data "
            "set, and `name` where it differs from the folder's."
        )
    classes, labels = np.unique(parts.labels, return_inverse=True)
    folds = _read_folds(path, name, len(labels))
    return TUData(_graphs(name, parts, labels), classes.tolist(), folds)


class _Parts(NamedTuple):
    """All graphs of a data set. Nodes are numbered over all of them, from 0."""

    labels: Int[Array, " graphs"]
    graph_of: Int[Array, " nodes"]  # ascending
    node_features: Float[Array, "nodes F"]
    edges: Int[Array, "edges 2"]
    edge_features: Float[Array, "edges G"] | None


def _graphs(name: str, parts: _Parts, labels: Int[Array, " graphs"]) -> list[Graph]:
    of_edges = parts.graph_of[parts.edges[:, 0]]
    order, numbers = np.argsort(of_edges, kind="stable"), np.arange(len(labels) + 1)
    first = np.searchsorted(parts.graph_of, numbers)
    first_edge = np.searchsorted(of_edges[order], numbers)
    graphs = []
    for number, label in enumerate(labels):
        edges = order[first_edge[number] : first_edge[number + 1]]
        try:
            graph = Graph(
                parts.edges[edges] - first[number],
                None,
                parts.node_features[first[number] : first[number + 1]],
                None if parts.edge_features is None else parts.edge_features[edges],
                int(label),
            )
        except ValueError as error:
            raise ValueError(f"{name}, graph {number}: {error}") from error
        graphs.append(graph)
    return graphs


def _read_archive(path: Path, name: str) -> _Parts:
    def file(part: str) -> Path:
        return path / f"{name}_{part}.txt"

    labels, graph_of = (read_numbers(file(x))[:, 0] for x in ("graph_labels", "graph_indicator"))
    numbers = set(range(1, len(labels) + 1))
    if not numbers or (np.diff(graph_of) < 0).any() or set(graph_of) != numbers:
        raise ValueError(
            f"{name}_graph_indicator.txt must have the graphs 1 to {len(labels)}, the lines of "
            f"{name}_graph_labels.txt, in ascending order. Received: graphs "
            f"{np.unique(graph_of).tolist()!s:.60}"
        )
    edges = read_numbers(file("A"), columns=2)
    wrong = np.flatnonzero(((edges < 1) | (edges > len(graph_of))).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"{name}_A.txt, line {wrong[0] + 1} must be two nodes from 1 to {len(graph_of)}, the "
            f"lines of {name}_graph_indicator.txt. Received: {edges[wrong[0]].tolist()}"
        )

    def features(kind: str, count: int) -> list[Float[Array, "_ _"]]:
        parts = []
        for part, number in (("labels", int), ("attributes", float)):
            if file(f"{kind}_{part}").is_file():
                rows = read_numbers(file(f"{kind}_{part}"), number, columns=None)
                if len(rows) != count:
                    raise ValueError(
                        f"{name}_{kind}_{part}.txt must have a line for each {kind}, {count}. "
                        f"Received: {len(rows)} lines"
                    )
                parts.append(_one_hot(rows) if part == "labels" else rows)
        return parts

    of_nodes, of_edges = features("node", len(graph_of)), features("edge", len(edges))
    if not file("node_labels").is_file():
        of_nodes.insert(0, np.ones((len(graph_of), 1)))
    return _Parts(
        labels,
        graph_of - 1,
        np.concatenate(of_nodes, axis=1),
        edges - 1,
        np.concatenate(of_edges, axis=1) if of_edges else None,
    )


def _read_text(file: Path) -> _Parts:
    try:
        lines = file.read_text(encoding="utf-8").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} must be text in UTF-8: {error}") from error
    number = 0  # of the line that was read last
    labels: list[int] = []
    graph_of: list[int] = []
    tags: list[int] = []
    attributes: list[list[float]] = []
    edges: list[tuple[int, int]] = []

    def words() -> list[str]:
        nonlocal number
        number += 1
        return lines[number - 1].split()

    try:
        (graphs,) = map(int, words())
        for graph in range(graphs):
            nodes, label = map(int, words())
            if nodes < 1:
                raise ValueError
            labels.append(label)
            first = len(tags)
            for node in range(first, first + nodes):
                tag, degree, *rest = words()
                others, values = rest[: int(degree)], rest[int(degree) :]
                tags.append(int(tag))
                graph_of.append(graph)
                edges += [(node, first + int(other)) for other in others]
                attributes.append([float(value) for value in values])
                if (len(others), len(values)) != (int(degree), len(attributes[0])):
                    raise ValueError
        if graphs < 1:
            raise ValueError
        if number < len(lines):
            number += 1
            raise ValueError
    except (ValueError, IndexError) as error:
        line = lines[number - 1] if number <= len(lines) else "the end of the file"
        raise ValueError(
            f"{file.name}, line {number} must be the number of graphs, or nodes and label of a "
            "graph, or tag, degree, neighbours and attributes of a node, and none may be left. "
            f"Received: {line[:60]!r}"
        ) from error
    return _Parts(
        np.array(labels),
        np.array(graph_of),
        np.concatenate([_one_hot(np.array(tags)[:, None]), np.array(attributes)], axis=1),
        np.array(edges, "int64").reshape((-1, 2)),
        None,
    )


def _one_hot(rows: Int[Array, "_ _"]) -> Float[Array, "_ _"]:
    """Each column of integers as one-hot rows, in ascending order of the integers."""
    places = [np.unique(column, return_inverse=True) for column in rows.T]
    return np.concatenate([np.eye(len(values))[place] for values, place in places], axis=1)


def _read_folds(
    path: Path, name: str, count: int
) -> list[tuple[Int[Array, " _"], Int[Array, " _"]]]:
    source = path / f"{name}_splits.json"
    if source.is_file():
        folds = _read_splits(source)
    else:
        source, folds = path / "10fold_idx", []
        most = max(len(list(source.glob(f"{part}_idx-*.txt"))) for part in ("train", "test"))
        for number in range(1, most + 1):
            files = (source / f"{part}_idx-{number}.txt" for part in ("train", "test"))
            train, test = (read_numbers(file)[:, 0] for file in files)
            folds.append((train, test))
    for number, (train, test) in enumerate(folds, 1):
        graphs = np.sort(np.concatenate([train, test]))
        if not np.array_equal(graphs, np.arange(count)) or not len(train) or not len(test):
            raise ValueError(
                f"{source}, fold {number} must have each of the {count} graphs once, to train or "
                f"to test, and some of both. Received: {len(train)} and {len(test)} graphs"
            )
    return folds


def _read_splits(file: Path) -> list[tuple[Array, Array]]:
    """The graphs that train are those of the first inner division, to train and to validate."""
    try:
        folds = []
        for fold in json.loads(file.read_text(encoding="utf-8")):
            inner = fold["model_selection"][0]
            train = [*inner["train"], *inner["validation"]]
            folds.append((np.array(train, "int64"), np.array(fold["test"], "int64")))
        if not folds:
            raise ValueError("no folds")
        return folds
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(
            f"{file.name} must be a list of folds in JSON, each with numbers of graphs under "
            f'"test" and, under "model_selection", "train" and "validation". Received: {error!r}'
        ) from error


def read_numbers(file: Path, kind: type = int, columns: int | None = 1) -> Array:
    """Numbers separated by commas, a row for each line that is not blank."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without a line
            rows: Array = np.loadtxt(
                file, kind, delimiter=",", ndmin=2, comments=None, encoding="utf-8"
            )
    except ValueError as error:
        raise ValueError(f"{file.name} must be numbers separated by commas: {error}") from error
    if len(rows) and columns not in (None, rows.shape[1]):
        raise ValueError(
            f"{file.name} must have {columns} numbers in each line. Received: {rows.shape[1]}"
        )
    return rows.reshape((len(rows), columns or rows.shape[1]))
