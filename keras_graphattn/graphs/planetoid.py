"""Citation networks (Cora, Citeseer, Pubmed) from the published Planetoid files.

The files are pickles of NumPy and scipy objects, written by Python 2. A pickle can run any code, so
they are read by an unpickler that makes only these objects, and refuses everything else.

Source: Yang et al., "Revisiting semi-supervised learning with graph embeddings", arXiv 1603.08861.
"""

import collections
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy._core import multiarray

from keras_graphattn.checks import Array, text
from keras_graphattn.checks import folder as local_folder
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.graphs.tu import read_numbers
from keras_graphattn.types import Int, Num

VALIDATION_NODES = 500  # of the public split: the nodes after those with a training label

_ALLOWED: dict[tuple[str, str], Callable[..., object]] = {
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
    train: Int[Array, " _"]
    validation: Int[Array, " _"]
    test: Int[Array, " _"]


def read_planetoid(folder: str | os.PathLike[str], name: str) -> PlanetoidData:
    """Reads a data set from its files `ind.<name>.x`, `y`, `tx`, `ty`, `allx`, `ally`, `graph` and
    `test.index`.

    An edge counts once, even if it is listed several times. Links from a node to itself are left
    out. Test nodes that `test.index` skips (in Citeseer) have features of 0 and the label -1. A
    node without a class also has the label -1.

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
    index = read_numbers(path / f"ind.{name}.test.index")[:, 0]
    try:
        return _joined(parts, index)
    except (AttributeError, TypeError, IndexError, KeyError, ValueError) as error:
        raise ValueError(
            f"The files ind.{name}.* must be those of a Planetoid data set: {error}"
        ) from error


def _joined(parts: dict[str, Any], index: Int[Array, " tests"]) -> PlanetoidData:
    labelled, training = len(parts["ally"]), len(parts["y"])
    rows = {part: parts[part].shape[0] for part in ("x", "allx", "tx", "ty")}
    expected = {"x": training, "allx": labelled, "tx": len(index), "ty": len(index)}
    if rows != expected or training > labelled:
        raise ValueError(
            f"Features and labels must have one row for each node: {expected} with at most "
            f"{labelled} in y. Received: {rows} with {training} in y"
        )
    for one, other in (("allx", "tx"), ("ally", "ty")):
        if parts[one].shape[1:] != parts[other].shape[1:] or len(parts[one].shape) != 2:
            raise ValueError(
                f"`{one}` and `{other}` must be matrices with equally many columns. Received: "
                f"shapes {parts[one].shape} and {parts[other].shape}"
            )
    if len(set(index)) < len(index) or index.min(initial=labelled) < labelled:
        raise ValueError(
            f"The file test.index must name each test node once, by a number of at least "
            f"{labelled}, the nodes of `allx`. Received: {np.sort(index).tolist()!s:.60}"
        )
    count = int(index.max(initial=labelled - 1)) + 1
    features = np.zeros((count, parts["allx"].shape[1]), "float32")
    labels = np.full(count, -1, "int64")
    for nodes, x, y in ((np.arange(labelled), "allx", "ally"), (index, "tx", "ty")):
        features[nodes] = scipy.sparse.csr_array(parts[x]).toarray()
        labels[nodes] = _classes(y, np.asarray(parts[y]))
    links = [(node, other) for node, others in parts["graph"].items() for other in others]
    edges = np.array(links) if links else np.zeros((0, 2), "int64")
    if edges.dtype.kind not in "iu":
        raise ValueError("the nodes of `graph` must be integers of at most 64 bits")
    return PlanetoidData(
        Graph(edges[edges[:, 0] != edges[:, 1]], None, features, None, labels, count),
        np.arange(training),
        np.arange(training, min(training + VALIDATION_NODES, labelled)),
        np.sort(index),
    )


def _classes(part: str, rows: Num[Array, "nodes classes"]) -> Int[Array, " nodes"]:
    """The number of each row's class; -1 for a row of zeros."""
    wrong = np.flatnonzero(((rows != 0) & (rows != 1)).any(axis=1) | (rows.sum(axis=1) > 1))
    if len(wrong):
        raise ValueError(
            f"Each row of `{part}` must have at most one 1, at the node's class, and zeros. "
            f"Received: {rows[wrong[0]].tolist()} in row {wrong[0]}, and {len(wrong)} such in all"
        )
    return np.where(rows.any(axis=1), rows.argmax(axis=1), -1)


def _read(file: Path) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}. Give the folder of the Planetoid files.")
    with file.open("rb") as opened:
        try:
            return RestrictedUnpickler(opened, _ALLOWED, encoding="latin1").load()
        except Exception as error:  # a damaged pickle can raise almost anything
            raise ValueError(
                f"{file.name} must be a pickle of NumPy and scipy arrays: {error}. Use the files "
                "as they are published."
            ) from error


class RestrictedUnpickler(pickle.Unpickler):
    """Makes only allowed objects, by the module and the name in the pickle."""

    def __init__(
        self,
        file: IO[bytes],
        allowed: Mapping[tuple[str, str], Callable[..., object]],
        **kwargs: str,
    ) -> None:
        super().__init__(file, **kwargs)  # type: ignore[arg-type]
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in it")
        return self._allowed[module, name]
