"""Any function of the number of edges between two nodes of a tree, by tables of depths.

Let E_v[l] be the sum of x over the nodes at depth l below v, and H_v[l] the sum over the nodes at
distance l from v:

    E_v[l] = sum of E_c[l - 1] over children c,      H_v[l] = E_v[l] + H_parent[l - 1] - E_v[l - 2]

So the sums at distance l come from the sums at smaller distances: O(n) for each distance and
O(n diameter) in total, which suits shallow trees. For deep trees see
`keras_graphattn.ops.trees.centroids`.

Source: Choromanski et al., arXiv 2107.07999, Lemma 6.2.
"""

from typing import Any

from keras import ops

from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import at_least_float32, pad, size_tensor, take
from keras_graphattn.ops.graphs.sparse import RowNumbers, sum_rows
from keras_graphattn.ops.graphs.symmetric_series import Carry, SymmetricSeries
from keras_graphattn.ops.trees.doubling import flat_parents
from keras_graphattn.ops.trees.forests import Forest

Tensor = Any


def depth_product(x: Tensor, table: Tensor, forest: Forest) -> Tensor:
    """`table_tree_product` by tables of depths: O(n) for each distance of the table."""
    table = ops.cast(table, x.dtype)
    signal = take(x, forest.order.astype("int32"), axis=0)  # (n, N, C), breadth first
    if forest.height == 0:
        found = signal * table[0][None, :, None]
    else:
        found = kept_with(forest, _series_of_forest)(signal, table)
    return take(found, forest.position.astype("int32"), axis=0)


def _series_of_forest(forest: Forest) -> SymmetricSeries:
    roots = int(forest.starts[1])
    parents = RowNumbers(forest.parents[roots:])

    def step(carry: Carry) -> Carry:
        near, below, before = carry  # H[l], E[l], E[l - 1]
        deeper = sum_rows(below[roots:], parents, forest.size, ordered=True)  # E[l + 1]
        above = parents.of(near) - before[roots:]
        far = ops.concatenate([deeper[:roots], deeper[roots:] + above], axis=0)
        return far, deeper, below

    return SymmetricSeries(_start, step)


def depth_product_of_batch(x: Tensor, table: Tensor, parents: Tensor) -> Tensor:
    """`depth_product` for one forest per example.

    Args:
        x: float32 tensor of shape (B T, N, C).
        table: Tensor of shape (K + 1, N).
        parents: Integer tensor of shape (B, T), -1 at roots and padding.

    Returns:
        A tensor of shape (B T, N, C).
    """
    rows, has_parent = flat_parents(parents)
    child = ops.cast(has_parent, x.dtype)[:, None, None]
    return _series_of_batch(x, table, ops.cast(rows, x.dtype), child)


def _step_of_batch(carry: Carry, rows: Tensor, child: Tensor) -> Carry:
    near, below, before = carry
    rows = ops.cast(rows, "int32")
    deeper = sum_rows(child * below, rows, ops.shape(rows)[0])
    return deeper + child * (take(near, rows, axis=0) - before), deeper, below


def distances_of_batch(
    parents: Tensor, edge_weights: Tensor | None, depth: int
) -> tuple[Tensor, Tensor]:
    """Returns all distances, and which nodes share a tree. It takes O(T^2 log T) additions.

    Let N[i, parent(i)] = 1 and L = (I - N)^-1. Then L[i, j] = 1 if j is an ancestor of i, or i
    itself. The way from i up to the first node above j, too, has the length
    (L diag(w) (1 - L^T))[i, j]: each edge above i counts that is not above j. The distance of i and
    j is this length plus that from j. It has no differences of lengths, which would lose the short
    ones of two nodes far from the root. Each factor L is a sweep down the trees by pointer
    doubling, over all columns at once. There is no product of matrices.

    Args:
        parents: Integer tensor of shape (B, T), -1 at roots and padding.
        edge_weights: Optional tensor of shape (B, T); 1 by default.
        depth: The most ancestors of any node.

    Returns:
        Distances (B, T, T), 0 across trees, and booleans (B, T, T): `True` within a tree.
    """
    batch, length = ops.shape(parents)
    roots, has_parent = flat_parents(parents)
    weights = ops.cast(has_parent, "float32")
    if edge_weights is not None:
        weights = ops.where(has_parent, ops.reshape(at_least_float32(edge_weights), (-1,)), 0.0)
    beyond = size_tensor(batch * length, "int32")  # one more row of zeros, the parent of all roots
    jump = ops.where(has_parent, roots, beyond)
    jump = ops.concatenate([jump, ops.reshape(beyond, (1,))], axis=0)
    tables = []  # the ancestors 1, 2, 4, ... edges up, (B T + 1,) each
    for _ in range(int(depth).bit_length()):
        tables.append(jump)
        jump, roots = take(jump, jump, axis=0), take(roots, roots, axis=0)

    def down(x: Tensor) -> Tensor:
        x = pad(x, ((0, 1), (0, 0)))
        for table in tables:
            x = x + take(x, table, axis=0)
        return x[:-1]

    def columns(x: Tensor) -> Tensor:
        return ops.reshape(down(ops.reshape(x, (batch * length, length))), (batch, length, length))

    lengths = ops.reshape(weights, (batch, length, 1))
    own = ops.ones_like(lengths) * ops.eye(length, dtype=weights.dtype)[None]
    is_above = ops.transpose(columns(own), (0, 2, 1))  # [i, j]: whether i is j, or above it
    ways = columns(lengths * (1.0 - is_above))
    roots = ops.reshape(roots, (batch, length))
    same_tree = ops.equal(roots[:, :, None], roots[:, None, :])
    distances = ways + ops.transpose(ways, (0, 2, 1))  # (B, T, T)
    return ops.where(same_tree, distances, 0.0), same_tree


def _start(x: Tensor) -> Carry:
    return x, x, ops.zeros_like(x)


_series_of_batch = SymmetricSeries(_start, _step_of_batch)
