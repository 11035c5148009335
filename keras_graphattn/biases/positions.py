"""Biases of relative positions: ALiBi's slopes, and T5's buckets of distances."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.biases.bias import NEAR_ZERO, Bias
from keras_graphattn.checks import flag, whole
from keras_graphattn.masks.inputs import Length, Tensors
from keras_graphattn.masks.mask import Positions, Rows, Shape, finite
from keras_graphattn.masks.toeplitz import OfOffsets, Table
from keras_graphattn.numerics.precision import constant, positions_of, take
from keras_graphattn.types import Int, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Alibi(Bias):
    """b[i, j] = -a |i - j|, with a slope a for each head: attention with linear biases (ALiBi).

    Args:
        slopes: The slopes: a positive number, or one for each head. By default 2^(-8 k / N) for
            the heads k = 1 ... N, as published for N a power of 2.
        trainable_slopes: Whether the slopes are learned, as the paper's are not.
        **kwargs: Those of every `Bias`.

    Weights:
        `log_slopes` of shape (num_heads,).

    Raises:
        ValueError: For slopes that are not positive.

    Example:

    >>> bias = Alibi(slopes=0.5)
    >>> bias.build((None, None, 1, None))
    >>> keras.ops.convert_to_numpy(bias.dense(3))[0, 0].round(4).tolist()
    [[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]

    Source: Press et al., "Train Short, Test Long", arXiv 2108.12409 (ICLR 2022), Section 3. Ours:
    distances to later tokens, for attention that is not causal, and learned slopes.
    """

    _settings = ("slopes", "trainable_slopes")

    def __init__(
        self, slopes: ArrayLike | None = None, trainable_slopes: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.slopes = None if slopes is None else finite("slopes", slopes, positive=True)
        self.trainable_slopes = flag("trainable_slopes", trainable_slopes)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        slopes = self.slopes
        if slopes is None:
            slopes = 2.0 ** (-8.0 * np.arange(1, self.num_heads + 1) / self.num_heads)
        start = np.log(self._of_heads("slopes", slopes))
        self.log_slopes = self._add_parameter("log_slopes", start, self.trainable_slopes)

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        slopes = ops.exp(parameters["log_slopes"])[:, None, None]
        order = positions_of(length)
        distances = ops.abs(ops.cast(positions, "int32")[:, None] - order[None, :])  # (R, T)
        return (slopes * ops.cast(-distances, slopes.dtype))[None]


@keras.saving.register_keras_serializable(package="keras_graphattn")
class RelativePositions(OfOffsets, Bias):
    """b[i, j] is a learned number for the bucket of the distance j - i, for each head (T5).

    Half of the buckets of one side are for one distance each, the others for ranges that grow up to
    `max_distance`. All larger distances have the last bucket.

    Args:
        num_buckets: Number of buckets, for both sides together: at least 4, or 2 for one side.
        max_distance: The distance from which on all have the last bucket; more than the number of
            buckets that are for one distance each.
        bidirectional: Whether half of the buckets are for later tokens. If not, all later tokens
            have the bucket of the distance 0, as in T5's decoder, where they are not seen.
        **kwargs: Those of every `Bias`.

    Weights:
        `buckets` of shape (num_buckets, num_heads).

    Raises:
        ValueError: For sizes outside of these ranges.

    Example:

    >>> bias = RelativePositions(num_buckets=8, max_distance=20)
    >>> bias.build((None, None, 4, None))
    >>> tuple(bias.dense(10).shape)
    (1, 4, 10, 10)

    Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
    Transformer", arXiv 1910.10683 (JMLR 2020), Section 2.1, and its code.
    """

    _settings = ("num_buckets", "max_distance", "bidirectional")

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bidirectional = flag("bidirectional", bidirectional)
        self.num_buckets: int = whole(4 if bidirectional else 2)("num_buckets", num_buckets, {})
        of_a_side = self.num_buckets // (2 if bidirectional else 1)
        self.max_distance: int = whole(of_a_side // 2 + 1)("max_distance", max_distance, {})

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.num_buckets, self.num_heads)
        self.buckets = self._add_parameter("buckets", NEAR_ZERO.clone(), shape=shape)

    def bucket_of(self, ahead: int) -> int:
        """The bucket of a key that is `ahead` tokens after the query; negative before it."""
        side, first, distance = self.num_buckets, 0, max(-ahead, 0)
        if self.bidirectional:
            side = self.num_buckets // 2
            first, distance = (side if ahead > 0 else 0), abs(ahead)
        exact = side // 2
        if distance < exact:
            return first + distance
        share = math.log(distance / exact) / math.log(self.max_distance / exact)
        return first + min(exact + int(share * (side - exact)), side - 1)

    def _of_offsets(self, offsets: Int[Tensor, "..."], parameters: Tensors) -> Table:
        farthest = self.max_distance
        buckets = [self.bucket_of(-offset) for offset in range(-farthest, farthest + 1)]
        near = ops.clip(offsets, -farthest, farthest) + farthest
        places = take(constant(np.array(buckets, "int32")), near, axis=0)
        return take(ops.transpose(parameters["buckets"]), places, axis=1)
