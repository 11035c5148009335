"""Functions of `keras.ops` that keep float64, accept empty tensors and export, on every backend.

If `keras.config.floatx()` is float32, some functions convert float64 to float32: `maximum`,
`minimum`, `matmul` and `cumsum` on torch, `tanh` on jax. `max` does not accept an empty tensor on
torch and tensorflow. On torch, `take` calls `ravel`, which PyTorch does not export to ONNX, `cast`
of an open size and `take_along_axis` make open sizes constants of an export, and `max`, `pad` and
`convert_to_tensor` of an array do not compile in one graph.
"""

from typing import Any

import numpy as np
from keras import backend, ops

Tensor = Any


def is_float64(x: Tensor) -> bool:
    """Whether the dtype of a tensor is float64.

    Example:

    >>> is_float64(np.ones(2, "float64")), is_float64(np.ones(2, "float32"))
    (True, False)
    """
    return bool(backend.standardize_dtype(x.dtype) == "float64")


def larger(first: Tensor, second: Tensor) -> Tensor:
    """The larger of two tensors, entry by entry, in the dtype of the first; NaN if one is NaN."""
    second = ops.cast(second, first.dtype)
    if not is_float64(first):
        return ops.maximum(first, second)
    known = ops.where(first >= second, first, second)
    return ops.where(first == first, known, first)


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """The smaller of two tensors, entry by entry, in the dtype of the first; NaN if one is NaN."""
    second = ops.cast(second, first.dtype)
    return -larger(-first, -second) if is_float64(first) else ops.minimum(first, second)


def largest(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The largest number along the axis; 0 if there are no numbers."""
    if 0 in tuple(x.shape):
        return ops.sum(x, axis=axis, keepdims=keepdims)
    return ops.amax(x, axis=axis, keepdims=keepdims)


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """The product of matrices (..., i, j) and (..., j, k)."""
    if is_float64(first):
        return ops.einsum("...ij,...jk->...ik", first, second)
    return ops.matmul(first, second)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0 if is_float64(x) else ops.tanh(x)


def take(x: Tensor, indices: Any, axis: int) -> Tensor:
    """The entries of `x` with these indices along an axis; no index is negative."""
    if backend.backend() != "torch":
        return ops.take(x, indices, axis=axis)
    x, indices = ops.convert_to_tensor(x), constant(indices)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, indices.reshape(-1)).reshape(shape)


def take_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """As `keras.ops.take_along_axis`, for tensors of one shape; no index is negative."""
    if backend.backend() != "torch":
        return ops.take_along_axis(x, indices, axis=axis)
    return x.gather(axis, ops.cast(indices, "int64"))


def size_tensor(size: Any, dtype: str) -> Tensor:
    """A size, an integer or one that is not known before the run, as a tensor of shape ()."""
    if backend.backend() != "torch":
        return ops.cast(size, dtype)
    return ops.zeros((), dtype) + size


def constant(array: Any, dtype: str | None = None) -> Tensor:
    """`keras.ops.convert_to_tensor` of an array or a tensor."""
    if backend.backend() == "torch" and isinstance(array, np.ndarray):
        import torch

        array = torch.as_tensor(np.array(array))  # a copy: torch warns of some arrays
    return ops.convert_to_tensor(array, dtype)


def pad(x: Tensor, widths: Any, fill: float = 0) -> Tensor:
    """As `keras.ops.pad`, with two widths for each axis."""
    if backend.backend() != "torch":
        return ops.pad(x, widths, constant_values=fill)
    from torch.nn import functional

    return functional.pad(x, [n for pair in reversed(widths) for n in pair], value=fill)
