"""The causal form of attention in a learned singular-value domain, in linear time.

    out_t = U_t g(S_t) sum_{s<=t} exp(l_s) values_s / z_t,    z_t = sum_{s<=t} exp(l_s)

for each feature of the head, where l are the logits of V. Tokens are cut into chunks. Inside a
chunk, a chunk x chunk matrix holds all pairs (`causal_chunks`). Between chunks there are sums of
size H x D (`running_sums`). There is no loop over time, and no tensor is larger than
(T / chunk) x H x D or T x (H + D + chunk). The result is exact at any logits.
"""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import checked, mask, optional, tensor, whole
from keras_graphattn.numerics.blocks import cut_into_chunks, first_of, where_needed
from keras_graphattn.numerics.precision import (
    at_least_float32,
    hidden_logit,
    largest,
    zero_where_masked,
)
from keras_graphattn.ops.kernel.causal_chunks import (
    ALWAYS_EXACT,
    Chunks,
    at_any_logits,
    at_one_reference,
    reference_of,
    rises_too_high,
    running_maximum,
)
from keras_graphattn.ops.singular.running_sums import (
    RunningSum,
    empty_running_sum,
    running_sum,
    sums_before_and_after,
)

Tensor = Any

CHUNK = 64  # tokens in a chunk


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
    """`left_t @ (V_t^T values)`, where V_t is the softmax of the logits over the tokens up to t.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        logits: Logits of V, of shape (B, T, N, H).
        values: Token values, of shape (B, T, N, D).
        mask: Optional boolean tensor of shape (B, T); `False` marks padding, which no token sees.
        state: Sums over earlier tokens, from `empty_running_sum` or from an earlier call.
        chunk_size: Number of tokens in a chunk, at least 1. It is rounded up to a power of two.

    Returns:
        A tensor of shape (B, T, N, D) and the dtype of `values`, and the sums over all tokens so
        far. Sums use float32, or float64 if an argument is float64. A query that sees no token
        gives exactly 0. No bit of an output depends on later tokens, as long as those are finite.
        NaN and inf spread to earlier tokens, as in `keras.layers.MultiHeadAttention`.

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
    left, logits, values = (ops.convert_to_tensor(x) for x in (left, logits, values))
    chunk_size = _power_of_two(chunk_size, logits.shape[1])
    if state is None:
        (batch, _, heads, key_dim), width = ops.shape(logits), values.shape[3]
        dtype = at_least_float32(logits[:, :0]).dtype
        state = empty_running_sum(batch, heads, key_dim, width, dtype)

    def chunks_of(
        left: Tensor, logits: Tensor, values: Tensor, *state: Tensor
    ) -> tuple[Chunks, RunningSum]:
        return _chunks(left, logits, values, mask, RunningSum(*state), chunk_size)

    arguments = (left, logits, values, *state)
    chunks, state = chunks_of(*arguments)
    if chunk_size <= ALWAYS_EXACT:
        outputs = at_any_logits(chunks, running_maximum(chunks))
    else:
        reference = reference_of(chunks)
        near = at_one_reference(chunks, reference)

        def exactly(outputs: Tensor, *tensors: Tensor) -> Tensor:
            chunks, _ = chunks_of(*tensors)
            maximum = running_maximum(chunks)
            rows = rises_too_high(maximum, reference[:, :, :, None])  # (B, N, C, c, 1)
            return ops.where(rows, at_any_logits(chunks, maximum), outputs)

        # Rematerialised, so that the values for its gradient are not kept if it does not run
        needed = ops.any(rises_too_high(largest(chunks.logits, axis=3), reference))
        outputs = where_needed(needed, lambda: keras.remat(exactly)(near, *arguments), lambda: near)
    batch, heads, count, size, width = ops.shape(outputs)  # (B, N, C, c, D)
    outputs = ops.reshape(outputs, (batch, heads, count * size, width))
    outputs = first_of(outputs, ops.shape(values)[1], axis=2)
    outputs = ops.transpose(outputs, (0, 2, 1, 3))  # (B, T, N, D)
    return ops.cast(outputs, values.dtype), state


def _power_of_two(size: int, length: Any) -> int:
    """The size of a chunk: a power of two, reduced to the length if that is known."""
    size = max(1, min(size, length)) if isinstance(length, int) else size
    return 1 << (size - 1).bit_length()


def _chunks(
    left: Tensor,
    logits: Tensor,
    values: Tensor,
    mask: Tensor | None,
    state: RunningSum,
    size: int,
) -> tuple[Chunks, RunningSum]:
    """The tensors (B, T, N, .) in chunks, and the sums over all of them."""
    left, logits, values = (
        ops.transpose(at_least_float32(x), (0, 2, 1, 3)) for x in (left, logits, values)
    )
    hidden, visible = hidden_logit(logits.dtype), None
    if mask is not None:
        mask = ops.cast(mask, "bool")[:, None, :, None]
        logits = ops.where(mask, logits, ops.cast(hidden, logits.dtype))
        values = zero_where_masked(values, mask)
        visible = cut_into_chunks(mask, size, False)[:, 0, :, :, 0]
    left = cut_into_chunks(left, size, 0.0)  # (B, N, C, c, H)
    logits = cut_into_chunks(logits, size, hidden)
    values = cut_into_chunks(values, size, 0.0)
    before, after = sums_before_and_after(logits, values, state)
    return Chunks(left, logits, values, before, visible), after
