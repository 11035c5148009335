"""Attention over any axes of an input, brought to the one form that operators work on."""

import math
from typing import NamedTuple

from keras import ops

from keras_graphattn.types import Float, Num, Tensor


class AttentionAxes(NamedTuple):
    """The axes of one layer's input (B, ..., d).

    The attention axes move together into one axis T, and all others into one batch axis. So
    operators see (B, T, N, H) only.

    Attributes:
        axes: The attention axes, non-negative, in the layer's order.
        sizes: The shape of the input without features, (B, ...), as `keras.ops.shape` gives it.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that attention does not mix, the batch first."""
        return tuple(axis for axis in range(len(self.sizes)) if axis not in self.axes)

    @property
    def is_last(self) -> bool:
        """Whether attention is over the last axis before the features only."""
        return self.axes == (len(self.sizes) - 1,)

    def _sizes_of(self, axes: tuple[int, ...]) -> list[int]:
        return [self.sizes[axis] for axis in axes]

    def joined(self, x: Float[Tensor, "..."]) -> Float[Tensor, "B T N H"]:
        """A projected input (B, ..., N, H) as (B, T, N, H)."""
        rank = len(self.sizes)
        x = ops.transpose(x, (*self.others, *self.axes, rank, rank + 1))  # T axes next to N
        batch, length = (math.prod(self._sizes_of(axes)) for axes in (self.others, self.axes))
        return ops.reshape(x, (batch, length, *x.shape[-2:]))

    def apart(self, outputs: Float[Tensor, "B T N H"]) -> Float[Tensor, "..."]:
        """Outputs (B, T, N, H) as (B, ..., N, H): the inverse of `joined`."""
        order = (*self.others, *self.axes)
        outputs = ops.reshape(outputs, (*self._sizes_of(order), *outputs.shape[-2:]))
        rank = len(self.sizes)
        back = [order.index(axis) for axis in range(rank)]
        return ops.transpose(outputs, (*back, rank, rank + 1))

    def matrix_apart(self, matrix: Float[Tensor, "B N T S"]) -> Float[Tensor, "..."]:
        """A matrix (B, N, T, S) as (B, ..., N, T, ..., S, ...), the layout of Keras."""
        lengths = self._sizes_of(self.axes)
        batch = self._sizes_of(self.others)
        return ops.reshape(matrix, (*batch, matrix.shape[1], *lengths, *lengths))

    def joined_entries(self, name: str, mask: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        """A mask of pairs, or numbers that are added to scores, that broadcasts to (B, N, T, S).

        Its last axes are those of query and key positions. Axes that it lacks are put where the
        heads are, as Keras does.

        Raises:
            ValueError: If the mask has too few or too many dimensions, or other sizes.
        """
        count, most = len(self.axes), len(self.sizes) + 1 + len(self.axes)
        if not 2 * count <= len(mask.shape) <= most:
            raise ValueError(
                f"`{name}` must have shape (T, S), (B, T, S) or (B, N, T, S), that is "
                f"{2 * count} to {most} dimensions here. Received: {name}.shape="
                f"{tuple(mask.shape)}"
            )
        given = tuple(mask.shape)
        while len(mask.shape) < most:  # up to (B, ..., N, T, ..., S, ...)
            mask = ops.expand_dims(mask, -2 * count - 1)
        lengths = self._sizes_of(self.axes)
        groups = [self._sizes_of(self.others), [mask.shape[len(self.others)]], lengths, lengths]
        # groups of size 1 stay 1 and broadcast; all others are filled and joined
        full: list[int] = []
        joined: list[int] = []
        for sizes in groups:
            start = len(full)
            is_one = all(size == 1 for size in mask.shape[start : start + len(sizes)])
            full += [1] * len(sizes) if is_one else sizes
            joined.append(1 if is_one else math.prod(sizes))
        pairs = zip(mask.shape, full, strict=True)
        if any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs):
            raise ValueError(
                f"`{name}` must broadcast to the shape (B, ..., N, T, ..., S, ...), {tuple(full)} "
                f"here. Received: {name}.shape={given}"
            )
        return ops.reshape(ops.broadcast_to(mask, full), joined)  # (B, N, T, S)

    def joined_tokens(self, mask: Num[Tensor, "..."] | None) -> Num[Tensor, "B T"] | None:
        """A mask of tokens (B, ..., T) as (B, T), for attention over the last axis."""
        if mask is None:
            return None
        return ops.reshape(ops.broadcast_to(mask, self.sizes), (-1, self.sizes[-1]))
