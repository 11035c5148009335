"""Labelled graphs in three splits, and batches of them for an attention."""

import argparse
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from keras_graphattn.graphs import Graph, GraphBatches, precompute
from recipes.common.command.devices import check_rows
from recipes.common.data.chance import Chance, of_accuracy


@dataclasses.dataclass
class GraphProblem:
    """A task on whole graphs. The label of a graph is the number of its class.

    Without classes, the label is the number to predict. Where all data is to train, there are no
    validation graphs.
    """

    task: str
    classes: list[str]
    train: list[Graph]
    validation: list[Graph]
    test: list[Graph]

    @property
    def splits(self) -> dict[str, list[Graph]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def features(self) -> int:
        return self.train[0].node_features.shape[1]

    def sizes(self, count: int = 4) -> list[int]:
        """Up to `count` numbers of nodes to pad to; the last one holds every graph.

        Each size except the last is too small for a quarter of the graphs that the size before is
        too small for: so few graphs are padded to the largest size.
        """
        nodes = [graph.num_nodes for graphs in self.splits.values() for graph in graphs]
        shares = [*(1.0 - 0.25 ** np.arange(1, count)), 1.0]
        return sorted({int(size) for size in np.quantile(nodes, shares, method="higher")})

    def edge_sizes(self, sizes: list[int]) -> list[int]:
        """Numbers of edges to pad to, one for each number of nodes: the most in any split."""
        graphs = [graph for graphs in self.splits.values() for graph in graphs]
        return GraphBatches(graphs, sizes=sizes).edge_sizes

    def chance(self) -> Chance:
        """The accuracy of the most frequent class, or the absolute error of the training median."""
        if self.classes:
            return of_accuracy(**{name: labels_of(part) for name, part in self.splits.items()})
        median = np.median(numbers_of(self.train))
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        errors = {
            name: float(np.abs(numbers_of(part) - median).mean())
            for name, part in parts.items()
            if part
        }
        return Chance("always the median of the training data", errors)

    def digest(self) -> str:
        digest = hashlib.sha256("\n".join(self.classes).encode())
        for name, graphs in self.splits.items():
            digest.update(f"{name} {len(graphs)}".encode())
            for graph in graphs:
                arrays = (graph.edges, graph.node_features, graph.label, graph.edge_features)
                for array in (array for array in arrays if array is not None):
                    digest.update(str(array.shape).encode() + array.tobytes())
        return digest.hexdigest()[:16]


def labels_of(graphs: Sequence[Graph]) -> np.ndarray:
    """The classes of graphs, (N,)."""
    return np.array([int(graph.label) for graph in graphs], "int32")


def numbers_of(graphs: Sequence[Graph]) -> np.ndarray:
    """The numbers to predict of graphs, (N,)."""
    return np.array([float(graph.label) for graph in graphs])


def batches_of_parts(
    problem: GraphProblem,
    inputs: Sequence[str],
    options: argparse.Namespace,
    seed: int,
    buckets: int = 4,
    pairs: Callable[[list[Graph]], dict[str, Any]] | None = None,
) -> list[GraphBatches | None]:
    """Batches of the three parts, padded alike; the seed orders the training graphs.

    A part without graphs has none. `pairs` makes the arrays of pairs of nodes of some graphs.
    """
    sizes = problem.sizes(buckets)
    shared = {"sizes": sizes, "edge_sizes": problem.edge_sizes(sizes)}
    batches: list[GraphBatches | None] = []
    for part, graphs in problem.splits.items():
        if not graphs:
            batches.append(None)
            continue
        more = {**shared, "seed": seed if part == "train" else None}
        arrays = None if pairs is None else pairs(graphs)
        batches.append(batches_of(graphs, inputs, options, pair_arrays=arrays, **more))
    return batches


def batches_of(
    graphs: list[Graph], inputs: Sequence[str], options: argparse.Namespace, **more: Any
) -> GraphBatches:
    """Batches with the inputs that a model has.

    Walks are those of `walks_of`. `more` are further arguments of `GraphBatches`.

    Raises:
        UsageError: If several devices cannot share the last batch, which has what is left.
    """
    left = len(graphs) % options.batch_size
    check_rows(left, f"the last batch, {left} of {len(graphs)} graphs,", options)
    arrays = {"walks": walks_of(graphs, options)} if "walks" in inputs else {}
    return GraphBatches(graphs, options.batch_size, node_arrays=arrays, inputs=inputs, **more)


def walks_of(graphs: list[Graph], options: argparse.Namespace) -> list[np.ndarray]:
    """Walks of each graph, (n, walks, length): drawn once, and kept in `options.cache_dir`."""
    walks = {"num_walks": options.walks, "walk_length": options.walk_length}
    kept = {"cache_dir": options.cache_dir.expanduser(), "verbose": False}
    return precompute(graphs, "walks", **walks, **kept, seed=options.data_seed)


def joined_by_walks(graph: Graph, options: argparse.Namespace) -> Graph:
    """The graph with an edge for each pair of nodes whose walks meet.

    The weight of the edge is the cosine of how often the walks of the two visit each node, which is
    the entry of the kernel of `masks.RandomWalk`.
    """
    (walks,) = walks_of([graph], options)
    count = graph.num_nodes
    starts = np.repeat(np.arange(count), walks[0].size)
    visited = walks.ravel() >= 0
    places = starts[visited], walks.ravel()[visited]
    visits = scipy.sparse.csr_array((np.ones(len(places[0])), places), shape=(count, count))
    visits = visits / scipy.sparse.linalg.norm(visits, axis=1)[:, None]
    kernel = scipy.sparse.triu(visits @ visits.T, k=1).tocoo()
    pairs = np.stack([kernel.row, kernel.col], axis=-1)
    return Graph(pairs, kernel.data, graph.node_features, None, graph.label)
