"""Forests: read and arranged once in NumPy, or as tensors that come with each batch.

The tensor code needs nodes level by level, with the children of one node next to each other.
Distances in a tree do not depend on the root, so each tree gets its centre as root. This halves the
levels of a path, and no path through a root is longer than the tree's diameter.
"""

from typing import Any

import numpy as np
import scipy.sparse
from keras import ops
from scipy.sparse.csgraph import breadth_first_order, connected_components

from keras_graphattn.masks.graphs.edges import graph_edges, numbers_of, read_graph
from keras_graphattn.numerics.precision import (
    at_least_float32,
    identity,
    pad,
    positions_of,
    size_tensor,
    take,
)
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

Nodes = Int[np.ndarray, " n"]
Lengths = Num[np.ndarray, " n"]

MOST_STEPS = 31  # steps of pointer doubling if the length is not known: enough for any int32


class Forest:
    """Rooted trees in breadth-first order. The root of each tree is its centre.

    Args:
        parents: Integers of shape (n,): the number of each node's parent, -1 at a root.
        edge_weights: Numbers of shape (n,): the length of the edge to the parent, not negative;
            1 by default. Numbers at roots are ignored.

    Attributes:
        order: The node's number in the user's order, (n,). This array and those below, except
            `position`, are in breadth-first order.
        position: The place of the user's node in this order, (n,): the inverse of `order`.
        parents: The parent's place in this order, (n,). A root names itself. After the roots, the
            places never decrease.
        depth: Number of edges to the root, (n,). It never decreases.
        weights: Weight of the edge to the parent, (n,); 0 at roots.
        starts: The start of each level, and n at the end: (levels + 1,).
        size, height, widest: The number of nodes n, the largest depth, and the number of nodes of
            the largest level.
        diameter: The largest number of edges between two nodes of one tree.

    Raises:
        ValueError: For parents out of range, cycles, and wrong weights.

    Example:

    >>> forest = Forest([-1, 0, 1, 2, 3])  # a path; its root is its middle
    >>> forest.order.tolist(), forest.depth.tolist()
    ([2, 1, 3, 0, 4], [0, 1, 1, 2, 2])
    """

    def __init__(self, parents: Any, edge_weights: Any = None) -> None:
        parents, weights = _checked_parents(parents, edge_weights)
        children = np.flatnonzero(parents >= 0)
        links, lengths = np.stack([children, parents[children]], axis=1), weights[children]
        count, roots = len(parents), np.flatnonzero(parents < 0)
        order, places, _ = _hung(links, lengths, roots, count)
        if len(order) < count:
            raise ValueError(
                f"`parents` must lead each node to a root (-1). Received: {count - len(order)} "
                "nodes on or below a cycle. Give one node of each cycle the parent -1."
            )
        # the middle of a longest path: half of the way from one of its ends to the other
        depth, root = _to_roots(places, places != np.arange(count))
        order, places, _ = _hung(links, lengths, order[_farthest(depth, root)], count)
        depth, root = _to_roots(places, places != np.arange(count))
        self.diameter = int(depth.max())
        middle = _farthest(depth, root)
        climb = depth[middle] // 2
        for bit, jump in enumerate(jumps(places, self.diameter)):
            middle = np.where(climb >> bit & 1, jump[middle], middle)
        self.order, self.parents, self.weights = _hung(
            links, lengths, np.sort(order[middle]), count
        )
        self.position = _inverse(self.order)
        self.depth, _ = _to_roots(self.parents, self.parents != np.arange(count))
        self.starts = np.searchsorted(self.depth, np.arange(self.depth[-1] + 2))
        self.size, self.height = count, len(self.starts) - 2
        self.widest = int(np.diff(self.starts).max())

    def __getstate__(self) -> dict[str, Any]:
        arrays = dict(vars(self))
        arrays.pop("_kept", None)  # sweeps and tables, which are made again when they are needed
        return arrays

    def farthest_distance(self) -> float:
        """The largest distance between two nodes of one tree, by edge weights."""
        distance, root = _to_roots(self.parents, self.weights)
        children = np.flatnonzero(self.depth)
        links = np.stack([children, self.parents[children]], axis=1)
        ends = _farthest(distance, root)
        _, parents, weights = _hung(links, self.weights[children], ends, self.size)
        return float(_to_roots(parents, weights)[0].max())


def forest_from_parents(parents: Any, edge_weights: Any = None) -> Forest:
    """Returns a forest, from each node's parent: `Forest(parents, edge_weights)`.

    Example:

    >>> forest_from_parents([-1, 0, 1, 2, 3]).depth.tolist()  # a path; its root is its middle
    [0, 1, 1, 2, 2]
    """
    return Forest(parents, edge_weights)


def forest_from_graph(graph: Any, num_nodes: int | None = None, edge_weights: Any = None) -> Forest:
    """Returns a forest, from its edges.

    Args:
        graph: An integer array of edges of shape (E, 2), a `keras_graphattn.graphs.Graph`, a
            symmetric scipy.sparse matrix of edge lengths, or an object like a networkx graph.
        num_nodes: Number of nodes, if the edges do not name them all.
        edge_weights: Positive lengths, one per edge of an array; 1 by default. Only
            `forest_from_parents` takes a length of 0.

    Raises:
        ValueError: For a graph with a cycle, and for graphs that cannot be read.

    Example:

    >>> forest_from_graph([[0, 1], [1, 2]]).depth.tolist()  # the root is node 1
    [0, 1, 1]
    """
    adjacency = read_graph(graph, num_nodes, edge_weights)
    edges, lengths = graph_edges(adjacency)
    count = adjacency.shape[0]
    components, labels = connected_components(adjacency, directed=False)
    if count - components != len(edges):
        raise ValueError(
            f"A forest of {count} nodes in {components} trees has {count - components} edges. "
            f"Received: {len(edges)} edges, so `graph` has a cycle. For such a graph, use the mask "
            "`GraphDiffusion`."
        )
    roots = np.unique(labels, return_index=True)[1]
    order, places, weights = _hung(edges, lengths, roots, count)
    parents = np.where(places == np.arange(count), -1, order[places])
    position = _inverse(order)
    return Forest(parents[position], weights[position])


def forest_distances(forest: Forest) -> Float[np.ndarray, "n n"]:
    """All distances in the user's order, (n, n) float64, in O(n^2); infinite across trees."""
    distances = np.full((forest.size, forest.size), np.inf)
    roots = np.arange(forest.starts[1])
    distances[roots, roots] = 0.0
    for level in range(1, forest.height + 1):
        start, end = forest.starts[level : level + 2]
        rows = np.arange(start, end)
        above, weights = forest.parents[rows], forest.weights[rows]
        distances[rows, :start] = distances[above, :start] + weights[:, None]
        distances[:start, rows] = distances[rows, :start].T
        # two nodes of one level: through both of their parents
        between = distances[np.ix_(above, above)] + weights[:, None] + weights
        between[np.arange(len(rows)), np.arange(len(rows))] = 0.0
        distances[start:end, start:end] = between
    in_users_order: np.ndarray = distances[np.ix_(forest.position, forest.position)]
    return in_users_order


def finite_distances(
    forest: Forest,
) -> tuple[Float[np.ndarray, "1 n n"], Bool[np.ndarray, "1 n n"]]:
    """All distances, 0 across trees, and which nodes share a tree, as one example of a batch."""
    distances = forest_distances(forest)[None]
    same_tree = np.isfinite(distances)
    return np.where(same_tree, distances, 0.0), same_tree


def jumps(parents: Nodes, depth: int) -> list[Nodes]:
    """The ancestors 1, 2, 4, ... edges up, (n,) each. A root is its own ancestor."""
    ancestors = [parents]
    while 2 ** len(ancestors) <= depth:
        ancestors.append(ancestors[-1][ancestors[-1]])
    return ancestors


def _checked_parents(parents: Any, edge_weights: Any) -> tuple[Nodes, Lengths]:
    parents = numbers_of("parents", parents)
    if parents.ndim != 1 or not np.issubdtype(parents.dtype, np.integer) or not len(parents):
        raise ValueError(
            "`parents` must be integers of shape (n,), -1 at a root. Received: shape "
            f"{parents.shape}, dtype {parents.dtype}"
        )
    count = len(parents)
    if parents.min() < -1 or parents.max() >= count:
        raise ValueError(
            f"`parents` must be between -1 and {count - 1}. Received: {parents.min()} to "
            f"{parents.max()}"
        )
    weights = np.ones(count) if edge_weights is None else numbers_of("edge_weights", edge_weights)
    right = np.isfinite(weights) & (weights >= 0)
    if weights.shape != (count,) or not right[parents >= 0].all():
        raise ValueError(
            f"`edge_weights` must be {count} finite numbers, not negative: one for each node's "
            f"edge to its parent. Received: edge_weights of shape {weights.shape} with values "
            f"{np.array2string(weights, threshold=8)}"
        )
    return parents.astype("int64"), weights


def _hung(
    links: Int[np.ndarray, "E 2"],
    lengths: Num[np.ndarray, " E"],
    roots: Int[np.ndarray, " _"],
    count: int,
) -> tuple[Nodes, Nodes, Lengths]:
    """Hangs trees from these roots: `order`, `parents` and `weights` of the nodes they reach."""
    hub = count  # an extra node, joined to all roots
    rows = np.concatenate([links[:, 0], links[:, 1], np.full(len(roots), hub)])
    columns = np.concatenate([links[:, 1], links[:, 0], roots])
    ones = np.ones(len(rows), "int8")
    matrix = scipy.sparse.csr_array((ones, (rows, columns)), shape=(count + 1, count + 1))
    order, above = breadth_first_order(matrix, hub, directed=True)
    order = order[1:].astype("int64")
    weights = np.zeros(count)
    weights[np.where(above[links[:, 0]] == links[:, 1], links[:, 0], links[:, 1])] = lengths
    position = np.append(_inverse(order, count), 0)
    is_root = above[order] == hub
    parents = np.where(is_root, np.arange(len(order)), position[above[order]])
    return order, parents, weights[order]


def _inverse(order: Nodes, count: int | None = None) -> Int[np.ndarray, " c"]:
    position = np.zeros(len(order) if count is None else count, "int64")
    position[order] = np.arange(len(order))
    return position


def _to_roots(parents: Nodes, lengths: Num[np.ndarray, " n"]) -> tuple[np.ndarray, Nodes]:
    """The length of the path from each node to its root, and the root; lengths are 0 at roots."""
    lengths = lengths * 1
    while (parents[parents] != parents).any():
        lengths, parents = lengths + lengths[parents], parents[parents]
    return lengths, parents


def _farthest(distance: Num[np.ndarray, " n"], root: Nodes) -> Int[np.ndarray, " c"]:
    """The place of one node of each tree that is farthest from the root."""
    order, farthest = np.argsort(distance, kind="stable"), np.zeros(len(root), "int64")
    farthest[root[order]] = order  # the farthest is written last
    return farthest[np.flatnonzero(root == np.arange(len(root)))]


# Forests of a batch: `parents` of shape (B, T), -1 at roots and padding


def flat_parents(parents: Int[Tensor, "B T"]) -> tuple[Int[Tensor, " n"], Bool[Tensor, " n"]]:
    """The row of each node's parent among all examples (a root's own row), and who has a parent."""
    batch, length = ops.shape(parents)
    parents = ops.cast(parents, "int32")
    nodes = ops.reshape(positions_of(batch * length), (batch, length))
    has_parent = parents >= 0
    rows = ops.where(has_parent, parents + nodes[:, :1], nodes)
    return ops.reshape(rows, (-1,)), ops.reshape(has_parent, (-1,))


def flat_lengths(
    has_parent: Bool[Tensor, " n"], edge_weights: Float[Tensor, "B T"] | None
) -> Float[Tensor, " n"]:
    """The length of each node's edge to its parent, 1 by default; 0 at roots."""
    if edge_weights is None:
        return ops.cast(has_parent, "float32")
    return ops.where(has_parent, ops.reshape(at_least_float32(edge_weights), (-1,)), 0.0)


def trees_without_root(
    parents: Int[Tensor, "B T"], depth: int | None, max_depth: int | None
) -> Bool[Tensor, " B"]:
    """Which examples hold a cycle, or nodes with more ancestors than `max_depth`.

    A node that still has a parent after 2^k > T steps up leads to a cycle. The test takes
    ceil(log2(T)) gathers of one integer per node.

    `depth` is the largest possible number of ancestors, T - 1 or `max_depth`; `None` if it is
    unknown.
    """
    jump, has_parent = flat_parents(parents)
    ancestors = ops.cast(has_parent, "int32")
    steps = MOST_STEPS if depth is None else int(depth).bit_length()
    for _ in range(steps):
        if max_depth is not None:  # on a cycle, the count grows to at most 2 * depth
            ancestors = ancestors + take(ancestors, jump, axis=0)
        jump = take(jump, jump, axis=0)
    wrong = take(ops.cast(has_parent, "int32"), jump, axis=0) > 0
    if max_depth is not None:
        wrong = ops.logical_or(wrong, ancestors > max_depth)
    return ops.any(ops.reshape(wrong, ops.shape(parents)), axis=1)


def distances_of_batch(
    parents: Int[Tensor, "B T"], edge_weights: Float[Tensor, "B T"] | None, depth: int
) -> tuple[Float[Tensor, "B T T"], Bool[Tensor, "B T T"]]:
    """All distances, 0 across trees, and which nodes share a tree, in O(T^2 log depth).

    Let N[i, parent(i)] = 1 and L = (I - N)^-1. Then L[i, j] = 1 if j is an ancestor of i, or i
    itself. The path from i up to the first node that is also above j has the length
    (L diag(w) (1 - L^T))[i, j]: it counts the edges above i that are not above j. The distance of i
    and j is this length plus that from j. It has no differences of lengths, which would lose the
    short ones of two nodes far from the root. Each factor L is a sweep down the trees by pointer
    doubling, over all columns at once. `depth` is the largest number of ancestors of a node.
    """
    batch, length = ops.shape(parents)
    roots, has_parent = flat_parents(parents)
    weights = flat_lengths(has_parent, edge_weights)
    beyond = size_tensor(batch * length, "int32")  # one more row of zeros, the parent of all roots
    jump = ops.where(has_parent, roots, beyond)
    jump = ops.concatenate([jump, ops.reshape(beyond, (1,))], axis=0)
    ancestors = []  # 1, 2, 4, ... edges up, (B T + 1,) each
    for _ in range(int(depth).bit_length()):
        ancestors.append(jump)
        jump, roots = take(jump, jump, axis=0), take(roots, roots, axis=0)

    def down(x: Tensor) -> Tensor:  # torch's compiler reads no other annotation here
        x = pad(ops.reshape(x, (batch * length, length)), ((0, 1), (0, 0)))
        for jump in ancestors:
            x = x + take(x, jump, axis=0)
        return ops.reshape(x[:-1], (batch, length, length))

    lengths = ops.reshape(weights, (batch, length, 1))
    own = ops.ones_like(lengths) * identity(length, dtype=weights.dtype)[None]
    is_above = ops.transpose(down(own), (0, 2, 1))  # [i, j]: whether i is j, or above it
    ways = down(lengths - lengths * is_above)  # LiteRT gets 1 - (a transposed tensor) wrong
    roots = ops.reshape(roots, (batch, length))
    same_tree = ops.equal(roots[:, :, None], roots[:, None, :])
    return ops.where(same_tree, ways + ops.transpose(ways, (0, 2, 1)), 0.0), same_tree
