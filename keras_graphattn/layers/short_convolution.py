"""A short causal convolution over the tokens of one segment, for each channel by itself."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.numerics.blocks import first_of
from keras_graphattn.numerics.precision import (
    at_least_float32,
    order_of,
    positions_of,
    size_tensor,
    take,
    without_padding,
)
from keras_graphattn.types import Bool, Float, Int, Tensor


class Neighbours(NamedTuple):
    """Which tokens follow one another: those of one segment that are not padding.

    Attributes:
        runs: The number of each token's segment; 0 is that of the tokens before the first.
            `None` without segments.
        order: The tokens that are not padding, then padding. `None` without padding.
        places: The place of each token in this order.
        number: The number of tokens that are not padding.
    """

    runs: Int[Tensor, "B T"] | None = None
    order: Int[Tensor, "B T"] | None = None
    places: Int[Tensor, "B T"] | None = None
    number: Int[Tensor, " B"] | None = None

    @classmethod
    def of(
        cls, visible: Bool[Tensor, "B T"] | None, runs: Int[Tensor, "B T"] | None
    ) -> "Neighbours":
        if visible is None:
            return cls(runs)
        visible = ops.cast(visible, "int32")
        length = ops.shape(visible)[1]
        behind = (1 - visible) * ops.cast(size_tensor(length, "float32"), "int32")
        order = order_of(positions_of(length)[None] + behind, axis=1)
        places = ops.cumsum(visible, axis=1)
        return cls(
            runs, ops.cast(order, "int32"), ops.maximum(places - 1, 0), ops.sum(visible, axis=1)
        )


class ShortConvolution(keras.layers.Layer):  # type: ignore[misc]
    """y_t = silu(sum_i w_(size - 1 - i) x_(t - i)), over a token and `size - 1` tokens before it.

    Padding is passed over: the tokens on both sides of it are neighbours.

    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, Section 3.4.
    """

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        bound = self.size**-0.5
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.size, *input_shape[2:]),
            initializer=keras.initializers.RandomUniform(-bound, bound),
            autocast=False,
        )

    def convolved(
        self,
        x: Float[Tensor, "B T N H"],
        neighbours: Neighbours,
        before: Float[Tensor, "B _ N H"] | None = None,
    ) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B _ N H"]]:
        """The outputs in at least float32, and the last inputs, which are `before` of a next call.

        `before` has the `size - 1` inputs before the first token, 0 by default.
        """
        runs, order, places, _ = neighbours
        x, past = at_least_float32(x), self.size - 1
        batch, length, heads, width = ops.shape(x)
        kernel = ops.cast(self.kernel, x.dtype)
        if order is not None:
            x = _taken(x, order)
            runs = None if runs is None else _taken(runs, order)
        if before is None:
            before = ops.zeros((batch, past, heads, width), x.dtype)
        joined = ops.concatenate([ops.cast(before, x.dtype), x], axis=1)
        segments = None
        if runs is not None:
            segments = ops.concatenate([ops.zeros((batch, past), runs.dtype), runs], axis=1)
        outputs = kernel[past] * x
        for step in range(past):
            part = first_of(joined[:, step:], length, axis=1)
            if segments is not None:
                same = ops.equal(first_of(segments[:, step:], length, axis=1), runs)
                part = without_padding(part, same)
            outputs = outputs + kernel[step] * part
        if order is not None:
            outputs = _taken(outputs, places)
        return ops.silu(outputs), self._last(joined, segments, neighbours)

    def _last(
        self,
        joined: Float[Tensor, "B L N H"],
        segments: Int[Tensor, "B L"] | None,
        neighbours: Neighbours,
    ) -> Float[Tensor, "B _ N H"]:
        """The last `size - 1` inputs that are not padding, with 0 for those of other segments."""
        if segments is not None and neighbours.runs is not None and neighbours.runs.shape[1] != 0:
            joined = without_padding(joined, ops.equal(segments, neighbours.runs[:, -1:]))
        past = self.size - 1
        if neighbours.number is None:
            return joined[:, ops.shape(joined)[1] - past :]
        steps = positions_of(past)
        return _taken(joined, neighbours.number[:, None] + steps)


def _taken(x: Tensor, indices: Int[Tensor, "B t"]) -> Tensor:
    """The tokens (B, t, ...) of `x`, (B, T, ...), with these indices within each example."""
    batch, length, *others = ops.shape(x)
    first = positions_of(batch)[:, None] * length
    return take(ops.reshape(x, (batch * length, *others)), first + indices, axis=0)
