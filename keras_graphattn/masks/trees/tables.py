"""Trees with any f of the number of edges: the product with [f(dist(i, j))], from a table of f.

There are two ways. `table_path` chooses one of them.

*Depths*. Let E_v[l] be the sum of x over the nodes at depth l below v, and H_v[l] the sum over the
nodes at distance l from v:

    E_v[l] = sum of E_c[l - 1] over children c,      H_v[l] = E_v[l] + H_parent[l - 1] - E_v[l - 2]

So the sums at distance l come from the sums at smaller distances: O(n) for each distance and
O(n diameter) in total, which suits shallow trees.

*Centroids*. Each round removes one centroid from every remaining component. Then no component keeps
more than half of its nodes, so there are at most log2(n) + 1 rounds. Take two nodes i, j of one
component, at distances d_i and d_j from its centroid. If they are in different branches, their path
crosses the centroid, and dist(i, j) = d_i + d_j. So one round adds, for node i,

    sum_j f(dist(i, j)) x_j = sum_d f(d_i + d) E_component[d] - sum_d f(d_i + d) E_branch[d]

where E is the sum of x by distance from the centroid. Both are Hankel products, as f depends on a
sum of indices: O(n log^2 n) in total, which suits deep trees.

Source: Choromanski et al., arXiv 2107.07999, Lemma 6.2 (depths) and Lemma 6.1 (centroids).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks import checked, instance, one_of, optional, tensor
from keras_graphattn.masks.graphs.sparse import RowNumbers, SparseMatrix
from keras_graphattn.masks.toeplitz import tiled_toeplitz_product, toeplitz_product
from keras_graphattn.masks.trees.forest import Forest, Nodes, flat_parents
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, kept_with
from keras_graphattn.numerics.precision import pad, positions_of, take
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.types import Float, Int, Tensor

Signal = Float[Tensor, "n N C"]
Table = Float[Tensor, "K N"]  # f(0) ... f(K - 1) of each head
Shapes = list[tuple[int, int]]  # how many groups have so many rows each, in the order of the rows

LARGEST_MATRIX = 256  # up to this number of distances, a Hankel matrix is faster than FFTs


def table_path(forest: Forest, last: int) -> str:
    """The faster of `TABLES` for a table that ends at the distance `last`, as measured on a CPU."""
    return "depths" if last <= 0.6 * np.log2(forest.size + 1) else "centroids"


@checked(
    x=tensor("n N C"),
    table=tensor("K N"),
    forest=instance(Forest, "a Forest", "n", lambda forest: forest.size),
    path=optional(one_of("depths", "centroids")),
)
def table_tree_product(x: Signal, table: Table, forest: Forest, path: str | None = None) -> Signal:
    """[table[dist(i, j)]] x within each tree; 0 across trees and beyond the table.

    Args:
        x: float32 tensor of shape (n, N, C): nodes in the user's order, heads, columns.
        table: Tensor of shape (K + 1, N): f(0) ... f(K) of each head.
        forest: The trees. Edge weights are ignored.
        path: `"depths"`, O(n K), or `"centroids"`, O(n log^2 n). By default the faster of them.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `table`.

    Example:

    >>> forest = Forest([-1, 0, 1])
    >>> x = np.array([1.0, 0.0, 0.0], "float32").reshape((3, 1, 1))
    >>> table = np.array([[7.0], [5.0], [3.0]], "float32")
    >>> y = table_tree_product(x, table, forest)
    >>> keras.ops.convert_to_numpy(y).ravel().round(4).tolist()
    [7.0, 5.0, 3.0]

    Source: Choromanski et al., arXiv 2107.07999, Lemma 6.2 (depths). Centroids are ours.
    """
    path = path or table_path(forest, int(table.shape[0]) - 1)
    return kept_with(forest, TABLES[path])(x, ops.cast(table, x.dtype))


def table_product_of_batch(x: Signal, table: Table, parents: Int[Tensor, "B T"]) -> Signal:
    """`table_tree_product` for one forest per example, n = B T, by depths."""
    (product,) = _sum_over_depths(x, table, flat_parents(parents)[0])
    return product


class Depths:
    """x -> [f(dist)] x over a constant forest, O(n) for each distance of the table."""

    def __init__(self, forest: Forest) -> None:
        self._parents = RowNumbers(forest.order[forest.parents][forest.position])

    def __call__(self, x: Signal, table: Table) -> Signal:
        (product,) = _sum_over_depths(x, table, self._parents.tensor(x))
        return product


def _over_depths(
    x: Signal, parents: Int[Tensor, " n"], last: int, term: Callable[[Any, Signal], Tensor]
) -> Tensor:
    """sum_l term(l, H[l]), in a loop whose compiled size does not depend on the number of terms."""
    count = ops.shape(parents)[0]
    is_root = ops.equal(ops.cast(parents, "int32"), positions_of(count))
    is_child = 1.0 - ops.cast(is_root, x.dtype)[:, None, None]

    def add(distance: Any, state: Any) -> Any:
        total, near, below, before = state  # the sum so far, H[l - 1], E[l - 1], E[l - 2]
        deeper = add_rows(is_child * below, parents, count)
        near = deeper + is_child * (take(near, parents, axis=0) - before)
        return total + term(distance, near), near, deeper, below

    start = (term(0, x), x, x, ops.zeros_like(x))
    return ops.fori_loop(1, last + 1, add, start)[0]


def _product_by_depths(
    x: Signal, table: Table, parents: Int[Tensor, " n"]
) -> tuple[tuple[Signal], tuple[()]]:
    def term(distance: Any, near: Signal) -> Signal:
        return take(table, distance, axis=0)[None, :, None] * near

    return (_over_depths(x, parents, table.shape[0] - 1, term),), ()


def _gradient_by_depths(
    tensors: tuple[Tensor, ...], kept: tuple[()], upstream: tuple[Signal]
) -> tuple[Tensor | None, ...]:
    """dx = [f(dist)] y', as the matrix is symmetric, and df(l) = y' . H[l]."""
    x, table, parents = tensors
    count = table.shape[0]

    def term(distance: Any, near: Signal) -> Table:
        product = ops.sum(upstream[0] * near, axis=(0, 2))  # (N,)
        here = ops.equal(positions_of(count), distance)
        return ops.cast(here, product.dtype)[:, None] * product

    (other,), _ = _product_by_depths(upstream[0], table, parents)
    return other, _over_depths(x, parents, count - 1, term), None


_sum_over_depths = FunctionWithGradient(_product_by_depths, _gradient_by_depths)


class Incidences(NamedTuple):
    """Pairs of a node and a round, with the branch of the node in that round: one row per pair."""

    node: Nodes  # its place in the forest's order
    distance: Nodes  # from the centroid; 0 for the centroid itself
    component: Nodes  # its number, counted over all rounds
    branch: Nodes  # the same; each centroid is its own branch


def centroid_incidences(forest: Forest) -> Incidences:
    """The incidences of all rounds, with one round for all components at a time."""
    nodes, parents, depth = np.arange(forest.size), forest.parents, forest.depth
    rounds: list[Incidences] = []
    components = branches = 0
    while len(nodes):
        places = np.arange(len(nodes))
        root, size = _roots_and_sizes(parents)
        # the chain from each root to its centroid: subtrees of more than half of the nodes
        heavy = 2 * size > size[root]
        centre = np.zeros(len(nodes), "int64")
        centre[root[heavy]] = places[heavy]  # the deepest of the chain is written last
        centre = centre[root]  # of each node's component
        # upwards, the first node that is on the chain, or whose parent is the centroid
        anchor = np.where(heavy | (parents == centre), places, parents)
        while not np.array_equal(anchor[anchor], anchor):
            anchor = anchor[anchor]
        is_centre = centre == places
        hangs_above = heavy[anchor] & ~is_centre  # not below the centroid
        meeting = np.where(hangs_above, anchor, centre)
        distance = depth + depth[centre] - 2 * depth[meeting]
        branch = np.where(hangs_above, root, anchor)
        _, component = np.unique(root, return_inverse=True)
        # The branch above the centroid and the centroid itself can have the same node as number.
        names, branch = np.unique(2 * branch + is_centre, return_inverse=True)
        rounds.append(Incidences(nodes, distance, component + components, branch + branches))
        components, branches = components + int(component.max()) + 1, branches + len(names)
        # the forest without the centroids, whose children become roots
        parents = np.where(is_centre[parents], places, parents)
        position = np.cumsum(~is_centre) - 1
        kept = np.flatnonzero(~is_centre)
        nodes, parents, depth = nodes[kept], position[parents[kept]], depth[kept]
    return Incidences(*(np.concatenate(arrays) for arrays in zip(*rounds, strict=True)))


def _roots_and_sizes(parents: Nodes) -> tuple[Nodes, Nodes]:
    """Each node's root and the size of its subtree, by pointer doubling."""
    size, jump = np.ones(len(parents)), parents
    moves = jump != np.arange(len(parents))
    while moves.any():
        size = size + np.bincount(jump[moves], weights=size[moves], minlength=len(size))
        moves = moves & moves[jump]
        jump = jump[jump]
    return jump, size.astype("int64")


class Centroids:
    """x -> [f(dist)] x over a constant forest, O(n log^2 n) for any tree.

    Two constant sparse matrices sum the nodes by branch and distance from the centroid, and these
    sums by component and distance. Branches and components with a similar number of distances
    share one Hankel product.
    """

    def __init__(self, forest: Forest) -> None:
        node, distance, component, branch = centroid_incidences(forest)
        is_centre = distance == 0
        component_rows, self._components = padded_rows(component, distance)
        branch_rows, self._branches = padded_rows(branch[~is_centre], distance[~is_centre] - 1)
        rows = np.empty(len(node), "int64")
        rows[~is_centre] = branch_rows
        self._padded = sum(count * size for count, size in self._branches)
        count = self._padded + int(is_centre.sum())  # the rows of the centroids come last
        rows[is_centre] = np.arange(self._padded, count)
        pairs, first = np.unique(rows, return_index=True)
        total = sum(count * size for count, size in self._components)
        self._gather = _sums_by_row(rows, forest.order[node], (count, forest.size))
        self._join = _sums_by_row(component_rows[first], pairs, (total, count))

    def __call__(self, x: Signal, table: Table) -> Signal:
        sums = self._gather(x)
        whole = _hankel_products(self._join(sums), table, self._components)
        across = self._join.transpose(whole)  # back to the rows of branches
        if self._padded:  # the distances of branches start at 1
            within = _hankel_products(sums[: self._padded], table[2:], self._branches)
            across = ops.concatenate(
                [across[: self._padded] - within, across[self._padded :]], axis=0
            )
        return self._gather.transpose(across)


TABLES: dict[str, type[Depths | Centroids]] = {"depths": Depths, "centroids": Centroids}


def padded_rows(group: Nodes, index: Nodes) -> tuple[Nodes, Shapes]:
    """A row for each (group, index from 0). Groups of similar size are padded to one size."""
    if not len(group):
        return np.zeros(0, "int64"), []
    names, group = np.unique(group, return_inverse=True)
    size = np.zeros(len(names), "int64")
    np.maximum.at(size, group, index + 1)
    kind = np.ceil(np.log2(size)).astype("int64")
    largest = np.zeros(int(kind.max()) + 1, "int64")
    np.maximum.at(largest, kind, size)
    size = largest[kind]
    order = np.argsort(size, kind="stable")
    first = np.empty(len(names), "int64")
    first[order] = np.cumsum(size[order]) - size[order]
    sizes, counts = np.unique(size, return_counts=True)
    return first[group] + index, list(zip(counts.tolist(), sizes.tolist(), strict=True))


def _sums_by_row(rows: Nodes, columns: Nodes, shape: tuple[int, int]) -> SparseMatrix:
    """The matrix that adds up the given columns of each row."""
    ones = np.ones(len(rows), "float32")
    return SparseMatrix(scipy.sparse.csr_array((ones, (rows, columns)), shape=shape))


def _hankel_products(x: Signal, table: Table, shapes: Shapes) -> Signal:
    """H[d] = sum_e f(d + e) x[e] in each group, for rows (group, distance); f is 0 past its end."""
    parts, start = [], 0
    _, heads, columns = ops.shape(x)
    for count, size in shapes:
        signal = ops.reshape(x[start : start + count * size], (count, size, heads, columns))
        start += count * size
        values = table[: 2 * size - 1]
        missing = 2 * size - 1 - values.shape[0]
        values = pad(values, ((0, missing), (0, 0))) if missing else values
        if size <= LARGEST_MATRIX:
            places = np.arange(size)[:, None] + np.arange(size)  # d + e
            matrix = ops.reshape(take(values, places.ravel(), axis=0), (size, size, -1))
            product = ops.einsum("den,genc->gdnc", matrix, signal)
        else:  # a Toeplitz product: d + e = d - (size - 1 - e) + size - 1
            factors, signal = ops.transpose(values), ops.flip(signal, axis=1)
            # In tiles, a node beyond the end of f never changes a row that does not see it.
            limits = (1 - size, size - 1 - missing)
            product = (
                tiled_toeplitz_product(factors, signal, limits=limits)
                if missing
                else toeplitz_product(factors, signal)
            )
        parts.append(ops.reshape(product, (count * size, heads, columns)))
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)
