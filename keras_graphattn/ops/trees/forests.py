"""Forests as data: breadth-first order, depths, centres and distances, all in NumPy.

The tensor code needs nodes level by level, with the children of one node next to each other.
Distances in a tree do not depend on the root, so each tree gets its centre as root. This halves the
levels of a path, and in the sweeps of `ops.trees.exponential` no detour is longer than the tree's
diameter.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import breadth_first_order

from keras_graphattn.checks import checked, instance
from keras_graphattn.ops.graphs.graphs import graph_edges, numbers_of, read_graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest in breadth-first order. All arrays except `position` are in that order.

    Attributes:
        order: The node's number in the user's order, (n,).
        position: The place of the user's node in this order, (n,): the inverse of `order`.
        parents: The parent's place in this order, (n,). A root names itself. After the roots, the
            places never decrease.
        depth: Number of edges to the root, (n,). It never decreases.
        weights: Weight of the edge to the parent, (n,); 0 at roots.
        starts: The start of each level, and n at the end: (levels + 1,).

    Example:

    >>> forest = forest_from_parents([-1, 0, 0])
    >>> forest.size, forest.height, forest.widest
    (3, 1, 2)
    """

    order: Array
    position: Array
    parents: Array
    depth: Array
    weights: Array
    starts: Array

    def __getstate__(self) -> dict[str, Any]:
        arrays = dict(vars(self))
        arrays.pop("_kept", None)  # plans, which are made again when they are needed
        return arrays

    def __post_init__(self) -> None:
        is_flat = isinstance(self.order, np.ndarray) and self.order.ndim == 1
        count = len(self.order) if is_flat else -1
        for name in ("order", "position", "parents", "depth", "weights", "starts"):
            array = getattr(self, name)
            kinds = "iu" if name != "weights" else "iuf"
            is_array = isinstance(array, np.ndarray) and array.dtype.kind in kinds
            if not is_array or array.ndim != 1 or (name != "starts" and len(array) != count):
                raise ValueError(
                    f"`{name}` must be an array of numbers, one for each node, as "
                    f"`forest_from_parents` returns it. Received: {name}={array!r}"
                )
        wrong = self._wrong_part()
        if wrong:
            raise ValueError(
                f"`{wrong}` must describe a forest in breadth-first order. Received: "
                f"{wrong}={getattr(self, wrong)!r}. Use `forest_from_parents`."
            )

    def _wrong_part(self) -> str | None:
        """The name of the first array that does not match the arrays before it."""
        nodes = np.arange(self.size)
        if not np.array_equal(np.sort(self.order), nodes):
            return "order"
        if not np.array_equal(np.argsort(self.order), self.position):
            return "position"
        is_root = self.parents == nodes
        too_far = ((self.parents < 0) | (self.parents > nodes)).any()
        if too_far or (np.diff(self.parents[~is_root]) < 0).any():
            return "parents"
        known = np.where(is_root, 0, self.depth[self.parents] + 1)
        if not np.array_equal(self.depth, known) or (np.diff(self.depth) < 0).any():
            raise ValueError(
                "`depth` must fit `parents`: 0 at roots, elsewhere one more than at the parent. It "
                f"must never decrease. Received: depth={self.depth!r}, parents={self.parents!r}. "
                "Use `forest_from_parents`."
            )
        if not np.isfinite(self.weights).all():
            return "weights"
        levels = np.searchsorted(self.depth, np.arange(self.depth.max(initial=0) + 2))
        return None if np.array_equal(levels, self.starts) else "starts"

    @property
    def size(self) -> int:
        """Number of nodes n."""
        return len(self.order)

    @property
    def height(self) -> int:
        """The largest depth."""
        return len(self.starts) - 2

    @property
    def widest(self) -> int:
        """Number of nodes of the largest level."""
        return int(np.diff(self.starts).max())


def forest_from_parents(parents: Any, edge_weights: Any = None) -> Forest:
    """Returns a forest, from each node's parent.

    Args:
        parents: Integers of shape (n,): the number of the parent, -1 at a root.
        edge_weights: Numbers of shape (n,): the length of the edge to the parent, not negative;
            1 by default. Numbers at roots are ignored.

    Returns:
        A `Forest`. The root of each tree is its centre.

    Raises:
        ValueError: For parents out of range, cycles, and wrong weights.

    Example:

    >>> forest_from_parents([-1, 0, 1, 2, 3]).depth.tolist()  # a path; its root is its middle
    [0, 1, 1, 2, 2]
    """
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
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            f"`edge_weights` must be {count} finite numbers, not negative: one for each node's "
            f"edge to its parent. Received: edge_weights of shape {weights.shape} with values "
            f"{np.array2string(weights, threshold=8)}"
        )
    children = np.flatnonzero(parents >= 0)
    links = np.stack([children, parents[children]], axis=1)
    order, predecessors = _breadth_first(links, count, np.flatnonzero(parents < 0))
    if len(order) < count:
        raise ValueError(
            f"`parents` must lead each node to a root (-1). Received: {count - len(order)} nodes "
            "on or below a cycle. Give one node of each cycle the parent -1."
        )
    return _hang_from_centres(links, _arranged(order, predecessors, weights))


def forest_from_graph(graph: Any, num_nodes: int | None = None, edge_weights: Any = None) -> Forest:
    """Returns a forest, from its edges. The arguments are those of `read_graph`.

    Edges have positive lengths. Only `forest_from_parents` takes a length of 0.

    Raises:
        ValueError: For a graph with a cycle, and as `read_graph`.

    Example:

    >>> forest_from_graph([[0, 1], [1, 2]]).depth.tolist()  # the root is node 1
    [0, 1, 1]
    """
    adjacency = read_graph(graph, num_nodes, edge_weights)
    edges, lengths = graph_edges(adjacency)
    count = adjacency.shape[0]
    components, labels = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    if count - components != len(edges):
        raise ValueError(
            f"A forest of {count} nodes in {components} trees has {count - components} edges. "
            f"Received: {len(edges)} edges, so `graph` has a cycle. For such a graph, use the mask "
            "`GraphDiffusion`."
        )
    roots = np.unique(labels, return_index=True)[1]
    order, predecessors = _breadth_first(edges, count, roots)
    weights = np.zeros(count)
    child = np.where(predecessors[edges[:, 0]] == edges[:, 1], edges[:, 0], edges[:, 1])
    weights[child] = lengths
    return _hang_from_centres(edges, _arranged(order, predecessors, weights))


@checked(forest=instance(Forest, "a Forest"))
def forest_distances(forest: Forest) -> Array:
    """Returns all distances in the user's order, (n, n) float64, in O(n^2).

    Distances across trees are infinite.

    Example:

    >>> forest_distances(forest_from_parents([-1, 0, -1])).tolist()
    [[0.0, 1.0, inf], [1.0, 0.0, inf], [inf, inf, 0.0]]
    """
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
    found: Array = distances[np.ix_(forest.position, forest.position)]
    return found


def forest_diameter(forest: Forest) -> int:
    """The largest number of edges between two nodes of one tree."""
    return int(_longest_path(forest, np.ones(forest.size)))


def farthest_distance(forest: Forest) -> float:
    """The largest distance between two nodes of one tree, by edge weights."""
    return _longest_path(forest, forest.weights)


def _longest_path(forest: Forest, lengths: Array) -> float:
    best, deepest = 0.0, np.zeros(forest.size)
    # The longest path with top node v joins the two deepest branches below v.
    for level in range(forest.height, 0, -1):
        rows = np.arange(*forest.starts[level : level + 2])
        above, reach = forest.parents[rows], deepest[rows] + lengths[rows]
        order = np.lexsort((reach, above))
        above, reach = above[order], reach[order]
        last = np.append(above[1:] != above[:-1], True)
        second = np.flatnonzero(last) - 1
        pairs = (second >= 0) & (above[second] == above[last])
        deepest[above[last]] = reach[last]
        best = max(best, float(reach.max()))
        if pairs.any():
            best = max(best, float((reach[last] + reach[second])[pairs].max()))
    return best


def jumps(parents: Array, depth: Array) -> list[Array]:
    """The ancestors 1, 2, 4, ... edges up, (n,) each. A root is its own ancestor."""
    found, length = [], 1
    while length <= int(depth.max(initial=0)):
        found.append(parents)
        parents = parents[parents]
        length *= 2
    return found


def _breadth_first(links: Array, count: int, roots: Array) -> tuple[Array, Array]:
    """The order of a search from all roots at once, and each node's predecessor (-1 at roots)."""
    hub = count  # an extra node, joined to all roots
    rows = np.concatenate([links[:, 0], links[:, 1], np.full(len(roots), hub)])
    columns = np.concatenate([links[:, 1], links[:, 0], roots])
    ones = np.ones(len(rows), "int8")
    matrix = scipy.sparse.csr_array((ones, (rows, columns)), shape=(count + 1, count + 1))
    order, predecessors = breadth_first_order(matrix, hub, directed=True)
    predecessors = predecessors[:count].astype("int64")
    predecessors[(predecessors == hub) | (predecessors < 0)] = -1
    return order[1:].astype("int64"), predecessors


def _arranged(order: Array, predecessors: Array, weights: Array) -> Forest:
    count = len(order)
    position = np.empty(count, "int64")
    position[order] = np.arange(count)
    above = predecessors[order]
    is_root = above < 0
    parents = np.where(is_root, np.arange(count), position[above])
    depth, jump = (~is_root).astype("int64"), parents
    while not is_root[jump].all():
        depth = depth + depth[jump]
        jump = jump[jump]
    starts = np.searchsorted(depth, np.arange(depth[-1] + 2))
    weights = np.where(is_root, 0.0, weights[order])
    return Forest(order, position, parents, depth, weights, starts)


def _hang_from_centres(links: Array, forest: Forest) -> Forest:
    """Returns the same trees. The root of each is now the middle of a longest path."""
    if forest.height < 2:
        return forest
    far = forest.order[_deepest(forest)]  # an end of a longest path of each tree
    again = _arranged(*_breadth_first(links, forest.size, far), np.zeros(forest.size))
    middle = _deepest(again)  # the other end; then half of the path back up
    climb = again.depth[middle] // 2
    for bit, jump in enumerate(jumps(again.parents, again.depth)):
        middle = np.where(climb >> bit & 1, jump[middle], middle)
    order, predecessors = _breadth_first(links, forest.size, np.sort(again.order[middle]))
    above = np.where(forest.parents == np.arange(forest.size), -1, forest.order[forest.parents])
    old_parent, old_weight = np.empty(forest.size, "int64"), np.empty(forest.size)
    old_parent[forest.order], old_weight[forest.order] = above, forest.weights
    # An edge on the way from the old root to the new one changes its direction.
    flipped = (predecessors >= 0) & (old_parent != predecessors)
    return _arranged(order, predecessors, np.where(flipped, old_weight[predecessors], old_weight))


def _deepest(forest: Forest) -> Array:
    """The place of one deepest node of each tree."""
    root = forest.parents
    while not np.array_equal(root[root], root):
        root = root[root]
    deepest = np.zeros(forest.size, "int64")
    deepest[root] = np.arange(forest.size)  # the deepest is written last
    return deepest[np.flatnonzero(forest.depth == 0)]
