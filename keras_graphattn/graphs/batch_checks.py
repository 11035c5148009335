"""What `GraphBatches` checks of graphs, arrays and sizes, before any batch is made."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_graphattn.checks import whole
from keras_graphattn.graphs.graph import Array, Graph


def check_alike(graphs: list[Graph], node_labels: bool) -> None:
    """Raises a `ValueError` for graphs that cannot be in one batch."""

    def of(graph: Graph) -> tuple[Any, ...]:
        label, edges = graph.label, graph.edge_features
        of_label = None if label is None else () if node_labels else label.shape
        return graph.node_features.shape[1], None if edges is None else edges.shape[1], of_label

    expected = of(graphs[0])
    for place, graph in enumerate(graphs):
        if of(graph) != expected:
            raise ValueError(
                "All graphs must have the same number of node features, of edge features and "
                f"labels of the same shape (`None`: none). Received: {expected} in graph 0 and "
                f"{of(graph)} in graph {place}"
            )
        if node_labels and np.shape(graph.label) != (graph.num_nodes,):
            raise ValueError(
                f"With `node_labels=True` a label must have the shape (n,). Received: shape "
                f"{np.shape(graph.label)} in graph {place} of {graph.num_nodes} nodes"
            )


def check_weights(graphs: list[Graph]) -> None:
    """Raises a `ValueError` for edge weights that float32 does not hold."""
    limits = np.finfo("float32")
    for place, graph in enumerate(graphs):
        weights = graph.edge_weights
        wrong = weights[(weights < limits.tiny) | (weights > limits.max)]
        if len(wrong):
            raise ValueError(
                "A batch holds edge weights as float32: numbers from 1.2e-38 to 3.4e38. "
                f"Received: {wrong[0]} in graph {place}, and {len(wrong)} such there. Scale "
                "the weights."
            )


def check_arrays(name: str, axes: int, given: Any, counts: Array) -> None:
    """Raises a `ValueError` for arrays that are not one for each graph, of its nodes."""
    taken = ("nodes", "node_mask", "edges", "edge_weights", "edge_features")
    shapes = [np.shape(array) for array in given]
    right = len(shapes) == len(counts) and all(
        shape[:axes] == (count,) * axes and shape[axes:] == shapes[0][axes:]
        for shape, count in zip(shapes, counts, strict=False)
    )
    if name in taken or not right:
        expected = "(n, ...)" if axes == 1 else "(n, n, ...)"
        raise ValueError(
            f"Arrays must have another name than {taken}, one array of shape {expected} for "
            f"each of the {len(counts)} graphs, with the same last axes. Received: {name!r} "
            f"with {len(shapes)} arrays, the first ones of shapes {shapes[:3]}"
        )
    check_narrow(name, given)
    check_one_kind(name, given)


def check_one_kind(name: str, arrays: Sequence[Any]) -> None:
    """Raises a `ValueError` if whole numbers, other numbers and booleans would share an array."""
    kinds = [
        "int" if np.asarray(a).dtype.kind in "iu" else np.asarray(a).dtype.kind for a in arrays
    ]
    other = next((place for place, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        dtypes = np.asarray(arrays[0]).dtype, np.asarray(arrays[other]).dtype
        raise ValueError(
            f"{name!r} must be integers for all graphs, or other numbers, or booleans. Received: "
            f"{dtypes[0]} for graph 0 and {dtypes[1]} for graph {other}. Convert them to one dtype."
        )


def check_narrow(name: str, arrays: Sequence[Any]) -> None:
    """Raises a `ValueError` for anything but numbers that the dtype of a batch holds."""
    for place, array in enumerate(map(np.asarray, arrays)):
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"{name!r} must be numbers. Received: dtype {array.dtype} for graph {place}"
            )
        whole_numbers = array.dtype.kind in "iu"
        limit = 2.0**31 if whole_numbers else float(np.finfo("float32").max)
        finite = array[np.isfinite(array)]
        if finite.size and max(-float(finite.min()), float(finite.max()) + whole_numbers) > limit:
            raise ValueError(
                f"A batch holds integers as int32 and other numbers as float32. Received: {name!r} "
                f"of graph {place} with numbers from {finite.min()} to {finite.max()}"
            )


def checked_sizes(sizes: Any, counts: Array) -> list[int]:
    """Returns numbers of nodes to pad to, which hold all graphs."""
    found = [whole()("sizes", size, {}) for size in sizes]
    if not found or sorted(set(found)) != found or found[-1] < counts.max():
        raise ValueError(
            f"`sizes` must be ascending, and the last one at least {counts.max()}, the number of "
            f"nodes of the largest graph. Received: sizes={sizes!r}"
        )
    return found


def checked_edge_sizes(given: Any, least: list[int], sizes: Any) -> list[int]:
    """Returns numbers of edges to pad to, which hold the graphs of each size."""
    found = [whole()("edge_sizes", size, {}) for size in given]
    holds = len(found) == len(least) and all(a >= b for a, b in zip(found, least, strict=True))
    if sizes is None or not holds:
        raise ValueError(
            f"`edge_sizes` must be given with `sizes`, and be at least {least}, the numbers of "
            f"edges that hold the graphs of each size. Received: edge_sizes={given!r}, "
            f"sizes={sizes!r}"
        )
    return found
