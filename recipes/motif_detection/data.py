"""Random graphs with and without a motif, and trees with a long or a short cycle.

A graph with a motif is an Erdos-Renyi graph of 100 nodes and the motif, of 20 nodes, joined by 30
random edges. With more nodes (`--base-nodes`), their mean degree stays. A graph without a motif has
as many nodes and edges, drawn with equal probabilities. In a tree with a long cycle, the two leaves
that are farthest apart are joined. In the same tree without a long cycle, two random leaves are
joined whose distance is at most half of that. So numbers of nodes and edges do not distinguish the
classes, and in trees degrees do not either. The only feature of a node is its degree, as a one-hot
row.

With `--published` or `--released`, graphs are those of the paper. The motif has 9 or 10 nodes; each
pair of a node of the Erdos-Renyi graph and one of the motif is joined with a small probability, and
at least one pair is. Without the motif, a random graph with as many nodes and edges stands in its
place. With `--released`, nodes without an edge are left out of both graphs before they are joined,
as in the paper's released code. The features of a node are the five largest degrees of its
neighbours. The trees are the same, and the feature of a node is its degree, less the mean and over
the standard deviation in the graph.

Source: Choromanski et al., arXiv 2107.07999, Section 5.2; without these options the sizes are ours.
"""

import argparse
from collections.abc import Callable

import numpy as np
from scipy.sparse.csgraph import shortest_path

from keras_graphattn.graphs import Graph
from recipes.common.command.parsing import UsageError
from recipes.common.data.graphs import GraphProblem

NODES, MOTIF_NODES, JOINS = 100, 20, 30
TREE_NODES = 50
EDGE_PROBABILITY = 0.05  # of NODES nodes
LARGEST_DEGREE = 12  # larger ones count as this
PUBLISHED_JOIN = 0.004  # the probability of an edge between the two graphs
LARGEST_DEGREES = 5  # of neighbours, as features

Edges = list[tuple[int, int]]
Features = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of edges and degrees


def load(options: argparse.Namespace) -> GraphProblem:
    """The three splits of a task, each with equally many graphs of both classes."""
    sizes = (options.train_examples, options.evaluation_examples, options.evaluation_examples)
    if any(size % 2 for size in sizes):
        raise UsageError(
            "--train-examples and --evaluation-examples must be even: half of the graphs are of "
            f"either class; they are {sizes[0]} and {sizes[1]}"
        )
    of_paper = "released" if options.released else "published" if options.published else None
    splits = (
        generate(options.task, size, [options.data_seed, number], of_paper, options.base_nodes)
        for number, size in enumerate(sizes)
    )
    has = "long cycle" if options.task == "induced_cycle" else options.task
    return GraphProblem(options.task, [f"no {has}", has], *splits)


def generate(
    task: str,
    count: int,
    seed: int | list[int],
    of_paper: str | None = None,
    base_nodes: int = NODES,
) -> list[Graph]:
    """Makes graphs of a task from a seed; graphs with odd numbers have the motif.

    The number of graphs is even: each pair has as many nodes and edges, but for graphs `of_paper`,
    which are "published" or "released". `base_nodes` are those of the Erdos-Renyi graph.
    """
    random = np.random.default_rng(seed)
    graphs = []
    for _ in range(count // 2):
        if task == "induced_cycle":
            *pair, nodes = cycles_in_tree(random, TREE_NODES)
            sizes = [nodes, nodes]
        elif of_paper:
            pair, sizes = published_pair(random, task, base_nodes, of_paper == "released")
        else:
            nodes = base_nodes + MOTIF_NODES
            with_motif = planted(random, MOTIFS[task], base_nodes)
            pair, sizes = [uniform_edges(random, nodes, len(with_motif)), with_motif], [nodes] * 2
        features = one_hot_degrees
        if of_paper:
            features = standardised_degree if task == "induced_cycle" else largest_of_neighbours
        graphs += [
            _graph(random, edges, nodes, label, features)
            for label, (edges, nodes) in enumerate(zip(pair, sizes, strict=True))
        ]
    return graphs


def planted(random: np.random.Generator, motif: Edges, nodes: int = NODES) -> Edges:
    """An Erdos-Renyi graph with a motif on the last nodes, joined by random edges."""
    base = erdos_renyi(random, nodes, EDGE_PROBABILITY)
    joins = random.choice(nodes * MOTIF_NODES, JOINS, replace=False)
    return joined(base, motif, joins, nodes, MOTIF_NODES)


def published_pair(
    random: np.random.Generator, task: str, nodes: int = NODES, released: bool = False
) -> tuple[list[Edges], list[int]]:
    """A graph without the motif and one with it, on one Erdos-Renyi graph; and their sizes.

    Of the released ones, nodes without an edge are left out before the graphs are joined.
    """
    motif, probability = PUBLISHED_MOTIFS[task]
    size = 1 + max(map(max, motif))
    base, graphs, sizes = erdos_renyi(random, nodes, probability), [], []
    join = PUBLISHED_JOIN * NODES / nodes
    if released:
        base, nodes = without_isolated(base)
    for added in (uniform_edges(random, size, len(motif)), motif):
        if released:
            added, size = without_isolated(added)
        joins = np.flatnonzero(random.random(nodes * size) < join)
        if not len(joins):
            joins = random.integers(nodes * size, size=1)
        graphs.append(joined(base, added, joins, nodes, size))
        sizes.append(nodes + size)
    return graphs, sizes


def without_isolated(edges: Edges) -> tuple[Edges, int]:
    """The edges among the nodes that have one, numbered again, and the number of these nodes."""
    names, numbered = np.unique(edges, return_inverse=True)
    return [*map(tuple, numbered.reshape((-1, 2)).tolist())], len(names)


def erdos_renyi(random: np.random.Generator, nodes: int, probability: float) -> Edges:
    """Each pair of nodes with a probability, which is that for `NODES` nodes."""
    probability, edges = probability * NODES / nodes, []
    for node in range(nodes - 1):
        others = 1 + node + np.flatnonzero(random.random(nodes - 1 - node) < probability)
        edges += [(node, other) for other in others.tolist()]
    return edges


def joined(base: Edges, added: Edges, joins: np.ndarray, nodes: int, size: int) -> Edges:
    """The base and, on the nodes after it, a graph of a size; `joins` are numbers of pairs."""
    between = [(int(j // size), int(nodes + j % size)) for j in joins]
    return [*base, *((u + nodes, v + nodes) for u, v in added), *between]


def uniform_edges(random: np.random.Generator, nodes: int, count: int) -> Edges:
    """Draws different edges with equal probabilities."""
    ends = np.cumsum(np.arange(nodes - 1, 0, -1))  # pairs of a node and later ones, row by row
    numbers = random.choice(int(ends[-1]), count, replace=False)
    rows = np.searchsorted(ends, numbers, side="right")
    columns = nodes + numbers - ends[rows]
    return [*zip(rows.tolist(), columns.tolist(), strict=True)]


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


def circle(nodes: int) -> Edges:
    """A cycle."""
    return [(i, (i + 1) % nodes) for i in range(nodes)]


def grid(rows: int, columns: int) -> Edges:
    """A grid, row by row."""
    nodes = rows * columns
    right = [(i, i + 1) for i in range(nodes) if (i + 1) % columns]
    return right + [(i, i + columns) for i in range(nodes - columns)]


def circular_ladder(columns: int) -> Edges:
    """Two cycles, joined node by node."""
    return [*grid(2, columns), (columns - 1, 0), (2 * columns - 1, columns)]


def caveman(cliques: int, size: int) -> Edges:
    """Cliques in a ring: each replaces one of its edges by an edge to the clique before."""
    edges = []
    for first in range(0, cliques * size, size):
        inside = [(first + i, first + j) for i in range(size) for j in range(i + 1, size)]
        inside.remove((first, first + 1))
        edges += [*inside, (first, (first - 1) % (cliques * size))]
    return edges


def joined_triangles() -> Edges:
    """Three triangles, of which one node each is a corner of a fourth."""
    corners = (0, 3, 6)
    outer = [(a + i, a + j) for a in corners for i, j in ((0, 1), (0, 2), (1, 2))]
    return [*outer, (0, 3), (3, 6), (0, 6)]


MOTIFS = {
    "caveman": caveman(4, 5),
    "circle": circle(MOTIF_NODES),
    "grid": grid(4, 5),
    "ladder": grid(2, 10),
    "circular_ladder": circular_ladder(10),
}
# Those of the paper, each with the probability of an edge in the Erdos-Renyi graph.
PUBLISHED_MOTIFS = {
    "caveman": (joined_triangles(), 0.027),
    "circle": (circle(10), 0.018),
    "grid": (grid(3, 3), 0.0267),
    "ladder": (grid(2, 5), 0.026),
    "circular_ladder": (circular_ladder(5), 0.03),
}
TASKS = (*MOTIFS, "induced_cycle")


def _graph(
    random: np.random.Generator, edges: Edges, nodes: int, label: int, features: Features
) -> Graph:
    """The graph with its nodes in a random order, and features from their degrees."""
    numbered = random.permutation(nodes)[np.array(edges)]
    degrees = np.bincount(numbered.ravel(), minlength=nodes)
    return Graph(numbered, node_features=features(numbered, degrees), label=label)


def one_hot_degrees(_: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """A node's degree as a one-hot row: (nodes, 13)."""
    return np.eye(LARGEST_DEGREE + 1)[np.minimum(degrees, LARGEST_DEGREE)]


def standardised_degree(_: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """A node's degree less the mean of its graph, over their standard deviation: (nodes, 1)."""
    return ((degrees - degrees.mean()) / degrees.std())[:, None]


def largest_of_neighbours(edges: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """The largest degrees of each node's neighbours, with zeros behind: (nodes, 5)."""
    node, neighbour = np.concatenate([edges, edges[:, ::-1]]).T
    order = np.lexsort((-degrees[neighbour], node))
    node, neighbour = node[order], neighbour[order]
    place = np.arange(len(node)) - (np.cumsum(degrees) - degrees)[node]
    kept = place < LARGEST_DEGREES
    features = np.zeros((len(degrees), LARGEST_DEGREES))
    features[node[kept], place[kept]] = degrees[neighbour[kept]]
    return features
