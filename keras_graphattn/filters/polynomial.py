"""Filters that are exact polynomials of A, in any basis with a three-term recurrence.

All bases of the package are written as

    P_0(x) = 1,  P_1(x) = a_1 x + b_1,  P_k(x) = (a_k x + b_k) P_{k-1}(x) - c_k P_{k-2}(x)

so polynomials of a number (`polynomial`, the filter of AGF) and polynomials of an operator
(`polynomial_filter`) use the same table of numbers (`recurrence`).
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import is_list, number, one_of
from keras_graphattn.filters.filter import STARTS, Apply, Filter, check_order, of_heads
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor

LARGEST_PARAMETER = 1e30  # of Jacobi polynomials; the largest float32 is about 3e38

BASES = ("monomial", "chebyshev", "legendre", "jacobi")


class Step(NamedTuple):
    """One step of the recurrence: P_k = (slope * x + offset) P_{k-1} - previous P_{k-2}.

    Example:

    >>> Step(slope=2.0, offset=0.0, previous=1.0)  # of the Chebyshev polynomials T_k, k > 1
    Step(slope=2.0, offset=0.0, previous=1.0)
    """

    slope: float
    offset: float
    previous: float


def recurrence(
    basis: str, order: int, alpha: float | None = None, beta: float | None = None
) -> list[Step]:
    """The recurrence coefficients of P_1 ... P_order.

    Args:
        basis: `"monomial"` (x^k), `"legendre"` (Jacobi with alpha = beta = 0), `"chebyshev"`
            (Jacobi with alpha = beta = -1/2, in Jacobi's normalisation, as the AGF paper
            uses it), or `"jacobi"`.
        order: Degree K of the last polynomial, at least 1.
        alpha: First Jacobi parameter (the papers' a); `"jacobi"` only, 0 by default.
        beta: Second Jacobi parameter (the papers' b); `"jacobi"` only, 0 by default.

    Returns:
        A list of `order` steps; entry k - 1 of the list makes P_k.

    Raises:
        ValueError: For an unknown basis, an invalid order, or parameters for which the recurrence
            divides by zero.

    Source: Wi et al., arXiv 2505.08516, Eq. 22-26 (the sign of Eq. 24 corrected; equal to
    `scipy.special.eval_jacobi`).

    Example:

    >>> recurrence("legendre", 2)[1]  # P_2 = (3 x P_1 - P_0) / 2
    Step(slope=1.5, offset=0.0, previous=0.5)
    """
    check_order("order", order, {})
    one_of(*BASES)("basis", basis, {})
    numbers = check_jacobi(0.0 if alpha is None else alpha, 0.0 if beta is None else beta)
    if basis != "jacobi":
        if any(numbers):
            raise ValueError(
                '`alpha` and `beta` are options of basis="jacobi" only. Received: '
                f"basis={basis!r}, alpha={alpha!r}, beta={beta!r}. Leave them out."
            )
        if basis == "monomial":
            return [Step(1.0, 0.0, 0.0)] * order
        return _jacobi(order, *((0.0, 0.0) if basis == "legendre" else (-0.5, -0.5)))
    return _jacobi(order, *numbers)


def check_jacobi(alpha: float, beta: float) -> tuple[float, float]:
    """Checks that the parameters of Jacobi polynomials fit float32; returns them."""
    rule = number(least=-LARGEST_PARAMETER, below=LARGEST_PARAMETER)
    return rule("alpha", alpha, {}), rule("beta", beta, {})


def _jacobi(order: int, alpha: float, beta: float) -> list[Step]:
    total = alpha + beta
    steps = [Step((total + 2) / 2, (alpha - beta) / 2, 0.0)]
    for k in range(2, order + 1):
        if min(abs(k + total), abs(2 * k + total - 2.0)) <= 1e-9:
            raise ValueError(
                f"The Jacobi recurrence divides by zero at degree {k} for alpha + beta = "
                f"{total:g}. Received: alpha={alpha}, beta={beta}, order={order}. Change "
                f"alpha or beta a little, or use order={k - 1}."
            )
        denominator = 2 * k * (k + total)
        lower = 2 * k + total - 2
        slope = (2 * k + total) * (2 * k + total - 1) / denominator
        offset = (2 * k + total - 1) * (alpha**2 - beta**2) / (denominator * lower)
        previous = 2 * (k + alpha - 1) * (k + beta - 1) * (2 * k + total) / (denominator * lower)
        steps.append(Step(slope, offset, previous))
    return steps


def polynomial(
    x: Float[Tensor, "..."],
    coefficients: Float[Tensor, " _"] | Sequence[Float[Tensor, ""] | float],
    steps: Sequence[Step],
) -> Float[Tensor, "..."]:
    """`sum_k coefficients[k] P_k(x)`, entry by entry, by Clenshaw's method."""
    order = len(steps)
    # b_k = c_k + (slope_{k+1} x + offset_{k+1}) b_{k+1} - previous_{k+2} b_{k+2}
    # Terms that are the same for all x (at first b_K) are added up first: fewer passes over memory
    later = None  # b_{k+2}
    last = coefficients[order]  # b_{k+1}
    for k in range(order - 1, -1, -1):
        step, constant = steps[k], coefficients[k]
        if later is not None and steps[k + 1].previous != 0.0:
            constant = constant - steps[k + 1].previous * later
        if step.offset == 0.0:
            current = constant + step.slope * last * x
        elif k == order - 1:
            current = (constant + step.offset * last) + (step.slope * last) * x
        else:
            current = constant + (step.slope * x + step.offset) * last
        last, later = current, last
    return last


def polynomial_filter(
    apply: Apply,
    values: Float[Tensor, "..."],
    coefficients: Float[Tensor, "..."],
    steps: Sequence[Step],
) -> Float[Tensor, "..."]:
    """`sum_k coefficients[k] P_k(A) values`, by the recurrence on the signal, in float32."""
    values, coefficients = ops.convert_to_tensor(values), at_least_float32(coefficients)
    # `signal` is P_{k-1}(A) V in the caller's dtype, `current` the same in float32
    signal, current = values, at_least_float32(values)
    result = coefficients[0] * current
    before = None
    for degree, step in enumerate(steps, start=1):
        following = step.slope * at_least_float32(apply(signal))
        if step.offset != 0.0:
            following = following + step.offset * current
        if before is not None and step.previous != 0.0:
            following = following - step.previous * before
        before, current = current, following
        result = result + coefficients[degree] * current
        signal = ops.cast(current, values.dtype)
    return ops.cast(result, values.dtype)


def plain_attention_coefficients(steps: Sequence[Step]) -> list[float]:
    """The coefficients for which `sum_k coefficients[k] P_k(A)` is A = (P_1 - b P_0) / a."""
    slope, offset, _ = steps[0]
    if slope == 0.0:
        raise ValueError(
            "P_1 of this basis is a constant, so no sum of P_0 and P_1 is plain attention. "
            "Received: slope=0.0 in the first step. For Jacobi polynomials, change alpha or beta: "
            "their sum must not be -2."
        )
    return [-offset / slope, 1.0 / slope] + [0.0] * (len(steps) - 1)


class Polynomial(Filter):
    """Base of exact polynomials: H = sum_k c_k P_k(A), with K applications of A.

    A subclass implements `recurrence`: the steps that make P_1 ... P_K. The filter starts as plain
    attention:
    A = (P_1 - b I) / a, where P_1(x) = a x + b.

    Args:
        order: Degree K, an integer of at least 1.
        trainable_coefficients: `True` trains all coefficients and `False` none.
        initial_coefficients: A list of K + 1 entries, c_0 ... c_K, each a number or a list with
            one number for each head.
        start: As for `Filter`; all five.

    Weights:
        `filter_coefficients` of shape (order + 1, num_heads).

    Example: Laguerre polynomials, L_k(x) = ((2k - 1 - x) L_{k-1}(x) - (k - 1) L_{k-2}(x)) / k.

    >>> @keras.saving.register_keras_serializable(package="mine")
    ... class Laguerre(Polynomial):
    ...     def recurrence(self):
    ...         degrees = range(1, self.order + 1)
    ...         return [Step(-1 / k, (2 * k - 1) / k, (k - 1) / k) for k in degrees]
    >>> Laguerre(2).plain_coefficients()  # A = L_0 - L_1
    [1.0, -1.0, 0.0]
    """

    def recurrence(self) -> list[Step]:
        """The steps of the recurrence, one for each of P_1 ... P_K."""
        raise NotImplementedError(
            f"{type(self).__name__} must write `recurrence`. The polynomials of this package are "
            "Monomial, Chebyshev, Legendre and Jacobi."
        )

    def plain_coefficients(self) -> list[float]:
        """The coefficients c_0 ... c_K of the filter named by `start`."""
        steps = self.recurrence()
        plain = plain_attention_coefficients(steps)  # refuses a basis that cannot be A
        if self.start == "plain":
            return plain
        polynomial = np.trim_zeros(STARTS[self.start], "b")
        degree = len(polynomial) - 1
        basis = np.zeros((degree + 1, degree + 1))  # row k: P_k by powers of A
        basis[0, 0] = 1.0
        for k, step in enumerate(steps[:degree], 1):
            basis[k] = step.slope * np.roll(basis[k - 1], 1) + step.offset * basis[k - 1]
            if k > 1:
                basis[k] -= step.previous * basis[k - 2]
        if not np.diagonal(basis).all():
            raise ValueError(
                f"P_2 of this basis has no A^2, so no sum of P_0, P_1 and P_2 is {self.start!r}. "
                "Received: slope=0.0 in the second step. For Jacobi polynomials, change alpha or "
                "beta: their sum must not be -3 or -4."
            )
        # coefficients in the basis P_k of a polynomial given by powers of A
        coefficients = np.linalg.solve(basis.T, polynomial)
        return [*coefficients.tolist(), *[0.0] * (len(steps) - degree)]

    def start_values(self, num_heads: int | None) -> dict[str, np.ndarray]:
        initial = self.initial_coefficients
        initial = self.plain_coefficients() if initial is None else initial
        if not is_list(initial) or len(initial) != self.order + 1:
            raise ValueError(
                f"`initial_coefficients` of {type(self).__name__}({self.order}) must be a list of "
                f"{self.order + 1} entries. Received: initial_coefficients={initial!r}"
            )
        rows = [of_heads(entry, num_heads, initial) for entry in initial]  # K + 1 times (N,)
        widest = max(len(row) for row in rows)
        if not {len(row) for row in rows} <= {1, widest}:
            raise ValueError(
                "Each of `initial_coefficients` must be one number, or one for each head. "
                f"Received: initial_coefficients={initial!r}"
            )
        return {"filter_coefficients": np.stack([np.broadcast_to(row, (widest,)) for row in rows])}

    def __call__(
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        return polynomial_filter(
            apply, values, coefficients["filter_coefficients"], self.recurrence()
        )


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Monomial(Polynomial):
    """The polynomial H = sum_k c_k A^k.

    Args:
        order: Degree K, an integer of at least 1.
        **kwargs: As for `Polynomial`.

    Example:

    >>> Monomial(2).coefficients(num_heads=8)["filter_coefficients"].start.shape
    (3, 8)

    Source: the exact filter that Choi et al., arXiv 2312.04234, approximate in Eq. 5.
    """

    def recurrence(self) -> list[Step]:
        return [Step(1.0, 0.0, 0.0)] * self.order


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Chebyshev(Polynomial):
    """The polynomial H = sum_k c_k P_k(A), P_k multiples of the Chebyshev polynomials T_k.

    They are the Jacobi polynomials with alpha = beta = -1/2 in Jacobi's normalisation, as the AGF
    paper uses them: P_k(1) is not 1 but (2k - 1)!! / (2k)!!.

    Args:
        order: Degree K, an integer of at least 1.
        **kwargs: As for `Polynomial`.

    Example:

    >>> Chebyshev(2).recurrence()[0]  # P_1 = x / 2
    Step(slope=0.5, offset=0.0, previous=0.0)

    Source: Wi et al., arXiv 2505.08516, Eq. 22-26.
    """

    def recurrence(self) -> list[Step]:
        return _jacobi(self.order, -0.5, -0.5)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Legendre(Polynomial):
    """The polynomial H = sum_k c_k P_k(A), P_k the Legendre polynomials.

    Args:
        order: Degree K, an integer of at least 1.
        **kwargs: As for `Polynomial`.

    Example:

    >>> Legendre(2).recurrence()[1]  # P_2 = (3 x P_1 - P_0) / 2
    Step(slope=1.5, offset=0.0, previous=0.5)

    Source: Wi et al., arXiv 2505.08516, Eq. 22-26.
    """

    def recurrence(self) -> list[Step]:
        return _jacobi(self.order, 0.0, 0.0)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Jacobi(Polynomial):
    """The polynomial H = sum_k c_k P_k(A), P_k the Jacobi polynomials P_k^(alpha, beta).

    Args:
        order: Degree K, an integer of at least 1.
        alpha: First Jacobi parameter (the papers' a).
        beta: Second Jacobi parameter (the papers' b). Parameters of -1 and below give polynomials
            that are not orthogonal. The AGF paper uses some of them. The filter then warns.
        **kwargs: As for `Polynomial`.

    Raises:
        ValueError: For parameters at which the recurrence divides by zero, such as
            alpha + beta = -2.

    Example:

    >>> Jacobi(2, alpha=1.0).recurrence()[0]  # P_1 = (3 x + 1) / 2
    Step(slope=1.5, offset=0.5, previous=0.0)

    Source: Wi et al., arXiv 2505.08516, Eq. 22-26 (the sign of Eq. 24 corrected).
    """

    def __init__(
        self, order: int = 3, alpha: float = 0.0, beta: float = 0.0, **kwargs: Any
    ) -> None:
        self.alpha, self.beta = check_jacobi(alpha, beta)
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if value <= -1:
                warnings.warn(
                    f"{name}={value} is outside (-1, inf): the Jacobi polynomials are defined "
                    "there but no longer orthogonal. The AGF paper uses such values, so they are "
                    "allowed.",
                    stacklevel=2,
                )
        super().__init__(order, **kwargs)

    def recurrence(self) -> list[Step]:
        return _jacobi(self.order, self.alpha, self.beta)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alpha": self.alpha, "beta": self.beta}
