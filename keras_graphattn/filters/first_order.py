"""The first-order approximation of a power of A: the filter of GFSA."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_graphattn.filters.filter import NamedFilter, Operator
from keras_graphattn.filters.starts import STARTS
from keras_graphattn.ops.filters.operator_filters import first_order_filter

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class FirstOrder(NamedFilter):
    """Identity, A, and an approximate power of A: two applications of A for any order K.

        H = w_0 I + w_1 A + w_K (A + (K - 1)(A^2 - A))

    It starts as plain attention: w_0 = 0, w_1 = 1, w_K = 0. K = 1 makes the last term A, and K = 2
    makes it exactly A^2.

    Args:
        order: The power K, an integer of at least 1. The paper's models use 2 to 10.
        trainable_coefficients: `True`, `False`, or a list of names from `"identity"` (w_0),
            `"linear"` (w_1) and `"power"` (w_K). The authors' runs train `["power"]` only.
        initial_coefficients: A dictionary from these names to start values, each a number or a
            list with one number for each head.
        start: As for `Filter`; all four.

    Weights:
        `identity_coefficient`, `linear_coefficient` and `power_coefficient`, each (num_heads,).

    Example:

    >>> filter = FirstOrder(3, trainable_coefficients=["power"])
    >>> {name: weight.trainable for name, weight in filter.coefficients(num_heads=2).items()}
    {'identity_coefficient': False, 'linear_coefficient': False, 'power_coefficient': True}

    Source: Choi et al., "Graph Convolutions Enrich the Self-Attention in Transformers!",
    arXiv 2312.04234, Eq. 4-6.
    """

    @property
    def num_applications(self) -> int:
        return min(self.order, 2)

    def named_start(self) -> dict[str, float]:
        # the third term is P = (2 - K) A + (K - 1) A^2, so that A^2 = (P + (K - 2) A) / (K - 1)
        constant, linear, square = STARTS[self.start]
        if square:
            linear += square * (self.order - 2) / (self.order - 1)
            square /= self.order - 1
        return {"identity": constant, "linear": linear, "power": square}

    def __call__(
        self, apply: Operator, values: Tensor, coefficients: Mapping[str, Tensor]
    ) -> Tensor:
        return first_order_filter(
            apply,
            values,
            coefficients["identity_coefficient"],
            coefficients["linear_coefficient"],
            coefficients["power_coefficient"],
            self.order,
        )
