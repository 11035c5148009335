"""Random graphs with and without a motif, and trees with a long or a short cycle.

A graph with a motif is an Erdos-Renyi graph of 100 nodes and the motif, of 20 nodes, joined by 30
random edges. A graph without a motif has as many nodes and edges, drawn with equal probabilities.
In a tree with a long cycle, the two leaves that are farthest apart are joined. In the same tree
without a long cycle, two random leaves are joined whose distance is at most half of that. So
numbers of nodes and edges do not distinguish the classes, and in trees degrees do not either. The
only feature of a node is its degree, as a one-hot row.

Source: Choromanski et al., arXiv 2107.07999, Section 5.2; the sizes are ours.
"""

import argparse

import numpy as np
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.graphs import Graph
from recipes.common.command.parsing import UsageError
from recipes.common.data.graphs import GraphProblem

NODES, MOTIF_NODES, JOINS = 100, 20, 30
EDGE_PROBABILITY = 0.05
LARGEST_DEGREE = 12  # larger ones count as this

Edges = list[tuple[int, int]]


def load(options: argparse.Namespace) -> GraphProblem:
    """The three splits of a task, each with equally many graphs of both classes."""
    sizes = (options.train_examples, options.evaluation_examples, options.evaluation_examples)
    if any(size % 2 for size in sizes):
        raise UsageError(
            "--train-examples and --evaluation-examples must be even: half of the graphs are of "
            f"either class; they are {sizes[0]} and {sizes[1]}"
        )
    splits = (
        generate(options.task, size, [options.data_seed, number])
        for number, size in enumerate(sizes)
    )
    has = "long cycle" if options.task == "induced_cycle" else options.task
    return GraphProblem(options.task, [f"no {has}", has], *splits)


def generate(task: str, count: int, seed: int | list[int]) -> list[Graph]:
    """Makes graphs of a task from a seed; graphs with odd numbers have the motif.

    The number of graphs is even: each pair has as many nodes and edges.
    """
    random = np.random.default_rng(seed)
    graphs = []
    for _ in range(count // 2):
        if task == "induced_cycle":
            without, with_motif, nodes = cycles_in_tree(random, NODES // 2)
        else:
            nodes = NODES + MOTIF_NODES
            with_motif = planted(random, MOTIFS[task])
            without = uniform_edges(random, nodes, len(with_motif))
        graphs += [_graph(random, edges, nodes, i) for i, edges in enumerate((without, with_motif))]
    return graphs


def planted(random: np.random.Generator, motif: Edges) -> Edges:
    """An Erdos-Renyi graph with a motif on the last nodes, joined by random edges."""
    pairs = np.stack(np.triu_indices(NODES, 1), axis=1)
    drawn = pairs[random.random(len(pairs)) < EDGE_PROBABILITY]
    joins = random.choice(NODES * MOTIF_NODES, JOINS, replace=False)
    joined = [(int(j // MOTIF_NODES), int(NODES + j % MOTIF_NODES)) for j in joins]
    return [*map(tuple, drawn.tolist()), *((u + NODES, v + NODES) for u, v in motif), *joined]


def uniform_edges(random: np.random.Generator, nodes: int, count: int) -> Edges:
    """Draws different edges with equal probabilities."""
    pairs = np.stack(np.triu_indices(nodes, 1), axis=1)
    return [*map(tuple, pairs[random.choice(len(pairs), count, replace=False)].tolist())]


def cycles_in_tree(random: np.random.Generator, nodes: int) -> tuple[Edges, Edges, int]:
    """A random binary tree with a short cycle, the same with the longest cycle, and its size."""
    while True:
        open_places = [0, 0]  # each node may get two children
        tree: Edges = []
        for node in range(1, nodes):
            tree.append((open_places.pop(random.integers(len(open_places))), node))
            open_places += [node, node]
        rows, columns = np.array(tree).T
        matrix = np.zeros((nodes, nodes))
        matrix[rows, columns] = 1.0
        distances = shortest_path(matrix, directed=False)
        is_leaf = np.bincount(np.array(tree).ravel()) == 1  # as the farthest nodes are
        far = np.argwhere(distances == distances.max())
        is_near = (distances >= 2) & (distances <= distances.max() / 2)
        near = np.argwhere(is_near & is_leaf[:, None] & is_leaf)
        if len(near):
            short, long = (tuple(ends[random.integers(len(ends))].tolist()) for ends in (near, far))
            return [*tree, short], [*tree, long], nodes


def grid(rows: int) -> Edges:
    """A grid, row by row."""
    columns = MOTIF_NODES // rows
    right = [(i, i + 1) for i in range(MOTIF_NODES) if (i + 1) % columns]
    return right + [(i, i + columns) for i in range(MOTIF_NODES - columns)]


def caveman(size: int = 5) -> Edges:
    """Cliques in a ring: each replaces one of its edges by an edge to the clique before."""
    edges = []
    for first in range(0, MOTIF_NODES, size):
        inside = [(first + i, first + j) for i in range(size) for j in range(i + 1, size)]
        inside.remove((first, first + 1))
        edges += [*inside, (first, (first - 1) % MOTIF_NODES)]
    return edges


MOTIFS = {
    "caveman": caveman(),
    "circle": [(i, (i + 1) % MOTIF_NODES) for i in range(MOTIF_NODES)],
    "grid": grid(4),
    "ladder": grid(2),
    "circular_ladder": [*grid(2), (MOTIF_NODES // 2 - 1, 0), (MOTIF_NODES - 1, MOTIF_NODES // 2)],
}
TASKS = (*MOTIFS, "induced_cycle")


def _graph(random: np.random.Generator, edges: Edges, nodes: int, label: int) -> Graph:
    """The graph with its nodes in a random order, and their degrees as features."""
    numbered = random.permutation(nodes)[np.array(edges)]
    degrees = np.minimum(np.bincount(numbered.ravel(), minlength=nodes), LARGEST_DEGREE)
    return Graph(numbered, node_features=np.eye(LARGEST_DEGREE + 1)[degrees], label=label)
