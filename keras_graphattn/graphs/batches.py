"""Batches of graphs in size buckets, padded, with masks ready for the layers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_graphattn.checks import flag, is_list, optional, whole
from keras_graphattn.graphs.batch_checks import (
    check_alike,
    check_arrays,
    check_narrow,
    check_one_kind,
    check_weights,
    checked_edge_sizes,
    checked_sizes,
)
from keras_graphattn.graphs.graph import Array, Graph
from keras_graphattn.graphs.precomputation import checked_graphs


class GraphBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of graphs of about the same size, for `fit`, `evaluate` and `predict`.

    Every bucket holds graphs of about the same number of nodes, and pads them to one shape, so
    little is compiled. Every row of a batch is another graph. All batches but one have `batch_size`
    rows: graphs that do not fill a batch of their bucket go to the next larger bucket, and what is
    left at the end makes a smaller batch. With a seed, graphs are shuffled within their buckets
    and batches among each other, anew for each epoch of `fit`, in the same way whenever the program
    runs.

    A batch is `(inputs, labels, weights)`, or `(inputs,)` if the graphs have no labels. The weights
    of graphs are 1. So the loss of a batch is the mean over its graphs, and the loss and metrics of
    `evaluate` are means over all graphs. The inputs:

    * `nodes`: float32 (B, T, F), node features; 0 at padding.
    * `node_mask`: bool (B, T), `True` at the nodes of the graph: `query_mask` of the layers.
    * `edges`: int32 (B, E, 2), each edge once; (-1, -1) at padding. `mask_inputs` of
      `GraphDiffusion()` has it as `edges`.
    * `edge_weights`: float32 (B, E), 1 at padding, if some graph has another weight than 1, or if
      `weighted=True`. `mask_inputs` of `GraphDiffusion(edge_weights=True)`.
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
        weighted: Whether there is an input `edge_weights`; by default if a weight is not 1.
        num_buckets: Number of buckets at most.
        sizes: Numbers of nodes to pad to, in place of `num_buckets`: ascending, and the last one
            must hold the largest graph. Give the same for training and test data.
        edge_sizes: Numbers of edges to pad to, one for each of `sizes`, which it needs. By default
            the most of any graph in the bucket. Compiled code for training data serves test data,
            too, where both are the same.
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
        node_arrays: Mapping[str, Sequence[Any]] | None = None,
        pair_arrays: Mapping[str, Sequence[Any]] | None = None,
        node_labels: bool = False,
        inputs: Sequence[str] | None = None,
        weighted: bool | None = None,
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
        check_alike(self.graphs, self.node_labels)
        self._weighted = any((graph.edge_weights != 1.0).any() for graph in self.graphs)
        if weighted is not None:
            self._weighted = flag("weighted", weighted)
        counts = np.array([graph.num_nodes for graph in self.graphs])
        num_buckets = whole()("num_buckets", num_buckets, {})
        self.sizes = _sizes(counts, num_buckets) if sizes is None else checked_sizes(sizes, counts)
        self._bucket = np.searchsorted(self.sizes, counts)
        edges = np.array([len(graph.edges) for graph in self.graphs])
        self.edge_sizes = _edges_of_buckets(self._bucket, edges, len(self.sizes))
        if edge_sizes is not None:
            self.edge_sizes = checked_edge_sizes(edge_sizes, self.edge_sizes, sizes)
        self._arrays = {
            **{name: (1, given) for name, given in dict(node_arrays or {}).items()},
            **{name: (2, given) for name, given in dict(pair_arrays or {}).items()},
        }
        for name, (axes, given) in self._arrays.items():
            check_arrays(name, axes, given, counts)
        self._names = self._checked_names(inputs)
        if "edge_weights" in self._names:
            check_weights(self.graphs)
        self.labels: Any = [graph.label for graph in self.graphs]
        if self.graphs[0].label is None:
            self.labels = None
        else:
            check_narrow("label", self.labels)
            if self.node_labels:
                check_one_kind("label", self.labels)
            self.labels = self.labels if self.node_labels else _narrow(np.stack(self.labels))
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Orders graphs and batches for `epoch`, which counts from 0: a function of (seed, epoch).

        `fit` goes on by itself. To continue a training, call this at the beginning of each epoch.
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

    def graphs_of(self, index: int) -> list[int]:
        """The places in `graphs` of the rows of a batch."""
        return [int(place) for place in self._batches[index][1]]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        bucket, chosen = self._batches[index]
        size, graphs = int(self.sizes[bucket]), [self.graphs[place] for place in chosen]
        edges = int(self.edge_sizes[bucket])
        inputs = {
            "nodes": _padded([graph.node_features for graph in graphs], (size,), 0),
            "node_mask": _padded([np.ones(g.num_nodes, "bool") for g in graphs], (size,), 0),
            "edges": _padded([graph.edges.astype("int32") for graph in graphs], (edges,), -1),
        }
        if self._weighted:
            given = [graph.edge_weights.astype("float32") for graph in graphs]
            inputs["edge_weights"] = _padded(given, (edges,), 1)
        if graphs[0].edge_features is not None:
            features = [graph.edge_features for graph in graphs]
            inputs["edge_features"] = _padded(features, (edges,), 0)
        for name, (axes, arrays) in self._arrays.items():
            found = [_narrow(np.asarray(arrays[place])) for place in chosen]
            fill = -1 if found[0].dtype.kind in "iu" else 0
            inputs[name] = _padded(found, (size,) * axes, fill)
        inputs = {name: inputs[name] for name in self._names}
        if self.labels is None:
            return (inputs,)
        if not self.node_labels:
            return inputs, self.labels[chosen], np.ones(len(chosen), "float32")
        of_nodes = [_narrow(graph.label) for graph in graphs]
        labels = _padded(of_nodes, (size,), 0)
        known = [(label >= 0) | (label.dtype.kind == "f") for label in of_nodes]
        present = _padded(known, (size,), 0)
        weight = np.float32(present.size / max(present.sum(), 1))
        return inputs, np.where(present, labels, 0), weight * present

    def to_tf_dataset(self) -> Any:
        """The same batches as a `tf.data.Dataset`: a run through it is an epoch, in its order.

        Raises:
            ImportError: If TensorFlow is not installed.
        """
        try:
            import tensorflow as tf
        except ImportError as error:
            raise ImportError("`to_tf_dataset` needs TensorFlow: pip install tensorflow") from error

        def run() -> Iterator[Any]:
            for index in range(self.num_batches):
                yield self[index]
            self.on_epoch_end()

        def spec(name: str, array: Array) -> Any:
            per_edge = {"edges": 1, "edge_weights": 1, "edge_features": 1}
            axes = per_edge.get(name, self._arrays.get(name, (1, None))[0])
            shape = (None, *(None,) * axes, *array.shape[1 + axes :])
            return tf.TensorSpec(shape, array.dtype)

        inputs, *rest = self[0]
        signature: list[Any] = [{name: spec(name, array) for name, array in inputs.items()}]
        for array in rest:
            shape = (None, None) if self.node_labels else (None, *array.shape[1:])
            signature.append(tf.TensorSpec(shape, array.dtype))
        return tf.data.Dataset.from_generator(run, output_signature=tuple(signature))

    def _checked_names(self, names: Any) -> list[str]:
        known = ["nodes", "node_mask", "edges", *self._arrays]
        known += ["edge_weights"] if self._weighted else []
        known += [] if self.graphs[0].edge_features is None else ["edge_features"]
        if names is None:
            return known
        if not is_list(names) or not names or not set(names) <= set(known):
            raise ValueError(
                f"`inputs` must be names of {known}. Received: inputs={names!r}. Give further ones "
                "in `node_arrays` or `pair_arrays`."
            )
        return list(names)


def _sizes(counts: Array, num_buckets: int) -> list[int]:
    """Sizes to pad to, each taking about as many of the graphs."""
    shares = np.arange(1, num_buckets + 1) / num_buckets
    return sorted({int(size) for size in np.quantile(counts, shares, method="higher")})


def _edges_of_buckets(bucket: Array, edges: Array, count: int) -> list[int]:
    """Numbers of edges to pad to. They ascend, so that two buckets differ in both sizes."""
    found: list[int] = []
    for number in range(count):
        most = int(edges[bucket == number].max(initial=1))
        found.append(max(most, found[-1] + 1 if found else 1))
    return found


def _narrow(array: Array) -> Array:
    """Integers in int32, other numbers in float32; booleans stay."""
    kind = array.dtype.kind
    return array if kind == "b" else array.astype("int32" if kind in "iu" else "float32")


def _padded(arrays: Sequence[Any], sizes: tuple[int, ...], fill: float) -> Array:
    """Arrays of the same rank as one, (B, *sizes, ...), with `fill` where they are shorter."""
    first = arrays[0]
    found = np.full((len(arrays), *sizes, *first.shape[len(sizes) :]), fill, first.dtype)
    for row, array in enumerate(arrays):
        inside = tuple(slice(length) for length in array.shape[: len(sizes)])
        found[row][inside] = array
    return found
