"""The base of the filters that are exact polynomials of A, in any basis with a recurrence."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_graphattn.checks import is_list
from keras_graphattn.filters.filter import Filter, Operator, of_heads
from keras_graphattn.filters.starts import STARTS
from keras_graphattn.ops.filters.operator_filters import (
    plain_attention_coefficients,
    polynomial_filter,
)
from keras_graphattn.ops.filters.polynomials import Step

Tensor = Any


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
        start: As for `Filter`; all four.

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
        raise NotImplementedError

    def plain_coefficients(self) -> list[float]:
        """The coefficients c_0 ... c_K of the filter named by `start`."""
        steps = self.recurrence()
        plain = plain_attention_coefficients(steps)  # refuses a basis that cannot be A
        if self.start == "plain":
            return plain
        degree = min(2, len(steps))
        basis = np.zeros((degree + 1, degree + 1))  # row k: P_k by powers of A
        basis[0, 0] = 1.0
        for k, step in enumerate(steps[:degree], 1):
            basis[k] = step.slope * np.roll(basis[k - 1], 1) + step.offset * basis[k - 1]
            if k > 1:
                basis[k] -= step.previous * basis[k - 2]
        # coefficients in the basis P_k of a polynomial given by powers of A
        found = np.linalg.solve(basis.T, np.asarray(STARTS[self.start][: degree + 1]))
        return [*found.tolist(), *[0.0] * (len(steps) - degree)]

    def start_values(self, num_heads: int | None) -> dict[str, np.ndarray]:
        given = self.initial_coefficients
        given = self.plain_coefficients() if given is None else given
        entries = given if is_list(given) else ()
        if len(entries) != self.order + 1:
            raise ValueError(
                f"`initial_coefficients` of {type(self).__name__}({self.order}) must be a list of "
                f"{self.order + 1} entries. Received: initial_coefficients={given!r}"
            )
        rows = [of_heads(entry, num_heads, given) for entry in entries]  # K + 1 times (N,)
        widest = max(len(row) for row in rows)
        return {"filter_coefficients": np.stack([np.broadcast_to(row, (widest,)) for row in rows])}

    def __call__(
        self, apply: Operator, values: Tensor, coefficients: Mapping[str, Tensor]
    ) -> Tensor:
        return polynomial_filter(
            apply, values, coefficients["filter_coefficients"], self.recurrence()
        )
