"""One graph with classes of its nodes, and its training, validation and test nodes.

Citation networks come from Planetoid files, with the public split. Zachary's karate club is here as
it was published: 34 members, their contacts outside the club, and the leader that each followed
when it split.

Source: Yang et al., arXiv 1603.08861; Zachary, "An information flow model for conflict and fission
in small groups", Journal of Anthropological Research 33 (1977).
"""

import argparse
import dataclasses
import hashlib

import numpy as np

from keras_graphattn.graphs import Graph, read_planetoid
from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, of_accuracy, refuse_one_class

KARATE = "karate"
MEMBERS = 34
# the contacts of each member with a higher number
_FRIENDS = """
    0: 1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31; 1: 2 3 7 13 17 19 21 30; 2: 3 7 8 9 13 27 28
    32; 3: 7 12 13; 4: 6 10; 5: 6 10 16; 6: 16; 8: 30 32 33; 9: 33; 13: 33; 14: 32 33; 15: 32
    33; 18: 32 33; 19: 33; 20: 32 33; 22: 32 33; 23: 25 27 29 32 33; 24: 25 27 31; 25: 31; 26:
    29 33; 27: 33; 28: 31 33; 29: 32 33; 30: 32 33; 31: 32 33; 32: 33
"""
FRIENDS = [
    (int(member), int(friend))
    for member, _, friends in (line.partition(":") for line in _FRIENDS.split(";"))
    for friend in friends.split()
]
OFFICER = (9, 14, 15, 18, 20, *range(22, 34))  # who followed the officer, member 33
TRAINED = (0, 33)  # the two leaders; each class has 16 or 17 members
VALIDATED = (1, 2, 3, 31, 32, 29)


@dataclasses.dataclass
class NodeProblem:
    """One graph; its label is the class of each node, -1 if it is unknown."""

    name: str
    classes: list[str]
    graph: Graph
    parts: dict[str, np.ndarray]  # nodes of "train", "validation" and "test"

    @property
    def features(self) -> int:
        return self.graph.node_features.shape[1]

    def only(self, part: str) -> Graph:
        """The same graph with the labels of one part only."""
        nodes, label = self.parts[part], np.full(self.graph.num_nodes, -1)
        label[nodes] = self.graph.label[nodes]
        graph = self.graph
        return Graph(graph.edges, graph.edge_weights, graph.node_features, None, label)

    def labels(self, part: str) -> np.ndarray:
        """The known labels of the nodes of one part."""
        labels = self.graph.label[self.parts[part]]
        return labels[labels >= 0]

    def chance(self) -> Chance:
        return of_accuracy(**{part: self.labels(part) for part in self.parts})

    def digest(self) -> str:
        digest = hashlib.sha256("\n".join(self.classes).encode())
        arrays = (self.graph.edges, self.graph.node_features, self.graph.label)
        for array in (*arrays, *self.parts.values()):
            digest.update(str(array.shape).encode() + array.tobytes())
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> NodeProblem:
    """The data set that the options select; refuses one from which nothing can be learned.

    Raises:
        UsageError: When it cannot be read, or its training nodes have one class.
    """
    problem = karate_club() if options.dataset == KARATE else _read(options)
    for part in problem.parts:
        if not len(problem.labels(part)):
            raise UsageError(f"{problem.name}: the {part} part has no node with a label")
    refuse_one_class(problem.labels("train"), problem.classes, problem.name)
    return problem


def karate_club() -> NodeProblem:
    """The karate club. A member's feature is its number; the two leaders have training labels."""
    label = np.isin(np.arange(MEMBERS), OFFICER).astype("int64")
    graph = Graph(FRIENDS, node_features=np.eye(MEMBERS), label=label)
    parts = {"train": np.array(TRAINED), "validation": np.array(VALIDATED)}
    taken = np.concatenate(list(parts.values()))
    parts["test"] = np.setdiff1d(np.arange(MEMBERS), taken)
    return NodeProblem(KARATE, ["instructor", "officer"], graph, parts)


def _read(options: argparse.Namespace) -> NodeProblem:
    """A citation network; the features of a node add up to 1, as in the published experiments."""
    name = options.dataset
    if options.data_dir is None:
        raise UsageError(f"--dataset {name} needs --data-dir, with ind.{name}.x and so on in it")
    try:
        planetoid = read_planetoid(options.data_dir, name)
    except (OSError, ValueError) as error:
        raise UsageError(f"--dataset {name} cannot be read: {error}") from error
    graph = planetoid.graph
    sums = graph.node_features.sum(axis=1, keepdims=True)
    features = graph.node_features / np.where(sums > 0, sums, 1.0)
    graph = Graph(graph.edges, None, features, None, graph.label)
    parts = {part: getattr(planetoid, part) for part in ("train", "validation", "test")}
    classes = [str(number) for number in range(int(graph.label.max()) + 1)]
    return NodeProblem(name, classes, graph, parts)
