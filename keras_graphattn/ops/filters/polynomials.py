"""Orthogonal polynomials by their three-term recurrence.

All bases of the package are written as

    P_0(x) = 1,  P_1(x) = a_1 x + b_1,  P_k(x) = (a_k x + b_k) P_{k-1}(x) - c_k P_{k-2}(x)

so polynomials of a number (`polynomial`, the filter of AGF) and polynomials of an operator
(`keras_graphattn.ops.polynomial_filter`) use the same table of numbers (`recurrence`).
"""

import math
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import checked, is_finite, tensor

Tensor = Any

MOST_STEPS = 1000  # each adds operations to the compiled graph
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


def basis_steps(name: str, value: Any, sizes: Any = None) -> list[Step]:
    """The rule of a basis: a list of steps, made by `recurrence`."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if not is_list or not all(isinstance(step, Step) for step in value):
        raise ValueError(
            f"`{name}` must be a list of steps, made by `recurrence`. Received: {name}={value!r}"
        )
    return list(value)


def check_order(order: int, name: str = "order") -> int:
    """Returns `order` if it is valid; otherwise raises a `ValueError`.

    Example:

    >>> check_order(3)
    3
    """
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= MOST_STEPS:
        raise ValueError(
            f"`{name}` is the degree of a polynomial filter and must be an integer of at "
            f"least 1, and at most {MOST_STEPS}. Received: {name}={order!r}"
        )
    return order


def check_basis(
    basis: str, order: int, alpha: float | None = None, beta: float | None = None
) -> None:
    """Raises a `ValueError` for an invalid basis, order or Jacobi parameters.

    Example:

    >>> check_basis("jacobi", 3, alpha=0.5, beta=0.5)
    """
    recurrence(basis, order, alpha, beta)


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
    check_order(order)
    if not isinstance(basis, str) or basis not in BASES:
        raise ValueError(f"`basis` must be one of {list(BASES)}. Received: basis={basis!r}")
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
    """Returns the parameters of Jacobi polynomials as floats.

    Raises:
        ValueError: For a parameter that is not a finite number, or too large for float32.

    Example:

    >>> check_jacobi(1, -0.5)
    (1.0, -0.5)
    """
    numbers = []
    for name, given in (("alpha", alpha), ("beta", beta)):
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise ValueError(f"`{name}` must be a number. Received: {name}={given!r}")
        if not is_finite(given):
            raise ValueError(f"`{name}` must be finite. Received: {name}={given!r}")
        if abs(given) > LARGEST_PARAMETER:
            raise ValueError(
                f"`{name}` must be between -{LARGEST_PARAMETER:g} and {LARGEST_PARAMETER:g}. "
                f"Received: {name}={given!r}"
            )
        numbers.append(float(given))
    return numbers[0], numbers[1]


def _jacobi(order: int, alpha: float, beta: float) -> list[Step]:
    total = alpha + beta
    steps = [Step((total + 2) / 2, (alpha - beta) / 2, 0.0)]
    for k in range(2, order + 1):
        if math.isclose(k + total, 0.0, abs_tol=1e-9) or math.isclose(
            2 * k + total, 2.0, abs_tol=1e-9
        ):
            raise ValueError(
                f"The Jacobi recurrence divides by zero at degree {k} for alpha + beta = "
                f"{total:g}. Received: alpha={alpha}, beta={beta}, order={order}. Change "
                f"alpha or beta a little, or use order={k - 1}."
            )
        denominator = 2 * k * (k + total)
        lower = 2 * k + total - 2
        steps.append(
            Step(
                slope=(2 * k + total) * (2 * k + total - 1) / denominator,
                offset=(2 * k + total - 1) * (alpha**2 - beta**2) / (denominator * lower),
                previous=2
                * (k + alpha - 1)
                * (k + beta - 1)
                * (2 * k + total)
                / (denominator * lower),
            )
        )
    return steps


@checked(x=tensor(), coefficients=tensor("_"), steps=basis_steps)
def polynomial(x: Tensor, coefficients: Tensor, steps: list[Step]) -> Tensor:
    """Evaluates `sum_k coefficients[k] P_k(x)` element by element, by Clenshaw's method.

    Args:
        x: Tensor of any shape.
        coefficients: Tensor of shape (K + 1,): the weights of P_0 ... P_K.
        steps: The basis, from `recurrence(basis, K, ...)`.

    Returns:
        A tensor of the shape of `x`.

    Example:

    >>> steps = recurrence("monomial", 2)
    >>> value = polynomial(np.array([2.0]), np.array([1.0, 0.0, 3.0]), steps)
    >>> keras.ops.convert_to_numpy(value).tolist()
    [13.0]
    """
    x, coefficients = ops.convert_to_tensor(x), ops.convert_to_tensor(coefficients)
    order = len(steps)
    if coefficients.shape[0] != order + 1:
        raise ValueError(
            f"A polynomial of degree {order} has {order + 1} coefficients. Received: "
            f"coefficients.shape={tuple(coefficients.shape)}"
        )
    # b_k = c_k + (slope_{k+1} x + offset_{k+1}) b_{k+1} - previous_{k+2} b_{k+2}
    # Terms that are the same for all x (at first b_K) are added up first: fewer passes over memory
    later = None  # b_{k+2}
    last = coefficients[order]  # b_{k+1}
    for k in range(order - 1, -1, -1):
        step, constant = steps[k], coefficients[k]
        if later is not None and steps[k + 1].previous != 0.0:
            constant = constant - steps[k + 1].previous * later
        if k == order - 1:
            current = (constant + step.offset * last) + (step.slope * last) * x
        elif step.offset == 0.0:
            current = constant + step.slope * x * last
        else:
            current = constant + (step.slope * x + step.offset) * last
        last, later = current, last
    return last
