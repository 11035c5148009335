"""The part of causal AGF inside chunks of tokens, exact for any logits.

    out[t] = sum_{s<=t} A[t, s] values[s],   A[t, s] = sum_h left[t, h] exp(l[s, h]) / z[t, h]

This is a product of matrices if each exponential is split at a reference r:
exp(l[s] - r) / (z[t] exp(-r)). A row must not depend on later tokens, so r comes from before the
chunk. The split is exact if no logit is above r by more than `LIMIT`, which learned logits rarely
are. Rows after such a logit are computed in another way. The chunk is halved repeatedly, and the
later half sees the earlier half relative to the largest logit at the border. Then no exponent is
positive, for any logits. This takes several times as long, so it runs only if it is needed.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.numerics.precision import larger, matmul, smaller, zero_where_masked
from keras_graphattn.ops.singular.running_sums import RunningSum, least_logit

Tensor = Any

LIMIT = 40.0  # largest exponent at one reference; exp(2 LIMIT) is finite in float32
ALWAYS_EXACT = 4  # up to this number of tokens in a chunk, halving costs no more


class Chunks(NamedTuple):
    """C chunks of c tokens, c a power of two, with the sums over all tokens before each chunk."""

    left: Tensor  # U * g(S), (B, N, C, c, H)
    logits: Tensor  # of V, (B, N, C, c, H); `hidden_logit` in padding
    values: Tensor  # (B, N, C, c, D), 0 in padding
    before: RunningSum  # (B, N, C, H) and (B, N, C, H, D)
    visible: Tensor | None  # booleans (B, C, c); None if padding is only at the end


def rises_too_high(logits: Tensor, reference: Tensor) -> Tensor:
    """Returns where a logit of any feature (last axis) is too far above its reference."""
    rise = ops.stop_gradient(logits) - reference
    return ops.any(rise > LIMIT, axis=-1, keepdims=True)


def reference_of(chunks: Chunks) -> Tensor:
    """Returns the largest logit before each chunk or, if no token is there, its first logit.

    Rows before this first token see no token. So no row with outputs depends on later tokens.

    Returns:
        A tensor of shape (B, N, C, H).
    """
    logits = ops.stop_gradient(chunks.logits)
    least = ops.cast(least_logit(logits.dtype), logits.dtype)
    if chunks.visible is None:
        first = logits[:, :, :, 0]
    else:
        counts = ops.cumsum(ops.cast(chunks.visible, "int32"), axis=-1)
        is_first = ops.logical_and(chunks.visible, counts == 1)
        first = ops.einsum("bcs,bncsh->bnch", ops.cast(is_first, logits.dtype), logits)
        some = ops.any(chunks.visible, axis=-1)[:, None, :, None]
        first = ops.where(some, first, least)
    largest = ops.stop_gradient(chunks.before.maximum)
    return larger(ops.where(largest <= least, first, largest), least)


def at_one_reference(chunks: Chunks, reference: Tensor) -> Tensor:
    """The outputs (B, N, C, c, D), right in rows before the first logit that is too high."""
    left, logits, values, before, _ = chunks
    size = logits.shape[3]
    seen = ops.tril(ops.ones((size, size), "bool"))
    weights = ops.exp(smaller(logits - reference[:, :, :, None], LIMIT))
    # The sums before the chunk have this reference already, or they are 0.
    normaliser = ops.einsum("ts,bncsh->bncth", ops.cast(seen, weights.dtype), weights)
    left = _divided(left, normaliser + before.normaliser[:, :, :, None])
    scores = ops.einsum("bncth,bncsh->bncts", left, weights)
    scores = zero_where_masked(scores, seen)  # A, (B, N, C, c, c)
    outputs = ops.einsum("bncts,bncsd->bnctd", scores, values)
    return outputs + ops.einsum("bncth,bnchd->bnctd", left, before.context)


def at_any_logits(chunks: Chunks, maximum: Tensor) -> Tensor:
    """The outputs (B, N, C, c, D) for any logits, from the running maximum of the logits."""
    left, logits, values, before, _ = chunks
    own = ops.exp(logits - maximum)
    normaliser = own
    steps = []
    for width in _widths(logits):
        # Relative to the largest logit before the border: the earlier tokens, and how much this
        # logit counts in later rows.
        earlier, _ = _halves(logits, width)
        earlier_maximum, later_maximum = _halves(maximum, width)
        border = earlier_maximum[..., -1:, :]
        decay = ops.exp(border - later_maximum)
        steps.append((width, ops.exp(earlier - border), decay))
        first, second = _halves(normaliser, width)
        normaliser = _joined(first, second + decay * first[..., -1:, :], normaliser)
    carried = ops.exp(before.maximum[:, :, :, None] - maximum)
    left = _divided(left, normaliser + carried * before.normaliser[:, :, :, None])
    outputs = ops.sum(left * own, axis=-1, keepdims=True) * values
    for width, weights, decay in steps:
        _, later = _halves(left, width)
        earlier_values, _ = _halves(values, width)
        scores = matmul(later * decay, ops.swapaxes(weights, -1, -2))
        first, second = _halves(outputs, width)
        outputs = _joined(first, second + matmul(scores, earlier_values), outputs)
    return outputs + ops.einsum("bncth,bnchd->bnctd", left * carried, before.context)


def running_maximum(chunks: Chunks) -> Tensor:
    """Returns the largest logit up to each token, over all earlier chunks: (B, N, C, c, H)."""
    maximum = ops.stop_gradient(chunks.logits)
    for width in _widths(maximum):
        first, second = _halves(maximum, width)
        maximum = _joined(first, larger(second, first[..., -1:, :]), maximum)
    least = ops.cast(least_logit(maximum.dtype), maximum.dtype)
    before = larger(ops.stop_gradient(chunks.before.maximum), least)
    return larger(maximum, before[:, :, :, None])


def _widths(x: Tensor) -> list[int]:
    """1, 2, 4, ... up to half a chunk."""
    return [1 << power for power in range(x.shape[3].bit_length() - 1)]


def _halves(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(B, N, C, c, F) -> two of (B, N, C, c / (2 width), width, F): earlier and later tokens."""
    *outer, size, features = ops.shape(x)
    x = ops.reshape(x, (*outer, size // (2 * width), 2 * width, features))
    return x[..., :width, :], x[..., width:, :]


def _joined(first: Tensor, second: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_halves`, with the shape of `like`."""
    return ops.reshape(ops.concatenate([first, second], axis=-2), ops.shape(like))


def _divided(left: Tensor, normaliser: Tensor) -> Tensor:
    """left / normaliser, or left where the normaliser is 0 (rows without a token). NaN stays."""
    one = ops.cast(1.0, normaliser.dtype)
    normaliser = ops.where(normaliser == 0.0, one, normaliser)
    return left * ops.exp(-ops.log(normaliser))  # the gradient of a quotient divides by the square
