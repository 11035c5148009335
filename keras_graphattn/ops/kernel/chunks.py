"""Kernel attention under causal, segment and exponential masks, in chunks of tokens.

    out_i = sum_j M[i, j] (phi(q_i) . phi(k_j)) x_j
    M[i, j] = [j <= i if causal] [same segment] sum_r c_r exp(-a_r |i - j|)

Inside a chunk, a small matrix holds all pairs of tokens. The tokens outside the chunk enter as one
m x D sum per chunk and decay. The time is O(n (chunk + m) D), and there is never an (n, m, D)
tensor.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import (
    Sizes,
    checked,
    flag,
    integers,
    optional,
    size,
    tensor,
    whole,
)
from keras_graphattn.numerics.blocks import cut_into_chunks, first_of
from keras_graphattn.numerics.precision import matmul, size_tensor, zero_where_masked
from keras_graphattn.ops.kernel.decays import (
    Decay,
    a_decay,
    decay_matrix,
    decayed_product,
    of_dtype,
    with_decays,
)
from keras_graphattn.ops.kernel.states import sums_before

Tensor = Any

CHUNK = 64  # tokens in a chunk
CHUNK_TWO_SIDED = 128  # if later tokens count too: then there are twice as many sums


class ChunkedState(NamedTuple):
    """A summary of the earlier tokens, of a size that does not depend on their number.

    Example:

    >>> tuple(initial_chunked_state(1, num_heads=2, features=3, width=4).sums.shape)
    (1, 2, 3, 4)
    """

    sums: Tensor  # (B, N, R m, D): sum_j exp(-a_r (last - j)) phi(k_j) x_j^T
    segment: Tensor  # (B,): segment id of the last token; not used without segments


def _a_state(name: str, value: Any, sizes: Sizes) -> ChunkedState:
    """The rule of a `ChunkedState`."""
    if not isinstance(value, ChunkedState):
        raise ValueError(
            f"`{name}` must be a ChunkedState, from `initial_chunked_state` or "
            f"`advanced_state`. Received: {name}={value!r}"
        )
    sums = tensor("B N _ D")(f"{name}.sums", value.sums, sizes)
    return ChunkedState(sums, integers("B")(f"{name}.segment", value.segment, sizes))


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
    shifted = ops.concatenate([first, ids], axis=1)[:, :-1]
    return ops.cumsum(ops.cast(ops.not_equal(ids, shifted), "int32"), axis=1), ids >= 0


def _check_sums(state: ChunkedState, key: Tensor, decay: Decay | None) -> None:
    """Raises a `ValueError` if the state is of another number of features or exponentials."""
    exponentials = 1 if decay is None else decay.rates.shape[1]
    expected = exponentials * key.shape[-1]
    if state.sums.shape[2] != expected:
        raise ValueError(
            f"`state.sums` must have {expected} rows: {exponentials} exponentials of `decay` times "
            f"{key.shape[-1]} features of `key`. Received: "
            f"state.sums.shape={tuple(state.sums.shape)}"
        )


@checked(batch_size=size(0), num_heads=whole(), features=whole(), width=whole(), decays=whole())
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

    Example:

    >>> state = initial_chunked_state(1, num_heads=2, features=3, width=4, decays=2)
    >>> tuple(state.sums.shape)
    (1, 2, 6, 4)
    """
    return ChunkedState(
        ops.zeros((batch_size, num_heads, decays * features, width)),
        ops.full((batch_size,), -1, "int32"),
    )


@checked(
    query=tensor("B T N m"),
    key=tensor("B T N m"),
    x=tensor("B T N D"),
    causal=flag,
    decay=optional(a_decay),
    segment_ids=optional(integers("B T")),
    state=optional(_a_state),
    chunk_size=optional(whole()),
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
    if state is not None:
        _check_sums(state, key, decay)
    decay = None if decay is None else of_dtype(decay, x.dtype)
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
        runs = cut_into_chunks(runs[:, None], chunk_size, -1)[:, 0]  # (B, C, c)
    # (B, T, N, ...) -> (B, N, C, c, ...)
    query, key, x = (
        cut_into_chunks(ops.transpose(t, (0, 2, 1, 3)), chunk_size) for t in (query, key, x)
    )
    sums = None if state is None else ops.cast(state.sums, x.dtype)
    outputs = _inside(query, key, x, runs, causal, decay)
    is_one = isinstance(query.shape[2], int) and query.shape[2] == 1
    if not is_one or sums is not None:
        outputs = outputs + _outside(query, key, x, runs, decay, reverse=False, sums=sums)
    if not causal and not is_one:
        outputs = outputs + _outside(query, key, x, runs, decay, reverse=True)
    outputs = first_of(ops.reshape(outputs, (batch, heads, -1, width)), length, axis=2)
    return ops.transpose(outputs, (0, 2, 1, 3))


@checked(
    state=_a_state,
    key=tensor("B T N m"),
    x=tensor("B T N D"),
    decay=optional(a_decay),
    segment_ids=optional(integers("B T")),
)
def advanced_state(
    state: ChunkedState,
    key: Tensor,
    x: Tensor,
    *,
    decay: Decay | None = None,
    segment_ids: Tensor | None = None,
) -> ChunkedState:
    """Returns the state after new tokens. The arguments are those of `chunked_attention`.

    Example:

    >>> ones = np.ones((1, 4, 1, 1), "float32")
    >>> state = initial_chunked_state(1, num_heads=1, features=1, width=1)
    >>> state = advanced_state(state, ones, ones)
    >>> sums = chunked_attention(ones, ones, ones, causal=True, state=state)
    >>> keras.ops.convert_to_numpy(sums).ravel().tolist()
    [5.0, 6.0, 7.0, 8.0]
    """
    _check_sums(state, key, decay)
    keep = 1.0
    segment = state.segment
    decay = None if decay is None else of_dtype(decay, x.dtype)
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
        key = with_decays(key, decay.rates, length - 1 - ops.arange(length, dtype="int32"))
        rates = ops.repeat(decay.rates, state.sums.shape[2] // decay.rates.shape[1], axis=1)
        keep = keep * ops.exp(-rates * size_tensor(length, rates.dtype))[:, :, None]
    sums = keep * ops.cast(state.sums, x.dtype) + ops.einsum("bnjf,bjnd->bnfd", key, x)
    return ChunkedState(sums, segment)


def _inside(
    query: Tensor, key: Tensor, x: Tensor, runs: Tensor | None, causal: bool, decay: Decay | None
) -> Tensor:
    """The contributions of tokens of the same chunk: (B, N, C, c, D)."""
    order = ops.arange(x.shape[3], dtype="int32")
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
    order = ops.arange(size, dtype="int32")
    to_edge = order if reverse else size - 1 - order
    if decay is not None:
        key = with_decays(key, decay.rates, to_edge)
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
    outputs = decayed_product(
        query, ops.reshape(found, (batch, heads, count, features, width)), decay, size - to_edge
    )
    return outputs if reached is None else outputs * reached
