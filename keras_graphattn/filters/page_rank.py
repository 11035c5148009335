"""Personalised PageRank over the attention graph."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import number
from keras_graphattn.filters.filter import Apply, NamedFilter
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class PageRank(NamedFilter):
    """A mix of attention and of random walks on it that restart with probability c.

        H = (1 - m) A + m R_K,    R_0 = I,  R_k = (1 - c) A R_{k-1} + c I

    R_K approaches the personalised PageRank matrix R = c (I - (1 - c) A)^-1, in which a token
    attends to what it can reach in any number of steps. The filter applies A K times. Each row of
    H sums to 1 if each row of A does.

    The mix m starts at 0, so the filter starts as plain attention. The entries of (R_K - R) x are
    at most 2 (1 - c)^K max|x|: 0.54 max|x| for K = 8 and c = 0.15, and 0.008 for c = 0.5.

    Args:
        order: Number of applications K, an integer of at least 1; 8 by default.
        restart: Start value of the probability c, between 0 and 1 (not included).
        trainable_coefficients: `True`, `False`, or a list of names from `"mix"` and `"restart"`.
        initial_coefficients: A dictionary from `"mix"` and `"restart"` to start values, each a
            number or a list with one number for each head. The value for `"restart"` is the logit
            log(c / (1 - c)).
        start: `"plain"`.

    Weights:
        `mix_coefficient` (m) and `restart_coefficient` (the logit of c), each (num_heads,).

    Example:

    >>> PageRank(restart=0.5).named_start()
    {'mix': 0.0, 'restart': 0.0}

    Source: Gasteiger et al., "Predict then Propagate: Graph Neural Networks meet Personalized
    PageRank", arXiv 1810.05997, Eq. 3-4 (the iteration). Ours: over attention, with the mix.
    """

    starts: ClassVar[Sequence[str]] = ("plain",)

    def __init__(self, order: int = 8, restart: float = 0.15, **kwargs: Any) -> None:
        self.restart = number(above=0.0, below=1.0)("restart", restart, {})
        super().__init__(order, **kwargs)

    def named_start(self) -> dict[str, float]:
        return {"mix": 0.0, "restart": float(np.log(self.restart) - np.log1p(-self.restart))}

    def __call__(
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        values = ops.convert_to_tensor(values)
        mix = at_least_float32(coefficients["mix_coefficient"])
        logit = at_least_float32(coefficients["restart_coefficient"])
        restart, onwards = ops.sigmoid(logit), ops.sigmoid(-logit)  # c and 1 - c, both accurate
        once = at_least_float32(apply(values))  # A V
        fresh = restart * at_least_float32(values)
        reached = onwards * once + fresh  # R_1 values
        for _ in range(1, self.order):
            stepped = at_least_float32(apply(ops.cast(reached, values.dtype)))
            reached = onwards * stepped + fresh
        return ops.cast(once + mix * (reached - once), values.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "restart": self.restart}
