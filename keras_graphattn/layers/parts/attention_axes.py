"""Attention over any axes of an input, brought to the one form that `ops` works on.

A layer may attend over several axes of an input (B, ..., d). `AttentionAxes` moves the attention
axes together into one axis T, and all others into one batch axis. So `ops` sees (B, T, N, H)
only. Inputs (B, T, d) with attention over T have this form already and pass through unchanged.
"""

import math
from typing import Any, NamedTuple

from keras import ops

Tensor = Any


class AttentionAxes(NamedTuple):
    """The axes of one layer's input.

    Attributes:
        axes: The attention axes, non-negative, in the layer's order.
        sizes: The shape of the input without features, (B, ...), as `keras.ops.shape` gives it.
    """

    axes: tuple[int, ...]
    sizes: tuple[Any, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that attention does not mix, the batch first."""
        return tuple(axis for axis in range(len(self.sizes)) if axis not in self.axes)

    @property
    def is_plain(self) -> bool:
        """Whether the input has the shape (B, T, d), with attention over T."""
        return len(self.sizes) == 2 and self.axes == (1,)

    @property
    def scores_rank(self) -> int:
        """The number of dimensions of attention scores (B, ..., N, T, S)."""
        return len(self.sizes) + 1 + len(self.axes)

    def _sizes_of(self, axes: tuple[int, ...]) -> list[Any]:
        return [self.sizes[axis] for axis in axes]

    def joined(self, x: Tensor) -> Tensor:
        """A projected input (B, ..., N, H) as (B, T, N, H)."""
        if self.is_plain:
            return x
        rank = len(self.sizes)
        x = ops.transpose(x, (*self.others, *self.axes, rank, rank + 1))  # T axes next to N
        batch, length = (math.prod(self._sizes_of(axes)) for axes in (self.others, self.axes))
        return ops.reshape(x, (batch, length, *x.shape[-2:]))

    def apart(self, outputs: Tensor) -> Tensor:
        """Outputs (B, T, N, H) as (B, ..., N, H): the inverse of `joined`."""
        if self.is_plain:
            return outputs
        order = (*self.others, *self.axes)
        outputs = ops.reshape(outputs, (*self._sizes_of(order), *outputs.shape[-2:]))
        rank = len(self.sizes)
        back = [order.index(axis) for axis in range(rank)]
        return ops.transpose(outputs, (*back, rank, rank + 1))

    def scores_apart(self, scores: Tensor | None) -> Tensor | None:
        """Attention scores (B, N, T, S) as (B, ..., N, T, ..., S, ...), the layout of Keras."""
        if scores is None or self.is_plain:
            return scores
        lengths = self._sizes_of(self.axes)
        batch = self._sizes_of(self.others)
        return ops.reshape(scores, (*batch, scores.shape[1], *lengths, *lengths))

    def joined_entries(self, mask: Tensor) -> Tensor:
        """An attention mask as one that broadcasts to (B, N, T, S).

        Its last axes are those of query and key positions. Axes that it lacks are put where the
        heads are, as Keras does.

        Raises:
            ValueError: If the mask has too few or too many dimensions.
        """
        count = len(self.axes)
        if not 2 * count <= len(mask.shape) <= self.scores_rank:
            raise ValueError(
                "`attention_mask` must have shape (T, S), (B, T, S) or (B, N, T, S), that is "
                f"{2 * count} to {self.scores_rank} dimensions here. Received: "
                f"attention_mask.shape={tuple(mask.shape)}"
            )
        if self.is_plain:
            return mask
        while len(mask.shape) < self.scores_rank:  # up to (B, ..., N, T, ..., S, ...)
            mask = ops.expand_dims(mask, -2 * count - 1)
        lengths = self._sizes_of(self.axes)
        groups = [self._sizes_of(self.others), [mask.shape[len(self.others)]], lengths, lengths]
        # groups of size 1 stay 1 and broadcast; all others are filled and joined
        full: list[Any] = []
        joined: list[Any] = []
        for sizes in groups:
            start = len(full)
            is_one = all(size == 1 for size in mask.shape[start : start + len(sizes)])
            full += [1] * len(sizes) if is_one else sizes
            joined.append(1 if is_one else math.prod(sizes))
        return ops.reshape(ops.broadcast_to(mask, full), joined)  # (B, N, T, S)

    def joined_tokens(self, mask: Tensor | None) -> Tensor | None:
        """A mask of tokens (B, ..., T) as (B, T), for attention over the last axis."""
        if mask is None or self.is_plain:
            return mask
        return ops.reshape(ops.broadcast_to(mask, self.sizes), (-1, self.sizes[-1]))
