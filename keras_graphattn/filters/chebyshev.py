"""Chebyshev polynomials of A."""

import keras

from keras_graphattn.filters.polynomial import Polynomial
from keras_graphattn.ops.filters.polynomials import Step, recurrence


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
        return recurrence("chebyshev", self.order)
