"""The causal form of attention in a learned singular-value domain, in linear time.

    out_t = U_t g(S_t) sum_{s<=t} exp(l_s) x_s / z_t,    z_t = sum_{s<=t} exp(l_s)

for each feature of the head, where l are the logits of V. Tokens are cut into chunks. There is no
loop over time, and no tensor is larger than (T / chunk) x H x D or T x (H + D + chunk). The result
is exact at any logits.

Between chunks there are sums of size H x D (`RunningSum`), each relative to the largest logit among
its tokens, so that it cannot overflow. Inside a chunk, a chunk x chunk matrix holds all pairs:

    A[t, s] = sum_h left[t, h] exp(l[s, h]) / z[t, h]

This is a product of matrices if each exponential is split at a reference r:
exp(l[s] - r) / (z[t] exp(-r)). A row must not depend on later tokens, so r comes from before the
chunk. The split is exact if no logit is above r by more than `LIMIT`, which is rare for learned
logits. Rows after such a logit are computed in another way. The chunk is halved repeatedly, and the
later half sees the earlier half relative to the largest logit at the border. Then no exponent is
positive, for any logits. This takes several times as long, so it runs only if it is needed.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
from keras import ops

from keras_graphattn.numerics.blocks import cut_into_chunks, first_of, fits_one_block, where_needed
from keras_graphattn.numerics.precision import (
    ALL,
    HIDDEN_LOGIT,
    at_least_float32,
    larger,
    largest,
    new_axes,
    positions_of,
    smaller,
    zero_where_masked,
)
from keras_graphattn.types import Bool, Float, Size, Tensor

CHUNK = 64  # tokens in a chunk
GROUP = 32  # chunks in a group; up to 2 GROUP + 1 chunks are summed at once
LIMIT = 40.0  # largest exponent at one reference; exp(2 LIMIT) is finite in float32
LEAST_LOGIT = 0.5 * HIDDEN_LOGIT  # the floor of the maxima: those of padding are far below it
ALWAYS_EXACT = 4  # up to this number of tokens in a chunk, halving costs no more


class RunningSum(NamedTuple):
    """Sums of exp(l_s - maximum) and exp(l_s - maximum) values_s over tokens seen so far.

    The leading axes are (B, N), and between chunks also one axis for the chunk.
    """

    maximum: Float[Tensor, "... H"]
    normaliser: Float[Tensor, "... H"]
    context: Float[Tensor, "... H D"]


def empty_running_sum(
    batch_size: int, num_heads: int, key_dim: int, value_dim: int, dtype: str = "float32"
) -> RunningSum:
    """The sums before the first token, of shapes (B, N, H), (B, N, H) and (B, N, H, D)."""
    shape = (batch_size, num_heads, key_dim)
    return RunningSum(
        ops.zeros(shape, dtype) + HIDDEN_LOGIT,  # jax2onnx has no `full` of an open batch
        ops.zeros(shape, dtype),
        ops.zeros((*shape, value_dim), dtype),
    )


class Chunks(NamedTuple):
    """C chunks of c tokens, c a power of two, with the sums over all tokens before each chunk."""

    left: Float[Tensor, "B N C c H"]  # U * g(S)
    logits: Float[Tensor, "B N C c H"]  # of V; `HIDDEN_LOGIT` in padding
    values: Float[Tensor, "B N C c D"]  # 0 in padding
    before: RunningSum  # (B, N, C, H) and (B, N, C, H, D)
    visible: Bool[Tensor, "B C c"] | None  # None if padding is only at the end


def rises_too_high(
    logits: Float[Tensor, "... H"], reference: Float[Tensor, "... H"]
) -> Bool[Tensor, "... 1"]:
    """Returns where a logit of any feature (last axis) is too far above its reference."""
    rise = ops.stop_gradient(logits) - reference
    return ops.any(rise > LIMIT, axis=-1, keepdims=True)


def reference_of(chunks: Chunks) -> Float[Tensor, "B N C H"]:
    """Returns the largest logit before each chunk or, if no token is there, its first logit.

    Rows before this first token see no token. So no row with outputs depends on later tokens.
    """
    logits = ops.stop_gradient(chunks.logits)
    least = ops.cast(LEAST_LOGIT, logits.dtype)
    if chunks.visible is None:
        first = logits[:, :, :, 0]
    else:
        counts = ops.cumsum(ops.cast(chunks.visible, "int32"), axis=-1)
        is_first = ops.logical_and(chunks.visible, counts == 1)
        is_first = new_axes(
            ops.cast(is_first, logits.dtype), (ALL, None, ALL, None)
        )  # (B, 1, C, 1, c)
        first = (is_first @ logits)[:, :, :, 0]
        some = new_axes(ops.any(chunks.visible, axis=-1), (ALL, None, ALL, None))
        first = ops.where(some, first, least)
    largest = ops.stop_gradient(chunks.before.maximum)
    return larger(ops.where(largest <= least, first, largest), least)


def at_one_reference(
    chunks: Chunks, reference: Float[Tensor, "B N C H"]
) -> Float[Tensor, "B N C c D"]:
    """The outputs, right in rows before the first logit that is too high."""
    left, logits, values, before, _ = chunks
    size = int(logits.shape[3])
    seen = ops.tril(ops.ones((size, size), "bool"))
    weights = ops.exp(smaller(logits - new_axes(reference, (ALL, ALL, ALL, None)), LIMIT))
    # The sums before the chunk have this reference already, or they are 0.
    normaliser = ops.cast(seen, weights.dtype) @ weights
    left = _divided(left, normaliser + new_axes(before.normaliser, (ALL, ALL, ALL, None)))
    scores = left @ ops.swapaxes(weights, -1, -2)
    scores = zero_where_masked(scores, seen)  # A, (B, N, C, c, c)
    return scores @ values + left @ before.context


def at_any_logits(
    chunks: Chunks, maximum: Float[Tensor, "B N C c H"]
) -> Float[Tensor, "B N C c D"]:
    """The outputs for any logits, from the running maximum of the logits."""
    left, logits, values, before, _ = chunks
    own = ops.exp(logits - maximum)
    normaliser, logits, maxima = _merged(own), _merged(logits), _merged(maximum)
    steps = []
    for width in _widths(logits):
        # Relative to the largest logit before the border: the earlier tokens, and how much this
        # logit counts in later rows.
        earlier, _ = _halves(logits, width)
        earlier_maximum, later_maximum = _halves(maxima, width)
        border = earlier_maximum[..., -1:, :]
        decay = ops.exp(border - later_maximum)
        steps.append((width, ops.exp(earlier - border), decay))
        first, second = _halves(normaliser, width)
        normaliser = _joined(first, second + decay * first[..., -1:, :], normaliser)
    carried = ops.exp(new_axes(before.maximum, (ALL, ALL, ALL, None)) - maximum)
    normaliser = ops.reshape(normaliser, ops.shape(own))
    left = _divided(left, normaliser + carried * new_axes(before.normaliser, (ALL, ALL, ALL, None)))
    outputs = _merged(ops.sum(left * own, axis=-1, keepdims=True) * values)
    merged_left, merged_values = _merged(left), _merged(values)
    for width, weights, decay in steps:
        _, later = _halves(merged_left, width)
        earlier_values, _ = _halves(merged_values, width)
        scores = (later * decay) @ ops.swapaxes(weights, -1, -2)
        first, second = _halves(outputs, width)
        outputs = _joined(first, second + scores @ earlier_values, outputs)
    outputs = ops.reshape(outputs, ops.shape(values))
    return outputs + (left * carried) @ before.context


def running_maximum(chunks: Chunks) -> Float[Tensor, "B N C c H"]:
    """The largest logit up to each token, over all earlier chunks."""
    maximum = _merged(ops.stop_gradient(chunks.logits))
    for width in _widths(maximum):
        first, second = _halves(maximum, width)
        maximum = _joined(first, larger(second, first[..., -1:, :]), maximum)
    maximum = ops.reshape(maximum, ops.shape(chunks.logits))
    least = ops.cast(LEAST_LOGIT, maximum.dtype)
    before = larger(ops.stop_gradient(chunks.before.maximum), least)
    return larger(maximum, new_axes(before, (ALL, ALL, ALL, None)))


def _merged(x: Float[Tensor, "B N C c F"]) -> Float[Tensor, "... c F"]:
    """The chunks of all examples and heads on one axis, so that exports have few open sizes.

    jax2onnx has no products of open sizes.
    """
    if keras.backend.backend() == "jax":
        return x
    return ops.reshape(x, (-1, *map(int, x.shape[3:])))


def _widths(x: Float[Tensor, "... c H"]) -> list[int]:
    """1, 2, 4, ... up to half a chunk."""
    return [1 << power for power in range(int(x.shape[-2]).bit_length() - 1)]


def _halves(
    x: Float[Tensor, "... c F"], width: int
) -> tuple[Float[Tensor, "... _ w F"], Float[Tensor, "... _ w F"]]:
    """Earlier and later tokens of each 2 w, where w is the width."""
    size, features = map(int, x.shape[-2:])
    x = ops.reshape(x, (*_outer(x), size // (2 * width), 2 * width, features))
    return x[..., :width, :], x[..., width:, :]


def _joined(
    first: Float[Tensor, "... _ w F"],
    second: Float[Tensor, "... _ w F"],
    like: Float[Tensor, "... c F"],
) -> Float[Tensor, "... c F"]:
    """The inverse of `_halves`, with the shape of `like`."""
    shape = (*_outer(like), *map(int, like.shape[-2:]))
    return ops.reshape(ops.concatenate([first, second], axis=-2), shape)


def _outer(x: Float[Tensor, "... c F"]) -> tuple[Size, ...]:
    """The sizes of the axes before the tokens of a chunk, of a result of `_merged`."""
    return (-1,) if len(x.shape) == 3 else tuple(ops.shape(x)[:-2])


def _divided(
    left: Float[Tensor, "B N C c H"], normaliser: Float[Tensor, "B N C c H"]
) -> Float[Tensor, "B N C c H"]:
    """left / normaliser, or left where the normaliser is 0 (rows without a token). NaN stays."""
    one = ops.cast(1.0, normaliser.dtype)
    normaliser = ops.where(normaliser == 0.0, one, normaliser)
    return left * ops.exp(-ops.log(normaliser))  # the gradient of a quotient divides by the square


def causal_product(
    left: Float[Tensor, "B T N H"],
    logits: Float[Tensor, "B T N H"],
    values: Float[Tensor, "B T N D"],
    visible: Bool[Tensor, "B T"] | None = None,
    state: RunningSum | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Float[Tensor, "B T N D"], RunningSum]:
    """`left_t @ (V_t^T values)`, where V_t is the softmax of the logits over the tokens up to t.

    Also the sums over all tokens so far. A chunk has `chunk_size` tokens, rounded up to a power of
    two.
    """
    chunk_size = _power_of_two(chunk_size, logits.shape[1])
    if state is None:
        (batch, _, heads, key_dim), width = ops.shape(logits), values.shape[3]
        dtype = at_least_float32(logits[:, :0]).dtype
        state = empty_running_sum(batch, heads, key_dim, width, dtype)

    chunks, state = _chunks(left, logits, values, visible, state, chunk_size)
    if chunk_size <= ALWAYS_EXACT:
        outputs = at_any_logits(chunks, running_maximum(chunks))
    else:
        reference = reference_of(chunks)
        near = at_one_reference(chunks, reference)

        def exactly(outputs: Tensor, *tensors: Tensor) -> Tensor:
            left, logits, values, *before = tensors
            chunks = Chunks(left, logits, values, RunningSum(*before), None)
            maximum = running_maximum(chunks)
            rows = rises_too_high(
                maximum, new_axes(reference, (ALL, ALL, ALL, None))
            )  # (B, N, C, c, 1)
            return ops.where(rows, at_any_logits(chunks, maximum), outputs)

        def exactly_where_needed(outputs: Tensor, *tensors: Tensor) -> Tensor:
            needed = ops.any(rises_too_high(largest(tensors[1], axis=3), reference))
            return where_needed(needed, lambda: part(outputs, *tensors), lambda: outputs)

        # Rematerialised, so that the values for its gradient are not kept if it does not run. A
        # persistent tape of TensorFlow refuses that, as any custom gradient, inside of a condition.
        is_inside = keras.backend.backend() != "tensorflow"
        part = keras.remat(exactly) if is_inside else exactly
        whole = exactly_where_needed if is_inside else keras.remat(exactly_where_needed)
        outputs = whole(near, chunks.left, chunks.logits, chunks.values, *chunks.before)
    batch, heads, count, size, width = ops.shape(outputs)  # (B, N, C, c, D)
    outputs = ops.reshape(outputs, (batch, heads, count * size, width))
    outputs = first_of(outputs, ops.shape(values)[1], axis=2)
    outputs = ops.transpose(outputs, (0, 2, 1, 3))  # (B, T, N, D)
    return ops.cast(outputs, values.dtype), state


def _power_of_two(size: int, length: int | None) -> int:
    """The size of a chunk: a power of two, reduced to the length if that is known."""
    size = max(1, min(size, length)) if isinstance(length, int) else size
    return 1 << (size - 1).bit_length()


def _chunks(
    left: Float[Tensor, "B T N H"],
    logits: Float[Tensor, "B T N H"],
    values: Float[Tensor, "B T N D"],
    visible: Bool[Tensor, "B T"] | None,
    state: RunningSum,
    size: int,
) -> tuple[Chunks, RunningSum]:
    """The tensors in chunks, and the sums over all of them."""
    left, logits, values = (
        ops.transpose(at_least_float32(x), (0, 2, 1, 3)) for x in (left, logits, values)
    )
    if visible is not None:
        visible = new_axes(ops.cast(visible, "bool"), (ALL, None, ALL, None))
        logits = ops.where(visible, logits, ops.cast(HIDDEN_LOGIT, logits.dtype))
        values = zero_where_masked(values, visible)
        visible = cut_into_chunks(visible, size, False)[:, 0, :, :, 0]
    left = cut_into_chunks(left, size, 0.0)  # (B, N, C, c, H)
    logits = cut_into_chunks(logits, size, HIDDEN_LOGIT)
    values = cut_into_chunks(values, size, 0.0)
    before, after = sums_before_and_after(logits, values, state)
    return Chunks(left, logits, values, before, visible), after


def map_sums(function: Callable[..., Tensor], *sums: RunningSum) -> RunningSum:
    """Applies the function to the maxima, to the normalisers and to the contexts."""
    return RunningSum(*(function(*parts) for parts in zip(*sums, strict=True)))


def sums_before_and_after(
    logits: Float[Tensor, "B N C c H"], values: Float[Tensor, "B N C c D"], state: RunningSum
) -> tuple[RunningSum, RunningSum]:
    """The sums over all tokens before each chunk, and over all tokens.

    The state has the sums before the first chunk. The first sums have the shapes (B, N, C, H) and
    (B, N, C, H, D), the second no axis C.
    """
    least = ops.cast(LEAST_LOGIT, logits.dtype)
    maximum = largest(ops.stop_gradient(logits), axis=3, keepdims=True)
    maximum = larger(maximum, least)  # above the logits of padding; (B, N, C, 1, H)
    exponentials = ops.exp(logits - maximum)
    normaliser = ops.sum(exponentials, axis=3)  # (B, N, C, H)
    context = ops.swapaxes(exponentials, -1, -2) @ values  # (B, N, C, H, D)
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
    fills = RunningSum(HIDDEN_LOGIT, 0.0, 0.0)
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
    """The sums over the tokens of both summaries."""
    maximum = larger(first.maximum, second.maximum)
    scales = (ops.exp(first.maximum - maximum), ops.exp(second.maximum - maximum))
    return RunningSum(
        maximum,
        first.normaliser * scales[0] + second.normaliser * scales[1],
        first.context * new_axes(scales[0], (..., None))
        + second.context * new_axes(scales[1], (..., None)),
    )


def _merge_axes(x: Float[Tensor, "B N G ..."]) -> Float[Tensor, "B _ ..."]:
    """(B, N, G, ...) -> (B, N G, ...)."""
    shape = ops.shape(x)
    return ops.reshape(x, (shape[0], shape[1] * shape[2], *shape[3:]))


def _split_heads(x: Float[Tensor, "B _ ..."], heads: int) -> Float[Tensor, "B N G ..."]:
    """(B, N G, ...) -> (B, N, G, ...)."""
    shape = ops.shape(x)
    return ops.reshape(x, (shape[0], heads, shape[1] // heads, *shape[2:]))


def _dense_prefix_sums(sums: RunningSum) -> RunningSum:
    """Prefix sums by one lower-triangular matrix per feature."""
    count = ops.shape(sums.maximum)[2]
    maxima = ops.stop_gradient(ops.transpose(sums.maximum, (0, 1, 3, 2)))  # (B, N, H, C)
    order = positions_of(count)
    seen = order[None, :] <= order[:, None]
    low = ops.cast(HIDDEN_LOGIT, maxima.dtype)
    relative = ops.where(seen, new_axes(maxima, (ALL, ALL, ALL, None)), low)  # (B, N, H, C, C)
    running = largest(relative, axis=-1)
    weights = ops.where(
        seen, ops.exp(relative - new_axes(running, (..., None))), ops.cast(0.0, relative.dtype)
    )
    return RunningSum(
        ops.transpose(running, (0, 1, 3, 2)),
        ops.einsum("bnhij,bnjh->bnih", weights, sums.normaliser),
        ops.einsum("bnhij,bnjhd->bnihd", weights, sums.context),
    )
