"""Kernel attention under causal, segment and exponential masks, in chunks of tokens.

    out_i = sum_j M[i, j] (phi(q_i) . phi(k_j)) x_j
    M[i, j] = [j <= i if causal] [same segment] sum_r c_r exp(-a_r |i - j|)

Inside a chunk, a small matrix holds all pairs of tokens. The tokens outside the chunk enter as one
m x D sum per chunk and decay. The time is O(n (chunk + m) D), and there is never an (n, m, D)
tensor.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.ops.kernel.states import sums_before
from keras_graphattn.ops.precision.float32 import zero_where_masked
from keras_graphattn.ops.precision.wide import matmul

Tensor = Any

CHUNK = 64  # tokens in a chunk
CHUNK_TWO_SIDED = 128  # if later tokens count too: then there are twice as many sums


class ChunkedState(NamedTuple):
    """A summary of the earlier tokens, of a size that does not depend on their number."""

    sums: Tensor  # (B, N, R m, D): sum_j exp(-a_r (last - j)) phi(k_j) x_j^T
    segment: Tensor  # (B,): segment id of the last token; not used without segments


class Decay(NamedTuple):
    """A sum of exponentials sum_r c_r exp(-a_r |i - j|), per head."""

    rates: Tensor  # (N, R), not negative
    weights: Tensor | None = None  # (N, R); 1 by default


def decay_matrix(decay: Decay, distance: Tensor) -> Tensor:
    """sum_r c_r exp(-a_r distance), of shape (N, *distance.shape)."""
    spread = (*decay.rates.shape, *[1] * len(distance.shape))
    powers = ops.exp(-ops.reshape(decay.rates, spread) * ops.cast(distance, decay.rates.dtype))
    if decay.weights is not None:
        powers = powers * ops.reshape(decay.weights, spread)
    return ops.sum(powers, axis=1)


def segment_runs(ids: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers the runs of equal ids. A run is a segment.

    Args:
        ids: Integer tensor of shape (B, T); a negative id marks padding.
        before: Id of the token before the first one, (B,), if there is one.

    Returns:
        The number of each token's run, of shape (B, T); it is 0 in the run of `before`. And a
        boolean tensor (B, T) that is `False` for padding.
    """
    ids = ops.cast(ids, "int32")
    first = ids[:, :1] if before is None else ops.cast(before, "int32")[:, None]
    shifted = ops.concatenate([first, ids[:, :-1]], axis=1)
    return ops.cumsum(ops.cast(ops.not_equal(ids, shifted), "int32"), axis=1), ids >= 0


def initial_chunked_state(
    batch_size: int, num_heads: int, features: int, width: int, decays: int = 1
) -> ChunkedState:
    """Returns the state before the first token.

    Args:
        batch_size: Number of sequences B.
        num_heads: Number of heads N.
        features: Number of features m.
        width: Size D of the signal.
        decays: Number R of exponentials.

    Returns:
        A `ChunkedState` of zeros. Its segment is -1, to which no token belongs.
    """
    return ChunkedState(
        ops.zeros((batch_size, num_heads, decays * features, width)),
        ops.full((batch_size,), -1, "int32"),
    )


def chunked_attention(
    query: Tensor,
    key: Tensor,
    x: Tensor,
    *,
    causal: bool,
    decay: Decay | None = None,
    segment_ids: Tensor | None = None,
    state: ChunkedState | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Returns [(phi(Q) phi(K)^T) o M] x for the masks of this file, in the dtype of `x`.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        causal: Whether token i sees only tokens j <= i.
        decay: Exponentials per head; none by default.
        segment_ids: Optional integer tensor of shape (B, T). Tokens see each other within a run of
            equal ids. A negative id marks padding, which sees no token and which no token sees.
        state: The state of earlier tokens, for causal attention.
        chunk_size: Tokens in a chunk; by default 64, or 128 unless causal.

    Returns:
        A tensor of shape (B, T, N, D).

    Example:

    >>> ones = np.ones((1, 4, 1, 1), "float32")
    >>> ids = np.array([[7, 7, 8, 8]])
    >>> sums = chunked_attention(ones, ones, ones, causal=True, segment_ids=ids)
    >>> keras.ops.convert_to_numpy(sums).ravel().tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    query, key, x = (ops.convert_to_tensor(t) for t in (query, key, x))
    decay = None if decay is None else _of_dtype(decay, x.dtype)
    batch, length, heads, width = ops.shape(x)
    if chunk_size is None:
        chunk_size = CHUNK if causal else CHUNK_TWO_SIDED
    if isinstance(x.shape[1], int):
        chunk_size = max(1, min(chunk_size, x.shape[1]))
    runs = None
    if segment_ids is not None:
        runs, kept = segment_runs(segment_ids, None if state is None else state.segment)
        kept = kept[:, :, None, None]
        query, key, x = (zero_where_masked(t, kept) for t in (query, key, x))
        runs = _chunks(runs[:, None], chunk_size, last=True)[:, 0]  # (B, C, c)
    # (B, T, N, ...) -> (B, N, C, c, ...)
    query, key, x = (_chunks(ops.transpose(t, (0, 2, 1, 3)), chunk_size) for t in (query, key, x))
    sums = None if state is None else ops.cast(state.sums, x.dtype)
    outputs = _inside(query, key, x, runs, causal, decay)
    is_one = isinstance(query.shape[2], int) and query.shape[2] == 1
    if not is_one or sums is not None:
        outputs = outputs + _outside(query, key, x, runs, decay, reverse=False, sums=sums)
    if not causal and not is_one:
        outputs = outputs + _outside(query, key, x, runs, decay, reverse=True)
    outputs = ops.reshape(outputs, (batch, heads, -1, width))[:, :, :length]
    return ops.transpose(outputs, (0, 2, 1, 3))


def advanced_state(
    state: ChunkedState,
    key: Tensor,
    x: Tensor,
    *,
    decay: Decay | None = None,
    segment_ids: Tensor | None = None,
) -> ChunkedState:
    """Returns the state after new tokens. The arguments are those of `chunked_attention`."""
    keep = 1.0
    segment = state.segment
    decay = None if decay is None else _of_dtype(decay, x.dtype)
    if segment_ids is not None:
        runs, kept = segment_runs(segment_ids, state.segment)
        # only the last run can go on in later tokens
        last = ops.logical_and(ops.equal(runs, runs[:, -1:]), kept)
        key, x = (zero_where_masked(t, last[:, :, None, None]) for t in (key, x))
        keep = ops.cast(ops.equal(runs[:, -1], 0), x.dtype)[:, None, None, None]
        segment = ops.cast(segment_ids, "int32")[:, -1]
    key = ops.transpose(key, (0, 2, 1, 3))
    if decay is not None:
        length = ops.shape(x)[1]
        key = _with_decays(key, decay.rates, length - 1 - ops.arange(length))
        rates = ops.repeat(decay.rates, state.sums.shape[2] // decay.rates.shape[1], axis=1)
        keep = keep * ops.exp(-rates * ops.cast(length, rates.dtype))[:, :, None]
    sums = keep * ops.cast(state.sums, x.dtype) + ops.einsum("bnjf,bjnd->bnfd", key, x)
    return ChunkedState(sums, segment)


def _of_dtype(decay: Decay, dtype: Any) -> Decay:
    weights = None if decay.weights is None else ops.cast(decay.weights, dtype)
    return Decay(ops.cast(decay.rates, dtype), weights)


def _inside(
    query: Tensor, key: Tensor, x: Tensor, runs: Tensor | None, causal: bool, decay: Decay | None
) -> Tensor:
    """The contributions of tokens of the same chunk: (B, N, C, c, D)."""
    order = ops.arange(x.shape[3])
    distance = order[:, None] - order[None, :]
    scores = matmul(query, ops.swapaxes(key, -1, -2))  # (B, N, C, c, c)
    if decay is not None:
        scores = scores * decay_matrix(decay, ops.abs(distance))[:, None]
    if causal:
        scores = ops.where(distance >= 0, scores, ops.cast(0.0, scores.dtype))
    if runs is not None:
        same = ops.equal(runs[..., :, None], runs[..., None, :])[:, None]
        scores = ops.where(same, scores, ops.cast(0.0, scores.dtype))
    return matmul(scores, x)


def _outside(
    query: Tensor,
    key: Tensor,
    x: Tensor,
    runs: Tensor | None,
    decay: Decay | None,
    *,
    reverse: bool,
    sums: Tensor | None = None,
) -> Tensor:
    """The contributions of earlier chunks (later ones if `reverse`): (B, N, C, c, D)."""
    size, width = x.shape[3], x.shape[4]
    source, target, reached = None, None, None
    if runs is not None:  # only the run at the edge of a chunk can continue in the next chunk
        first, last = runs[:, :, 0], runs[:, :, -1]
        source, target = (first, last) if reverse else (last, first)
        reached = ops.cast(ops.equal(runs, target[..., None]), x.dtype)[:, None, ..., None]
        key = key * ops.cast(ops.equal(runs, source[..., None]), x.dtype)[:, None, ..., None]
    log_decay = None
    order = ops.arange(size)
    to_edge = order if reverse else size - 1 - order
    if decay is not None:
        key = _with_decays(key, decay.rates, to_edge)
        log_decay = -float(size) * decay.rates
    updates = matmul(ops.swapaxes(key, -1, -2), x)  # (B, N, C, R m, D)
    batch, heads, count, features, _ = ops.shape(updates)
    updates = ops.reshape(updates, (batch, heads, count, features * width))
    if sums is not None:
        sums = ops.reshape(sums, (batch, heads, 1, features * width))
        updates = ops.concatenate([sums, updates], axis=2)
        if source is not None:
            start = ops.zeros((batch, 1), source.dtype)  # the run of the state is number 0
            source, target = (ops.concatenate([start, x], axis=1) for x in (source, target))
    found = sums_before(updates, log_decay, source, target, reverse)
    found = found if sums is None else found[:, :, 1:]
    outputs = _decayed_product(
        query, ops.reshape(found, (batch, heads, count, features, width)), decay, size - to_edge
    )
    return outputs if reached is None else outputs * reached


def _decayed_product(
    query: Tensor, states: Tensor, decay: Decay | None, distance: Tensor
) -> Tensor:
    """phi(Q) S, with the decay from the edge of the chunk to each token: (B, N, C, c, D)."""
    if decay is None:
        return matmul(query, states)
    if decay.rates.shape[1] > 1:
        return matmul(_with_decays(query, decay.rates, distance, decay.weights), states)
    # With one decay it is a factor per row. Applied to the product, it can be fused with the sum
    # that follows, in one pass over memory.
    return _with_decays(matmul(query, states), decay.rates, distance, decay.weights)


def _with_decays(
    features: Tensor, rates: Tensor, distance: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Features times c_r exp(-a_r distance): (B, N, ..., c, m) -> (B, N, ..., c, R m)."""
    powers = ops.exp(-rates[:, :, None] * ops.cast(distance, rates.dtype))  # (N, R, c)
    if weights is not None:
        powers = powers * weights[:, :, None]
    between = [1] * (len(features.shape) - 4)
    powers = ops.reshape(powers, (*powers.shape[:2], *between, -1, 1))
    parts = [features * powers[:, r] for r in range(rates.shape[1])]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)


def _chunks(x: Tensor, size: int, last: bool = False) -> Tensor:
    """(B, N, T, ...) -> (B, N, T / size, size, ...), padded with zeros or with the last entry."""
    batch, heads, length, *others = ops.shape(x)
    missing = -length % size
    if not isinstance(missing, int) or missing > 0:
        tail = ops.zeros((batch, heads, missing, *others), x.dtype)
        tail = tail + x[:, :, -1:] if last else tail
        x = ops.concatenate([x, tail], axis=2)
    return ops.reshape(x, (batch, heads, (length + missing) // size, size, *others))
