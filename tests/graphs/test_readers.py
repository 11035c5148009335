"""Files of TU and Planetoid data sets, made here in their published forms."""

import collections
import json
import os
import pickle
import re

import numpy as np
import pytest
import scipy.sparse

from keras_graphattn.graphs import read_planetoid, read_tu

TU = """3
3 5
4 2 1 2
0 1 0
4 1 0
1 -1
9 0
2 5
0 1 1
9 0
"""


def write_tu(folder, text=TU, folds=(((0, 1), (2,)), ((2,), (0, 1)))):
    path = folder / "MADE"
    (path / "10fold_idx").mkdir(parents=True, exist_ok=True)
    (path / "MADE.txt").write_text(text)
    for number, parts in enumerate(folds, 1):
        for part, indices in zip(("train", "test"), parts, strict=True):
            file = path / "10fold_idx" / f"{part}_idx-{number}.txt"
            file.write_text("\n".join(map(str, indices)) + "\n")
    return path


def test_tu_graphs_classes_and_folds(tmp_path):
    data = read_tu(write_tu(tmp_path))
    assert [graph.edges.tolist() for graph in data.graphs] == [[[0, 1], [0, 2]], [], [[0, 1]]]
    assert data.graphs[0].node_features.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]  # 0, 4, 9
    assert data.classes == [-1, 5]
    assert [int(graph.label) for graph in data.graphs] == [1, 0, 1]
    folds = [[part.tolist() for part in fold] for fold in data.folds]
    assert folds == [[[0, 1], [2]], [[2], [0, 1]]]


def test_tu_attributes_come_after_the_tags(tmp_path):
    text = "1\n2 0\n0 1 1 0.5 -2\n0 1 0 1.5 3\n"
    (graph,) = read_tu(write_tu(tmp_path, text, ())).graphs
    assert graph.node_features.tolist() == [[1.0, 0.5, -2.0], [1.0, 1.5, 3.0]]


def test_tu_folds_in_json(tmp_path):
    folder = write_tu(tmp_path)
    inner = [{"train": [1], "validation": [0]}, {"train": [0], "validation": [1]}]
    splits = [{"test": [2], "model_selection": inner}]
    file = folder / "MADE_splits.json"
    file.write_text(json.dumps(splits))
    ((train, test),) = read_tu(folder).folds  # and not those of 10fold_idx
    assert (train.tolist(), test.tolist()) == ([1, 0], [2])
    for wrong in ({"test": [1]}, {"model_selection": [{"train": [1], "validation": []}]}):
        file.write_text(json.dumps([{**splits[0], **wrong}]))
        with pytest.raises(ValueError, match=r"MADE_splits\.json, fold 1 must have each of the 3"):
            read_tu(folder)
    for text in ("[", "[]", "3", '[{"test": [2]}]', '[{"test": ["a"], "model_selection": []}]'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"MADE_splits\.json must be a list of folds in JSON"):
            read_tu(folder)


WRONG_LINES = [  # in the text form, and the number of the line that the error names
    ("", 1),
    ("1\n2 0\n0 0\n", 4),
    ("one\n", 1),
    ("-1\n", 1),
    ("0\n", 1),
    ("1\n1\n", 2),
    ("1\n1 --2\n", 2),
    ("1\n1 \u00b2\n", 2),
    ("1\n0 0\n", 2),
    ("1\n1 0\n0\n", 3),
    ("1\n1 0\nx 0\n", 3),
    ("1\n1 0\n0 -1\n", 3),
    ("1\n2 0\n0 1 0.5\n0 0\n", 3),
    ("1\n2 0\n0 2 1\n0 0\n", 3),
    ("1\n2 0\n0 0 1.5\n0 0\n", 4),
    ("2\n1 0\n0 0 1\n1 0\n0 0\n", 5),
    ("1\n1 0\n0 0\n0 0\n", 4),
]
WRONG_GRAPHS = [
    ("1\n1 0\n0 0 nan\n", "`node_features` must be finite"),
    ("1\n2 0\n0 1 7\n0 0\n", "The nodes of `graph` must be numbered"),
    ("2\n2 0\n0 1 2\n0 0\n1 0\n0 0\n", "The nodes of `graph` must be numbered"),
    ("1\n2 0\n0 1 0\n0 0\n", "An edge of `graph` must join two different nodes"),
    ("1\n1 0\n0 0 1e39\n", "A graph holds `node_features` as float32"),
]


@pytest.mark.parametrize(
    ("text", "words"),
    [(text, rf"MADE\.txt, line {line} must be") for text, line in WRONG_LINES]
    + [(text, f"MADE, graph 0: {words}") for text, words in WRONG_GRAPHS],
)
def test_tu_files_of_another_form_name_the_line_or_the_graph(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_tu(write_tu(tmp_path, text, ()))


@pytest.mark.parametrize(
    ("fold", "words"),
    [
        (((0, 1), (1,)), "fold 1 must have each of the 3 graphs once.*2 and 1"),
        (((0, 1, 1), (2,)), "fold 1 must have each of the 3 graphs once.*3 and 1"),
        (((0, 1), (3,)), "fold 1 must have each"),
        (((-1, 1), (2,)), "fold 1 must have each"),
        (((0, "x"), (2,)), r"train_idx-1\.txt must be numbers.*'x'.* row 1"),
        (((0,), (2,)), "fold 1 must have each of the 3 graphs once.*1 and 1"),
        (((0, 1, 2), ()), "fold 1 must have .* some of both. Received: 3 and 0 graphs"),
        (((), (0, 1, 2)), "fold 1 must have .* some of both. Received: 0 and 3 graphs"),
    ],
)
def test_tu_folds_that_cannot_be(fold, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_tu(write_tu(tmp_path, folds=[fold]))


@pytest.mark.parametrize("part", ["train", "test"])
def test_tu_files_that_are_missing(part, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tiny\.txt or tiny_A\.txt"):
        read_tu(tmp_path, "tiny")
    folder = write_tu(tmp_path)
    (folder / "10fold_idx" / f"{part}_idx-1.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{part}_idx-1\.txt"):
        read_tu(folder)


ARCHIVE = {  # the first two graphs of `TU` and a pair, with attributes
    "A": "1, 2\n2, 1\n3, 1\n1, 3\n5, 6\n6, 5\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "5\n-1\n5\n",
    "node_labels": "4\n0\n4\n9\n0\n9\n",
    "node_attributes": "0.5, 1\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n5.5, 6\n",
    "edge_labels": "7\n7\n3\n3\n3\n3\n",
    "edge_attributes": "0.1\n0.1\n0.2\n0.2\n0.3\n0.3\n",
}


def write_archive(folder, **changes):
    path = folder / "MADE"
    path.mkdir(exist_ok=True)
    for part, text in {**ARCHIVE, **changes}.items():
        (path / f"MADE_{part}.txt").write_text(text)
    return path


def without(path, *parts):
    for part in parts:
        (path / f"MADE_{part}.txt").unlink()
    return path


def everything(data):
    """All numbers of a data set as lists."""
    names = ("edges", "node_features", "edge_features", "label")
    arrays = [[getattr(graph, name) for name in names] for graph in data.graphs]
    graphs = [[None if a is None else a.tolist() for a in of_graph] for of_graph in arrays]
    return graphs, data.classes, [[part.tolist() for part in fold] for fold in data.folds]


def test_the_archives_own_files(tmp_path):
    data = read_tu(write_archive(tmp_path))
    assert data.classes == [-1, 5]
    assert [int(graph.label) for graph in data.graphs] == [1, 0, 1]
    assert [graph.edges.tolist() for graph in data.graphs] == [[[0, 1], [0, 2]], [], [[0, 1]]]
    assert data.graphs[0].node_features[:, :3].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert data.graphs[2].node_features[:, 3:].tolist() == [[4.5, 5], [5.5, 6]]
    expected = np.array([[0, 1, 0.1], [1, 0, 0.2]], "float32")  # labels 3 and 7, attribute
    assert data.graphs[0].edge_features.tolist() == expected.tolist()
    folder = without(tmp_path / "MADE", "node_labels", "edge_labels")
    data = read_tu(folder)
    assert data.graphs[0].node_features.tolist() == [[1, 0.5, 1], [1, 1.5, 2], [1, 2.5, 3]]
    data = read_tu(without(folder, "node_attributes", "edge_attributes"))
    assert data.graphs[0].node_features.tolist() == [[1]] * 3
    assert data.graphs[0].edge_features is None


def test_no_graphs_and_other_encodings_are_refused(tmp_path):
    empty = dict.fromkeys(ARCHIVE, "")
    with pytest.raises(ValueError, match="must have the graphs 1 to 0"):
        read_tu(write_archive(tmp_path, **empty))
    (tmp_path / "MADE" / "MADE.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"MADE\.txt must be text in UTF-8"):
        read_tu(tmp_path / "MADE")


def test_both_forms_of_a_data_set_are_equal(tmp_path):
    folder = without(write_archive(tmp_path), "node_attributes", "edge_labels", "edge_attributes")
    archive = read_tu(folder)
    write_tu(tmp_path)
    (folder / "MADE.txt").unlink()
    with_folds = read_tu(folder)
    write_tu(tmp_path)
    text = read_tu(folder)
    assert everything(with_folds) == everything(text)
    assert everything(archive)[:2] == everything(text)[:2]


@pytest.mark.parametrize(
    ("part", "text", "words"),
    [
        ("A", "1, 2\n2, 1\n", "edge_labels.txt must have a line for each edge, 2"),
        ("A", "1, 2\n2, 7\n", r"A.txt, line 2 must be two nodes from 1 to 6.*\[2, 7\]"),
        ("A", "0, 1\n", "A.txt, line 1 must be two nodes from 1 to 6"),
        ("A", "1, 2\n2\n", "A.txt must be numbers .* columns changed from 2 to 1 at row 2"),
        ("A", "1 2\n2 1\n", "A.txt must be numbers separated by commas.*'1 2'.* row 0"),
        ("A", "1, 2\n2, 1.0\n", "A.txt must be numbers separated by commas.* row 1"),
        ("A", "1, 2\n2, 2\n", "MADE, graph 0: An edge of `graph` must join two different nodes"),
        ("A", "3, 4\n", "MADE, graph 0: The nodes of `graph` must be numbered"),
        ("A", "4, 3\n", "MADE, graph 1: The nodes of `graph` must be numbered"),
        ("A", "1\n2\n", "A.txt must have 2 numbers in each line. Received: 1"),
        ("graph_indicator", "1\n1\n1\n2\n3\n4\n", "indicator.txt must have the graphs 1 to 3"),
        ("graph_indicator", "1\n1\n1\n1\n3\n3\n", r"Received: graphs \[1, 3\]"),
        ("graph_indicator", "1\n1\n2\n1\n3\n3\n", "in ascending order"),
        ("graph_labels", "5\n-1\n5\n5\n", "must have the graphs 1 to 4"),
        ("graph_labels", "5\n-1\n", "must have the graphs 1 to 2"),
        ("node_labels", "1\n", "node_labels.txt must have a line for each node, 6"),
        ("edge_labels", "1\n", "edge_labels.txt must have a line for each edge, 6"),
        ("node_attributes", "1\n2\n3, 4\n", "attributes.txt must be numbers.*row 3"),
        ("node_attributes", "1\nnan\n2\n2\n2\n2\n", "MADE, graph 0: `node_features` must be fin"),
        ("edge_attributes", "1\n2\n3\n3\n3\n3\n", "MADE, graph 0: An edge may be given several"),
    ],
)
def test_files_of_the_archive_that_cannot_be(part, text, words, tmp_path):
    folder = write_archive(tmp_path, **{part: text})
    if words.startswith("MADE, graph") and part == "A":
        without(folder, "edge_labels", "edge_attributes")
    with pytest.raises(ValueError, match=words):
        read_tu(folder)
    with pytest.raises(FileNotFoundError, match="MADE_graph_labels"):
        read_tu(without(tmp_path / "MADE", "graph_labels"))


def spoilt(text):
    """Yields the text with each of its lines lost, doubled, or after a blank line."""
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        for instead in ([], [line, line], ["\n", line]):
            yield "".join([*lines[:place], *instead, *lines[place + 1 :]])


def outcome(read, *arguments):
    """What a reader returns, or the words of its error."""
    try:
        return everything(read(*arguments))
    except ValueError as error:
        return str(error)


ERRORS = r"line \d|a line for each|the graphs 1 to|fold \d|MADE, graph \d"
FILES = ["MADE.txt", "10fold_idx/train_idx-1.txt", *(f"MADE_{part}.txt" for part in ARCHIVE)]


@pytest.mark.all_cases
@pytest.mark.parametrize("name", FILES)
def test_a_line_lost_doubled_or_blank_is_an_error_or_changes_nothing(name, tmp_path):
    folder = write_archive(tmp_path) if name.startswith("MADE_") else write_tu(tmp_path)
    right = everything(read_tu(folder))
    for text in spoilt((folder / name).read_text()):
        (folder / name).write_text(text)
        result = outcome(read_tu, folder)
        assert result == right or re.search(ERRORS, str(result)), text


ROWS = np.array([[1.0, 0], [0, 2], [0, 0], [3, 4], [0, 5]])
CLASSES = np.eye(2, dtype="int32")


def write_planetoid(folder, **changes):
    """7 nodes: 2 with a label for training, 1 more known, test nodes 5, 3 and 6 (4 is skipped)."""
    graph = collections.defaultdict(list, {0: [1, 1, 0], 1: [0], 3: [5], 5: [3], 6: []})
    parts = {
        "x": scipy.sparse.csr_matrix(ROWS[:2]),
        "y": CLASSES,
        "allx": scipy.sparse.csr_matrix(ROWS[:3]),
        "ally": CLASSES[[0, 1, 1]],
        "tx": scipy.sparse.csr_matrix(ROWS[[3, 4, 0]]),
        "ty": CLASSES[[0, 1, 0]],
        "graph": graph,
        **changes,
    }
    for part, content in parts.items():
        (folder / f"ind.made.{part}").write_bytes(pickle.dumps(content, protocol=3))
    (folder / "ind.made.test.index").write_text("5\n3\n6\n")
    return folder


def test_planetoid(tmp_path):
    data = read_planetoid(write_planetoid(tmp_path), "made")
    assert data.graph.edges.tolist() == [[0, 1], [3, 5]]
    assert data.graph.label.tolist() == [0, 1, 1, 1, -1, 0, 0]
    expected = np.stack([*ROWS[:3], ROWS[4], np.zeros(2), ROWS[3], ROWS[0]])
    assert data.graph.node_features.tolist() == expected.tolist()
    assert [data.train.tolist(), data.validation.tolist()] == [[0, 1], [2]]
    assert data.test.tolist() == [3, 5, 6]


def test_planetoid_pickles_of_python_2(tmp_path):
    # what Python 2 wrote: the old names of modules, bytes as text
    dtype = b"cnumpy\ndtype\n(S'i4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    state = b"(I1\n(I2\nI2\nt" + dtype + b"I00\nS'\\x01\\x00\\x00\\x00" + b"\\x00" * 8
    text = array + state + b"\\xff\\x00\\x00\\x00'\ntb."
    folder = write_planetoid(tmp_path)
    (folder / "ind.made.y").write_bytes(text)
    assert read_planetoid(folder, "made").train.tolist() == [0, 1]


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("inside", [False, True])
def test_planetoid_pickles_run_nothing(inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    array = np.empty(1, object)
    array[0] = Harmful()
    write_planetoid(tmp_path, y=array if inside else Harmful())
    with pytest.raises(ValueError, match=r"ind\.made\.y must be a pickle.*system is not allowed"):
        read_planetoid(tmp_path, "made")
    assert not (tmp_path / "harmed").exists()


def test_planetoid_files_that_are_cut_or_missing(tmp_path):
    file = write_planetoid(tmp_path) / "ind.made.x"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"ind\.made\.x must be a pickle"):
        read_planetoid(tmp_path, "made")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"ind\.made\.x"):
        read_planetoid(tmp_path, "made")


@pytest.mark.parametrize(
    ("changes", "index", "words"),
    [
        ({"graph": [1, 2]}, "5 3 6", "must be those of a Planetoid data set"),
        ({"graph": {0.5: [1]}}, "5 3 6", "nodes of `graph` must be integers"),
        ({"graph": {0: [2**70]}}, "5 3 6", "nodes of `graph` must be integers"),
        ({"graph": {"a": ["b"]}}, "5 3 6", "nodes of `graph` must be integers"),
        ({"tx": scipy.sparse.csr_matrix(np.ones((3, 5)))}, "5 3 6", "equally many columns"),
        ({"ty": np.eye(3, dtype="int32")}, "5 3 6", "equally many columns"),
        ({"ty": CLASSES}, "5 3 6", "one row for each node"),
        ({"x": scipy.sparse.csr_matrix(ROWS[:1])}, "5 3 6", "one row for each node.*2 in y"),
        (
            {"x": scipy.sparse.csr_matrix(ROWS[:4]), "y": CLASSES[[0, 1, 1, 0]]},
            "5 3 6",
            "one row for each node.*at most 3 in y",
        ),
        ({}, "5 2 6", r"test\.index must name each test node once, by a number of at least 3"),
        ({}, "-1 3 6", r"test\.index must name each test node once.* \[-1, 3, 6\]"),
        ({}, "5 3 5", r"test\.index must name each test node once"),
        ({}, "5 x 6", r"test\.index must be numbers.*'x'.* row 1"),
        ({}, "5 3", "one row for each node.*'tx': 2"),
        ({}, "", "one row for each node.*'tx': 0"),
        (
            {"ty": CLASSES[[0, 1, 1]] + CLASSES[[0, 0, 0]]},
            "5 3 6",
            r"`ty`.*\[2, 0\] in row 0, and 3",
        ),
        ({"ally": np.full((3, 2), 0.5)}, "5 3 6", r"`ally` must have at most one 1"),
        ({"ally": np.ones((3, 2))}, "5 3 6", r"`ally` must have at most one 1"),
    ],
)
def test_planetoid_nodes_that_cannot_be(changes, index, words, tmp_path):
    folder = write_planetoid(tmp_path, **changes)
    (folder / "ind.made.test.index").write_text(index.replace(" ", "\n"))
    with pytest.raises(ValueError, match=words):
        read_planetoid(folder, "made")


def test_planetoid_nodes_without_a_class_have_no_label(tmp_path):
    changes = {"ally": np.array([[1, 0], [0, 1], [0, 0]]), "ty": np.array([[1, 0], [0, 0], [0, 1]])}
    labels = read_planetoid(write_planetoid(tmp_path, **changes), "made").graph.label
    assert labels.tolist() == [0, 1, -1, -1, -1, 0, 1]
