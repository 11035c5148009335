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
number of a graph per line, from 0.

Source: the archive is TUDataset, chrsmrrs.github.io/datasets; Kersting et al., "Benchmark data sets
for graph kernels" (2016). The text form and the folds are those of the repository
weihua916/powerful-gnns on GitHub; Xu et al., "How powerful are graph neural networks?", arXiv
1810.00826.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_graphattn.checks import folder as local_folder
from keras_graphattn.graphs.graph import Array, Graph
from keras_graphattn.graphs.tables import Table, numbers_of, read_table, wrong_line


class TUData(NamedTuple):
    """Graphs with the number of their class as label.

    Attributes:
        graphs: The graphs. Node features are the node's label (its tag) as a row of zeros and a
            one, then attributes. Where nodes have no label, all have the same. Edge features are
            the same of edges, if there are any.
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
    """Reads a data set in either of its forms, and its folds if they are there.

    The archive's form is that of TUDataset (chrsmrrs.github.io/datasets): `<name>_A.txt`,
    `<name>_graph_indicator.txt`, `<name>_graph_labels.txt` and, if they are there, `_node_labels`,
    `_node_attributes`, `_edge_labels` and `_edge_attributes`. Other files of the archive are not
    read. The text form, `<name>.txt`, and the folds `10fold_idx` are those of the repository
    weihua916/powerful-gnns on GitHub; there, an edge counts if one of its two nodes lists the
    other. If the folder has both forms, this reads the text form.

    Args:
        folder: The folder with the files.
        name: Name of the data set; by default the name of the folder.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For files that are not of this form. The error names the file, and the line if
            one line is wrong. Each fold must have each graph once, and some in either part.

    Example:

    >>> _ = Path("PAIR.txt").write_text("1\\n2 7\\n0 1 1\\n3 1 0\\n")
    >>> data = read_tu(".", "PAIR")
    >>> data.graphs[0].node_features.tolist(), data.classes, data.folds
    ([[1.0, 0.0], [0.0, 1.0]], [7], [])
    """
    path = local_folder("folder", folder)
    name = path.resolve().name if name is None else name
    if (path / f"{name}.txt").is_file():
        read = _read_text(path / f"{name}.txt")
    elif (path / f"{name}_A.txt").is_file():
        read = _read_archive(path, name)
    else:
        raise FileNotFoundError(
            f"{path} must have the file {name}.txt or {name}_A.txt. Give the folder of the data "
            "set, and `name` where it differs from the folder's."
        )
    classes, labels = np.unique(read.labels, return_inverse=True)
    return TUData(
        list(_graphs(name, read, labels)),
        [int(label) for label in classes],
        _read_folds(path / "10fold_idx", len(labels)),
    )


class _Read(NamedTuple):
    """All graphs of a data set, as one graph."""

    labels: Array  # (graphs,)
    graph_of: Array  # (nodes,), from 0
    node_features: Array  # (nodes, F)
    edges: Array  # (edges, 2), from 0
    edge_features: Array | None  # (edges, G)


def _read_archive(path: Path, name: str) -> _Read:
    def file(part: str) -> Path:
        return path / f"{name}_{part}.txt"

    labels = read_table(file("graph_labels"), columns=1)
    indicator = read_table(file("graph_indicator"), columns=1)
    edges, graph_of = read_table(file("A"), columns=2), indicator.rows[:, 0]
    count, nodes = len(labels.rows), len(graph_of)
    inside = (graph_of >= 1) & (graph_of <= count)
    indicator.check(inside, f"a graph from 1 to {count}, the number of labels of graphs")
    empty = np.setdiff1d(np.arange(1, max(count, 1) + 1), graph_of)
    if len(empty):
        raise ValueError(
            f"{indicator.file.name} must have a node of each of the graphs that have a line in "
            f"{labels.file.name}, and of graph 1. Received: no node of graph {empty[0]}"
        )
    u, v = edges.rows.T
    known = (np.minimum(u, v) >= 1) & (np.maximum(u, v) <= nodes)
    edges.check(known, f"two nodes from 1 to {nodes}, the number of lines of graph_indicator")
    edges.check((u != v) & (graph_of[u - 1] == graph_of[v - 1]), "two different nodes of one graph")
    both_ways = np.isin(u * (nodes + 1) + v, v * (nodes + 1) + u)
    edges.check(both_ways, "an edge whose other direction has a line, too")

    def features(kind: str, table: Table) -> list[Array]:
        found = []
        for part, number in (("labels", int), ("attributes", float)):
            if file(f"{kind}_{part}").is_file():
                given = read_table(file(f"{kind}_{part}"), number)
                if len(given.rows) != len(table.rows):
                    raise ValueError(
                        f"{given.file.name} must have as many lines as {table.file.name}, "
                        f"{len(table.rows)}. Received: {len(given.rows)} lines"
                    )
                found.append(_one_hot(given.rows) if part == "labels" else given.rows)
        return found

    of_nodes, of_edges = features("node", indicator), features("edge", edges)
    if not file("node_labels").is_file():
        of_nodes.insert(0, np.ones((nodes, 1)))
    return _Read(
        labels.rows[:, 0],
        graph_of - 1,
        np.concatenate(of_nodes, axis=1),
        edges.rows - 1,
        np.concatenate(of_edges, axis=1) if of_edges else None,
    )


def _read_text(file: Path) -> _Read:
    lines = file.read_text(encoding="utf-8").splitlines()
    number = 0

    def next_line() -> list[str]:
        nonlocal number
        number += 1
        if number > len(lines):
            raise ValueError(f"{file.name} ends after line {len(lines)}, in a graph")
        return lines[number - 1].split()

    def wrong(expected: str) -> ValueError:
        return wrong_line(file, number, expected, lines[number - 1])

    def header(names: str, count: int) -> list[int]:
        found = numbers_of(next_line(), int)
        if len(found) != count or found[0] < 1:
            raise wrong(f"{names}, at least 1: {count} integers")
        return found

    labels: list[int] = []
    graph_of: list[int] = []
    tags: list[int] = []
    attributes: list[list[float]] = []
    edges: list[tuple[int, int]] = []
    (graphs,) = header("the number of graphs", 1)
    for graph in range(graphs):
        nodes, label = header("the label of a graph after its number of nodes", 2)
        labels.append(label)
        first = len(tags)
        for node in range(nodes):
            words = next_line()
            start = numbers_of(words[:2], int)  # tag and degree
            degree = start[1] if len(start) == 2 else -1
            others = numbers_of(words[2 : 2 + degree], int)
            rest = numbers_of(words[2 + degree :], float)
            if degree < 0 or len(others) != degree or len(words) != 2 + degree + len(rest):
                raise wrong("tag, degree, neighbours and attributes of a node")
            if not all(0 <= other < nodes and other != node for other in others):
                raise wrong(f"node {node} with neighbours from 0 to {nodes - 1}, but not itself")
            if attributes and len(rest) != len(attributes[0]):
                raise wrong(f"a node with {len(attributes[0])} attributes, as those before it")
            graph_of.append(graph)
            tags.append(start[0])
            attributes.append(rest)
            edges += [(first + node, first + other) for other in others]
    if any(line.strip() for line in lines[number:]):
        raise ValueError(f"{file.name} has more lines than its graphs, from line {number + 1}")
    return _Read(
        np.array(labels),
        np.array(graph_of),
        np.concatenate([_one_hot(np.array(tags)[:, None]), np.array(attributes)], axis=1),
        np.array(edges, "int64").reshape((-1, 2)),
        None,
    )


def _one_hot(rows: Array) -> Array:
    """Each column of integers as rows of zeros and a one, in ascending order of the integers."""
    places = [np.unique(column, return_inverse=True) for column in rows.T]
    return np.concatenate([np.eye(len(known))[place] for known, place in places], axis=1)


def _graphs(name: str, read: _Read, labels: Array) -> Iterator[Graph]:
    nodes, starts = _members(read.graph_of, len(labels))
    numbers = np.empty(len(nodes), "int64")  # of each node in its graph
    numbers[nodes] = np.arange(len(nodes)) - starts[read.graph_of[nodes]]
    edges, starts_of_edges = _members(read.graph_of[read.edges[:, 0]], len(labels))
    for graph, label in enumerate(labels):
        own = edges[starts_of_edges[graph] : starts_of_edges[graph + 1]]
        try:
            yield Graph(
                numbers[read.edges[own]],
                None,
                read.node_features[nodes[starts[graph] : starts[graph + 1]]],
                None if read.edge_features is None else read.edge_features[own],
                int(label),
            )
        except ValueError as error:
            raise ValueError(f"{name}, graph {graph}: {error}") from error


def _members(graph_of: Array, count: int) -> tuple[Array, Array]:
    """The nodes or edges in the order of their graphs, and where each graph starts and ends."""
    order = np.argsort(graph_of, kind="stable")
    return order, np.searchsorted(graph_of[order], np.arange(count + 1))


def _read_folds(folder: Path, count: int) -> list[tuple[Array, Array]]:
    folds = []
    most = max(len(list(folder.glob(f"{part}_idx-*.txt"))) for part in ("train", "test"))
    for number in range(1, most + 1):
        parts, unseen = [], np.ones(count, "bool")
        for part in ("train", "test"):
            table = read_table(folder / f"{part}_idx-{number}.txt", columns=1)
            graphs = table.rows[:, 0]
            table.check((graphs >= 0) & (graphs < count), f"a graph from 0 to {count - 1}")
            table.check_once("a graph that the fold does not have yet")
            table.check(unseen[graphs], "a graph that the fold does not have yet")
            unseen[graphs] = False
            parts.append(graphs)
        sizes = [len(graphs) for graphs in parts]
        if unseen.any() or 0 in sizes:
            missing = f", graph {unseen.argmax()} in neither" if unseen.any() else ""
            raise ValueError(
                f"{folder}, fold {number} must have each of the {count} graphs, to train or to "
                f"test, and some of both. Received: {sizes[0]} and {sizes[1]} graphs{missing}"
            )
        folds.append((parts[0], parts[1]))
    return folds
