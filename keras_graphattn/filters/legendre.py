"""Legendre polynomials of A."""

import keras

from keras_graphattn.filters.polynomial import Polynomial
from keras_graphattn.ops.filters.polynomials import Step, recurrence


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
        return recurrence("legendre", self.order)
