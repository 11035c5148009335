"""Citation networks (Cora, Citeseer, Pubmed) from the published Planetoid files.

The files are pickles of NumPy and scipy objects, written by Python 2. A pickle can run any code, so
they are read by an unpickler that makes only these objects, and refuses everything else.

Source: Yang et al., "Revisiting semi-supervised learning with graph embeddings", arXiv 1603.08861.
"""

import collections
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy._core import multiarray

from keras_graphattn.checks import folder as local_folder
from keras_graphattn.checks import text
from keras_graphattn.graphs.graph import Array, Graph
from keras_graphattn.graphs.tables import Table, read_table
from keras_graphattn.graphs.unpickling import RestrictedUnpickler

VALIDATION_NODES = 500  # of the public split: the nodes after those with a training label

_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{
        (f"numpy.{core}.multiarray", name): getattr(multiarray, name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    },
    **{
        (f"scipy.sparse.{module}", "csr_matrix"): scipy.sparse.csr_matrix
        for module in ("csr", "_csr")
    },
}


class PlanetoidData(NamedTuple):
    """One graph, and the numbers of the nodes of the public split.

    Attributes:
        graph: The graph; its label is the class of each node, (n,), and -1 where none is known.
        train: Numbers of the training nodes, 20 for each class.
        validation: Numbers of the 500 validation nodes.
        test: Numbers of the test nodes.

    Example:

    >>> nodes = np.arange(1)
    >>> PlanetoidData(Graph([[0, 1]], label=[0, 1]), nodes, nodes, nodes + 1).test.tolist()
    [1]
    """

    graph: Graph
    train: Array
    validation: Array
    test: Array


def read_planetoid(folder: Any, name: str) -> PlanetoidData:
    """Reads a data set from its files `ind.<name>.x`, `y`, `tx`, `ty`, `allx`, `ally`, `graph` and
    `test.index`.

    An edge counts once, even if it is listed several times. Links from a node to itself are left
    out. Test nodes that `test.index` skips (in Citeseer) have features of 0 and the label -1. So
    has a node without a class the label -1.

    Args:
        folder: The folder with the files.
        name: Name of the data set in the files' names, such as `"cora"`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: For a file that is not of this form, or a pickle of anything but NumPy and scipy
            arrays, lists and dictionaries.

    Example:

    >>> data = read_planetoid("folder/with/planetoid", "cora")  # doctest: +SKIP
    >>> data.graph  # doctest: +SKIP
    Graph(2708 nodes, 5278 edges, 1433 node features)
    """
    path, name = local_folder("folder", folder), text("name", name)
    parts = {
        part: _read(path / f"ind.{name}.{part}")
        for part in ("x", "y", "tx", "ty", "allx", "ally", "graph")
    }
    index = read_table(path / f"ind.{name}.test.index", columns=1)
    try:
        return _joined(parts, index)
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise ValueError(
            f"The files ind.{name}.* must be those of a Planetoid data set: {error}"
        ) from error


def _joined(parts: dict[str, Any], table: Table) -> PlanetoidData:
    known, index = len(parts["ally"]), table.rows[:, 0]
    count = int(index.max(initial=known - 1)) + 1
    table.check(index >= known, f"a node from {known}, the number of nodes of `allx`")
    table.check_once("a node that has no line yet")
    shapes = {part: parts[part].shape for part in ("x", "y", "tx", "ty", "allx", "ally")}
    if (shapes["tx"][0], shapes["ty"][0]) != (len(index),) * 2 or shapes["allx"][0] != known:
        raise ValueError(
            f"Features and labels must have one row for each node. Received: {shapes} with "
            f"{len(index)} test nodes"
        )
    training = shapes["y"][0]
    if shapes["x"][0] != training or training > known:
        raise ValueError(
            f"The {training} training nodes must be the first of the {known} nodes of `allx`. "
            f"Received: {shapes}"
        )
    features = np.zeros((count, shapes["allx"][1]), "float32")
    labels = np.full(count, -1, "int64")
    for rows, x, y in ((np.arange(known), "allx", "ally"), (index, "tx", "ty")):
        features[rows] = scipy.sparse.csr_array(parts[x]).toarray()
        labels[rows] = _classes(y, np.asarray(parts[y]))
    links = [(node, other) for node, others in parts["graph"].items() for other in others]
    edges = np.array(links, "int64").reshape((-1, 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    return PlanetoidData(
        Graph(edges, node_features=features, label=labels, num_nodes=count),
        np.arange(training),
        np.arange(training, min(training + VALIDATION_NODES, known)),
        np.sort(index),
    )


def _classes(part: str, rows: Array) -> Array:
    """The number of each row's class; -1 for a row of zeros."""
    wrong = np.flatnonzero(((rows != 0) & (rows != 1)).any(axis=1) | (rows.sum(axis=1) > 1))
    if len(wrong):
        raise ValueError(
            f"Each row of `{part}` must have at most one 1, at the node's class, and zeros. "
            f"Received: {rows[wrong[0]].tolist()} in row {wrong[0]}, and {len(wrong)} such in all"
        )
    found: Array = np.where(rows.any(axis=1), rows.argmax(axis=1), -1)
    return found


def _read(file: Path) -> Any:
    with _existing(file).open("rb") as opened:
        try:
            return RestrictedUnpickler(opened, _ALLOWED, encoding="latin1").load()
        except Exception as error:  # a damaged pickle can raise almost anything
            raise ValueError(
                f"{file.name} must be a pickle of NumPy and scipy arrays: {error}. Use the files "
                "as they are published."
            ) from error


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}. Give the folder of the Planetoid files.")
    return file
