"""Sums of exponentials of the distance: relative positions in linear time."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import flag, whole
from keras_graphattn.masks.chunked import ChunkedMask, Form
from keras_graphattn.masks.mask import Tensors
from keras_graphattn.masks.topology import finite
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.ops.kernel.decays import Decay

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Exponential(ChunkedMask):
    """M[i, j] = sum_r c_r exp(-a_r |i - j|), with rates and weights learned per head.

    The product is linear in the length for all rates. A causal mask decodes token by token with a
    state of fixed size. Rates and weights stay positive, because their logarithms are learned.

    Args:
        num_decays: Number R of exponentials, at least 1.
        causal: Whether M[i, j] = 0 for j > i.
        initial_rates: Start values of the a_r: a positive number, or numbers that broadcast to
            (num_heads, num_decays). By default 2^(-8 k / (N R)) for k = 1 ... N R, where k counts
            the rates of the first head, then of the second, and so on. With one decay these are
            ALiBi's slopes.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        `log_rates` and, with several decays, `log_weights`, of shape (num_heads, num_decays). The
        weights start at 1 / R. With one decay there is no weight: the normaliser would cancel it.

    Raises:
        ValueError: For an invalid number of decays or invalid rates.

    Example:

    >>> mask = Exponential(initial_rates=np.log(2.0), causal=True)
    >>> mask.build((None, None, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]

    Source: ours. The slopes come from Press et al., "Train Short, Test Long", arXiv 2108.12409.
    Their bias -a |i - j| on logits is this factor on kernels.
    """

    def __init__(
        self,
        num_decays: int = 1,
        causal: bool = False,
        initial_rates: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_decays = whole()("num_decays", num_decays, {})
        causal = flag("causal", causal)
        if initial_rates is not None:
            initial_rates = finite("initial_rates", initial_rates, positive=True)
        self._num_decays, self.causal, self.initial_rates = num_decays, causal, initial_rates

    @property
    def num_decays(self) -> int:
        return self._num_decays

    @property
    def is_causal(self) -> bool:
        return self.causal

    @property
    def hides_keys(self) -> bool:
        return self.is_causal

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        shape = (self.num_heads, self.num_decays)
        if self.initial_rates is None:
            count = self.num_heads * self.num_decays
            rates = 2.0 ** (-8.0 * np.arange(1, count + 1) / count).reshape(shape)
        else:
            try:
                rates = np.broadcast_to(np.asarray(self.initial_rates), shape)
            except ValueError:
                raise ValueError(
                    f"`initial_rates` must broadcast to (num_heads, num_decays) = {shape}. "
                    f"Received: initial_rates={self.initial_rates!r}"
                ) from None
        self.log_rates = self._add_logarithms("log_rates", np.log(rates))
        if self.num_decays > 1:
            weights = np.full(shape, -math.log(self.num_decays))
            self.log_weights = self._add_logarithms("log_weights", weights)

    def _add_logarithms(self, name: str, start: np.ndarray) -> Any:
        return self.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
            autocast=False,
        )

    def parameters(self) -> Tensors:
        names = ["log_rates", "log_weights"] if self.num_decays > 1 else ["log_rates"]
        return {name: at_least_float32(getattr(self, name)) for name in names}  # (N, R) each

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        weights = ops.exp(parameters["log_weights"]) if self.num_decays > 1 else None
        return Form(self.causal, Decay(ops.exp(parameters["log_rates"]), weights))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_decays": self.num_decays,
            "causal": self.causal,
            "initial_rates": self.initial_rates,
        }
