"""Named starts of a filter: what it computes before training.

Each start is a polynomial c_0 I + c_1 A + c_2 A^2 of A, whose rows sum to 1. Attention averages
tokens. So A keeps what they have in common (low frequencies), and I - A keeps the differences.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.checks import did_you_mean, is_one_of

STARTS = {
    "plain": (0.0, 1.0, 0.0),  # A
    "high_pass": (1.0, -1.0, 0.0),  # I - A
    "high_boost": (2.0, -1.0, 0.0),  # I + (I - A)
    "band_pass": (0.0, 1.0, -1.0),  # A (I - A)
}


def check_start(start: Any, given: Any, order: int, allowed: Sequence[str]) -> str:
    """Returns the name of a start if the filter accepts it.

    Args:
        start: The filter's argument `start`.
        given: The filter's argument `initial_coefficients`.
        order: The filter's order.
        allowed: The names that the filter accepts.

    Raises:
        ValueError: For another name, for a name together with `initial_coefficients`, and for an
            order that is too low for the named filter.
    """
    if not is_one_of(start, list(allowed)):
        raise ValueError(
            f"`start` must be one of {list(allowed)}. Received: start={start!r}."
            f"{did_you_mean(start, allowed)}"
        )
    if start != "plain" and given is not None:
        raise ValueError(
            "`start` names coefficients and `initial_coefficients` lists them: give only one of "
            f"the two. Received: start={start!r}, initial_coefficients={given!r}"
        )
    if start == "band_pass" and order < 2:
        raise ValueError(
            f"The band-pass filter A (I - A) has degree 2. Received: start={start!r}, "
            f"order={order}. Use an order of at least 2."
        )
    return str(start)
