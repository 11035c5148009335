"""A learned mix of attention and its complement."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.filters.filter import STARTS, Apply, NamedFilter
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Inverted(NamedFilter):
    """A mix of attention A, a low-pass filter, and its high-pass complement I - A.

        H = w_low A + w_high (I - A)

    It starts as plain attention: w_low = 1, w_high = 0. It applies A once. The paper computes the
    two weights from the tokens. Here they are learned, one of each per head.

    Args:
        order: Must be 1, the degree of this filter.
        trainable_coefficients: `True`, `False`, or a list of names from `"low_pass"` and
            `"high_pass"`.
        initial_coefficients: A dictionary from these names to start values, each a number or a
            list with one number for each head.
        start: `"plain"`, `"high_pass"` or `"high_boost"`, as for `Filter`.

    Weights:
        `low_pass_coefficient` and `high_pass_coefficient`, each (num_heads,).

    Example:

    >>> filter = Inverted()
    >>> one, half = np.ones((1, 1, 1, 1), "float32"), np.full((1, 1), 0.5, "float32")
    >>> weights = {"low_pass_coefficient": half, "high_pass_coefficient": 2.0 * half}
    >>> float(filter(lambda x: 0.25 * x, one, weights)[0, 0, 0, 0])  # 0.5 * 0.25 + 0.75
    0.875

    Source: Chen et al., "Frequency-Dynamic Attention Modulation for Dense Prediction",
    arXiv 2507.12006 (attention inversion).
    """

    starts: ClassVar[Sequence[str]] = ("plain", "high_pass", "high_boost")

    def __init__(self, order: int = 1, **kwargs: Any) -> None:
        super().__init__(order, **kwargs)
        if order != 1:
            raise ValueError(
                f"Inverted is a filter of order 1. Received: order={order}. Leave `order` out."
            )

    def named_start(self) -> dict[str, float]:
        constant, linear, _ = STARTS[self.start]  # c_0 I + c_1 A = (c_0 + c_1) A + c_0 (I - A)
        return {"low_pass": constant + linear, "high_pass": constant}

    def __call__(
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        values = ops.convert_to_tensor(values)
        low = at_least_float32(apply(values))  # A V
        high = at_least_float32(values) - low  # (I - A) V
        low_pass, high_pass = (
            at_least_float32(coefficients[f"{name}_coefficient"])
            for name in ("low_pass", "high_pass")
        )
        return ops.cast(low_pass * low + high_pass * high, values.dtype)
