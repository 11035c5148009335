"""Linear systems with the matrix of causal attention, which is lower triangular."""

from typing import Any

from keras import ops

from keras_graphattn.checks import known_value
from keras_graphattn.numerics.precision import at_least_float32, nan_where

Tensor = Any

NOT_CAUSAL = (
    "(I + b A) y = x is solved for causal attention only. Received: {}. Set "
    "`use_causal_mask=True`, or use a filter that is not causal, such as Resolvent(causal=False)."
)


def solve_lower(matrix: Tensor, factor: Tensor, x: Tensor) -> Tensor:
    """The y with y + factor * A y = x, for a lower triangular A: one forward substitution.

    Args:
        matrix: A, of shape (..., n, n). Entries above the diagonal are not read.
        factor: Tensor that broadcasts to A, such as (N, 1, 1).
        x: Tensor of shape (..., n, D).

    Returns:
        A tensor of the shape of `x`, in float32 or float64.
    """
    matrix, factor, x = (at_least_float32(given) for given in (matrix, factor, x))
    system = factor * matrix + ops.eye(ops.shape(matrix)[-1], dtype=matrix.dtype)
    return ops.solve_triangular(system, x, lower=True)


def solve_causal(matrix: Tensor, factor: Tensor, x: Tensor) -> Tensor:
    """`solve_lower` for a matrix that may not be triangular.

    Raises:
        ValueError: If an entry above the diagonal is known not to be 0. In compiled code, the
            outputs of this example and head are NaN.
    """
    above = ops.triu(matrix, k=1) != 0.0  # NaN differs from 0 too
    broken = ops.any(above, axis=(-2, -1), keepdims=True)  # (..., 1, 1)
    known = known_value(broken)
    if known is not None and known.any():
        raise ValueError(NOT_CAUSAL.format("attention with entries above the diagonal"))
    return nan_where(broken, solve_lower(matrix, factor, x))
