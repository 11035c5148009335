"""The resolvent of the attention graph: paths of any length, with alternating or equal signs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
from keras import ops

from keras_graphattn.checks import number
from keras_graphattn.filters.filter import Apply, NamedFilter
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Resolvent(NamedFilter):
    """Attention with feedback: what a token receives is subtracted from what it sends.

        H = A (I + b A)^-1 = A - b A^2 + b^2 A^3 - ...,    b = bound * tanh(w)

    An eigenvalue s of A becomes s / (1 + b s). With b > 0, the filter weakens what all tokens have
    in common the most. With b < 0, a token also receives what the tokens that it attends to have
    received, over any number of steps. If each row of A sums to 1, each row of H sums to 1 / (1 +
    b). The weight w starts at 0, so the filter starts as plain attention.

    The filter applies A K times: H_K is the series up to A^K. The entries of (H_K - H) x are at
    most |b|^K / (1 - |b|) max|x|: 0.008 max|x| for K = 8 and |b| = 0.5.

    Args:
        order: Number of applications K, an integer of at least 1; 8 by default.
        bound: Largest |b|, above 0 and below 1.
        trainable_coefficients: `True`, `False`, or the list `["feedback"]`.
        initial_coefficients: A dictionary from `"feedback"` to the start value of w, a number or a
            list with one number for each head.
        start: `"plain"`.

    Weights:
        `feedback_coefficient` (w), of shape (num_heads,).

    Example:

    >>> filter = Resolvent(order=20)
    >>> one, large = np.ones((1, 1, 1, 1), "float32"), np.full((1, 1), 20.0, "float32")
    >>> filtered = filter(lambda x: 0.5 * x, one, {"feedback_coefficient": large})
    >>> round(float(filtered[0, 0, 0, 0]), 4)  # 0.5 / (1 + 0.5 * 0.5)
    0.4

    Source: Fagnou et al., "Chain and Causal Attention for Efficient Entity Tracking",
    arXiv 2410.05565 (EMNLP 2024): causal attention (1 - g) A (I - g A)^-1 with a fixed g. Ours:
    learned b of both signs and the series.
    """

    starts: ClassVar[Sequence[str]] = ("plain",)

    def __init__(self, order: int = 8, bound: float = 0.5, **kwargs: Any) -> None:
        self.bound = number(above=0.0, below=1.0)("bound", bound, {})
        super().__init__(order, **kwargs)

    def named_start(self) -> dict[str, float]:
        return {"feedback": 0.0}

    def __call__(
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        values = ops.convert_to_tensor(values)
        feedback = self.bound * ops.tanh(at_least_float32(coefficients["feedback_coefficient"]))
        result = apply(values)
        for _ in range(1, self.order):
            signal = at_least_float32(values) - feedback * at_least_float32(result)
            result = apply(ops.cast(signal, values.dtype))
        return result

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bound": self.bound}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        config = dict(config)
        if config.pop("causal", False):  # of files of older versions
            raise ValueError(
                "`Resolvent` has no exact causal form anymore: it is the series up to A^K. "
                "Received: a configuration with causal=True. Use the version of the package that "
                "saved it, or Resolvent(order, bound)."
            )
        return cls(**config)
