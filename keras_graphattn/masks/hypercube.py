"""The hypercube mask: two tokens are near if their positions differ in few bits.

exp(-t L) is a Kronecker power of the 2 x 2 matrix [[c, s], [s, c]] with c = (1 + e^-2t) / 2 and
s = (1 - e^-2t) / 2. So M[i, j] = c^d tanh(t)^Hamming(i, j) for n = 2^d tokens. The product is
computed one bit at a time, in d butterfly steps: O(n log n).
"""

from typing import Unpack

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import checked, optional, tensor, whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import (
    MaskOptions,
    Positions,
    Rows,
    Shape,
    Signal,
    TopologyMask,
    finite,
)
from keras_graphattn.numerics.precision import positions_of, tanh
from keras_graphattn.types import Float, Tensor

Time = Float[Tensor, "..."]  # (N,), or (d, N) with a time for each bit, lowest bit first


@checked(x=tensor("B T N D"), time=tensor("N", "d N"))
def hypercube_product(x: Signal, time: Time) -> Signal:
    """Returns exp(-t L) x on the hypercube, with gradients for x and t.

    Args:
        x: float32 tensor of shape (B, T, N, D), where T is a power of 2.
        time: Tensor of shape (N,): t of each head. Or of shape (d, N): a time per bit, lowest bit
            first.

    Returns:
        A tensor of the shape of `x`.

    Example:

    >>> x = np.array([1.0, 0.0], "float32").reshape((1, 2, 1, 1))
    >>> y = hypercube_product(x, np.ones(1, "float32"))
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()
    [0.5677, 0.4323]

    Source: Choromanski et al., arXiv 2107.07999, Section 4.1.
    """
    return _butterflies(x, time, _dimension(x.shape[1]))


def _butterflies(x: Signal, time: Time, dimension: int) -> Signal:
    """exp(-t L) x, bit by bit."""
    time = ops.cast(time, x.dtype)
    shape = ops.shape(x)
    for bit in range(dimension):
        stay, move = (factor[:, None] for factor in _factors(time, bit))
        # Axis 2 is the value of the bit: (B, T / 2^(bit + 1), 2, 2^bit, N, D).
        pairs = ops.reshape(x, (shape[0], -1, 2, 2**bit, *shape[2:]))
        zero, one = pairs[:, :, 0], pairs[:, :, 1]
        pairs = ops.stack([stay * zero + move * one, move * zero + stay * one], axis=2)
        x = ops.reshape(pairs, shape)
    return x


def _dimension(length: int) -> int:
    """d for n = 2^d tokens; a `ValueError` for other lengths."""
    if length < 1 or length & (length - 1):
        raise ValueError(
            "A hypercube has 2^d nodes, one for each token of `x`. Received: length="
            f"{length}. Pad the sequence to a power of 2."
        )
    return length.bit_length() - 1


def _factors(time: Time, bit: int) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """c = (1 + e^-2t) / 2 and s = c tanh(t) = (1 - e^-2t) / 2 of a bit, exact for small t."""
    time = time if len(time.shape) == 1 else time[bit]
    stay = (1.0 + ops.exp(-2.0 * time)) / 2.0
    return stay, stay * tanh(time)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Hypercube(TopologyMask):
    """M = exp(-t L) on the hypercube of 2^d tokens, proportional to tanh(t)^Hamming(i, j).

    The product takes d butterfly steps: O(n log n) for n = 2^d tokens.

    Args:
        initial_time: Start value of t, a positive number or one per head.
        dimension: d. If given, every bit of the position has its own learned time. By default all
            bits share one time per head, at any length that is a power of 2.
        **kwargs: Those of every `Mask`.

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
    hides_keys = False
    _settings = ("initial_time", "dimension")

    def __init__(
        self,
        initial_time: ArrayLike = 1.0,
        dimension: int | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.initial_time = finite("initial_time", initial_time, positive=True)
        self.dimension: int | None = optional(whole(0, 31))("dimension", dimension, {})
        self.num_nodes = None if self.dimension is None else 2**self.dimension

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = () if self.dimension is None else (self.dimension, self.num_heads)
        start = self._of_heads("initial_time", self.initial_time, *shape)
        self.log_time = self._add_parameter("log_time", np.log(start))

    def parameters(self) -> Tensors:
        return {"time": ops.exp(self._weights("log_time")["log_time"])}

    def _check_length(self, length: int) -> None:
        if self.num_nodes not in (None, length):
            raise ValueError(
                f"This Hypercube has {self.num_nodes} nodes, one for each token. Received: "
                f"length={length}, dimension={self.dimension}. Use another `dimension`, or leave "
                "it out to use any length that is a power of 2."
            )
        _dimension(length)

    def _signal(self, x: Signal, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        nodes = self._fixed(x.shape[1])
        if not isinstance(x.shape[1], int):
            x = ops.reshape(x, (-1, nodes, *x.shape[2:]))
        return _butterflies(x, parameters["time"], _dimension(nodes))

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        """The rows from the bits in which two positions differ."""
        length, time = self._fixed(length), parameters["time"]
        positions, columns = ops.cast(positions, "int32"), positions_of(length)
        rows = ops.ones((1, time.shape[-1], ops.shape(positions)[0], length), time.dtype)
        for bit in range(_dimension(length)):
            stay, move = (factor[:, None, None] for factor in _factors(time, bit))
            same = ops.equal(positions[:, None] // 2**bit % 2, columns // 2**bit % 2)
            rows = rows * ops.where(same[None], stay, move)
        return rows

    def _fixed(self, length: Length | None) -> int:
        """The number of nodes, also if the length of the signal is only known at run time."""
        if isinstance(length, int):
            return length
        if self.num_nodes is None:
            raise ValueError(
                "A Hypercube without a `dimension` needs a fixed length. Received: a signal of "
                "unknown length. Fix the length, or give `dimension`."
            )
        return self.num_nodes
