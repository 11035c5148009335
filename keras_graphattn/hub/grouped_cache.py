"""Caches of attention whose query heads share keys and values: [B, slots, S, Nkv, H].

What a filter keeps of past tokens beyond their values, such as A V, is one signal for each query
head. So each further signal takes Nq / Nkv slots of a cache with Nkv heads.
"""

from typing import Any, NamedTuple

from keras import ops

Tensor = Any


class Step(NamedTuple):
    """Where the new tokens of a decoding step are, and what they see.

    Attributes:
        index: Position of the first new token.
        mask: Boolean tensor of shape (B or 1, 1, t, S).
        update: Optional boolean tensor of shape (B, t). Where it is false, the cache keeps what it
            has of a token, and the token's row is made of that.
    """

    index: Any
    mask: Tensor
    update: Tensor | None = None

    def write(self, cache: Tensor, x: Tensor, slot: int) -> Tensor:
        """The cache (B, slots, S, Nkv, H) with x (B, k, t, Nkv, H) in the slots from `slot`."""
        x = ops.cast(x, cache.dtype)
        start = (0, slot, self.index, 0, 0)
        if self.update is not None:
            update = ops.cast(self.update, "bool")[:, None, :, None, None]
            x = ops.where(update, x, ops.slice(cache, start, ops.shape(x)))
        return ops.slice_update(cache, start, x)


def in_all_heads(x: Tensor, groups: int) -> Tensor:
    """Keys or values (B, S, Nkv, H), repeated to all query heads (B, S, Nkv * groups, H)."""
    return x if groups == 1 else ops.repeat(x, groups, axis=2)


class GroupedOperator:
    """The rows of A for new tokens, as an operator that keeps what it is applied to.

    Its first call must be to the values, which the cache holds already. Each further call writes
    the new tokens' signal into the next slots and applies the rows to the whole signal. Calls
    must come in the same order at each step, as a filter makes them.

    Args:
        matrix: Attention weights of the new tokens, (B, N, t, S).
        values: The new tokens' values, (B, t, N, H).
        cache: The cache, (B, slots, S, Nkv, H): keys, values and further signals.
        step: Where the new tokens are.
        groups: N / Nkv.
    """

    def __init__(
        self, matrix: Tensor, values: Tensor, cache: Tensor, step: Step, groups: int
    ) -> None:
        batch, _, new, length = ops.shape(matrix)
        self.heads = cache.shape[3]
        self.grouped = ops.reshape(matrix, (batch, self.heads, groups, new, length))
        self.values = values
        self.cache = cache
        self.step = step
        self.groups = groups
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        if self.calls == 0:
            if x is not self.values:
                raise ValueError(
                    "The cache of grouped attention holds the values once for all query heads: "
                    "the first application of a filter's operator must be to the values "
                    "themselves. Received: another signal."
                )
            signal = self.cache[:, 1]  # (B, S, Nkv, H)
            outputs = ops.einsum("bkgts,bskh->btkgh", self.grouped, signal)
        else:
            outputs = ops.einsum("bkgts,bgskh->btkgh", self.grouped, self._written(x))
        self.calls += 1
        return ops.reshape(outputs, ops.shape(x))

    def _written(self, x: Tensor) -> Tensor:
        """The whole signal (B, groups, S, Nkv, H), that of the new tokens written into it."""
        first = 2 + (self.calls - 1) * self.groups
        batch, new, _, size = ops.shape(x)
        slots = ops.reshape(x, (batch, new, self.heads, self.groups, size))
        slots = ops.transpose(slots, (0, 3, 1, 2, 4))  # (B, groups, t, Nkv, H)
        self.cache = self.step.write(self.cache, slots, first)
        return self.cache[:, first : first + self.groups]
