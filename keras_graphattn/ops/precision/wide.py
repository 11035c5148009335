"""Functions of `keras.ops` that keep float64 and take empty tensors, on every backend.

While `keras.config.floatx()` is float32, some functions make float32 of float64: `maximum`,
`minimum`, `matmul` and `cumsum` on torch, `tanh` on jax. `max` takes no empty tensor on torch and
tensorflow, whichever of its axes is empty.
"""

from typing import Any

from keras import backend, ops

Tensor = Any


def is_float64(x: Tensor) -> bool:
    """Whether a tensor is of 64-bit floats.

    Example:

    >>> is_float64(np.ones(2, "float64")), is_float64(np.ones(2, "float32"))
    (True, False)
    """
    return bool(backend.standardize_dtype(x.dtype) == "float64")


def larger(first: Tensor, second: Tensor) -> Tensor:
    """The larger of two tensors, entry by entry, of the dtype of the first; NaN where one is."""
    second = ops.cast(second, first.dtype)
    if not is_float64(first):
        return ops.maximum(first, second)
    known = ops.where(first >= second, first, second)
    return ops.where(first == first, known, first)


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """The smaller of two tensors, entry by entry, of the dtype of the first; NaN where one is."""
    second = ops.cast(second, first.dtype)
    return -larger(-first, -second) if is_float64(first) else ops.minimum(first, second)


def largest(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The largest number along the axis; of no numbers at all, 0."""
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
