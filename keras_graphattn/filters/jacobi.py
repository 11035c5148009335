"""Jacobi polynomials of A."""

import warnings
from typing import Any

import keras

from keras_graphattn.filters.polynomial import Polynomial
from keras_graphattn.ops.filters.polynomials import Step, check_jacobi, recurrence


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
        return recurrence("jacobi", self.order, self.alpha, self.beta)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alpha": self.alpha, "beta": self.beta}
