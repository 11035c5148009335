"""What Toeplitz masks share: learned logarithms of factors, and the choice between two costs."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_graphattn.masks.mask import DENSE_LIMIT, Mask

# Length from which the FFT is faster than rows in blocks, over m D / (m + D + 32). Measured on a
# CPU with two cores, forward and backward, m = D = 32, by
# `KERAS_BACKEND=tensorflow python benchmarks/toeplitz_masks.py --lengths 256 1024 2048 4096 8192`;
# torch with `--compile eager`.
CROSSOVER = {"tensorflow": 190.0, "torch": 450.0, "jax": 1000.0}


class FourierMask(Mask):
    """Base of masks whose table of factors is convolved with the tokens, path "fft"."""

    paths: tuple[str, ...] = ("dense", "blockwise", "fft")
    dense_limit: ClassVar[int] = DENSE_LIMIT

    @property
    def _fourier_cost(self) -> float:
        """Cost of the FFT path relative to that of one sequence by one transform."""
        return 1.0

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        if not isinstance(length, int):  # JAX cannot cut an open length into blocks
            return "dense" if keras.backend.backend() == "jax" else "blockwise"
        features, width = features or 1, width or 1
        crossover = CROSSOVER.get(keras.backend.backend(), 1000.0) * self._fourier_cost
        if length >= crossover * features * width / (features + width + 32):
            return "fft"
        return "dense" if length <= self.dense_limit else "blockwise"

    def _add_logarithms(self, name: str, start: np.ndarray) -> Any:
        return self.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
            autocast=False,
        )
