"""Centroid decomposition of a forest, in NumPy, a whole round of all components at a time.

Each round removes one centroid from every component that is left, so that no component keeps more
than half of its nodes: at most log2(n) + 1 rounds. What crosses the centroid of its round: two
nodes i, j of one component, at distances d_i and d_j from its centroid, in different branches. So

    f(dist(i, j)) summed over j = sum_d f(d_i + d) E_component[d] - sum_d f(d_i + d) E_branch[d]

with E the sums of x by distance from the centroid. Both are Hankel products (f depends on a sum of
indices): see `keras_graphattn.ops.trees.hankel`.

Source: Choromanski et al., arXiv 2107.07999, Lemma 6.1.
"""

from typing import NamedTuple

import numpy as np

from keras_graphattn.ops.trees.forests import Array, Forest


class Incidences(NamedTuple):
    """Which nodes belong to which branch in which round, a row for each pair.

    Attributes:
        node: The node's place in the forest's order.
        distance: Its distance from the centroid; 0 for the centroid itself.
        component: Number of the component, from 0, over all rounds.
        branch: Number of the branch, from 0, over all rounds; each centroid is one of its own.
    """

    node: Array
    distance: Array
    component: Array
    branch: Array


def centroid_incidences(forest: Forest) -> Incidences:
    """The incidences of all rounds."""
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
        # the branch above the centroid and the centroid itself can share a node's number
        key = 2 * branch + is_centre
        _, component = np.unique(root, return_inverse=True)
        names, branch = np.unique(key, return_inverse=True)
        found.append(Incidences(nodes, distance, component + components, branch + branches))
        components, branches = components + int(component.max()) + 1, branches + len(names)
        nodes, parents, depth = _without(nodes, parents, depth, is_centre)
    return Incidences(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def _roots_and_sizes(parents: Array) -> tuple[Array, Array]:
    """Each node's root and the size of its subtree, by pointer doubling."""
    places = np.arange(len(parents))
    size, jump = np.ones(len(parents)), parents
    moves = jump != places
    while moves.any():
        size = size + np.bincount(jump[moves], weights=size[moves], minlength=len(size))
        moves = moves & moves[jump]
        jump = jump[jump]
    return jump, size.astype("int64")


def _centroids(root: Array, size: Array) -> tuple[Array, Array]:
    """The centroid by root, and the chain from each root to it.

    A node with more than half of its component below it is on the chain; the last is the centroid.
    """
    heavy = 2 * size > size[root]
    chain = np.flatnonzero(heavy)
    centre = np.zeros(len(root), "int64")
    centre[root[chain]] = chain  # parents come before children: the last one written is deepest
    return centre, heavy


def _anchors(parents: Array, heavy: Array, centre: Array) -> Array:
    """The first node upwards that is on the chain, or whose parent is the centroid."""
    places = np.arange(len(parents))
    stops = heavy | (parents == centre)
    jump = np.where(stops, places, parents)
    while not np.array_equal(jump[jump], jump):
        jump = jump[jump]
    return jump


def _without(
    nodes: Array, parents: Array, depth: Array, removed: Array
) -> tuple[Array, Array, Array]:
    """What is left: the children of removed nodes become roots."""
    places = np.arange(len(nodes))
    parents = np.where(removed[parents], places, parents)
    kept = np.flatnonzero(~removed)
    position = np.cumsum(~removed) - 1
    return nodes[kept], position[parents[kept]], depth[kept]
