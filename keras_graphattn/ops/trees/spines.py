"""Any function of the number of edges between two nodes of a caterpillar, in O(n log n).

A caterpillar is a tree that becomes a path, its *spine*, when its leaves are removed. Paths and
stars are caterpillars. Let p be the place of a node on the spine. A leaf off the spine has the
place of its neighbour on it. Let a = 0 on the spine and a = 1 for the leaves off it. Then

    dist(i, j) = |p_i - p_j| + a_i + a_j

except for the distance of a leaf off the spine to itself. So the mask consists of the Toeplitz
matrices T_s of f(|p - q| + s) for s = 0, 1, 2. Let x_0 be the sum of x by place on the spine, and
x_1 the sum over the leaves off it. Then

    y_0 = T_0 x_0 + T_1 x_1,      y_1 = T_1 x_0 + T_2 x_1

A path needs only T_0 x. Trees with a similar number of places share a product: by the matrix for
few places, by FFT for more. If f ends before the largest distance, the FFTs are of tiles, so that a
node never changes a row that does not see it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.masks.toeplitz import (
    tiled_toeplitz_product,
    toeplitz_matrix,
    toeplitz_product,
)
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product
from keras_graphattn.ops.trees.forests import Array, Forest
from keras_graphattn.ops.trees.hankel import (
    LARGEST_MATRIX,
    matrix_products,
    padded_rows,
    sums_by_row,
    table_values,
)

Tensor = Any


@dataclass(frozen=True, eq=False)
class SpinePlan:
    """A forest of caterpillars as constant sparse matrices and shapes.

    Attributes:
        spine: Moves the nodes of spines to their places, (rows, n).
        legs: Sums the leaves off the spine by place, (rows, n); `None` without such leaves.
        beside: 1 for the leaves off the spine, else 0: (n,), in the user's order.
        spines: (count, places) of each class of trees, in the order of the rows.
    """

    spine: SparseMatrix
    legs: SparseMatrix | None
    beside: Array
    spines: list[tuple[int, int]]


def is_caterpillar(forest: Forest) -> bool:
    """Whether every tree becomes a path when its leaves are removed."""
    return _spine(forest) is not None


def _spine_plan(forest: Forest) -> SpinePlan:
    spine = _spine(forest)
    if spine is None:
        raise ValueError(
            "Each tree of `forest` must become a path when its leaves are removed. Received: "
            'another tree. Use the path "centroids" or "depths".'
        )
    root, place = _roots_and_places(forest, spine)
    rows, spines = padded_rows(root, place)
    count = sum(number * places for number, places in spines)
    legs = sums_by_row(rows[~spine], forest.order[~spine], (count, forest.size))
    return SpinePlan(
        sums_by_row(rows[spine], forest.order[spine], (count, forest.size)),
        None if spine.all() else legs,
        (~spine)[forest.position].astype("float32"),
        spines,
    )


def spine_product(x: Tensor, table: Tensor, forest: Forest) -> Tensor:
    """`table_tree_product` for caterpillars: O(n log n).

    Raises:
        ValueError: If one of the trees is not a caterpillar.

    Source: ours. Choromanski et al., arXiv 2107.07999, show that a path gives a Toeplitz matrix.
    """
    plan = kept_with(forest, _spine_plan)
    x = ops.convert_to_tensor(x)
    table = ops.cast(table, x.dtype)
    on = sparse_product(plan.spine, x)  # (rows, N, C)
    if plan.legs is None:
        return sparse_product(plan.spine.transpose, _products(on, table, 0, plan.spines))
    leaves = sparse_product(plan.legs, x)
    columns = ops.shape(x)[2]
    across = _products(ops.concatenate([on, leaves], axis=2), table, 1, plan.spines)
    on = _products(on, table, 0, plan.spines) + across[..., columns:]
    leaves = _products(leaves, table, 2, plan.spines) + across[..., :columns]
    found = sparse_product(plan.spine.transpose, on)
    found = found + sparse_product(plan.legs.transpose, leaves)
    of_leaves = ops.convert_to_tensor(plan.beside, dtype=x.dtype)[:, None, None]
    own = table[0] - table_values(table, 2, 1)[0]
    return found + of_leaves * own[None, :, None] * x


def _products(x: Tensor, table: Tensor, shift: int, spines: list[tuple[int, int]]) -> Tensor:
    """y[p] = sum_q f(|p - q| + shift) x[q] in each tree, for rows (tree, place)."""
    parts, start = [], 0
    _, heads, columns = ops.shape(x)
    for count, places in spines:
        signal = ops.reshape(x[start : start + count * places], (count, places, heads, columns))
        start += count * places
        offsets = np.abs(np.arange(1 - places, places)).astype("int32")
        factors = ops.transpose(take(table_values(table, shift, places), offsets, axis=0))
        last = table.shape[0] - 1 - shift
        if places <= LARGEST_MATRIX:
            product = matrix_products(signal, ops.transpose(toeplitz_matrix(factors), (1, 2, 0)))
        elif last < places - 1:
            product = tiled_toeplitz_product(factors, signal, limits=(-last, last))
        else:
            product = toeplitz_product(factors, signal)
        parts.append(ops.reshape(product, (count * places, heads, columns)))
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)


def _spine(forest: Forest) -> Array | None:
    """Which nodes are on a longest spine; `None` if a tree is not a caterpillar."""
    nodes = np.arange(forest.size)
    is_root = forest.parents == nodes
    degree = np.bincount(forest.parents[~is_root], minlength=forest.size) + ~is_root
    inner: Array = (degree > 1) | is_root
    joined = inner & ~is_root
    neighbours = np.bincount(forest.parents[joined], minlength=forest.size) + joined
    if neighbours[inner].max() > 2:
        return None
    leaves = nodes[~inner]
    above = forest.parents[leaves]  # never decreasing
    number = np.arange(len(leaves)) - np.searchsorted(above, above)
    inner[leaves[number < 2 - neighbours[above]]] = True  # the ends of the spine
    return inner


def _roots_and_places(forest: Forest, spine: Array) -> tuple[Array, Array]:
    """Returns each node's root and its place, counted from one end of the spine.

    A leaf off the spine has the place of its parent.
    """
    top, end = forest.parents, np.where(spine, np.arange(forest.size), forest.parents)
    first = np.full(forest.size, forest.size)  # the first node of one of the two arms of each root
    arms = np.flatnonzero(spine & (forest.depth == 1))
    np.minimum.at(first, forest.parents[arms], arms)
    arm = np.where(forest.depth > 1, forest.parents, np.arange(forest.size))
    while not np.array_equal(arm[arm], arm):
        arm = arm[arm]
    while not np.array_equal(top[top], top):
        top = top[top]
    place = np.where(first[top] == arm, -forest.depth, forest.depth)[end]
    lowest = np.zeros(forest.size, "int64")
    np.minimum.at(lowest, top, place)
    return top, place - lowest[top]
