"""Attention over any axes of an input, brought to the one form that operators work on."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.types import Float, Num, Tensor


class AttentionAxes(NamedTuple):
    """The axes of one layer's input (B, ..., d).

    The attention axes move together into one axis T, and all others into one batch axis. So
    operators see (B, T, N, H) only.

    Attributes:
        axes: The attention axes, non-negative, in the layer's order.
        sizes: The shape of the input without features, (B, ...), as `keras.ops.shape` gives it, or
            with `None` for open sizes, if shapes are only checked.
    """

    axes: tuple[int, ...]
    sizes: tuple[Any, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that attention does not mix, the batch first."""
        return tuple(axis for axis in range(len(self.sizes)) if axis not in self.axes)

    @property
    def is_last(self) -> bool:
        """Whether attention is over the last axis before the features only."""
        return self.axes == (len(self.sizes) - 1,)

    def _sizes_of(self, axes: tuple[int, ...]) -> list[Any]:
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
        """
        groups = self.groups_of_entries(name, mask.shape)
        full = [size for sizes in groups for size in sizes]
        while len(mask.shape) < len(full):
            mask = ops.expand_dims(mask, -2 * len(self.axes) - 1)
        joined = [math.prod(sizes) for sizes in groups]
        return ops.reshape(ops.broadcast_to(mask, full), joined)  # (B, N, T, S)

    def groups_of_entries(self, name: str, shape: Sequence[int | None]) -> list[list[Any]]:
        """The sizes that `joined_entries` joins into B, N, T and S, for a mask of this shape.

        All sizes of a group are 1 if all those of the mask are: such a group broadcasts.

        Raises:
            ValueError: If the mask has too few or too many dimensions, or other sizes.
        """
        count, most = len(self.axes), len(self.sizes) + 1 + len(self.axes)
        if not 2 * count <= len(shape) <= most:
            raise ValueError(
                f"`{name}` must have shape (T, S), (B, T, S) or (B, N, T, S), that is "
                f"{2 * count} to {most} dimensions here. Received: {name}.shape={tuple(shape)}"
            )
        place = len(shape) - 2 * count
        filled = [*shape[:place], *[1] * (most - len(shape)), *shape[place:]]
        lengths, heads = self._sizes_of(self.axes), filled[len(self.others)]
        groups: list[list[Any]] = []
        rest = iter(filled)
        for sizes in (self._sizes_of(self.others), [heads], lengths, lengths):
            own = [next(rest) for _ in sizes]
            groups.append(own if all(size == 1 for size in own) else sizes)
        full = [size for sizes in groups for size in sizes]
        pairs = zip(filled, full, strict=True)
        if any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs):
            raise ValueError(
                f"`{name}` must broadcast to the shape (B, ..., N, T, ..., S, ...), {tuple(full)} "
                f"here. Received: {name}.shape={tuple(shape)}"
            )
        return groups

    def joined_tokens(self, mask: Num[Tensor, "..."] | None) -> Num[Tensor, "B T"] | None:
        """A mask of tokens (B, ..., T) as (B, T), for attention over the last axis."""
        if mask is None:
            return None
        return ops.reshape(ops.broadcast_to(mask, self.sizes), (-1, self.sizes[-1]))
