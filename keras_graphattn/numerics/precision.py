"""Accurate numbers: sums in float32, functions that keep float64, softmax under a mask.

Every mask constant and every change of precision in the package goes through this file. Masks stay
boolean and are applied with `where`. A row that may see nothing is exactly zero: it is neither a
uniform average nor NaN.

If `keras.config.floatx()` is float32, some functions of `keras.ops` convert float64 to float32:
`maximum`, `minimum`, `matmul` and `cumsum` on torch, `tanh`, `cos` and `sin` on jax. `max` does not
accept an empty tensor on torch and tensorflow. On torch, `take` calls `ravel`, which PyTorch does
not export to ONNX. `cast` of an open size and `take_along_axis` turn open sizes into constants of
an export. `max`, `pad` and `convert_to_tensor` of an array do not compile in one graph.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import backend, ops

from keras_graphattn.checks import dtype_name
from keras_graphattn.types import Bool, Float, Int, Num, Size, Tensor

Index = tuple[Any, ...]
ALL = slice(None)  # `x[:, None]` is `new_axes(x, (ALL, None))`

_LARGEST_FLOAT16 = 65504.0
HIDDEN_LOGIT = -1e30  # of an entry that a mask hides: finite, and in a softmax its weight is 0


def _expanded(x: Num[Tensor, "..."], index: Index) -> Num[Tensor, "..."]:
    """`x[index]` for an index that only adds axes: with `None`, `:` and `...` at its start."""
    behind = len(index) if index[0] is Ellipsis else 0
    axes = [place - behind for place, part in enumerate(index) if part is None]
    return ops.expand_dims(x, axes) if axes else x


def _iota(length: Size) -> Int[Tensor, " T"]:
    import jax

    positions: Int[Tensor, " T"] = jax.lax.iota("int32", length)
    return positions


def _identity(size: Size, *, dtype: str) -> Float[Tensor, "n n"]:
    order = positions_of(size)
    return ops.cast(order[:, None] == order[None, :], dtype)


# What formats of exports do not have, bound once: a small call feels every function.
# 0, 1, ... length - 1 as int32: jax2onnx, which writes ONNX, has no `arange` of an open length.
positions_of: Callable[[Size], Int[Tensor, " T"]] = functools.partial(ops.arange, 0, dtype="int32")
if backend.backend() == "jax":
    positions_of = _iota
# `x[index]` that only adds axes: LiteRT has no such slice of a tensor with several open sizes.
new_axes: Callable[[Num[Tensor, "..."], Index], Num[Tensor, "..."]] = operator.getitem
# The identity matrix: OpenVINO has no operation for that of TensorFlow, LiteRT none for torch's.
identity: Callable[..., Float[Tensor, "n n"]] = ops.eye
if backend.backend() != "jax":
    identity = _identity
if backend.backend() == "tensorflow":
    new_axes = _expanded


def is_float64(x: Num[Tensor, "..."]) -> bool:
    """Whether the dtype of a tensor is float64."""
    return bool(backend.standardize_dtype(x.dtype) == "float64")


def larger(first: Num[Tensor, "..."], second: Num[Tensor, "..."] | float) -> Num[Tensor, "..."]:
    """The larger of two tensors, entry by entry, in the dtype of the first; NaN if one is NaN."""
    second = ops.cast(second, first.dtype)
    if not is_float64(first):
        return ops.maximum(first, second)
    numbers = ops.where(first >= second, first, second)
    return ops.where(first == first, numbers, first)


def smaller(first: Num[Tensor, "..."], second: Num[Tensor, "..."] | float) -> Num[Tensor, "..."]:
    """The smaller of two tensors, entry by entry, in the dtype of the first; NaN if one is NaN."""
    second = ops.cast(second, first.dtype)
    return -larger(-first, -second) if is_float64(first) else ops.minimum(first, second)


def largest(
    x: Num[Tensor, "..."], axis: int | tuple[int, ...], keepdims: bool = False
) -> Num[Tensor, "..."]:
    """The largest number along the axis; 0 if there are no numbers."""
    if 0 in tuple(x.shape):
        return ops.sum(x, axis=axis, keepdims=keepdims)
    return ops.amax(x, axis=axis, keepdims=keepdims)


def any_of(x: Bool[Tensor, "..."], axes: tuple[int, ...]) -> Bool[Tensor, "..."]:
    """As `keras.ops.any`, axis by axis: OpenVINO reads torch's over several axes as over one."""
    for axis in sorted(axes, reverse=True):
        x = ops.any(x, axis=axis)
    return x


def order_of(x: Int[Tensor, "..."], axis: int) -> Int[Tensor, "..."]:
    """As `keras.ops.argsort`, which is stable. PyTorch's exporter to ONNX has no such function."""
    if backend.backend() == "torch":
        import torch

        if torch.onnx.is_in_onnx_export():  # that of ONNX is stable
            return torch.topk(x, x.shape[axis], dim=axis, largest=False).indices
    return ops.argsort(x, axis=axis)


def tanh(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The hyperbolic tangent."""
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0 if is_float64(x) else ops.tanh(x)


def cosine_and_sine(angles: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], ...]:
    """The cosines and the sines of angles."""
    if is_float64(angles) and backend.backend() == "jax":
        from jax import numpy

        return numpy.cos(angles), numpy.sin(angles)
    return ops.cos(angles), ops.sin(angles)


def take(x: Num[Tensor, "..."], indices: Int[Tensor, "..."] | int, axis: int) -> Num[Tensor, "..."]:
    """The entries of `x` with these indices along an axis; no index is negative."""
    if backend.backend() != "torch":
        return ops.take(x, indices, axis=axis)
    dtype = "int32" if isinstance(indices, np.ndarray) else None
    x, indices = ops.convert_to_tensor(x), constant(indices, dtype)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, indices.reshape(-1)).reshape(shape)


def take_along(x: Num[Tensor, "..."], indices: Int[Tensor, "..."], axis: int) -> Num[Tensor, "..."]:
    """As `keras.ops.take_along_axis`, for tensors of one shape; no index is negative."""
    if backend.backend() != "torch":
        return ops.take_along_axis(x, indices, axis=axis)
    return x.gather(axis, ops.cast(indices, "int64"))


def size_tensor(size: Size, dtype: str) -> Num[Tensor, ""]:
    """A size, an integer or one that is not known before the run, as a tensor of shape ()."""
    if backend.backend() != "torch":
        return ops.cast(size, dtype)
    return ops.zeros((), dtype) + size


def constant(array: Num[Tensor, "..."] | float, dtype: str | None = None) -> Num[Tensor, "..."]:
    """`keras.ops.convert_to_tensor` of an array or a tensor."""
    if backend.backend() == "torch" and isinstance(array, np.ndarray):
        import torch

        # in its dtype, since LiteRT casts no constants; a copy, since torch warns of some arrays
        name = None if dtype is None else backend.standardize_dtype(dtype)
        is_numpy = name in ("float32", "float64", "int32")
        array = torch.as_tensor(np.array(array, name if is_numpy else None))
    return ops.convert_to_tensor(array, dtype)


def pad(
    x: Num[Tensor, "..."], widths: Sequence[Sequence[Size]], fill: float = 0
) -> Num[Tensor, "..."]:
    """As `keras.ops.pad`, with two widths for each axis."""
    if backend.backend() != "torch":
        return ops.pad(x, widths, constant_values=fill)
    from torch.nn import functional

    return functional.pad(x, [n for pair in reversed(widths) for n in pair], value=fill)


def at_least_float32(x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
    """Casts half precision to float32 and leaves float32 and float64 as they are."""
    x = x if ops.is_tensor(x) else ops.convert_to_tensor(x)
    return x if dtype_name(x.dtype) in ("float32", "float64") else ops.cast(x, "float32")


def in_one_dtype(*tensors: Num[Tensor, "..."]) -> tuple[Num[Tensor, "..."], ...]:
    """Tensors in the widest of their dtypes: `keras.ops.einsum` on torch needs one dtype."""
    if [x.dtype for x in tensors].count(tensors[0].dtype) == len(tensors):
        return tensors
    dtype = backend.result_type(*(x.dtype for x in tensors))
    return tuple(ops.cast(x, dtype) for x in tensors)


def finite_scores(scores: Num[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Scores in at least float32; overflowed float16 scores become the largest float16 number.

    A product of a query and a key can be infinite in float16, and a softmax of two infinite
    scores is NaN. With the largest number of the dtype instead, the two keys share the row.
    """
    is_half = dtype_name(scores.dtype) == "float16"
    scores = at_least_float32(scores)
    return ops.clip(scores, -_LARGEST_FLOAT16, _LARGEST_FLOAT16) if is_half else scores


def masked_softmax(
    scores: Num[Tensor, "..."], mask: Num[Tensor, "..."] | None = None, axis: int = -1
) -> Float[Tensor, "..."]:
    """Softmax over the entries that a mask keeps, in float32 inside.

    Masked entries are exactly 0. If a whole slice is masked, all of it is 0.
    """
    dtype = scores.dtype
    scores = finite_scores(scores)
    if mask is not None:
        mask = ops.cast(mask, "bool")
        scores = ops.where(mask, scores, ops.cast(HIDDEN_LOGIT, scores.dtype))
    *others, last = scores.shape
    is_last = axis in (-1, len(others))
    is_known = bool(others) and set(map(type, scores.shape)) == {int}
    if backend.backend() == "torch" and is_last and is_known and last < 16:
        # Over a last axis that is shorter than a vector of the CPU, torch takes ten times as long.
        longest = others.index(max(others))
        weights = scores.transpose(longest, -1).softmax(longest)
        weights = weights.transpose(longest, -1).contiguous()
    elif backend.backend() == "torch":  # which may be traced at one token, for any number
        weights = scores.softmax(axis)
    elif scores.shape[axis] != 1:
        weights = ops.softmax(scores, axis=axis)
    else:  # Keras' softmax warns of it
        weights = ops.exp(scores - scores)  # 1, and NaN where the score is not finite
    if mask is not None:
        weights = ops.where(mask, weights, ops.cast(0.0, weights.dtype))
    return weights if weights.dtype == dtype else ops.cast(weights, dtype)


def nan_where(marked: Bool[Tensor, "..."], x: Num[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Puts NaN in the entries that `marked` marks. The gradient passes through unchanged."""
    x = ops.convert_to_tensor(x)
    nothing = ops.cast(0.0, x.dtype)
    return x + ops.where(ops.cast(marked, "bool"), ops.cast(float("nan"), x.dtype), nothing)


def zero_where_masked(x: Num[Tensor, "..."], mask: Num[Tensor, "..."] | None) -> Num[Tensor, "..."]:
    """Puts exact zeros where `mask` is `False`. NaN becomes 0 too, as nothing is multiplied."""
    if mask is None:
        return x
    return ops.where(ops.cast(mask, "bool"), x, ops.cast(0.0, x.dtype))


def without_padding(
    x: Num[Tensor, "B ..."], visible: Num[Tensor, "B? ..."] | None
) -> Num[Tensor, "B ..."]:
    """`x` with zeros where the booleans are `False`. Their axes are the first axes of `x`."""
    if visible is None:
        return x
    missing = len(x.shape) - len(visible.shape)
    return zero_where_masked(x, new_axes(visible, (..., *[None] * missing)))
