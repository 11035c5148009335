"""Sums over all earlier chunks of a sequence, with decay and segments, without a loop over time.

    S_c = sum_{c' < c} decay^(c - 1 - c') [source_c' = target_c] u_c'

A `scan` would be simpler, but its gradient does not compile under XLA on TensorFlow. Here chunks
form groups. Inside a group, one small lower-triangular matrix holds all pairs of chunks. The same
function then adds up the sums of whole groups. Exponents are never positive, so nothing overflows
for any decay.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.numerics.blocks import fits_one_block
from keras_graphattn.numerics.precision import matmul

Tensor = Any

GROUP = 32  # chunks in a group; up to twice this number is summed at once


def sums_before(
    updates: Tensor,
    log_decay: Tensor | None = None,
    source: Tensor | None = None,
    target: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """Returns for each chunk the sum S_c over all earlier chunks, or all later ones if `reverse`.

    Args:
        updates: u, of shape (B, N, C, F): the addend of each chunk.
        log_decay: Logarithm of the decay from chunk to chunk, at most 0, of shape (N, F') where F'
            divides F: feature f decays with entry f // (F / F'). No decay by default.
        source: Optional integer tensor of shape (B, C): the segment of u_c.
        target: Optional integer tensor of shape (B, C): the segment of S_c. Segments must be
            contiguous: targets and sources between two equal ones are equal to them.
        reverse: Whether to sum over later chunks instead of earlier ones.

    Returns:
        S, a tensor of shape (B, N, C, F).
    """
    heads, features = updates.shape[1], updates.shape[3]
    parts = 1 if log_decay is None else log_decay.shape[1]
    shape = ops.shape(updates)
    scan = _Scan(log_decay, source, target, reverse, updates.dtype)
    if parts == 1:
        result = _sums_before(ops.reshape(updates, (shape[0], heads, 1, *shape[2:])), scan)
        return ops.reshape(result, shape)
    split = ops.reshape(updates, (shape[0], heads, shape[2], parts, features // parts))
    result = _sums_before(ops.transpose(split, (0, 1, 3, 2, 4)), scan)
    return ops.reshape(ops.transpose(result, (0, 1, 3, 2, 4)), shape)


class _Scan(NamedTuple):
    """The settings of sums over chunks or over groups of chunks; see `sums_before`."""

    log_decay: Tensor | None
    source: Tensor | None
    target: Tensor | None
    reverse: bool
    dtype: Any


def _sums_before(updates: Tensor, scan: _Scan) -> Tensor:
    """`sums_before` for u of shape (B, N, F', C, F / F')."""
    count = updates.shape[3]
    if fits_one_block(count, 2 * GROUP):
        return matmul(_weights(count, scan, 0), updates)
    batch, heads, parts, chunks, width = ops.shape(updates)
    missing = -chunks % GROUP
    groups = (chunks + missing) // GROUP
    zeros = ops.zeros((batch, heads, parts, missing, width), scan.dtype)
    updates = ops.concatenate([updates, zeros], axis=3)
    updates = ops.reshape(updates, (batch, heads, parts, groups, GROUP, width))
    first, following = None, None
    if scan.source is not None and scan.target is not None:
        fill = ops.full((batch, missing), -1, scan.source.dtype)
        source, target = (
            ops.reshape(ops.concatenate([x, fill], axis=1), (batch, groups, GROUP))
            for x in (scan.source, scan.target)
        )
        scan = scan._replace(source=source, target=target)
        none = ops.full((batch, 1), -2, target.dtype)
        if scan.reverse:
            first = target[:, :, -1]
            following = ops.concatenate([none, first[:, :-1]], axis=1)
        else:
            first = target[:, :, 0]
            following = ops.concatenate([first[:, 1:], none], axis=1)
    # One matrix per group. With one matrix for all groups, `matmul` would transpose the updates.
    weights = _weights(GROUP, scan, 1)
    weights = ops.broadcast_to(weights, (batch, heads, parts, groups, GROUP, GROUP))
    inside = matmul(weights, updates)  # (B, N, F', groups, GROUP, F / F')
    to_end = ops.broadcast_to(_to_end(scan, following), (batch, heads, parts, groups, 1, GROUP))
    totals = ops.squeeze(matmul(to_end, updates), axis=4)  # the sum of each group
    group_decay = None if scan.log_decay is None else GROUP * scan.log_decay
    by_group = scan._replace(log_decay=group_decay, source=following, target=first)
    if isinstance(groups, int):
        before = _sums_before(totals, by_group)
    else:
        before = matmul(_weights(groups, by_group, 0), totals)
    result = inside + _from_start(scan, first) * before[..., None, :]
    return ops.reshape(result, (batch, heads, parts, groups * GROUP, width))[:, :, :, :chunks]


def _weights(count: Any, scan: _Scan, between: int) -> Tensor:
    """The factor of chunk c' (last axis) in S_c: broadcasts to (B, N, F', ..., C, C)."""
    order = ops.arange(count, dtype="int32")
    steps = order[:, None] - order[None, :]
    steps = (-steps if scan.reverse else steps) - 1
    weights = _powers(scan.log_decay, ops.maximum(steps, 0), between, scan.dtype)
    weights = ops.where(steps >= 0, weights, ops.cast(0.0, scan.dtype))
    if scan.source is None or scan.target is None:
        return weights
    return weights * _equal(scan.target[..., :, None], scan.source[..., None, :], scan.dtype)


def _to_end(scan: _Scan, following: Tensor | None) -> Tensor:
    """The factor of each chunk in the sum of its group: broadcasts to (..., 1, GROUP)."""
    order = ops.arange(GROUP, dtype="int32")[None, :]
    steps = order if scan.reverse else GROUP - 1 - order
    weights = _powers(scan.log_decay, steps, 1, scan.dtype)
    if scan.source is None or following is None:
        return weights
    return weights * _equal(scan.source[..., None, :], following[..., None, None], scan.dtype)


def _from_start(scan: _Scan, first: Tensor | None) -> Tensor:
    """The factor of the sum before a group in each of its chunks: broadcasts to (..., GROUP, 1)."""
    order = ops.arange(GROUP, dtype="int32")[:, None]
    steps = GROUP - 1 - order if scan.reverse else order
    weights = _powers(scan.log_decay, steps, 1, scan.dtype)
    if scan.target is None or first is None:
        return weights
    return weights * _equal(scan.target[..., :, None], first[..., None, None], scan.dtype)


def _powers(log_decay: Tensor | None, steps: Tensor, between: int, dtype: Any) -> Tensor:
    """decay^steps, of shape (N, F', ..., *steps.shape) with `between` axes of size 1."""
    if log_decay is None:
        return ops.ones_like(steps, dtype=dtype)
    log_decay = ops.reshape(log_decay, (*log_decay.shape, *[1] * between, 1, 1))
    return ops.exp(log_decay * ops.cast(steps, dtype))


def _equal(first: Tensor, second: Tensor, dtype: Any) -> Tensor:
    """[first = second], with axes for heads and parts after the batch axis."""
    return ops.cast(ops.equal(first, second), dtype)[:, None, None]
