"""Sums of rows and products with constant sparse matrices, fast on each backend.

A constant matrix is split into classes of rows with a similar number of entries. Each class takes
a few gathers and one weighted sum, with no scatter. On a CPU this is two to six times faster than a
segment sum on jax and TensorFlow, also under XLA. On torch its own CSR product is even faster. The
gradient of a product is the product with the transpose, so it has no scatters either.
"""

import functools
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks import (
    PLAIN,
    Sizes,
    checked,
    flag,
    instance,
    integers,
    size,
    tensor,
    traced_by_torch,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.graphs import torch_sparse

Tensor = Any
Product = Callable[[Tensor], Tensor]

UNROLLED_ENTRIES = 32  # rows with more entries gather all of them at once


def _known_targets(name: str, value: Any, sizes: Sizes) -> Any:
    """The rule for targets: integers, not negative if they are known."""
    if isinstance(value, RowNumbers):
        return value
    found = integers("rows")(name, value, sizes)
    if not isinstance(value, PLAIN):
        return found
    known = np.asarray(value)
    if known.min(initial=0) < 0:
        raise ValueError(f"`{name}` must not be negative. Received: {name}={value!r}")
    return known


class RowNumbers:
    """Constant row numbers: checked once, and on torch stored as one tensor per device.

    Args:
        numbers: Integers of shape (rows,), not negative.

    Example:

    >>> keras.ops.convert_to_numpy(RowNumbers([2, 0]).of(np.array([5.0, 6.0, 7.0]))).tolist()
    [7.0, 5.0]
    """

    def __init__(self, numbers: Any) -> None:
        self.numbers = np.asarray(numbers).astype("int32")
        if self.numbers.ndim != 1 or self.numbers.min(initial=0) < 0:
            raise ValueError(
                "`numbers` must be integers of shape (rows,), not negative. Received: "
                f"numbers={numbers!r}"
            )
        self.largest = int(self.numbers.max(initial=-1))
        self._constants: dict[Any, Tensor] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}

    def tensor(self, like: Tensor) -> Tensor:
        """Returns the numbers as a tensor on the device of `like`."""
        if keras.backend.backend() != "torch":
            return ops.convert_to_tensor(self.numbers)
        make = functools.partial(torch_sparse.row_numbers, self.numbers, like)
        return torch_sparse.kept(self._constants, like.device, make)

    def of(self, x: Tensor) -> Tensor:
        """Returns the rows of `x` with these numbers."""
        if keras.backend.backend() != "torch":
            return take(x, self.numbers, axis=0)
        x = ops.convert_to_tensor(x)
        return x.index_select(0, self.tensor(x))


@checked(x=tensor("rows ..."), targets=_known_targets, count=size(0))
def sum_rows(x: Tensor, targets: Any, count: int, ordered: bool = False) -> Tensor:
    """Sums the rows of `x` that have the same target.

    Args:
        x: Tensor of shape (rows, ...).
        targets: Integers of shape (rows,), below `count`. Or `RowNumbers`, which are not checked
            and converted again at each call.
        count: Number of rows of the result.
        ordered: Whether the targets never decrease. This is faster on some backends.

    Returns:
        A tensor of shape (count, ...). Rows that are no target are 0.

    Example:

    >>> keras.ops.convert_to_numpy(sum_rows(np.array([[1.0], [2.0], [4.0]]), [0, 2, 2], 3)).tolist()
    [[1.0], [0.0], [6.0]]
    """
    largest = -1
    if isinstance(targets, RowNumbers):
        largest = targets.largest
    elif isinstance(targets, np.ndarray):
        largest = int(targets.max(initial=-1))
    if isinstance(count, int) and largest >= count:
        raise ValueError(
            f"`targets` must be below `count`. Received: targets up to {largest}, count={count}"
        )
    x = ops.convert_to_tensor(x)
    if isinstance(targets, RowNumbers):
        targets = targets.tensor(x)
    else:
        targets = ops.convert_to_tensor(targets, dtype="int32")
    backend = keras.backend.backend()
    if backend == "torch":
        return torch_sparse.add_rows(x, targets, count)
    return ops.segment_sum(x, targets, count, sorted=ordered and backend == "jax")


class SparseMatrix:
    """A constant real matrix, which stores its transpose and its classes of rows.

    Args:
        matrix: A scipy.sparse matrix.
        symmetric: Whether the matrix is its own transpose.

    Example:

    >>> matrix = SparseMatrix(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> matrix.shape, matrix.transpose.matrix.toarray().tolist()
    ((2, 2), [[0.0, 1.0], [2.0, 0.0]])
    """

    def __init__(self, matrix: Any, symmetric: bool = False) -> None:
        is_array = isinstance(matrix, np.ndarray) and matrix.ndim == 2
        if not (scipy.sparse.issparse(matrix) or is_array) or matrix.dtype.kind not in "biuf":
            raise ValueError(
                "`matrix` must be a scipy.sparse matrix, or an array of shape (rows, columns), of "
                f"real numbers. Received: matrix={matrix!r}"
            )
        flag("symmetric", symmetric)
        if symmetric and matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                "`symmetric=True` needs a square matrix. Received: symmetric=True, shape "
                f"{matrix.shape}"
            )
        self.matrix = scipy.sparse.csr_array(matrix).astype("float64")
        self.matrix.sum_duplicates()
        self.shape = self.matrix.shape
        self.symmetric = symmetric
        self._constants: dict[Any, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}

    @cached_property
    def transpose(self) -> "SparseMatrix":
        """The transposed matrix."""
        if self.symmetric:
            return self
        found = SparseMatrix(self.matrix.T)
        found.__dict__["transpose"] = self
        return found

    def product(self, like: Tensor) -> Product:
        """Returns x -> matrix x for x of shape (columns, ...), without a custom gradient.

        Constants are made only once, for the device and dtype of `like`. No exporter of torch takes
        its sparse tensors, so torch traces the product of the other backends.
        """
        if keras.backend.backend() == "torch" and not traced_by_torch():
            return torch_sparse.matrix_product(self.matrix, like, self._constants)

        def product(x: Tensor) -> Tensor:
            found = self._by_classes(ops.reshape(x, (self.shape[1], -1)))
            return ops.reshape(found, (self.shape[0], *ops.shape(x)[1:]))

        return product

    @cached_property
    def product_with_gradient(self) -> FunctionWithGradient:
        """x -> (matrix x,), whose gradient is the product with the transpose."""
        return FunctionWithGradient(partial(_value, self), partial(_gradient, self))

    @cached_property
    def _classes(self) -> tuple[list[tuple[Any, Any]], Any]:
        """Column indices and values (rows, entries) of each class, and the place of each row."""
        counts = np.diff(self.matrix.indptr)
        sizes = np.concatenate([[0], _class_sizes(int(counts.max(initial=1)))])
        kind = np.searchsorted(sizes, counts)
        order = np.argsort(kind, kind="stable")
        classes = []
        for k in np.unique(kind):
            rows = order[kind[order] == k]
            entries = np.arange(sizes[k])
            inside = entries < counts[rows, None]
            if sizes[k] == 0:
                classes.append((np.zeros(inside.shape, "int32"), np.zeros(inside.shape)))
                continue
            # Padding repeats the row's last entry, times 0. Another entry could be NaN times 0 from
            # another component.
            last = self.matrix.indptr[rows + 1] - 1
            places = np.minimum(self.matrix.indptr[rows, None] + entries, last[:, None])
            columns = self.matrix.indices[places].astype("int32")
            classes.append((columns, np.where(inside, self.matrix.data[places], 0.0)))
        position = np.empty(len(order), "int32")
        position[order] = np.arange(len(order))
        return classes, None if np.array_equal(position, np.arange(len(order))) else position

    def _by_classes(self, x: Tensor) -> Tensor:
        classes, position = self._classes
        parts = [_weighted_rows(x, columns, values) for columns, values in classes]
        joined = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)
        return joined if position is None else take(joined, position, axis=0)


@checked(
    matrix=instance(SparseMatrix, "a SparseMatrix", "columns", lambda found: found.shape[1]),
    x=tensor("columns ..."),
)
def sparse_product(matrix: SparseMatrix, x: Tensor) -> Tensor:
    """Returns matrix x, with the transposed product as its gradient.

    Args:
        matrix: A `SparseMatrix` of shape (rows, columns).
        x: Tensor of shape (columns, ...), float32 or float64.

    Returns:
        A tensor of shape (rows, ...).

    Example:

    >>> matrix = SparseMatrix(scipy.sparse.eye_array(3, k=1))
    >>> y = sparse_product(matrix, np.array([[1.0], [2.0], [3.0]], "float32"))
    >>> keras.ops.convert_to_numpy(y).ravel().tolist()
    [2.0, 3.0, 0.0]
    """
    (found,) = matrix.product_with_gradient(ops.convert_to_tensor(x))
    return found


def _value(matrix: SparseMatrix, x: Tensor) -> tuple[tuple[Tensor], tuple[()]]:
    return (matrix.product(x)(x),), ()


def _gradient(
    matrix: SparseMatrix, tensors: Any, kept: Any, upstream: tuple[Tensor]
) -> tuple[Tensor]:
    return (matrix.transpose.product(upstream[0])(upstream[0]),)


def _class_sizes(largest: int) -> Any:
    """1, 2, 3, 4, 6, 8, 12, 16, ... up to a number that is at least `largest`."""
    powers = 2 ** np.arange(1, max(largest, 2).bit_length() + 1)
    return np.unique(np.concatenate([[1], powers, 3 * powers // 2]))


def _weighted_rows(x: Tensor, columns: Any, values: Any) -> Tensor:
    """sum_k values[:, k] x[columns[:, k]]: (rows, c)."""
    rows, entries = columns.shape
    if entries == 0:
        return ops.zeros((rows, ops.shape(x)[1]), x.dtype)
    if entries > UNROLLED_ENTRIES:
        gathered = take(x, columns.ravel(), axis=0)
        gathered = ops.reshape(gathered, (rows, entries, -1))  # (rows, entries, c)
        return ops.einsum("re,rec->rc", ops.convert_to_tensor(values, x.dtype), gathered)
    total = None
    for k in range(entries):
        part = take(x, columns[:, k], axis=0)
        if not (values[:, k] == 1.0).all():
            part = part * ops.convert_to_tensor(values[:, k, None], x.dtype)
        total = part if total is None else total + part
    return total
