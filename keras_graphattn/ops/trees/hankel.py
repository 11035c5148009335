"""Any function of the number of edges between two nodes of a deep tree, in O(n log^2 n).

The centroid decomposition turns the mask into sparse sums and Hankel products (see
`keras_graphattn.ops.trees.centroids`). Branches and components with a similar number of distances
share one product. For few distances it is a matrix product with the Hankel matrix of f, for more
distances it uses FFTs. If f ends before the largest distance, these are of tiles, so that a node
never changes a row that does not see it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.masks.toeplitz import fast_fourier_length, tiled_toeplitz_product
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import pad, take
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product
from keras_graphattn.ops.trees.centroids import centroid_incidences
from keras_graphattn.ops.trees.forests import Array, Forest

Tensor = Any

LARGEST_MATRIX = 256  # up to this number of distances, a Hankel matrix is faster than FFTs


@dataclass(frozen=True, eq=False)
class CentroidPlan:
    """The decomposition as two constant sparse matrices and shapes.

    Attributes:
        gather: Sums the nodes by branch and distance from the centroid, (rows, n).
        join: Sums these rows by component and distance, (component rows, rows).
        branches: (count, distances) of each class of branches, in the order of the rows of
            `gather`; distances start at 1. The rows of the centroids themselves come last.
        components: The same for the rows of `join`; distances start at 0.
    """

    gather: SparseMatrix
    join: SparseMatrix
    branches: list[tuple[int, int]]
    components: list[tuple[int, int]]


def _centroid_plan(forest: Forest) -> CentroidPlan:
    node, distance, component, branch = centroid_incidences(forest)
    own = distance == 0
    component_rows, components = padded_rows(component, distance)
    branch_rows, branches = padded_rows(branch[~own], distance[~own] - 1)
    rows = np.empty(len(node), "int64")
    rows[~own] = branch_rows
    padded = sum(count * size for count, size in branches)
    rows[own] = padded + np.arange(int(own.sum()))
    count = padded + int(own.sum())
    pairs, first = np.unique(rows, return_index=True)
    total = sum(count * size for count, size in components)
    return CentroidPlan(
        sums_by_row(rows, forest.order[node], (count, forest.size)),
        sums_by_row(component_rows[first], pairs, (total, count)),
        branches,
        components,
    )


def centroid_product(x: Tensor, table: Tensor, forest: Forest) -> Tensor:
    """`table_tree_product` by the centroid decomposition: O(n log^2 n) for any tree."""
    plan = kept_with(forest, _centroid_plan)
    sums = sparse_product(plan.gather, x)  # (rows, N, C)
    table = ops.cast(table, sums.dtype)
    whole = _hankel_products(sparse_product(plan.join, sums), table, plan.components, 0)
    across = sparse_product(plan.join.transpose, whole)  # back to the rows of branches
    padded = sum(count * size for count, size in plan.branches)
    if padded:
        within = _hankel_products(sums[:padded], table, plan.branches, 2)
        across = ops.concatenate([across[:padded] - within, across[padded:]], axis=0)
    return sparse_product(plan.gather.transpose, across)


def padded_rows(group: Array, index: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Returns a row for each (group, index). Groups of similar size are padded to one size.

    Args:
        group: Number of the group.
        index: Place in the group, from 0.

    Returns:
        The rows, and for each class of groups, in the order of the rows, the number of groups and
        the number of places of each group.
    """
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
    kinds, counts = np.unique(size, return_counts=True)
    shapes = [(int(count), int(kind)) for count, kind in zip(counts, kinds, strict=True)]
    return first[group] + index, shapes


def sums_by_row(rows: Array, columns: Array, shape: tuple[int, int]) -> SparseMatrix:
    """Returns the matrix that adds up the given columns of each row."""
    ones = np.ones(len(rows), "float32")
    return SparseMatrix(scipy.sparse.csr_array((ones, (rows, columns)), shape=shape))


def _hankel_products(x: Tensor, table: Tensor, shapes: list[tuple[int, int]], shift: int) -> Tensor:
    """H[d] = sum_e f(d + e + shift) x[e] in each group, for rows (group, distance)."""
    parts, start = [], 0
    _, heads, columns = ops.shape(x)
    for count, size in shapes:
        signal = ops.reshape(x[start : start + count * size], (count, size, heads, columns))
        start += count * size
        values = table_values(table, shift, 2 * size - 1)
        if size <= LARGEST_MATRIX:
            places = np.arange(size)[:, None] + np.arange(size)  # d + e
            matrix = ops.reshape(take(values, places.ravel(), axis=0), (size, size, -1))
            product = matrix_products(signal, matrix)
        elif table.shape[0] - shift < 2 * size - 1:
            last = table.shape[0] - 1 - shift - (size - 1)  # d - (size - 1 - e) of the last factor
            product = tiled_toeplitz_product(
                ops.transpose(values), ops.flip(signal, axis=1), limits=(1 - size, last)
            )
        else:
            product = _by_transform(signal, values, size)
        parts.append(ops.reshape(product, (count * size, heads, columns)))
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)


def table_values(table: Tensor, first: int, count: int) -> Tensor:
    """f(first) ... f(first + count - 1), (count, N); 0 after the end of the table."""
    known = table[first : first + count]
    missing = count - known.shape[0]
    return pad(known, ((0, missing), (0, 0))) if missing else known


def matrix_products(x: Tensor, matrix: Tensor) -> Tensor:
    """The product of x (groups, size, N, C) with matrices (size, size, N), one per head."""
    if matrix.shape[2] == 1:
        count, size, heads, columns = ops.shape(x)
        flat = ops.reshape(x, (count, size, heads * columns))
        return ops.reshape(matrix[None, :, :, 0] @ flat, (count, size, heads, columns))
    return ops.einsum("den,genc->gdnc", matrix, x)


def _by_transform(x: Tensor, values: Tensor, size: int) -> Tensor:
    """The Hankel product as a circular correlation, so long that no index wraps around."""
    length = fast_fourier_length(2 * size - 1)
    signal = ops.transpose(pad(x, ((0, 0), (0, length - size), (0, 0), (0, 0))), (0, 2, 3, 1))
    kernel = ops.transpose(pad(values, ((0, length - 2 * size + 1), (0, 0))))
    kernel_real, kernel_imaginary = ops.rfft(kernel[None, :, None, :], fft_length=length)
    real, imaginary = ops.rfft(signal, fft_length=length)
    # the conjugate of the signal's transform times the kernel's: (groups, N, C, frequencies)
    product = (
        kernel_real * real + kernel_imaginary * imaginary,
        kernel_imaginary * real - kernel_real * imaginary,
    )
    found = ops.irfft(product, fft_length=length)[..., :size]
    return ops.transpose(found, (0, 3, 1, 2))
