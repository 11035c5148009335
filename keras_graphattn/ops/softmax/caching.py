"""Incremental decoding: a cache of fixed size with all that a filter needs of past tokens.

A polynomial filter of order K applies A up to K times: to V, to P_1(A) V, ..., P_{K-1}(A) V. In
a causal sequence, a new token does not change any of these signals for past tokens. So each
application keeps its signal in the cache, next to the keys, and a new row costs O(n) per
application. The filter itself is the same as in the full pass: it only calls `apply`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import (
    Sizes,
    check_shape,
    checked,
    float_dtype,
    integers,
    known_value,
    mask,
    optional,
    size,
    tensor,
    whole,
)
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.ops.filters.triangular import solve_lower
from keras_graphattn.ops.softmax.masks import AttentionMask, joined_mask

Tensor = Any
Cache = dict[str, Tensor]


def a_cache(name: str, value: Any, sizes: Sizes) -> Cache:
    """The rule of a cache: a dictionary made by `initial_cache`."""
    shapes = {"key": "B L K H", "signals": "B _ L N D", "padding_mask": "B L"}
    if not isinstance(value, Mapping) or not set(shapes) <= set(value):
        raise ValueError(
            f"`{name}` must be a dictionary with {list(shapes)}, made by `initial_cache`. "
            f"Received: {name}={value!r}"
        )
    for part, shape in shapes.items():
        check_shape(f"{name}[{part!r}]", value[part], (shape,), sizes)
    return dict(value)


def position(name: str, value: Any, sizes: Sizes) -> Any:
    """The rule of a position in the cache: an integer of at least 0, or a scalar tensor.

    A tensor whose value is known becomes an integer.
    """
    if isinstance(value, (bool, float, np.integer)) or not hasattr(value, "shape"):
        return whole(0)(name, value, sizes)
    tensor, known = integers("")(name, value, sizes), known_value(value)
    return tensor if known is None else whole(0)(name, int(known), sizes)


@checked(
    batch_size=size(0),
    max_length=whole(0),
    num_heads=whole(),
    key_dim=whole(),
    value_dim=whole(),
    num_signals=whole(),
    num_key_heads=optional(whole()),
    dtype=float_dtype,
)
def initial_cache(
    batch_size: int,
    max_length: int,
    num_heads: int,
    key_dim: int,
    value_dim: int,
    *,
    num_signals: int = 1,
    num_key_heads: int | None = None,
    dtype: str = "float32",
) -> Cache:
    """An empty cache of `max_length` tokens.

    Args:
        batch_size: Number of sequences B.
        max_length: Number of tokens L that the cache can hold.
        num_heads: Number of heads N.
        key_dim: Size H of each head for keys.
        value_dim: Size D of each head for values.
        num_signals: Number of signals, that is, how often the filter applies its operator.
        num_key_heads: Number of heads of the keys; `num_heads` by default.
        dtype: Dtype of keys and signals.

    Returns:
        A dictionary of tensors: `key` (B, L, N, H), `signals` (B, num_signals, L, N, D), of which
        the first signal is the values, and the boolean `padding_mask` (B, L).

    Example:

    >>> cache = initial_cache(2, 16, num_heads=4, key_dim=8, value_dim=8, num_signals=2)
    >>> tuple(cache["signals"].shape)
    (2, 2, 16, 4, 8)
    """
    num_key_heads = num_heads if num_key_heads is None else num_key_heads
    return {
        "key": ops.zeros((batch_size, max_length, num_key_heads, key_dim), dtype),
        "signals": ops.zeros((batch_size, num_signals, max_length, num_heads, value_dim), dtype),
        "padding_mask": ops.zeros((batch_size, max_length), "bool"),
    }


@checked(cache=a_cache, key=tensor("B t K H"), index=position, padding_mask=optional(mask("B t")))
def update_keys(
    cache: Cache, key: Tensor, index: Any, padding_mask: Tensor | None = None
) -> tuple[Cache, Tensor]:
    """Writes the keys of new tokens at `index`.

    Args:
        cache: The cache that `initial_cache` or the previous step returned.
        key: Tensor of shape (B, t, N, H): keys of the new tokens.
        index: Position of the first new token, an integer or a scalar tensor.
        padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding.

    Returns:
        The new cache, and the boolean `padding_mask` of the new tokens.

    Raises:
        ValueError: If the tokens do not fit in the cache. Checked only if the value of `index` is
            known, which it is outside compiled code.

    Example:

    >>> cache = initial_cache(1, 4, num_heads=1, key_dim=2, value_dim=2)
    >>> cache, padding_mask = update_keys(cache, np.ones((1, 2, 1, 2), "float32"), 0)
    >>> keras.ops.convert_to_numpy(cache["padding_mask"]).tolist()
    [[True, True, False, False]]
    """
    batch_size, count = ops.shape(key)[:2]
    max_length = cache["key"].shape[1]
    if isinstance(index, int) and isinstance(count, int) and not 0 <= index <= max_length - count:
        raise ValueError(
            f"The cache holds {max_length} tokens. Received: {count} tokens at index={index}. "
            "Make it longer with `get_initial_cache(batch_size, max_length)`."
        )
    if padding_mask is None:
        padding_mask = ops.ones((batch_size, count), "bool")
    padding_mask = ops.cast(padding_mask, "bool")
    return {
        **cache,
        "key": ops.slice_update(cache["key"], (0, index, 0, 0), ops.cast(key, cache["key"].dtype)),
        "padding_mask": _update_boolean(cache["padding_mask"], padding_mask, index),
    }, padding_mask


@checked(cache=a_cache, index=position, padding_mask=mask("B t"), window=optional(whole()))
def step_mask(cache: Cache, index: Any, padding_mask: Tensor, window: int | None = None) -> Tensor:
    """The causal mask of new tokens against the whole cache.

    Args:
        cache: The cache with the new tokens' keys.
        index: Position of the first new token.
        padding_mask: Boolean tensor of shape (B, t) of the new tokens.
        window: Sliding window of the layer, if it has one.

    Returns:
        A boolean tensor of shape (B, 1, t, L).

    Example:

    >>> cache = initial_cache(1, 3, num_heads=1, key_dim=2, value_dim=2)
    >>> cache, padding_mask = update_keys(cache, np.ones((1, 2, 1, 2), "float32"), 0)
    >>> keras.ops.convert_to_numpy(step_mask(cache, 0, padding_mask))[0, 0].tolist()
    [[True, False, False], [True, True, False]]
    """
    rows = index + ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    columns = ops.arange(cache["key"].shape[1], dtype="int32")
    mask = AttentionMask(
        queries=padding_mask, keys=cache["padding_mask"], causal=True, window=window
    )
    return joined_mask(mask, rows, columns)


class CachedOperator:
    """The rows of A for new tokens, as an operator that keeps its signals in the cache.

    Its k-th call writes the new tokens' signal into slot k of the cache and applies the rows to
    the whole slot. Each step must make its calls in the same order, as a filter does.

    Args:
        matrix: Attention weights of the new tokens, of shape (B, N, t, L).
        signals: The cache's signals, of shape (B, num_signals, L, N, D).
        index: Position of the first new token.

    Example:

    >>> cache = initial_cache(1, 4, num_heads=2, key_dim=8, value_dim=8)
    >>> apply = CachedOperator(np.ones((1, 2, 1, 4), "float32") / 4.0, cache["signals"], 0)
    >>> tuple(apply(keras.random.normal((1, 1, 2, 8))).shape)
    (1, 1, 2, 8)
    """

    @checked(matrix=tensor("B N t L"), signals=tensor("B _ L N D"), index=position)
    def __init__(self, matrix: Tensor, signals: Tensor, index: Any) -> None:
        self.matrix = matrix
        self.signals = signals
        length, count = matrix.shape[-1], matrix.shape[-2]
        known = all(isinstance(size, int) for size in (index, length, count))
        if known and index + count > length:
            raise ValueError(
                f"`index` must be at most {length - count} for {count} new tokens in a cache of "
                f"{length} tokens. Received: index={index}"
            )
        self.index = index
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        x = tensor("B t N D")("x", x, {})
        slot = ops.cast(x, self.signals.dtype)[:, None]  # (B, 1, t, N, D)
        self.signals = ops.slice_update(self.signals, (0, self.calls, self.index, 0, 0), slot)
        signal = self.signals[:, self.calls]  # (B, L, N, D)
        self.calls += 1
        return ops.einsum("bnts,bsnh->btnh", self.matrix, signal)

    def solve(self, factor: Tensor, x: Tensor) -> Tensor:
        """The new rows y with y + factor * A y = x, as `BlockwiseOperator.solve`.

        The past rows of y must be in the slot that the next call writes. This is so if that call
        applies the operator to y.
        """
        x = tensor("B t N D")("x", ops.convert_to_tensor(x), {})
        batch, count, heads, features = ops.shape(x)
        start = (0, self.calls, self.index, 0, 0)
        none = ops.zeros((batch, 1, count, heads, features), self.signals.dtype)
        past = ops.slice_update(self.signals, start, none)[:, self.calls]  # (B, L, N, D)
        matrix, past = at_least_float32(self.matrix), at_least_float32(past)
        known = ops.einsum("bnts,bsnh->bnth", matrix, past)
        # the new rows' own columns, (B, N, t, t)
        own = ops.slice(matrix, (0, 0, 0, self.index), (batch, heads, count, count))
        factor = at_least_float32(ops.expand_dims(factor, -1))  # (N, 1, 1)
        right = ops.transpose(at_least_float32(x), (0, 2, 1, 3)) - factor * known
        found = solve_lower(own, factor, right)
        return ops.cast(ops.transpose(found, (0, 2, 1, 3)), x.dtype)


def _update_boolean(whole: Tensor, part: Tensor, index: Any) -> Tensor:
    updated = ops.slice_update(ops.cast(whole, "int32"), (0, index), ops.cast(part, "int32"))
    return ops.cast(updated, "bool")
