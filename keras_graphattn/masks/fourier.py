"""The base of Toeplitz masks: learned logarithms of factors, and the choice of the faster path."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_graphattn.masks.mask import DENSE_LIMIT, Mask

# The length from which the FFT is faster than rows in blocks, divided by m D / (m + D + 32). It is
# for a CPU with two cores, forward and backward, m = D = 32. With `KERAS_BACKEND=<backend> python
# benchmarks/toeplitz_masks.py --lengths 2048 4096 8192 16384 --heads 1` the FFT becomes faster
# between 2048 and 4096 tokens on tensorflow, 4096 and 8192 on torch, 8192 and 16384 on jax.
CROSSOVER = {"tensorflow": 220.0, "torch": 600.0, "jax": 1170.0}
# For products in tiles (`--causal`): between 8192 and 16384 tokens on tensorflow and jax. On torch
# it is above 16384, the longest length measured; the number extrapolates the ratio of the times.
CROSSOVER_IN_TILES = {"tensorflow": 1000.0, "torch": 1800.0, "jax": 1360.0}


class FourierMask(Mask):
    """Base of masks whose path "fft" convolves a table of factors with the tokens."""

    paths: tuple[str, ...] = ("dense", "blockwise", "fft")
    dense_limit: ClassVar[int] = DENSE_LIMIT

    @property
    def hides_keys(self) -> bool:
        return self.is_causal

    @property
    def _in_tiles(self) -> bool:
        """Whether the product uses tiles, exact row by row, instead of one transform."""
        return False

    @property
    def _fourier_cost(self) -> float:
        """Cost of the transform relative to the cost of the rows; 1 for a sequence."""
        return 1.0

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return self._faster_path(length, features, width, self._in_tiles)

    def choose_causal_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        return self._faster_path(length, features, width, in_tiles=True)

    def _faster_path(
        self, length: int | None, features: int | None, width: int | None, in_tiles: bool
    ) -> str:
        if not isinstance(length, int):  # JAX cannot cut an unknown length into blocks
            return "dense" if keras.backend.backend() == "jax" else "blockwise"
        features, width = features or 1, width or 1
        measured = CROSSOVER_IN_TILES if in_tiles else CROSSOVER
        crossover = measured.get(keras.backend.backend(), 1170.0) * self._fourier_cost
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
