"""Caches of attention whose query heads share keys and values: [B, slots, S, Nkv, H].

What a filter keeps of past tokens beyond their values, such as A V, is one signal for each query
head. So each further signal takes Nq / Nkv slots of a cache with Nkv heads.
"""

from typing import Any

from keras import ops

Tensor = Any


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
        index: Position of the first new token.
        groups: N / Nkv.
    """

    def __init__(
        self, matrix: Tensor, values: Tensor, cache: Tensor, index: Any, groups: int
    ) -> None:
        batch, _, new, length = ops.shape(matrix)
        self.heads = cache.shape[3]
        self.grouped = ops.reshape(matrix, (batch, self.heads, groups, new, length))
        self.values = values
        self.cache = cache
        self.index = index
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
        self.cache = ops.slice_update(
            self.cache, (0, first, self.index, 0, 0), ops.cast(slots, self.cache.dtype)
        )
        return self.cache[:, first : first + self.groups]
