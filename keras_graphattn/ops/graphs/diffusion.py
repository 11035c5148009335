"""Functions of a graph's operator, such as exp(-t L), by Chebyshev series.

f(S) x = sum_k c_k T_k(S') x, where S' is S with its eigenvalues mapped to [-1, 1]. The coefficients
are a cosine transform of f at the Chebyshev nodes. They are computed with tensors, so they have
gradients for all that f depends on. Each term costs one sparse product. For exp(-t x) the series
needs about half the terms of the Poisson series sum_k Poisson(k; t rho) (I - S / rho)^k.

Source: Choromanski et al., arXiv 2107.07999, Eq. 4 and Theorem 4.1. The Chebyshev series is ours.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.sparse
from keras import ops

from keras_graphattn.checks import (
    checked,
    float_dtype,
    function,
    instance,
    number,
    scalar,
    tensor,
    whole,
)
from keras_graphattn.numerics.custom_gradient import kept_with
from keras_graphattn.numerics.precision import constant
from keras_graphattn.ops.graphs.graphs import Array, an_adjacency
from keras_graphattn.ops.graphs.sparse import SparseMatrix
from keras_graphattn.ops.graphs.symmetric_series import Carry, SymmetricSeries

Tensor = Any
Function = Callable[[Any], Any]


@checked(function=function, low=number(), high=number(), tolerance=number())
def chebyshev_terms(function: Function, low: float, high: float, tolerance: float) -> int:
    """Returns how many terms approximate f on [low, high] to `tolerance` times max |f|.

    Args:
        function: f of a NumPy array.
        low: Lower end of the interval.
        high: Upper end.
        tolerance: Largest sum of the dropped terms, relative to max |f|.

    Returns:
        A number of at least 2.

    Raises:
        ValueError: For a tolerance that is not between 0 and 1, or more than 2000 terms.

    Example:

    >>> chebyshev_terms(lambda x: np.exp(-x), 0.0, 50.0, 1e-6)
    26
    """
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"`tolerance` must be between 0 and 1. Received: {tolerance!r}")
    count = 4096
    values = np.asarray(function(_nodes(low, high, count)), "float64")
    sizes = np.abs(scipy.fft.dct(values, type=2)) / count
    tails = np.cumsum(sizes[::-1])[::-1]  # the sum of |c_k| from each term on
    enough = np.flatnonzero(tails <= tolerance * np.abs(values).max())
    if not len(enough) or enough[0] > 2000:
        raise ValueError(
            f"The spectral function needs more than 2000 terms between `low` and `high`, {low:g} "
            f"and {high:g}, for tolerance={tolerance:g}. Use shorter times or a larger tolerance."
        )
    return max(int(enough[0]), 2)


@checked(function=function, low=scalar, high=scalar, terms=whole(), dtype=float_dtype)
def chebyshev_coefficients(
    function: Function, low: Any, high: Any, terms: int, dtype: str = "float32"
) -> Tensor:
    """Returns the coefficients c_k of f on [low, high], with gradients.

    Args:
        function: f of a tensor of shape (terms, 1); returns (terms, N), one column per head.
        low: Lower end of the interval, a number or a scalar tensor.
        high: Upper end.
        terms: Number of coefficients.
        dtype: The dtype to compute in.

    Returns:
        A tensor of shape (terms, N).

    Example:

    >>> coefficients = chebyshev_coefficients(lambda x: x, -1.0, 1.0, 3)  # x is T_1
    >>> np.abs(keras.ops.convert_to_numpy(coefficients)).round(4).ravel().astype(float).tolist()
    [0.0, 1.0, 0.0]
    """
    unit = constant(_nodes(-1.0, 1.0, terms)[:, None], dtype)
    values = function((high + low) / 2.0 + (high - low) / 2.0 * unit)  # (terms, N)
    angles = np.outer(np.arange(terms), (np.arange(terms) + 0.5) * np.pi / terms)
    transform = 2.0 / terms * np.cos(angles)
    transform[0] /= 2.0
    return ops.einsum("kj,jn->kn", constant(transform, dtype), values)


@checked(matrix=an_adjacency, low=number(), high=number())
def chebyshev_matrix(matrix: Any, low: float, high: float) -> SparseMatrix:
    """Returns 2 S', where S' is the symmetric S with its eigenvalues mapped to [-1, 1].

    The recurrence is T_{k+1} = (2 S') T_k - T_{k-1}.

    Args:
        matrix: S, a scipy.sparse matrix of shape (n, n).
        low: Lower end of an interval that contains the eigenvalues.
        high: Upper end, above `low`.

    Example:

    >>> chebyshev_matrix(scipy.sparse.eye_array(2), 0.0, 2.0).shape
    (2, 2)
    """
    if low >= high:
        raise ValueError(f"`high` must be above `low`. Received: low={low!r}, high={high!r}")
    scale, middle = 4.0 / (high - low), (high + low) / 2.0
    identity = scipy.sparse.eye_array(matrix.shape[0], format="csr")
    shifted = scale * matrix if middle == 0.0 else scale * (matrix - middle * identity)
    return SparseMatrix(shifted, symmetric=True)


@checked(
    x=tensor("n N C"),
    coefficients=tensor("terms N"),
    matrix=instance(SparseMatrix, "a SparseMatrix", "n", lambda matrix: matrix.shape[1]),
)
def spectral_product(x: Tensor, coefficients: Tensor, matrix: SparseMatrix) -> Tensor:
    """sum_k c_k T_k(S') x for a constant symmetric matrix S.

    Args:
        x: Tensor of shape (n, N, C): nodes, heads, columns.
        coefficients: Tensor of shape (terms, N), at least 2 terms.
        matrix: 2 S', of shape (n, n), from `chebyshev_matrix`.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `coefficients`.

    Example:

    >>> laplacian = scipy.sparse.csr_array([[1.0, -1.0], [-1.0, 1.0]])
    >>> matrix = chebyshev_matrix(laplacian, 0.0, 2.0)
    >>> coefficients = chebyshev_coefficients(lambda x: keras.ops.exp(-x), 0.0, 2.0, 8)
    >>> x = np.array([1.0, 0.0], "float32").reshape((2, 1, 1))
    >>> y = spectral_product(x, coefficients, matrix)
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()  # exp(-L)
    [0.5677, 0.4323]
    """
    x = ops.convert_to_tensor(x)
    return kept_with(matrix, _chebyshev_series)(x, ops.cast(coefficients, x.dtype))


def _chebyshev_series(doubled: SparseMatrix) -> SymmetricSeries:
    def start(x: Tensor) -> Carry:
        return x, 0.5 * doubled.product(x)(x)  # T_k, and T_{k+1} = T_{|k-1|} at k = 0

    def step(carry: Carry) -> Carry:
        now, following = carry
        return following, doubled.product(now)(following) - now

    return SymmetricSeries(start, step)


def resolvent_error(high: float, time: float, dtype: str) -> float:
    """Estimates the error of the Chebyshev series of (I + t L)^-1, relative to a row's diagonal.

    Rounding errors add up over about sqrt(t high) terms. A diagonal entry is at least
    1 / (1 + t high / 2).
    """
    rounding = 2.0**-53 if dtype == "float64" else 2.0**-24
    return float(rounding * np.sqrt(1.0 + time * high) * (1.0 + time * high / 2.0))


def _nodes(low: float, high: float, count: int) -> Array:
    unit = np.cos((np.arange(count) + 0.5) * np.pi / count)
    return (high + low) / 2.0 + (high - low) / 2.0 * unit
