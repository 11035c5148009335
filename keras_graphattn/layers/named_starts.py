"""Named starts of a filter's coefficients, other than plain attention: for training from scratch.

Each is a polynomial c_0 I + c_1 A + c_2 A^2 of the row-stochastic A. Attention averages tokens, so
A keeps what they have in common (low frequencies) and I - A keeps what sets each apart.
"""

from typing import Any

import numpy as np

from keras_graphattn.layers.options import is_one_of
from keras_graphattn.ops.filters import plain_attention_coefficients
from keras_graphattn.ops.polynomials import Step

STARTS = {
    "plain": (0.0, 1.0, 0.0),  # A
    "high_pass": (1.0, -1.0, 0.0),  # I - A
    "high_boost": (2.0, -1.0, 0.0),  # I + (I - A)
    "band_pass": (0.0, 1.0, -1.0),  # A (I - A)
}
SINGULAR_STARTS = {"plain": 0.0, "high_pass": -0.5}  # of P_1(S), per sign of P_1's slope


def check_start(start: Any, given: Any, order: int, allowed: Any = STARTS) -> str:
    """The name of a start, if it can be used.

    Args:
        start: What the layer was given as `start`.
        given: What it was given as `initial_coefficients`.
        order: The filter's order.
        allowed: The names to choose from.

    Raises:
        ValueError: For another name, for a name together with `initial_coefficients`, and for an
            order at which the filter cannot be what the name says.
    """
    if not is_one_of(start, list(allowed)):
        raise ValueError(f"`start` must be one of {list(allowed)}. Received: start={start!r}")
    if start != "plain" and given is not None:
        raise ValueError(
            "`start` names coefficients and `initial_coefficients` lists them: give one of the "
            f"two. Received: start={start!r}, initial_coefficients={given!r}"
        )
    if start == "band_pass" and order < 2:
        raise ValueError(
            f"The band-pass filter A (I - A) has degree 2. Received: start={start!r}, "
            f"order={order}. Use an order of at least 2."
        )
    return str(start)


def first_order_coefficients(start: str, order: int) -> dict[str, float]:
    """w_0, w_1 and w_K for which the first-order filter is the polynomial of a named start.

    Its third term is P = (2 - K) A + (K - 1) A^2, so that A^2 = (P + (K - 2) A) / (K - 1).
    """
    constant, linear, square = STARTS[start]
    if square:
        linear += square * (order - 2) / (order - 1)
        square /= order - 1
    return {"identity": constant, "linear": linear, "power": square}


def polynomial_coefficients(start: str, steps: list[Step]) -> list[float]:
    """The coefficients c_k for which sum_k c_k P_k(A) is the polynomial of a named start."""
    plain = plain_attention_coefficients(steps)  # refuses a basis that cannot be plain attention
    if start == "plain":
        return plain
    degree = min(2, len(steps))
    basis = np.zeros((degree + 1, degree + 1))  # row k: P_k by powers of A
    basis[0, 0] = 1.0
    for k, step in enumerate(steps[:degree], 1):
        basis[k] = step.slope * np.roll(basis[k - 1], 1) + step.offset * basis[k - 1]
        if k > 1:
            basis[k] -= step.previous * basis[k - 2]
    found = np.linalg.solve(basis.T, np.asarray(STARTS[start][: degree + 1]))
    return [*found.tolist(), *[0.0] * (len(steps) - degree)]


def singular_theta(start: str, steps: list[Step]) -> np.ndarray:
    """Raw theta_1 ... theta_K of AGF's g(S) = 1 + sum_k tanh(theta_k) P_k(S) at a named start."""
    theta = np.zeros(len(steps))
    theta[0] = np.arctanh(SINGULAR_STARTS[start]) * (-1.0 if steps[0].slope < 0.0 else 1.0)
    return theta
