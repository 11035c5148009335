"""Batches of graphs in size buckets, padded, with masks ready for the layers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_graphattn.checks import Array, flag, is_list, optional, plain, whole
from keras_graphattn.graphs.graph import Graph
from keras_graphattn.graphs.precomputation import checked_graphs


class _Input(NamedTuple):
    """An array for each graph, and how a batch pads them."""

    arrays: list[Array]
    axes: str  # a letter for each axis that is padded: n nodes, e edges
    fill: int


class GraphBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of graphs of about the same size, for `fit`, `evaluate` and `predict`.

    Every bucket holds graphs of about the same number of nodes, and pads them to one shape, so
    little is compiled. Every row of a batch is another graph. All batches but one have `batch_size`
    rows: graphs that do not fill a batch of their bucket go to the next larger bucket, and what is
    left at the end makes a smaller batch. With a seed, graphs are shuffled within their buckets
    and batches among each other, again for each epoch of `fit`, in the same way whenever the
    program runs.

    A batch is `(inputs, labels, weights)`, or `(inputs,)` if the graphs have no labels. The weights
    of graphs are 1. So the loss of a batch is the mean over its graphs, and the loss and metrics of
    `evaluate` are means over all graphs. The inputs:

    * `nodes`: float32 (B, T, F), node features; 0 at padding.
    * `node_mask`: bool (B, T), `True` at the nodes of the graph: `query_mask` of the layers.
    * `edges`: int32 (B, E, 2), each edge once; (-1, -1) at padding. It is the entry `edges` in the
      `mask_inputs` of `GraphDiffusion()`.
    * `edge_weights`: float32 (B, E), 1 at padding, if some graph has another weight than 1, or if
      `inputs` names it. `mask_inputs` of `GraphDiffusion(edge_weights=True)`.
    * `edge_features`: float32 (B, E, G), 0 at padding, if the graphs have them.
    * one input for each of `node_arrays` and `pair_arrays`. `walks` of `precompute` become integers
      (B, T, walks, length), `mask_inputs` of `RandomWalk()`.

    Args:
        graphs: The graphs, all with the same number of features. All have labels, or none has.
        batch_size: Rows of every batch but one.
        node_arrays: Arrays by the name of the input, one for each graph, of shape (n, ...). Padding
            is -1 for integers and 0 for other numbers.
        pair_arrays: The same for arrays of shape (n, n, ...). Nothing else has n^2 numbers.
        node_labels: Whether a label is an array (n,), one for each node. Then labels and weights
            have the shape (B, T), 0 at padding. An integer below 0 has the weight 0, too. The other
            weights of a batch are equal and add up to B T. So Keras' mean over all places, the loss
            of a batch, is the mean over the nodes with a label. `evaluate` returns the mean of the
            batches' losses, by numbers of graphs, and of `weighted_metrics`, by B T. Both are means
            over all these nodes if there is one batch.
        inputs: Names of the inputs that a batch has; all by default. Keras warns of inputs that a
            model does not have.
        num_buckets: Number of buckets at most.
        sizes: Numbers of nodes to pad to, in place of `num_buckets`: ascending, and the last one
            must hold the largest graph. Give the same for training and test data.
        edge_sizes: Numbers of edges to pad to, one for each of `sizes` or, without them, for
            each bucket. By default the most of any graph in the bucket. Compiled code for training
            data serves test data, too, where both are the same.
        seed: Seed of the shuffling; without it, graphs stay in their order within their bucket.
        **kwargs: `workers`, `use_multiprocessing` and `max_queue_size` of a `PyDataset`.

    Attributes:
        labels: The label of each graph, or `None`.
        sizes: Number of nodes that each bucket is padded to.
        edge_sizes: Number of edges that each bucket is padded to. They ascend.

    Raises:
        ValueError: For graphs that do not go together, arrays of the wrong shape, numbers that
            int32 or float32 do not hold (edge weights from 1.2e-38 to 3.4e38, if they are an
            input), and sizes that do not hold all graphs.

    Example:

    >>> pair, path = Graph([[0, 1]], label=0), Graph([[0, 1], [1, 2]], label=1)
    >>> batches = GraphBatches([pair, path], batch_size=2, num_buckets=1)
    >>> inputs, labels, weights = batches[0]
    >>> inputs["edges"].tolist(), inputs["node_mask"].astype(int).tolist(), labels.tolist()
    ([[[0, 1], [-1, -1]], [[0, 1], [1, 2]]], [[1, 1, 0], [1, 1, 1]], [0, 1])
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        batch_size: int = 32,
        *,
        node_arrays: Mapping[str, Sequence[ArrayLike]] | None = None,
        pair_arrays: Mapping[str, Sequence[ArrayLike]] | None = None,
        node_labels: bool = False,
        inputs: Sequence[str] | None = None,
        num_buckets: int = 4,
        sizes: Sequence[int] | None = None,
        edge_sizes: Sequence[int] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.graphs = checked_graphs(graphs)
        self.batch_size = whole()("batch_size", batch_size, {})
        self.seed = optional(whole(0, 2**32))("seed", seed, {})
        self.node_labels = flag("node_labels", node_labels)
        _check_alike(self.graphs, self.node_labels)
        self._counts = np.array([graph.num_nodes for graph in self.graphs])
        self.sizes = _sizes(self._counts, whole()("num_buckets", num_buckets, {}), sizes)
        self._bucket = np.searchsorted(self.sizes, self._counts)
        edges = np.array([len(graph.edges) for graph in self.graphs])
        most = [edges[self._bucket == bucket].max(initial=1) for bucket in range(len(self.sizes))]
        self.edge_sizes = _edge_sizes(most, edge_sizes)
        self._inputs = _own_inputs(self.graphs, inputs)
        for axes, arrays in (("n", node_arrays), ("nn", pair_arrays)):
            for name, of_graphs in dict(arrays or {}).items():
                if axes == "nn" and name in (node_arrays or {}):
                    raise ValueError(
                        f"`node_arrays` and `pair_arrays` must have different names. Received: "
                        f"{name!r} in both."
                    )
                _check_shapes(name, len(axes), of_graphs, self._counts)
                narrow = _narrow(name, of_graphs)
                fill = -1 if narrow[0].dtype.kind == "i" else 0
                self._inputs[name] = _Input(narrow, axes, fill)
        self._inputs = _chosen(self._inputs, inputs)
        labels = [graph.label for graph in self.graphs if graph.label is not None]
        self.labels: list[Array] | Array | None = None
        if labels:
            narrow = _narrow("label", labels if self.node_labels else np.stack(labels))
            self.labels = narrow if self.node_labels else np.stack(narrow)
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Orders graphs and batches for `epoch`, which counts from 0: a function of (seed, epoch).

        `fit` continues with the next epoch. To continue a training, call this at the beginning of
        each epoch.
        """
        self.epoch = whole(0)("epoch", epoch, {})
        random = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        batches, members = [], np.zeros(0, "int64")
        for bucket in range(len(self.sizes)):
            members = np.concatenate([members, np.flatnonzero(self._bucket == bucket)])
            if random is not None:
                members = random.permutation(members)
            while len(members) >= self.batch_size:
                batches.append((bucket, members[: self.batch_size]))
                members = members[self.batch_size :]
        if len(members):
            batches.append((self._bucket[members].max(), members))
        if random is not None:
            batches = [batches[place] for place in random.permutation(len(batches))]
        for place, (bucket, _) in enumerate(batches):
            if bucket != batches[0][0]:
                # on TensorFlow, Keras takes from the first two batches which sizes are constant
                batches[1], batches[place] = batches[place], batches[1]
                break
        self._batches = batches

    def on_epoch_end(self) -> None:
        self.start_epoch(self.epoch + 1)

    def __len__(self) -> int:
        return len(self._batches)  # Keras reads it as `num_batches`

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        bucket, rows = self._batches[index]
        sizes = {"n": self.sizes[bucket], "e": self.edge_sizes[bucket]}

        def padded(arrays: Sequence[Array] | Array, axes: str, fill: int) -> Array:
            first = arrays[rows[0]]
            shape = (len(rows), *(sizes[axis] for axis in axes), *first.shape[len(axes) :])
            batch = np.full(shape, fill, first.dtype)
            for row, place in zip(batch, rows, strict=True):
                row[tuple(slice(size) for size in arrays[place].shape[: len(axes)])] = arrays[place]
            return batch

        inputs = {name: padded(*one) for name, one in self._inputs.items()}
        if self.labels is None:
            return (inputs,)
        if isinstance(self.labels, np.ndarray):
            return inputs, self.labels[rows], np.ones(len(rows), "float32")
        labels = padded(self.labels, "n", 0)
        counted = np.arange(sizes["n"]) < self._counts[rows, None]
        if labels.dtype.kind == "i":
            counted &= labels >= 0
        weight = np.float32(counted.size / max(counted.sum(), 1))
        return inputs, np.where(counted, labels, 0), weight * counted


def _check_alike(graphs: list[Graph], node_labels: bool) -> None:
    """Raises a `ValueError` for graphs that cannot be in one batch."""

    def widths(graph: Graph) -> tuple[int | tuple[int, ...] | None, ...]:
        label, edges = graph.label, graph.edge_features
        of_label = None if label is None else () if node_labels else label.shape
        return graph.node_features.shape[1], None if edges is None else edges.shape[1], of_label

    expected = widths(graphs[0])
    for place, graph in enumerate(graphs):
        if widths(graph) != expected:
            raise ValueError(
                "All graphs must have the same number of node features, of edge features and "
                f"labels of the same shape (`None`: none). Received: {expected} in graph 0 and "
                f"{widths(graph)} in graph {place}"
            )
        shape = None if graph.label is None else graph.label.shape
        if node_labels and shape != (graph.num_nodes,):
            raise ValueError(
                f"With `node_labels=True` a label must have the shape (n,). Received: shape "
                f"{shape} in graph {place} of {graph.num_nodes} nodes"
            )


def _own_inputs(graphs: list[Graph], names: Sequence[str] | None) -> dict[str, _Input]:
    """The inputs that come from the graphs themselves, by name."""
    inputs = {
        "nodes": _Input([graph.node_features for graph in graphs], "n", 0),
        "node_mask": _Input([np.ones(graph.num_nodes, "bool") for graph in graphs], "n", 0),
        "edges": _Input([graph.edges.astype("int32") for graph in graphs], "e", -1),
    }
    weights = [graph.edge_weights for graph in graphs]
    weighted = any((of_graph != 1).any() for of_graph in weights)
    if "edge_weights" in names if is_list(names) else weighted:
        limits = np.finfo("float32")
        for place, of_graph in enumerate(weights):
            wrong = of_graph[(of_graph < limits.tiny) | (of_graph > limits.max)]
            if len(wrong):
                raise ValueError(
                    "A batch holds edge weights as float32: numbers from 1.2e-38 to 3.4e38. "
                    f"Received: {wrong[0]} in graph {place}, and {len(wrong)} such there. Scale "
                    "the weights."
                )
        inputs["edge_weights"] = _Input([w.astype("float32") for w in weights], "e", 1)
    features = [graph.edge_features for graph in graphs if graph.edge_features is not None]
    return {**inputs, "edge_features": _Input(features, "e", 0)} if features else inputs


def _check_shapes(name: str, axes: int, arrays: Sequence[ArrayLike], counts: Array) -> None:
    """Raises a `ValueError` for arrays that are not one for each graph, of its nodes."""
    reserved = ("nodes", "node_mask", "edges", "edge_weights", "edge_features")
    shapes = [np.shape(array) for array in arrays]
    if (
        name in reserved
        or [shape[:axes] for shape in shapes] != [(count,) * axes for count in counts.tolist()]
        or len({shape[axes:] for shape in shapes}) > 1
    ):
        expected = "(n, ...)" if axes == 1 else "(n, n, ...)"
        raise ValueError(
            f"Arrays must have another name than {reserved}, one array of shape {expected} for "
            f"each of the {len(counts)} graphs, with the same last axes. Received: {name!r} "
            f"with {len(shapes)} arrays, the first ones of shapes {shapes[:3]}"
        )


def _narrow(name: str, values: Sequence[ArrayLike] | Array) -> list[Array]:
    """An array for each graph: integers as int32, other numbers as float32, or booleans."""
    arrays = [np.asarray(value) for value in values]
    dtypes = {"i": "int32", "u": "int32", "f": "float32", "b": "bool"}
    narrow = []
    for place, array in enumerate(arrays):
        dtype = dtypes.get(array.dtype.kind)
        if dtype is None:
            raise ValueError(
                f"{name!r} must be numbers. Received: dtype {array.dtype} for graph {place}"
            )
        if dtype != dtypes[arrays[0].dtype.kind]:
            raise ValueError(
                f"{name!r} must be integers for all graphs, or other numbers, or booleans. "
                f"Received: {arrays[0].dtype} for graph 0 and {array.dtype} for graph {place}. "
                "Convert them to one dtype."
            )
        with np.errstate(over="ignore"):
            narrow.append(array.astype(dtype, copy=False))
        same = narrow[-1] == array if dtype == "int32" else np.isinf(narrow[-1]) == np.isinf(array)
        if not same.all():
            raise ValueError(
                f"A batch holds integers as int32 and other numbers as float32. Received: {name!r} "
                f"of graph {place} with numbers from {array.min()} to {array.max()}"
            )
    return narrow


def _chosen(inputs: dict[str, _Input], names: Sequence[str] | None) -> dict[str, _Input]:
    if names is None:
        return inputs
    if not is_list(names) or not names or not set(names) <= set(inputs):
        raise ValueError(
            f"`inputs` must be names of {list(inputs)}. Received: inputs={names!r}. Give further "
            "ones in `node_arrays` or `pair_arrays`."
        )
    return {name: inputs[name] for name in names}


def _sizes(counts: Array, num_buckets: int, sizes: Sequence[int] | None) -> list[int]:
    """Numbers of nodes to pad to; by default, all buckets have about equally many graphs."""
    if sizes is None:
        shares = np.arange(1, num_buckets + 1) / num_buckets
        return sorted({int(size) for size in np.quantile(counts, shares, method="higher")})
    given = plain(sizes)
    numbers = [whole()("sizes", size, {}) for size in (given if is_list(given) else [])]
    if not numbers or sorted(set(numbers)) != numbers or numbers[-1] < counts.max():
        raise ValueError(
            f"`sizes` must be ascending, and the last one at least {counts.max()}, the number of "
            f"nodes of the largest graph. Received: sizes={sizes!r}"
        )
    return numbers


def _edge_sizes(most: Sequence[int], edge_sizes: Sequence[int] | None) -> list[int]:
    """Numbers of edges to pad to. By default they ascend, so two buckets differ in both sizes."""
    least: list[int] = []
    for number in most:
        least.append(max(int(number), least[-1] + 1 if least else 1))
    if edge_sizes is None:
        return least
    given = plain(edge_sizes)
    numbers = [whole()("edge_sizes", size, {}) for size in (given if is_list(given) else [])]
    if len(numbers) != len(least) or any(a < b for a, b in zip(numbers, least, strict=True)):
        raise ValueError(
            f"`edge_sizes` must be a number for each size of graphs, at least {least}, which hold "
            f"their edges. Received: edge_sizes={edge_sizes!r}"
        )
    return numbers
