"""Graphs with a class: TU data from files, or generated graphs of three kinds.

The generated graphs have 15 to 40 nodes and a mean degree of 4: rings of nodes joined to the 4
nearest, with a tenth of the edges moved (Watts and Strogatz); graphs that grow by nodes that prefer
nodes of high degree (Barabasi and Albert); and pairs of random places in a square that are near to
each other.
"""

import argparse
import dataclasses
import hashlib

import numpy as np

from keras_graphattn.graphs import Graph, read_tu
from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, held_out, of_accuracy, refuse_one_class
from recipes.common.data.graphs import GraphProblem, labels_of

MADE = "made"  # the name of the data that needs no files
FOLDS, LARGEST_DEGREE = 10, 20
TESTED_IN_SEARCH = 0.2  # of the training graphs of a fold
SEARCH_SEED = 1000  # is added to the fold's: a search holds out other graphs
KINDS = ("small world", "preferential", "geometric")

Edges = np.ndarray  # (E, 2)


@dataclasses.dataclass
class Folds:
    """All graphs of a data set, with the training and test graphs of each fold."""

    name: str
    classes: list[str]
    graphs: list[Graph]
    folds: list[tuple[np.ndarray, np.ndarray]]
    published: bool  # whether the folds are those that came with the data

    @property
    def features(self) -> int:
        return self.graphs[0].node_features.shape[1]

    def chance(self) -> Chance:
        """The accuracy of the most frequent class of all graphs."""
        labels = labels_of(self.graphs)
        return of_accuracy(validation=labels, training=labels, test=labels)

    def digest(self) -> str:
        digest = hashlib.sha256(
            GraphProblem("", self.classes, self.graphs, [], []).digest().encode()
        )
        for fold in self.folds:
            for part in fold:
                digest.update(part.astype("int64").tobytes() + b"|")
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> Folds:
    """The data set that the options select; refuses one from which nothing can be learned.

    Raises:
        UsageError: When it cannot be read, has one class, or too few graphs.
    """
    if options.dataset == MADE:
        graphs = make(options.graphs, options.data_seed)
        problem = Folds(MADE, list(KINDS), graphs, [], False)
    else:
        problem = _read(options)
    labels = labels_of(problem.graphs)
    refuse_one_class(labels, problem.classes, problem.name)
    if not problem.folds:
        problem.folds = stratified_folds(labels, options.data_seed)
    for number in range(len(problem.folds)):
        fold(problem, number, options)
    return problem


def fold(problem: Folds, seed: int, options: argparse.Namespace) -> GraphProblem:
    """The fold `seed` modulo the number of folds, with an inner hold-out to validate on.

    The seed also draws the held-out graphs. In a search, a fifth of the training graphs is the test
    part, and the test part of the fold is not used.
    """
    search, validation_fraction = options.search, options.validation_fraction
    train, test = problem.folds[seed % len(problem.folds)]
    random = np.random.default_rng(seed + SEARCH_SEED if search else seed)
    if search:
        train, test = _hold_out(problem, train, TESTED_IN_SEARCH, random)
    train, validation = _hold_out(problem, train, validation_fraction, random)
    if not len(validation) or not len(test):
        raise UsageError(f"{problem.name}: too few graphs for a fold to validate and to test on")
    splits = [[problem.graphs[place] for place in part] for part in (train, validation, test)]
    if options.standardise:
        nodes = np.concatenate([graph.node_features for graph in splits[0]]).astype("float64")
        mean, spread = nodes.mean(axis=0), nodes.std(axis=0)
        spread[spread == 0.0] = 1.0
        splits = [
            [with_features(graph, (graph.node_features - mean) / spread) for graph in part]
            for part in splits
        ]
    return GraphProblem(problem.name, problem.classes, *splits)


def with_features(graph: Graph, features: np.ndarray) -> Graph:
    """The graph with other features of its nodes."""
    return Graph(graph.edges, node_features=features, label=graph.label, num_nodes=graph.num_nodes)


def _hold_out(
    problem: Folds, places: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Splits indices into the rest and a share that is drawn class by class."""
    labels = labels_of([problem.graphs[place] for place in places])
    rest, held = held_out(labels, share, random)
    return places[rest], places[held]


def stratified_folds(labels: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten parts with about equal shares of each class; each is the test part once."""
    random = np.random.default_rng(seed)
    order = np.concatenate(
        [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    )
    parts = [np.sort(order[start::FOLDS]) for start in range(FOLDS)]
    everything = np.arange(len(labels))
    return [(np.setdiff1d(everything, part), part) for part in parts]


def make(count: int, seed: int) -> list[Graph]:
    """Makes graphs of the three kinds in turn. The feature of a node is its degree."""
    random = np.random.default_rng(seed)
    graphs = []
    for number in range(count):
        nodes = int(random.integers(15, 41))
        edges = (small_world, preferential, geometric)[number % 3](random, nodes)
        graphs.append(with_degrees(Graph(edges, num_nodes=nodes, label=number % 3)))
    return graphs


def small_world(random: np.random.Generator, nodes: int) -> Edges:
    """A ring of nodes joined to the 4 nearest; a tenth of the edges get another random end."""
    edges = {tuple(sorted((i, (i + step) % nodes))) for i in range(nodes) for step in (1, 2)}
    for edge in sorted(edges):
        if random.random() < 0.1:
            edges.remove(edge)
            others = [v for v in range(nodes) if v != edge[0] and _pair(edge[0], v) not in edges]
            edges.add(_pair(edge[0], others[random.integers(len(others))]))
    return np.array(sorted(edges))


def preferential(random: np.random.Generator, nodes: int) -> Edges:
    """Each new node is joined to two others, with probabilities in proportion to their degrees."""
    edges = [(0, 1), (0, 2), (1, 2)]
    for node in range(3, nodes):
        ends = np.array(edges).ravel()
        chosen: set[int] = set()
        while len(chosen) < 2:
            chosen.add(int(ends[random.integers(len(ends))]))
        edges += [(other, node) for other in sorted(chosen)]
    return np.array(edges)


def geometric(random: np.random.Generator, nodes: int) -> Edges:
    """Random places in a square; the 2 n pairs of the least distance are joined."""
    places = random.random((nodes, 2))
    pairs = np.stack(np.triu_indices(nodes, 1), axis=1)
    distances = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    return pairs[np.argsort(distances)[: 2 * nodes]]


def with_degrees(graph: Graph, *, beside: bool = False, one_hot: bool = True) -> Graph:
    """The graph with the degree of each node, up to 20, as its features: a one-hot vector.

    With `one_hot=False`, the degree is one number, without a limit. With `beside=True`, they are
    added to the features of the graph; else they replace them.
    """
    degrees = np.bincount(graph.edges.ravel(), minlength=graph.num_nodes)
    features = degrees[:, None].astype("float64")
    if one_hot:
        features = np.eye(LARGEST_DEGREE + 1)[np.minimum(degrees, LARGEST_DEGREE)]
    if beside:
        features = np.concatenate([graph.node_features, features], axis=1)
    return with_features(graph, features)


def _pair(u: int, v: int) -> tuple[int, int]:
    return (u, v) if u < v else (v, u)


def _read(options: argparse.Namespace) -> Folds:
    """TU data; degrees replace the tags if all nodes have the same tag, or are added to them.

    With `--published`, a degree that replaces tags is one number, as in arXiv 1912.09893.
    """
    if options.data_dir is None:
        raise UsageError(
            f"--dataset {options.dataset} needs --data-dir, with {options.dataset}.txt or "
            f"{options.dataset}_A.txt in it or in a folder {options.dataset}"
        )
    inner = options.data_dir / options.dataset
    try:
        data = read_tu(inner if inner.is_dir() else options.data_dir, options.dataset)
    except (OSError, ValueError) as error:
        raise UsageError(f"--dataset {options.dataset} cannot be read: {error}") from error
    graphs = data.graphs
    one_tag = graphs[0].node_features.shape[1] == 1
    if one_tag or options.degrees:
        form = {"beside": not one_tag, "one_hot": not (one_tag and options.published)}
        graphs = [with_degrees(graph, **form) for graph in graphs]
    classes = [str(label) for label in data.classes]
    return Folds(options.dataset, classes, graphs, data.folds, bool(data.folds))
