"""Sums of exp(l_s) and exp(l_s) values_s over all tokens so far, at any logits, chunk by chunk.

Each sum is relative to the largest logit among its tokens, so that it cannot overflow. Sums over
chunks are added up in groups. There is no loop over time, and no (T, H, D) tensor.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import Sizes, checked, size, tensor, whole
from keras_graphattn.numerics.blocks import cut_into_chunks, fits_one_block
from keras_graphattn.numerics.precision import hidden_logit, larger, largest

Tensor = Any

GROUP = 32  # chunks in a group; up to 2 GROUP + 1 chunks are summed at once


class RunningSum(NamedTuple):
    """Sums of exp(l_s - maximum) and exp(l_s - maximum) values_s over tokens seen so far.

    The leading axes are (B, N), and between chunks also one axis for the chunk.

    Example:

    >>> state = empty_running_sum(batch_size=1, num_heads=2, key_dim=3, value_dim=4)
    >>> tuple(state.normaliser.shape), tuple(state.context.shape)
    ((1, 2, 3), (1, 2, 3, 4))
    """

    maximum: Tensor  # (..., H)
    normaliser: Tensor  # (..., H)
    context: Tensor  # (..., H, D)


def running_sum(name: str, value: Any, sizes: Sizes) -> RunningSum:
    """The rule of a state: a `RunningSum` that fits the logits and the values."""
    if not isinstance(value, RunningSum):
        raise ValueError(
            f"`{name}` must be a RunningSum, from `empty_running_sum` or an earlier call. "
            f"Received: {name}={value!r}"
        )
    shapes = {"maximum": "B N H", "normaliser": "B N H", "context": "B N H D"}
    parts = value._asdict()
    return RunningSum(
        *(tensor(shapes[part])(f"{name}.{part}", x, sizes) for part, x in parts.items())
    )


@checked(batch_size=size(0), num_heads=whole(), key_dim=whole(), value_dim=whole())
def empty_running_sum(
    batch_size: int, num_heads: int, key_dim: int, value_dim: int, dtype: str = "float32"
) -> RunningSum:
    """The sums before the first token.

    Args:
        batch_size: Number of sequences B.
        num_heads: Number of heads N.
        key_dim: Size H of each head for U, V and S.
        value_dim: Size D of each head for the values.
        dtype: Dtype of the sums, at least float32.

    Returns:
        A `RunningSum` of shapes (B, N, H), (B, N, H) and (B, N, H, D). `decode` keeps nothing
        else, at any length.

    Example:

    >>> state = empty_running_sum(batch_size=1, num_heads=2, key_dim=3, value_dim=4)
    >>> float(keras.ops.sum(state.normaliser))
    0.0
    """
    lowest, shape = hidden_logit(dtype), (batch_size, num_heads, key_dim)
    return RunningSum(
        ops.full(shape, lowest, dtype),
        ops.zeros(shape, dtype),
        ops.zeros((*shape, value_dim), dtype),
    )


def least_logit(dtype: str) -> float:
    """The floor of the maxima. The logits of padding are far below it, so they vanish."""
    return 0.5 * hidden_logit(dtype)


def map_sums(function: Callable[..., Tensor], *sums: RunningSum) -> RunningSum:
    """Applies the function to the maxima, to the normalisers and to the contexts."""
    return RunningSum(*(function(*parts) for parts in zip(*sums, strict=True)))


def sums_before_and_after(
    logits: Tensor, values: Tensor, state: RunningSum
) -> tuple[RunningSum, RunningSum]:
    """The sums over all tokens before each chunk, and over all tokens.

    Args:
        logits: Logits in chunks, of shape (B, N, C, c, H); those of padding are `hidden_logit`.
        values: Values in chunks, of shape (B, N, C, c, D).
        state: The sums over the tokens before the first chunk.

    Returns:
        The first sums with shapes (B, N, C, H) and (B, N, C, H, D), the second without the axis C.
    """
    least = ops.cast(least_logit(logits.dtype), logits.dtype)
    maximum = largest(ops.stop_gradient(logits), axis=3, keepdims=True)
    maximum = larger(maximum, least)  # above the logits of padding; (B, N, C, 1, H)
    exponentials = ops.exp(logits - maximum)
    normaliser = ops.sum(exponentials, axis=3)  # (B, N, C, H)
    context = ops.einsum("bncsh,bncsd->bnchd", exponentials, values)
    chunks = RunningSum(maximum[:, :, :, 0], normaliser, context)
    chunks = map_sums(
        lambda first, others: ops.concatenate([first[:, :, None], others], axis=2), state, chunks
    )
    sums = _sums_over_chunks(chunks)
    return map_sums(lambda x: x[:, :, :-1], sums), map_sums(lambda x: x[:, :, -1], sums)


def _sums_over_chunks(sums: RunningSum) -> RunningSum:
    """Sums over chunks 0 ... c for every c; the chunk axis is the third."""
    count, heads = sums.maximum.shape[2], sums.maximum.shape[1]
    if fits_one_block(count, 2 * GROUP + 1):
        return _dense_prefix_sums(sums)
    # First inside groups, whose axis is merged with the heads; then over the groups, recursively
    fills = RunningSum(hidden_logit(sums.maximum.dtype), 0.0, 0.0)
    groups = map_sums(
        lambda part, fill: _merge_axes(cut_into_chunks(part, GROUP, fill)), sums, fills
    )
    inside = _dense_prefix_sums(groups)
    totals = map_sums(lambda part: _split_heads(part[:, :, -1], heads), inside)
    totals = _sums_over_chunks(totals) if isinstance(count, int) else _dense_prefix_sums(totals)
    before = map_sums(
        lambda part, fill: _merge_axes(
            ops.concatenate([ops.full_like(part[:, :, :1], fill), part[:, :, :-1]], axis=2)
        )[:, :, None],
        totals,
        fills,
    )
    joined = map_sums(lambda part: _split_heads(part, heads), _add(before, inside))
    count = ops.shape(sums.maximum)[2]

    def joined_groups(part: Tensor) -> Tensor:
        batch, heads, groups, size, *others = ops.shape(part)
        return ops.reshape(part, (batch, heads, groups * size, *others))[:, :, :count]

    return map_sums(joined_groups, joined)


def _add(first: RunningSum, second: RunningSum) -> RunningSum:
    """The sums over the tokens of both."""
    maximum = larger(first.maximum, second.maximum)
    scales = (ops.exp(first.maximum - maximum), ops.exp(second.maximum - maximum))
    return RunningSum(
        maximum,
        first.normaliser * scales[0] + second.normaliser * scales[1],
        first.context * scales[0][..., None] + second.context * scales[1][..., None],
    )


def _merge_axes(x: Tensor) -> Tensor:
    """(B, N, G, ...) -> (B, N G, ...)."""
    shape = ops.shape(x)
    return ops.reshape(x, (shape[0], shape[1] * shape[2], *shape[3:]))


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N G, ...) -> (B, N, G, ...)."""
    shape = ops.shape(x)
    return ops.reshape(x, (shape[0], heads, shape[1] // heads, *shape[2:]))


def _dense_prefix_sums(sums: RunningSum) -> RunningSum:
    """Prefix sums by one lower-triangular matrix per feature."""
    count = ops.shape(sums.maximum)[2]
    maxima = ops.stop_gradient(ops.transpose(sums.maximum, (0, 1, 3, 2)))  # (B, N, H, C)
    order = ops.arange(count, dtype="int32")
    seen = order[None, :] <= order[:, None]
    low = ops.cast(hidden_logit(maxima.dtype), maxima.dtype)
    relative = ops.where(seen, maxima[:, :, :, None, :], low)  # (B, N, H, C, C)
    running = largest(relative, axis=-1)
    weights = ops.where(seen, ops.exp(relative - running[..., None]), ops.cast(0.0, relative.dtype))
    return RunningSum(
        ops.transpose(running, (0, 1, 3, 2)),
        ops.einsum("bnhij,bnjh->bnih", weights, sums.normaliser),
        ops.einsum("bnhij,bnjhd->bnihd", weights, sums.context),
    )
