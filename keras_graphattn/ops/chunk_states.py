"""Sums over all earlier chunks of a sequence, decayed and cut at segments, with no loop over time.

    S_c = sum_{c' < c} decay^(c - 1 - c') [source_c' = target_c] u_c'

A `scan` would be the plain form, but its gradient does not compile under XLA on TensorFlow. Here
chunks stand in groups: inside a group all pairs of chunks meet in one small lower-triangular
matrix, and the sums of whole groups are added up by the same function. Exponents are never
positive, so nothing overflows at any decay.
"""

from typing import Any

from keras import ops

Tensor = Any

GROUP = 32  # chunks in a group; up to twice as many are summed at once


def sums_before(
    updates: Tensor,
    log_decay: Tensor | None = None,
    source: Tensor | None = None,
    target: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """The sum S_c over all earlier chunks, for each chunk; with `reverse`, over all later ones.

    Args:
        updates: u, of shape (B, N, C, F): what each chunk adds.
        log_decay: Logarithm of the decay from chunk to chunk, at most 0, of shape (N, F') where F'
            divides F: feature f decays with entry f // (F / F'). No decay by default.
        source: Optional integer tensor of shape (B, C): the segment that u_c belongs to.
        target: Optional integer tensor of shape (B, C): the segment that S_c is for. Segments must
            be contiguous: the targets and sources between two equal ones are equal to them.
        reverse: Whether later chunks are summed in place of earlier ones.

    Returns:
        S, a tensor of shape (B, N, C, F).
    """
    if reverse:
        updates = ops.flip(updates, axis=2)
        source, target = (None if x is None else ops.flip(x, axis=1) for x in (source, target))
    heads, features = updates.shape[1], updates.shape[3]
    parts = 1 if log_decay is None else log_decay.shape[1]
    shape = ops.shape(updates)
    split = ops.reshape(updates, (shape[0], heads, shape[2], parts, features // parts))
    split = ops.transpose(split, (0, 1, 3, 2, 4))  # (B, N, F', C, F / F')
    result = _sums_before(split, log_decay, source, target)
    result = ops.reshape(ops.transpose(result, (0, 1, 3, 2, 4)), shape)
    return ops.flip(result, axis=2) if reverse else result


def _sums_before(
    updates: Tensor, log_decay: Tensor | None, source: Tensor | None, target: Tensor | None
) -> Tensor:
    """The same for u of shape (B, N, F', C, F / F')."""
    count, dtype = updates.shape[3], updates.dtype
    if isinstance(count, int) and count <= 2 * GROUP:
        return ops.matmul(_weights(count, log_decay, source, target, 0, dtype), updates)
    batch, heads, parts, chunks, width = ops.shape(updates)
    missing = -chunks % GROUP
    groups = (chunks + missing) // GROUP
    updates = ops.concatenate(
        [updates, ops.zeros((batch, heads, parts, missing, width), dtype)], axis=3
    )
    updates = ops.reshape(updates, (batch, heads, parts, groups, GROUP, width))
    first, following = None, None
    if source is not None and target is not None:
        fill = ops.full((batch, missing), -1, source.dtype)
        source, target = (
            ops.reshape(ops.concatenate([x, fill], axis=1), (batch, groups, GROUP))
            for x in (source, target)
        )
        first = target[:, :, 0]
        following = ops.concatenate([first[:, 1:], ops.full((batch, 1), -2, first.dtype)], axis=1)
    inside = ops.matmul(_weights(GROUP, log_decay, source, target, 1, dtype), updates)
    totals = ops.squeeze(ops.matmul(_to_end(log_decay, source, following, dtype), updates), axis=4)
    group_decay = None if log_decay is None else GROUP * log_decay
    if isinstance(groups, int):
        before = _sums_before(totals, group_decay, following, first)
    else:
        before = ops.matmul(_weights(groups, group_decay, following, first, 0, dtype), totals)
    result = inside + _from_start(log_decay, target, first, dtype) * before[..., None, :]
    return ops.reshape(result, (batch, heads, parts, groups * GROUP, width))[:, :, :, :chunks]


def _weights(
    count: Any,
    log_decay: Tensor | None,
    source: Tensor | None,
    target: Tensor | None,
    between: int,
    dtype: Any,
) -> Tensor:
    """What chunk c' (last axis) counts in chunk c: broadcasts to (B, N, F', ..., C, C)."""
    order = ops.arange(count)
    steps = order[:, None] - 1 - order[None, :]
    weights = _powers(log_decay, ops.maximum(steps, 0), between, dtype)
    weights = ops.where(steps >= 0, weights, ops.cast(0.0, dtype))
    if source is None or target is None:
        return weights
    return weights * _equal(target[..., :, None], source[..., None, :], dtype)


def _to_end(
    log_decay: Tensor | None, source: Tensor | None, following: Tensor | None, dtype: Any
) -> Tensor:
    """What each chunk of a group counts in the group's sum: broadcasts to (..., 1, GROUP)."""
    weights = _powers(log_decay, GROUP - 1 - ops.arange(GROUP)[None, :], 1, dtype)
    if source is None or following is None:
        return weights
    return weights * _equal(source[..., None, :], following[..., None, None], dtype)


def _from_start(
    log_decay: Tensor | None, target: Tensor | None, first: Tensor | None, dtype: Any
) -> Tensor:
    """What the sum before a group counts in each of its chunks: broadcasts to (..., GROUP, 1)."""
    weights = _powers(log_decay, ops.arange(GROUP)[:, None], 1, dtype)
    if target is None or first is None:
        return weights
    return weights * _equal(target[..., :, None], first[..., None, None], dtype)


def _powers(log_decay: Tensor | None, steps: Tensor, between: int, dtype: Any) -> Tensor:
    """decay^steps, of shape (N, F', ..., *steps.shape) with `between` axes of size 1."""
    if log_decay is None:
        return ops.ones_like(steps, dtype=dtype)
    log_decay = ops.reshape(log_decay, (*log_decay.shape, *[1] * between, 1, 1))
    return ops.exp(log_decay * ops.cast(steps, dtype))


def _equal(first: Tensor, second: Tensor, dtype: Any) -> Tensor:
    """[first = second] with axes for heads and parts behind the batch."""
    return ops.cast(ops.equal(first, second), dtype)[:, None, None]
