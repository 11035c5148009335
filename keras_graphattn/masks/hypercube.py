"""The hypercube mask: two tokens are near if their positions differ in few bits."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.masks.mask import Tensors
from keras_graphattn.masks.topology import TopologyMask, finite, in_float32, whole_number
from keras_graphattn.ops.toeplitz.hypercube import (
    hypercube_dimension,
    hypercube_product,
    hypercube_rows,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Hypercube(TopologyMask):
    """M = exp(-t L) on the hypercube of 2^d tokens, proportional to tanh(t)^Hamming(i, j).

    The product takes d butterfly steps: O(n log n) for n = 2^d tokens.

    Args:
        initial_time: Start value of t, a positive number or one per head.
        dimension: d. If given, every bit of the position has its own learned time. By default all
            bits share one time per head, at any length that is a power of 2.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Weights:
        `log_time` of shape (num_heads,), or (dimension, num_heads), lowest bit first.

    Raises:
        ValueError: For invalid times or dimensions, and for lengths that are not a power of 2.

    Example:

    >>> mask = Hypercube()
    >>> mask.build((None, None, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense(2))[0, 0].astype(float).round(4).tolist()
    [[0.5677, 0.4323], [0.4323, 0.5677]]

    Source: Choromanski et al., arXiv 2107.07999, Section 4.1.
    """

    paths = ("dense", "blockwise", "butterfly")

    def __init__(
        self, initial_time: Any = 1.0, dimension: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.initial_time = finite("initial_time", initial_time, positive=True)
        self.dimension = dimension
        if dimension is not None:
            self.dimension = whole_number("dimension", dimension, 0)
            if self.dimension > 30:
                raise ValueError(f"`dimension` must be at most 30. Received: {dimension}")
            self.num_nodes = 2**self.dimension

    @property
    def hides_keys(self) -> bool:
        return False

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        others = () if self.dimension is None else (self.dimension,)
        start = self._of_heads("initial_time", self.initial_time, *others)
        self.log_time = self._add_parameter("log_time", np.log(start))

    def parameters(self) -> Tensors:
        # (N,), or (d, N) with a time per bit
        return {"time": ops.exp(in_float32({"time": self.log_time})["time"])}

    def _check_length(self, length: int) -> None:
        if self.num_nodes not in (None, length):
            raise ValueError(
                f"This Hypercube has {self.num_nodes} nodes, one for each token. Received: "
                f"length={length}, dimension={self.dimension}. Use another `dimension`, or leave "
                "it out to use any length that is a power of 2."
            )
        hypercube_dimension(length)

    def _signal(self, x: Tensor, path: str, parameters: Tensors, inputs: Tensors) -> Tensor:
        if not isinstance(x.shape[1], int):
            x = ops.reshape(x, (-1, self._fixed(None), *x.shape[2:]))
        return hypercube_product(x, parameters["time"])

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        rows = hypercube_rows(positions, self._fixed(length), parameters["time"])  # (N, R, T)
        return rows[None]

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        return self._rows(ops.arange(length, dtype="int32"), length, parameters, inputs)

    def _fixed(self, length: Any) -> int:
        """The number of nodes, also if the length of the signal is only known at run time."""
        if isinstance(length, int):
            return length
        if self.num_nodes is None:
            raise ValueError(
                "A Hypercube without a `dimension` needs a fixed length. Received: a signal of "
                "unknown length. Fix the length, or give `dimension`."
            )
        return self.num_nodes

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "initial_time": self.initial_time,
            "dimension": self.dimension,
        }
