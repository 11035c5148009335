"""Files of TU and Planetoid data sets, made here in their published forms."""

import collections
import os
import pickle

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends after line 0"),
        ("1\n2 0\n0 0\n", "ends after line 3"),
        ("one\n", "line 1 must be 1 integers"),
        ("1\n1\n", "line 2 must be 2 integers"),
        ("1\n1 --2\n", "line 2 must be 2 integers"),
        ("1\n1 \u00b2\n", "line 2 must be 2 integers"),
        ("1\n1 0\nx 0\n", "line 3 must be tag, degree"),
        ("1\n2 0\n0 1 0.5\n0 0\n", "line 3 must be tag, degree"),
        ("1\n2 0\n0 2 1\n0 0\n", "line 3 must be of a node with 2 neighbours"),
        ("1\n2 0\n0 0 1.5\n0 0\n", "equally many attributes"),
        ("1\n2 0\n0 1 7\n0 0\n", "graph 0: The nodes of `graph` must be numbered"),
        ("1\n2 0\n0 1 0\n0 0\n", "graph 0: An edge of `graph` must join two different nodes"),
        ("1\n1 0\n0 0 nan\n", "graph 0: `node_features` must be finite"),
        ("1\n0 0\n", "graph 0: A graph must have at least one node"),
        ("1\n1 0\n0 0\n0 0\n", "more lines than its graphs, from 4"),
        ("2\n1 0\n0 0 1\n1 0\n0 0\n", "same number of attributes"),
    ],
)
def test_tu_files_of_another_form_name_the_line(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_tu(write_tu(tmp_path, text, ()))


def test_tu_folds_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="fold 1 must have each graph once"):
        read_tu(write_tu(tmp_path, folds=[((0, 1), (1,))]))
    with pytest.raises(ValueError, match="numbers from 0 to 2"):
        read_tu(write_tu(tmp_path, folds=[((0, 1), (3,))]))
    with pytest.raises(FileNotFoundError, match=r"tiny\.txt"):
        read_tu(tmp_path, "tiny")


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


def test_planetoid_files_of_another_form(tmp_path):
    write_planetoid(tmp_path, ty=CLASSES)
    with pytest.raises(ValueError, match="one row for each node"):
        read_planetoid(tmp_path, "made")
    write_planetoid(tmp_path, graph=[1, 2])
    with pytest.raises(ValueError, match="must be those of a Planetoid data set"):
        read_planetoid(tmp_path, "made")
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
        ({"x": scipy.sparse.csr_matrix(ROWS[:1])}, "5 3 6", "2 training nodes must be the first"),
        (
            {"x": scipy.sparse.csr_matrix(ROWS[:4]), "y": CLASSES[[0, 1, 1, 0]]},
            "5 3 6",
            "4 training nodes must be the first of the 3",
        ),
        ({}, "5 2 6", "none below 3.*from 2 to 6"),
        ({}, "-1 3 6", "none below 3"),
        ({}, "5 3 5", "each number once.*2 of them different"),
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
