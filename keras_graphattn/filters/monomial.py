"""Powers of A."""

import keras

from keras_graphattn.filters.polynomial import Polynomial
from keras_graphattn.ops.filters.polynomials import Step


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
