"""Sums and largest numbers of the rows of a tensor that have the same target, on every backend."""

import math
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import traced_by_torch
from keras_graphattn.types import Float, Int, Num, Tensor


def add_rows(
    x: Num[Tensor, "rows ..."], targets: Int[Tensor, " rows"], count: Any, ordered: bool = False
) -> Num[Tensor, "count ..."]:
    """The sums of the rows of `x` that have the same target; `ordered` targets never decrease.

    `keras.ops.segment_sum` on torch is 12 to 64 times slower than torch's own sums.
    """
    if keras.backend.backend() != "torch":
        jax_order = ordered and keras.backend.backend() == "jax"
        return ops.segment_sum(x, targets, count, sorted=jax_order)
    rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))  # -1 would fail for a tensor of no rows
    sums = rows.new_zeros((count, rows.shape[1]))
    targets = targets.long()
    if traced_by_torch():  # an export of `index_add` to ONNX is wrong where targets repeat
        sums = sums.scatter_add(0, targets[:, None].expand(rows.shape), rows)
    else:
        sums = sums.index_add(0, targets, rows)
    return sums.reshape(count, *x.shape[1:])


def largest_rows(
    x: Float[Tensor, "rows ..."], targets: Int[Tensor, " rows"], count: Any
) -> Float[Tensor, "count ..."]:
    """The largest numbers, without a gradient, of the rows of `x` that have the same target.

    A target without rows gets -inf, or the smallest number of the dtype.
    """
    x = ops.stop_gradient(x)
    if keras.backend.backend() != "torch":
        return ops.segment_max(x, targets, count)
    rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    least = rows.new_full((count, rows.shape[1]), -math.inf)
    targets = targets.long()[:, None].expand(rows.shape)
    return least.scatter_reduce(0, targets, rows, "amax").reshape(count, *x.shape[1:])
