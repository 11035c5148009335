"""Relative positions along a sequence: one learned factor per offset and head."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import flag, whole
from keras_graphattn.masks.fourier import FourierMask
from keras_graphattn.masks.mask import Tensors
from keras_graphattn.masks.topology import finite
from keras_graphattn.numerics.precision import at_least_float32, pad, take
from keras_graphattn.ops.toeplitz.fourier import toeplitz_product
from keras_graphattn.ops.toeplitz.rows import toeplitz_matrix, toeplitz_rows
from keras_graphattn.ops.toeplitz.tiles import tiled_toeplitz_product

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Toeplitz(FourierMask):
    """M[i, j] = exp(b[i - j]): relative positions, with a learned table b per head.

    The path "fft" uses one transform of the sequence, O(n log n). Its error is 1e-7 of the largest
    row. Causal masks and masks with initial slopes use a product in tiles instead, O(n^1.5). There
    a token never changes a row that must not see it, not even by rounding.

    Args:
        max_length: Longest sequence, which sets the size of the table.
        causal: Whether M[i, j] = 0 for j > i.
        initial_slopes: With `None`, b starts at 0 and every factor at 1. With a number, or one per
            head, b starts at minus the slope times the distance. `"alibi"` uses ALiBi's slopes.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        `log_factors`, of shape (num_heads, 2 max_length - 1) for the offsets from
        `-(max_length - 1)` to `max_length - 1`. If causal, of shape (num_heads, max_length) for
        the offsets from 0.

    Raises:
        ValueError: For arguments out of range and for sequences longer than `max_length`.

    Example:

    >>> mask = Toeplitz(max_length=8, initial_slopes=np.log(2.0))
    >>> mask.build((None, None, 1, 4))
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].round(3).tolist()
    [[1.0, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 1.0]]

    Source: Choromanski et al., arXiv 2107.07999, Section 3.2. The product in tiles is ours.
    """

    def __init__(
        self, max_length: int, causal: bool = False, initial_slopes: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        max_length = whole()("max_length", max_length, {})
        causal = flag("causal", causal)
        is_alibi = isinstance(initial_slopes, str) and initial_slopes == "alibi"
        if initial_slopes is not None and not is_alibi:
            slopes = np.asarray(finite("initial_slopes", initial_slopes))
            if slopes.ndim > 1 or np.any(slopes < 0.0):
                raise ValueError(
                    '`initial_slopes` must be None, "alibi", or a number or one per head, not '
                    f"negative. Received: initial_slopes={initial_slopes!r}"
                )
            initial_slopes = slopes.tolist()
        self.max_length, self.causal, self.initial_slopes = max_length, causal, initial_slopes

    @classmethod
    def alibi(cls, max_length: int, causal: bool = True, **kwargs: Any) -> "Toeplitz":
        """Returns a mask that starts with ALiBi's slopes, 2^(-8 k / N) for heads k = 1 ... N.

        Source: Press et al., "Train Short, Test Long", arXiv 2108.12409.
        """
        return cls(max_length, causal, initial_slopes="alibi", **kwargs)

    @property
    def is_causal(self) -> bool:
        return self.causal

    @property
    def _in_tiles(self) -> bool:
        return self.causal or self.initial_slopes is not None

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        slopes = np.zeros(()) if self.initial_slopes is None else self.initial_slopes
        if isinstance(slopes, str):
            slopes = 2.0 ** (-8.0 * np.arange(1, self.num_heads + 1) / self.num_heads)
        try:
            slopes = np.broadcast_to(np.asarray(slopes), (self.num_heads,))
        except ValueError:
            raise ValueError(
                f"`initial_slopes` must be a number or one for each of {self.num_heads} heads. "
                f"Received: initial_slopes={self.initial_slopes!r}"
            ) from None
        # one for each offset: (2 max_length - 1,), or (max_length,) if causal
        distances = np.abs(np.arange(0 if self.causal else 1 - self.max_length, self.max_length))
        self.log_factors = self._add_logarithms("log_factors", -slopes[:, None] * distances)

    def parameters(self) -> Tensors:
        factors = ops.exp(at_least_float32(self.log_factors))
        if self.causal:  # (N, max_length) -> (N, 2 max_length - 1)
            factors = pad(factors, ((0, 0), (self.max_length - 1, 0)))
        return {"table": factors}

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        if not isinstance(length, int):
            return super()._matrix(length, parameters, inputs)
        return toeplitz_matrix(self._table(length, parameters))[None]

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        order = ops.arange(length, dtype="int32")
        offsets = ops.cast(positions, "int32")[:, None] - order[None, :]  # (R, T)
        return take(parameters["table"], offsets + (self.max_length - 1), axis=1)[None]

    def _block_rows(
        self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        if not isinstance(length, int) or positions.shape[0] is None:
            return self._rows(positions, length, parameters, inputs)
        return toeplitz_rows(parameters["table"], positions[0], positions.shape[0], length)[None]

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        _check_fixed(x)
        table = self._table(x.shape[1], parameters)
        return (tiled_toeplitz_product if self._in_tiles else toeplitz_product)(table, x)

    def _causal_signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        _check_fixed(x)
        past = self._table(x.shape[1], parameters)[:, x.shape[1] - 1 :]  # (N, T)
        return tiled_toeplitz_product(pad(past, ((0, 0), (x.shape[1] - 1, 0))), x)

    def _table(self, length: int, parameters: Tensors) -> Tensor:
        """The middle of the table, (N, 2 length - 1): all offsets of `length` tokens."""
        beyond = self.max_length - length
        return parameters["table"][:, beyond : beyond + 2 * length - 1]

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"This Toeplitz mask has factors for at most {self.max_length} tokens. Received: "
                f"a sequence of length {length}. Use a larger `max_length`."
            )

    def _known_length(self, inputs: Tensors) -> Any:
        return self.max_length

    def get_config(self) -> dict[str, Any]:
        names = ("max_length", "causal", "initial_slopes")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check_fixed(x: Tensor) -> None:
    if not isinstance(x.shape[1], int):
        raise ValueError(
            'The path "fft" of a Toeplitz mask needs a fixed length. Received: a signal of shape '
            f'{tuple(x.shape)}. Fix the length, or use path="blockwise" or "dense".'
        )
