"""Functions of `keras.ops` that keep float64 and accept empty tensors, on every backend.

If `keras.config.floatx()` is float32, some functions convert float64 to float32: `maximum`,
`minimum`, `matmul` and `cumsum` on torch, `tanh` on jax. `max` does not accept an empty tensor on
torch and tensorflow.
"""

from typing import Any

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
    return ops.max(x, axis=axis, keepdims=keepdims)


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """The product of matrices (..., i, j) and (..., j, k)."""
    if is_float64(first):
        return ops.einsum("...ij,...jk->...ik", first, second)
    return ops.matmul(first, second)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0 if is_float64(x) else ops.tanh(x)
