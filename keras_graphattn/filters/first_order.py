"""The first-order approximation of a power of A: the filter of GFSA."""

from collections.abc import Mapping

import keras
from keras import ops

from keras_graphattn.filters.filter import STARTS, Apply, NamedFilter
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor


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
        start: As for `Filter`; all five.

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
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        # identity V + (linear + power (2 - K)) U + power (K - 1) A U with U = A V: not A A
        values = ops.convert_to_tensor(values)
        identity = at_least_float32(coefficients["identity_coefficient"])
        linear = at_least_float32(coefficients["linear_coefficient"])
        power = at_least_float32(coefficients["power_coefficient"])
        if self.order > 1 and hasattr(apply, "twice"):
            once, second = apply.twice(values)
        else:
            once = apply(values)
            second = apply(once) if self.order > 1 else None
        # `once` and `second` have the same memory layout, `values` often another: add these two
        # first
        result = (linear + power * float(2 - self.order)) * at_least_float32(once)
        if second is not None:
            result += (power * float(self.order - 1)) * at_least_float32(second)
        result += identity * at_least_float32(values)
        return ops.cast(result, values.dtype)
