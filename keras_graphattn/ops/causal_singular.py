"""The causal form of attention in a learned singular-value domain, in linear time.

    out_t = U_t g(S_t) sum_{s<=t} exp(l_s) values_s / z_t,    z_t = sum_{s<=t} exp(l_s)

per feature of the head, l the logits of V. Tokens go in chunks: inside a chunk all pairs meet in
a chunk x chunk matrix; between chunks there are sums of size H x D, added up in groups. There is
no loop over time, and no tensor larger than (T / chunk) x H x D or T x (H + D + chunk).

All exponentials are relative to a running maximum, so nothing overflows, whatever the logits.
One limit stands: inside a chunk, logits count as at least `SPAN` = 80 below the largest logit up
to the chunk's end. It can be seen only by a token all of whose past, in some feature, is more than
80 below a token that follows in the same chunk; its outputs stay a mean of the values it sees.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.ops.arguments import Sizes, checked, mask, optional, size, tensor, whole
from keras_graphattn.ops.precision import at_least_float32, hidden_logit, zero_where_masked

Tensor = Any

CHUNK = 64  # tokens in a chunk
GROUP = 32  # chunks in a group; up to twice as many and one are summed at once
SPAN = 80.0  # of logits inside a chunk: exp(SPAN) is finite in float32


class RunningSum(NamedTuple):
    """Sums of exp(l_s - maximum) and exp(l_s - maximum) values_s over tokens seen so far.

    With leading axes (B, N) and, between chunks, one more for the chunk.

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
    """The sums over no token at all.

    Args:
        batch_size: Number of sequences B.
        num_heads: Number of heads N.
        key_dim: Size H of each head for U, V and S.
        value_dim: Size D of each head for the values.
        dtype: Dtype of the sums, at least float32.

    Returns:
        A `RunningSum` of shapes (B, N, H), (B, N, H) and (B, N, H, D): all that `decode` has to
        keep, whatever the length.

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


@checked(
    left=tensor("B T N H"),
    logits=tensor("B T N H"),
    values=tensor("B T N D"),
    mask=optional(mask("B T")),
    state=optional(running_sum),
    chunk_size=whole(),
)
def causal_singular_value_attention(
    left: Tensor,
    logits: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    state: RunningSum | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Tensor, RunningSum]:
    """`left_t @ (V_t^T values)`, V_t the softmax of the logits over the tokens up to t.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        logits: Logits of V, of shape (B, T, N, H).
        values: Token values, of shape (B, T, N, D).
        mask: Optional boolean tensor of shape (B, T); `False` marks padding, seen by no token.
        state: Sums over earlier tokens, from `empty_running_sum` or from an earlier call.
        chunk_size: Tokens in a chunk, at least 1.

    Returns:
        A tensor of shape (B, T, N, D) and the dtype of `values`, and the sums over all tokens so
        far. Sums are taken in float32. Queries that see no token at all give exactly 0.

    Raises:
        ValueError: If `chunk_size` is not an integer of at least 1.

    Time O(T H D), memory O(T (H + D)) per head. Our addition to Wi et al., arXiv 2505.08516,
    whose V is normalised over the whole sequence.

    Example:

    >>> left = logits = np.zeros((1, 3, 1, 1), "float32")
    >>> values = np.array([1.0, 3.0, 5.0], "float32").reshape((1, 3, 1, 1))
    >>> means, _ = causal_singular_value_attention(left + 1, logits, values)
    >>> keras.ops.convert_to_numpy(means).ravel().round(3).tolist()
    [1.0, 2.0, 3.0]
    """
    values = ops.convert_to_tensor(values)
    dtype = values.dtype
    left, logits, values = (
        ops.transpose(at_least_float32(x), (0, 2, 1, 3)) for x in (left, logits, values)
    )
    if mask is not None:
        mask = ops.cast(mask, "bool")[:, None, :, None]
        logits = ops.where(mask, logits, ops.cast(hidden_logit(logits.dtype), logits.dtype))
        values = zero_where_masked(values, mask)
    length = left.shape[2]
    if length is not None:
        chunk_size = max(1, min(chunk_size, length))
    if state is None:
        heads, key_dim = logits.shape[1], logits.shape[3]
        state = empty_running_sum(
            ops.shape(logits)[0], heads, key_dim, values.shape[3], logits.dtype
        )
    outputs, state = _attend_in_chunks(
        _chunks(left, chunk_size, 0.0),
        _chunks(logits, chunk_size, hidden_logit(logits.dtype)),
        _chunks(values, chunk_size, 0.0),
        state,
    )
    shape = ops.shape(values)
    outputs = ops.reshape(outputs, (shape[0], values.shape[1], -1, values.shape[3]))
    outputs = outputs[:, :, : shape[2]]
    return ops.cast(ops.transpose(outputs, (0, 2, 1, 3)), dtype), state


def _chunks(x: Tensor, size: int, fill: float) -> Tensor:
    """(B, N, T, ...) -> (B, N, T / size, size, ...), filled up at the end."""
    batch, heads, length, *others = ops.shape(x)
    missing = -length % size
    if not isinstance(missing, int) or missing > 0:
        tail = ops.full((batch, heads, missing, *others), fill, x.dtype)
        x = ops.concatenate([x, tail], axis=2)
    return ops.reshape(x, (batch, heads, (length + missing) // size, size, *others))


def _attend_in_chunks(
    left: Tensor, logits: Tensor, values: Tensor, state: RunningSum
) -> tuple[Tensor, RunningSum]:
    """All of it, on tensors (B, N, C, c, H) and (B, N, C, c, D)."""
    chunks, exponentials = _sums_of_chunks(logits, values)
    sums = _prefix_sums(_map(_prepend, state, chunks))
    before = RunningSum(*(part[:, :, :-1] for part in sums))
    # Inside a chunk all is measured from the largest logit so far, the chunk included
    top = _larger(chunks.maximum, before.maximum)
    weights = _at_least(exponentials * ops.expand_dims(ops.exp(chunks.maximum - top), 3))
    weights = zero_where_masked(weights, _visible(logits))
    carried = ops.expand_dims(_at_least(ops.exp(before.maximum - top)), 3)  # (B, N, C, 1, H)
    size = logits.shape[3]
    seen = ops.tril(ops.ones((size, size), "bool"))
    normaliser = ops.einsum("ts,bncsh->bncth", ops.cast(seen, weights.dtype), weights)
    normaliser += carried * ops.expand_dims(before.normaliser, 3)
    normaliser = ops.where(normaliser > 0.0, normaliser, ops.cast(1.0, normaliser.dtype))
    left = left * ops.exp(-ops.log(normaliser))  # a quotient's gradient would divide by the square
    inside = zero_where_masked(ops.einsum("bncth,bncsh->bncts", left, weights), seen)
    outputs = ops.einsum("bncts,bncsd->bnctd", inside, values)
    outputs += ops.einsum("bncth,bnchd->bnctd", left * carried, before.context)
    return outputs, RunningSum(*(part[:, :, -1] for part in sums))


def _map(function: Callable[..., Tensor], *sums: RunningSum) -> RunningSum:
    return RunningSum(*(function(*parts) for parts in zip(*sums, strict=True)))


def _prepend(first: Tensor, others: Tensor) -> Tensor:
    return ops.concatenate([ops.expand_dims(first, 2), others], axis=2)


def _at_least(ratio: Tensor) -> Tensor:
    """Ratios to the largest, no smaller than exp(-SPAN)."""
    return _larger(ratio, ops.cast(math.exp(-SPAN), ratio.dtype))


def _larger(first: Tensor, second: Tensor) -> Tensor:
    """`ops.maximum`, but float64 stays float64 on torch."""
    return ops.where(first >= second, first, second)


def _visible(logits: Tensor) -> Tensor:
    """Where a logit is that of a token: neither of padding nor of a chunk's empty end."""
    return logits > 0.5 * hidden_logit(logits.dtype)


def _sums_of_chunks(logits: Tensor, values: Tensor) -> tuple[RunningSum, Tensor]:
    """Sums over each chunk by itself, and exp(logits - maximum)."""
    maximum = ops.stop_gradient(ops.max(logits, axis=3, keepdims=True))
    exponentials = zero_where_masked(ops.exp(logits - maximum), _visible(logits))
    normaliser = ops.sum(exponentials, axis=3)
    context = ops.einsum("bncsh,bncsd->bnchd", exponentials, values)
    return RunningSum(maximum[:, :, :, 0], normaliser, context), exponentials


def _prefix_sums(sums: RunningSum) -> RunningSum:
    """Sums over chunks 0 ... c for every c, the chunk axis being the third."""
    count, heads = sums.maximum.shape[2], sums.maximum.shape[1]
    if count is not None and count <= 2 * GROUP + 1:
        return _dense_prefix_sums(sums)
    # Inside groups, which stand beside the heads; then over the groups, by the same function
    fills = RunningSum(hidden_logit(sums.maximum.dtype), 0.0, 0.0)
    groups = _map(lambda part, fill: _merge_axes(_chunks(part, GROUP, fill)), sums, fills)
    inside = _dense_prefix_sums(groups)
    totals = _map(lambda part: _split_heads(part[:, :, -1], heads), inside)
    totals = _dense_prefix_sums(totals) if count is None else _prefix_sums(totals)
    before = _map(
        lambda part, fill: _merge_axes(
            ops.concatenate([ops.full_like(part[:, :, :1], fill), part[:, :, :-1]], axis=2)
        )[:, :, None],
        totals,
        fills,
    )
    joined = _map(lambda part: _split_heads(part, heads), _add(before, inside))
    count = ops.shape(sums.maximum)[2]
    return _map(
        lambda part: ops.reshape(part, (*ops.shape(part)[:2], -1, *part.shape[4:]))[:, :, :count],
        joined,
    )


def _add(first: RunningSum, second: RunningSum) -> RunningSum:
    """Sums over the tokens of both."""
    maximum = _larger(first.maximum, second.maximum)
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
    order = ops.arange(count)
    seen = order[None, :] <= order[:, None]
    low = ops.cast(hidden_logit(maxima.dtype), maxima.dtype)
    relative = ops.where(seen, maxima[:, :, :, None, :], low)  # (B, N, H, C, C)
    running = ops.max(relative, axis=-1)
    weights = ops.where(seen, ops.exp(relative - running[..., None]), ops.cast(0.0, relative.dtype))
    return RunningSum(
        ops.transpose(running, (0, 1, 3, 2)),
        ops.einsum("bnhij,bnjh->bnih", weights, sums.normaliser),
        ops.einsum("bnhij,bnjhd->bnihd", weights, sums.context),
    )
