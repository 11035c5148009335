"""exp(t S) x on a graph by a series of positive terms, which is exact in every row.

S is -L or A. Let c be at least as large as each diagonal entry of L. Then B = S + c I has no
negative entry, and

    exp(t S) x = e^(-c t) sum_k t^k / k! B^k x

is a sum over walks of k steps with positive weights. No terms cancel. So the error of a row is
relative to the same row of |M| |x|, even if other rows are much larger. A Chebyshev series needs
about half the terms, but its terms cancel: its error is relative to the largest row.

As e^(c t) would overflow for a long time, the time is split into equal parts,
exp(t S) = exp(t S / 2^p)^(2^p).

Source: Choromanski et al., arXiv 2107.07999, Eq. 4. The series is the one for the matrix
exponential of a Markov chain (uniformization).
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse
import scipy.special
from keras import ops

from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.graphs.graphs import spectral_radius
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product

Tensor = Any

LONGEST_PART = 32.0  # largest t rho of one series: its sums are up to e^32 times the signal
LONGEST_PART_OF_MATRIX = 4.0  # the same, if the result is then squared as a matrix
MOST_TERMS = 2000
LARGEST_EXPONENT = 64.0  # of exp(t A): then float32 holds it, with signals and sums


@dataclass(frozen=True, eq=False)
class PositiveOperator:
    """B = S + c I, which has no negative entry.

    Attributes:
        matrix: B, of shape (n, n).
        shift: c, a number with 12 bits.
        radius: Bound of the largest eigenvalue of B.
    """

    matrix: SparseMatrix
    shift: float
    radius: float

    @cached_property
    def unshifted(self) -> "PositiveOperator":
        """The same operator with c = 0, so S = B."""
        return PositiveOperator(self.matrix, 0.0, self.radius)

    @cached_property
    def _made(self) -> dict[Any, FunctionWithGradient]:
        return {}

    def exponential(self, sizes: "SeriesSizes") -> FunctionWithGradient:
        """x, t -> (exp(t S) x,)"""
        return self._function(_value, _gradient, sizes)

    def matrix_exponential(self, sizes: "SeriesSizes") -> FunctionWithGradient:
        """t -> (exp(t S),)"""
        return self._function(_matrix_value, _matrix_gradient, sizes)

    def _function(self, value: Any, gradient: Any, sizes: "SeriesSizes") -> FunctionWithGradient:
        """Returns the same object for the same sizes: compiled code is stored with it."""
        if (value, sizes) not in self._made:
            both = (partial(function, self, sizes) for function in (value, gradient))
            self._made[value, sizes] = FunctionWithGradient(*both)
        return self._made[value, sizes]


@dataclass(frozen=True)
class SeriesSizes:
    """The number of terms and parts of a series.

    Attributes:
        terms: Number of products with B in each part of the time.
        parts: Number of parts, a power of 2.
        longest: The longest time.
    """

    terms: int
    parts: int
    longest: float


def positive_operator(adjacency: Any, operator: str) -> PositiveOperator:
    """Returns B of a graph.

    Args:
        adjacency: The graph from `keras_graphattn.ops.graphs.graphs.read_graph`.
        operator: `"laplacian"` or `"normalized_laplacian"` for S = -L, `"adjacency"` for S = A.

    Example:

    >>> from keras_graphattn.ops.graphs.graphs import read_graph
    >>> operator = positive_operator(read_graph([[0, 1], [1, 2]]), "laplacian")
    >>> operator.shift, operator.matrix.matrix.toarray().tolist()
    (2.0, [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    """
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    if operator == "adjacency":
        return PositiveOperator(SparseMatrix(adjacency, True), 0.0, spectral_radius(adjacency))
    if operator == "laplacian":
        shift = twelve_bits_from(max(float(degrees.max(initial=0.0)), 1e-6))
        matrix = adjacency + scipy.sparse.diags_array(shift - degrees)
        return PositiveOperator(SparseMatrix(matrix, True), shift, shift)
    scale = np.where(degrees > 0, np.where(degrees > 0, degrees, 1.0) ** -0.5, 0.0)
    scaled = scipy.sparse.diags_array(scale) @ adjacency @ scipy.sparse.diags_array(scale)
    matrix = scaled + scipy.sparse.diags_array((degrees == 0).astype("float64"))
    return PositiveOperator(SparseMatrix(matrix, True), 1.0, 1.0)


def check_exponent(radius: float, time: float) -> None:
    """Raises a `ValueError` if exp(t A) is too large for float32."""
    if radius * time > LARGEST_EXPONENT:
        raise ValueError(
            f"exp(t A) is too large for float32 if t |A| is above {LARGEST_EXPONENT:g}. Received: "
            f"times up to {time:g}, an adjacency matrix of radius {radius:g}. Use shorter times, "
            "or a Laplacian."
        )


def series_sizes(
    radius: float, time: float, tolerance: float, longest_part: float = LONGEST_PART
) -> SeriesSizes:
    """Returns how many terms and parts a time needs.

    Args:
        radius: Bound of the largest eigenvalue of B.
        time: The longest time.
        tolerance: Largest sum of the dropped terms, relative to each row of M.
        longest_part: Largest `radius` times the time of one part.

    Raises:
        ValueError: For a tolerance that is not between 0 and 1, or more than 2000 terms.
    """
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"`tolerance` must be between 0 and 1. Received: {tolerance!r}")
    parts, mean = 1, radius * time
    if mean <= MOST_TERMS:
        parts = 2 ** max(0, math.ceil(math.log2(max(mean / longest_part, 1e-9))))
        counts = np.arange(1, MOST_TERMS + 1)
        # The dropped terms add up to the probability that a Poisson variable is above `terms`.
        enough = scipy.special.pdtrc(counts, mean / parts) <= 0.1 * tolerance / parts
        terms = int(counts[np.argmax(enough)])
    in_turn = parts if longest_part == LONGEST_PART else 1
    if mean > MOST_TERMS or terms * in_turn > MOST_TERMS:
        raise ValueError(
            "The series needs more than 2000 terms. Received: times up to "
            f"{time:g}, eigenvalues up to {radius:g}, tolerance={tolerance:g}. Use "
            "shorter times or a larger tolerance."
        )
    return SeriesSizes(terms, parts, time)


def exponential_product(
    x: Tensor, time: Tensor, operator: PositiveOperator, sizes: SeriesSizes
) -> Tensor:
    """exp(t S) x, with gradients of any order for both.

    Args:
        x: Tensor of shape (n, N, C): nodes, heads, columns.
        time: Tensor of shape (N,), of the dtype of `x`: t of each head, at most `sizes.longest`.
        operator: B, which contains S.
        sizes: The sizes from `series_sizes`.

    Returns:
        A tensor of shape (n, N, C). Its error in a row is at most the tolerance plus about
        1e-7 (1 + 0.1 t rho) in float32, relative to that row of M |x|.
    """
    (found,) = operator.exponential(sizes)(x, time)
    return found


def _value(
    operator: PositiveOperator, sizes: SeriesSizes, x: Tensor, time: Tensor
) -> tuple[tuple[Tensor], tuple[()]]:
    return (_series(x, time, operator, sizes),), ()


def _gradient(
    operator: PositiveOperator,
    sizes: SeriesSizes,
    tensors: tuple[Tensor, Tensor],
    kept: tuple[()],
    upstream: tuple[Tensor],
) -> tuple[Tensor, Tensor]:
    x, time = tensors
    back = exponential_product(upstream[0], time, operator, sizes)
    moved = sparse_product(operator.matrix, x) - operator.shift * x  # S x
    return back, ops.sum(back * moved, axis=(0, 2))


def exponential_matrix(time: Tensor, operator: PositiveOperator, sizes: SeriesSizes) -> Tensor:
    """Returns the matrix exp(t S): a short series, squared log2(`sizes.parts`) times.

    Args:
        time: Tensor of shape (N,).
        operator: B, which contains S.
        sizes: The sizes from `series_sizes` with `LONGEST_PART_OF_MATRIX`.

    Returns:
        A tensor of shape (N, n, n).
    """
    (found,) = operator.matrix_exponential(sizes)(time)
    return found


def _matrix_value(
    operator: PositiveOperator, sizes: SeriesSizes, time: Tensor
) -> tuple[tuple[Tensor], tuple[Tensor]]:
    count, heads = operator.matrix.shape[0], time.shape[0]
    identity = ops.broadcast_to(ops.eye(count, dtype=time.dtype)[:, None], (count, heads, count))
    short = SeriesSizes(sizes.terms, 1, sizes.longest / sizes.parts)
    matrix = exponential_product(identity, time / sizes.parts, operator.unshifted, short)
    matrix = ops.transpose(matrix, (1, 0, 2))  # (N, n, n)
    matrix = over_whole_time(matrix, time, operator.shift, sizes, LONGEST_PART_OF_MATRIX)
    return (matrix,), (matrix,)


def over_whole_time(
    matrix: Tensor, time: Tensor, shift: Any, sizes: SeriesSizes, longest_part: float = LONGEST_PART
) -> Tensor:
    """exp(t S) from exp(t B / parts), which is squared log2(parts) times.

    Args:
        matrix: exp(t B / parts), of shape (N, n, n) or (B, N, n, n).
        time: Tensor of shape (N,).
        shift: c, a number, or a tensor of shape (B, 1).
        sizes: The sizes from `series_sizes`.
        longest_part: The `longest_part` of these.
    """
    squarings = int(math.log2(sizes.parts))
    before = min(squarings, int(math.log2(LONGEST_PART / longest_part)))
    parts = sizes.parts / 2**before  # then its rounding is squared as often as in a series
    decay = decay_of(time / parts, shift, sizes.longest / parts)[..., None, None]
    for k in range(squarings + 1):
        matrix = matrix * decay if k == before else matrix
        matrix = matrix @ matrix if k < squarings else matrix
    return matrix


def _matrix_gradient(
    operator: PositiveOperator,
    sizes: SeriesSizes,
    tensors: tuple[Tensor],
    kept: tuple[Tensor],
    upstream: tuple[Tensor],
) -> tuple[Tensor]:
    columns, upstream_columns = (ops.transpose(x[0], (1, 0, 2)) for x in (kept, upstream))
    moved = sparse_product(operator.matrix, columns) - operator.shift * columns  # S M
    return (ops.sum(upstream_columns * moved, axis=(0, 2)),)


def _series(x: Tensor, time: Tensor, operator: PositiveOperator, sizes: SeriesSizes) -> Tensor:
    """The series for all parts of the time, each by Horner's rule."""
    product = operator.matrix.product(x)
    time = time / sizes.parts
    decay = decay_of(time, operator.shift, sizes.longest / sizes.parts)[None, :, None]
    orders = ops.convert_to_tensor(np.arange(sizes.terms, 0, -1)[:, None], dtype=time.dtype)
    factors = time[None, :] / orders  # (terms, N)

    def part(index: Any, x: Tensor) -> Tensor:
        def term(k: Any, y: Tensor) -> Tensor:
            factor = factors[k] if isinstance(k, int) else take(factors, k, axis=0)
            return x + factor[None, :, None] * product(y)

        return decay * ops.fori_loop(0, sizes.terms, term, x)

    return part(0, x) if sizes.parts == 1 else ops.fori_loop(0, sizes.parts, part, x)


def decay_of(time: Tensor, shift: Any, longest: float) -> Tensor:
    """Returns e^(-c t), exact to the last bit even if c t is large.

    Rounding of c t would lose these bits. The product of the leading 12 bits of t and the 12 bits
    of c is exact in float32.
    """
    unit = 2.0 ** (math.ceil(math.log2(longest)) - 12)
    leading = ops.stop_gradient(ops.cast(ops.cast(time / unit, "int32"), time.dtype) * unit)
    return ops.exp(-shift * leading) * ops.exp(-shift * (time - leading))


def twelve_bits_from(number: float) -> float:
    """Returns the smallest number with 12 bits that is at least `number`."""
    unit = 2.0 ** (math.floor(math.log2(number)) - 11)
    return math.ceil(number / unit) * unit
