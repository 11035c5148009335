"""Centroid decomposition of a forest, in NumPy, with one round for all components at a time.

Each round removes one centroid from every remaining component. Then no component keeps more than
half of its nodes, so there are at most log2(n) + 1 rounds. Take two nodes i, j of one component, at
distances d_i and d_j from its centroid. If they are in different branches, their path crosses the
centroid, and dist(i, j) = d_i + d_j. So one round adds, for node i,

    sum_j f(dist(i, j)) x_j = sum_d f(d_i + d) E_component[d] - sum_d f(d_i + d) E_branch[d]

where E is the sum of x by distance from the centroid. Both are Hankel products, as f depends on a
sum of indices: see `keras_graphattn.ops.trees.hankel`.

Source: Choromanski et al., arXiv 2107.07999, Lemma 6.1.
"""

from typing import NamedTuple

import numpy as np

from keras_graphattn.ops.trees.forests import Array, Forest


class Incidences(NamedTuple):
    """Pairs of a node and a round, with the branch of the node in that round: one row per pair.

    Attributes:
        node: The node's place in the forest's order.
        distance: Its distance from the centroid; 0 for the centroid itself.
        component: Number of the component, counted from 0 over all rounds.
        branch: Number of the branch, counted from 0 over all rounds. Each centroid is its own
            branch.
    """

    node: Array
    distance: Array
    component: Array
    branch: Array


def centroid_incidences(forest: Forest) -> Incidences:
    """Returns the incidences of all rounds."""
    nodes, parents = np.arange(forest.size), forest.parents.copy()
    depth = forest.depth
    found: list[Incidences] = []
    components = branches = 0
    while len(nodes):
        root, size = _roots_and_sizes(parents)
        centre, heavy = _centroids(root, size)
        anchor = _anchors(parents, heavy, centre[root])
        above = centre[root]  # the centroid of each node's component
        is_centre = above == np.arange(len(nodes))
        hangs_above = heavy[anchor] & ~is_centre  # not below the centroid
        meeting = np.where(hangs_above, anchor, above)
        distance = depth + depth[above] - 2 * depth[meeting]
        branch = np.where(hangs_above, root, anchor)
        # The branch above the centroid and the centroid itself can have the same node as number.
        key = 2 * branch + is_centre
        _, component = np.unique(root, return_inverse=True)
        names, branch = np.unique(key, return_inverse=True)
        found.append(Incidences(nodes, distance, component + components, branch + branches))
        components, branches = components + int(component.max()) + 1, branches + len(names)
        nodes, parents, depth = _without(nodes, parents, depth, is_centre)
    return Incidences(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def _roots_and_sizes(parents: Array) -> tuple[Array, Array]:
    """Returns each node's root and the size of its subtree, (n,) each, by pointer doubling."""
    places = np.arange(len(parents))
    size, jump = np.ones(len(parents)), parents
    moves = jump != places
    while moves.any():
        size = size + np.bincount(jump[moves], weights=size[moves], minlength=len(size))
        moves = moves & moves[jump]
        jump = jump[jump]
    return jump, size.astype("int64")


def _centroids(root: Array, size: Array) -> tuple[Array, Array]:
    """Returns the centroid by root, and which nodes are on the chain from the root to it.

    A node is on the chain if its subtree has more than half of its component's nodes. The lowest
    node of the chain is the centroid.
    """
    heavy = 2 * size > size[root]
    chain = np.flatnonzero(heavy)
    centre = np.zeros(len(root), "int64")
    centre[root[chain]] = chain  # parents come before children, so the deepest is written last
    return centre, heavy


def _anchors(parents: Array, heavy: Array, centre: Array) -> Array:
    """Returns the first node upwards that is on the chain, or whose parent is the centroid."""
    places = np.arange(len(parents))
    stops = heavy | (parents == centre)
    jump = np.where(stops, places, parents)
    while not np.array_equal(jump[jump], jump):
        jump = jump[jump]
    return jump


def _without(
    nodes: Array, parents: Array, depth: Array, removed: Array
) -> tuple[Array, Array, Array]:
    """Returns the forest without some nodes. The children of removed nodes become roots."""
    places = np.arange(len(nodes))
    parents = np.where(removed[parents], places, parents)
    kept = np.flatnonzero(~removed)
    position = np.cumsum(~removed) - 1
    return nodes[kept], position[parents[kept]], depth[kept]
