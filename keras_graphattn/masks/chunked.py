"""Masks that attention computes in chunks of tokens: causal, segments, exponentials, and products.

    out_i = sum_j M[i, j] (phi(q_i) . phi(k_j)) x_j
    M[i, j] = [j <= i if causal] [same segment] sum_r c_r exp(-a_r |i - j|) exp(g_j+1 + ... + g_i)

Inside a chunk, a small matrix has all pairs of tokens. The tokens outside the chunk enter as one
m x D sum per chunk and exponential. The time is O(n (chunk + m) D), and there is never an (n, m, D)
tensor. The sums over all chunks before one are

    S_c = sum_{c' < c} decay^(c - 1 - c') [source_c' = target_c] u_c'

They come from a small matrix of all pairs of the chunks of one group, and from the sum before the
group, which comes from the sums of whole groups in the same way. With gates g, which are at most 0,
the decay is another one for each chunk. A `scan` would be simpler, but its
gradient does not compile under XLA on TensorFlow. Exponents are never positive, so nothing
overflows for any decay.
"""

import math
from functools import partial
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import (
    Sizes,
    checked,
    dtype_name,
    flag,
    integers,
    optional,
    size,
    tensor,
    whole,
)
from keras_graphattn.masks.inputs import Length, Tensors, marked
from keras_graphattn.masks.mask import (
    Features,
    Mask,
    MaskOptions,
    Operands,
    Positions,
    Rows,
    Shape,
    Signal,
    finite,
    in_one_dtype,
)
from keras_graphattn.numerics.blocks import cut_into_chunks, first_of
from keras_graphattn.numerics.precision import (
    pad,
    positions_of,
    size_tensor,
    take,
    zero_where_masked,
)
from keras_graphattn.operators.device_kernels import Kernels, chosen_kernels
from keras_graphattn.types import Bool, Float, Int, Tensor

CHUNK = 64  # tokens in a chunk
CHUNK_TWO_SIDED = 128  # if later tokens count too: then there are twice as many sums
GROUP = 64  # most chunks of which all pairs are computed at once
PART = 64  # numbers of which all pairs are added at once
GROUP_OF_OPEN = 8  # chunks of a group if their number is not known before the run

Chunks = Float[Tensor, "B N C c _"]


class Decay(NamedTuple):
    """A sum of exponentials sum_r c_r exp(-a_r |i - j|), per head.

    Example:

    >>> ones, decay = np.ones((1, 3, 1, 1), "float32"), Decay(np.log(2.0) * np.ones((1, 1)))
    >>> sums = chunked_attention(ones, ones, ones, causal=True, decay=decay)
    >>> keras.ops.convert_to_numpy(sums).ravel().round(4).tolist()
    [1.0, 1.5, 1.75]
    """

    rates: Float[Tensor, "N R"]  # not negative
    weights: Float[Tensor, "N R"] | None = None  # 1 by default

    def matrix(self, distance: Float[Tensor, "R T"]) -> Float[Tensor, "N R T"]:
        """sum_r c_r exp(-a_r distance)."""
        powers = ops.exp(-self.rates[:, :, None, None] * distance)  # (N, decays, R, T)
        if self.weights is not None:
            powers = powers * self.weights[:, :, None, None]
        return powers[:, 0] if self.rates.shape[1] == 1 else ops.sum(powers, axis=1)

    def times(
        self, x: Float[Tensor, "B N ..."], distance: Int[Tensor, " c"], weighted: bool = False
    ) -> Float[Tensor, "B N ..."]:
        """exp(-a_r distance) x or, if weighted, c_r exp(-a_r distance) x: (..., c, R columns)."""
        powers = ops.exp(-self.rates[:, :, None] * ops.cast(distance, self.rates.dtype))
        if weighted and self.weights is not None:
            powers = powers * self.weights[:, :, None]  # (N, R, c)
        between = [1] * (len(x.shape) - 4)
        powers = ops.reshape(powers, (*powers.shape[:2], *between, -1, 1))
        parts = [x * powers[:, r] for r in range(self.rates.shape[1])]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)

    def product(self, other: "Decay") -> "Decay":
        """The product of two sums of exponentials: the rates add, the weights multiply."""
        heads = self.rates.shape[0]
        rates = self.rates[:, :, None] + other.rates[:, None, :]
        rates = ops.reshape(rates, (heads, -1))  # (N, R S)
        if self.weights is None and other.weights is None:
            return Decay(rates)
        one, two = (
            ops.ones_like(decay.rates) if decay.weights is None else decay.weights
            for decay in (self, other)
        )
        return Decay(rates, ops.reshape(one[:, :, None] * two[:, None, :], (heads, -1)))


class Form(NamedTuple):
    """The factor of tokens i and j: [j <= i] [same segment] sum_r c_r exp(-a_r |i - j|).

    With `log_gates`, which need `causal`, it is multiplied by exp(g_j+1 + ... + g_i).
    """

    causal: bool = False
    decay: Decay | None = None
    segment_ids: Int[Tensor, "B T"] | None = None
    log_gates: Float[Tensor, "B T N"] | None = None  # finite, at most 0

    def times(self, other: "Form") -> "Form":
        """The form of the product of two masks; at most one has segments, at most one gates."""
        decay = other.decay if self.decay is None else self.decay
        if self.decay is not None and other.decay is not None:
            decay = self.decay.product(other.decay)
        ids = other.segment_ids if self.segment_ids is None else self.segment_ids
        gates = other.log_gates if self.log_gates is None else self.log_gates
        return Form(self.causal or other.causal, decay, ids, gates)


class ChunkedState(NamedTuple):
    """A summary of the earlier tokens, of a size that does not depend on their number."""

    sums: Float[Tensor, "B N _ D"]  # (B, N, R m, D): sum_j exp(-a_r (last - j)) phi(k_j) x_j^T
    segment: Int[Tensor, " B"]  # id of the last token; not used without segments


def _a_decay(name: str, value: Any, sizes: Sizes) -> Decay:
    """The rule of a `Decay`."""
    if not isinstance(value, Decay):
        raise ValueError(f"`{name}` must be a Decay of rates. Received: {name}={value!r}")
    rates = tensor("N R")(f"{name}.rates", value.rates, sizes)
    weights = optional(tensor("N R"))(f"{name}.weights", value.weights, sizes)
    return Decay(rates, weights)


@checked(
    query=tensor("B T N m"),
    key=tensor("B T N m"),
    x=tensor("B T N D"),
    causal=flag,
    decay=optional(_a_decay),
    segment_ids=optional(integers("B T")),
    chunk_size=optional(whole()),
)
def chunked_attention(
    query: Features,
    key: Features,
    x: Signal,
    *,
    causal: bool,
    decay: Decay | None = None,
    segment_ids: Int[Tensor, "B T"] | None = None,
    chunk_size: int | None = None,
) -> Signal:
    """Returns [(phi(Q) phi(K)^T) o M] x for the masks of this file, in the dtype of `x`.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        causal: Whether token i sees only tokens j <= i.
        decay: Exponentials per head; none by default.
        segment_ids: Optional integer tensor of shape (B, T). Tokens see each other within a run of
            equal ids. A negative id marks padding, which sees no token and which no token sees.
        chunk_size: Tokens in a chunk; by default 64, or 128 unless causal.

    Returns:
        A tensor of shape (B, T, N, D).

    Example:

    >>> ones = np.ones((1, 4, 1, 1), "float32")
    >>> ids = np.array([[7, 7, 8, 8]])
    >>> sums = chunked_attention(ones, ones, ones, causal=True, segment_ids=ids)
    >>> keras.ops.convert_to_numpy(sums).ravel().tolist()
    [1.0, 2.0, 1.0, 2.0]

    Source: ours.
    """
    query, key, x = (ops.convert_to_tensor(t) for t in (query, key, x))
    if decay is not None:
        decay = Decay(*(None if part is None else ops.cast(part, x.dtype) for part in decay))
    form = Form(causal, decay, segment_ids)
    return attention_by_form(query, key, x, form, chunk_size=chunk_size)


def attention_by_form(
    query: Features,
    key: Features,
    x: Signal,
    form: Form,
    state: ChunkedState | None = None,
    chunk_size: int | None = None,
) -> Signal:
    """`chunked_attention` for tensors of one dtype, after the tokens of `state`."""
    if state is not None:
        exponentials = 1 if form.decay is None else form.decay.rates.shape[1]
        expected = exponentials * key.shape[-1]
        if state.sums.shape[2] != expected:
            raise ValueError(
                f"`state.sums` must have {expected} rows: {exponentials} exponentials of `decay` "
                f"times {key.shape[-1]} features of `key`. Received: "
                f"state.sums.shape={tuple(state.sums.shape)}"
            )
    if chunk_size is None:
        chunk_size = CHUNK if form.causal else CHUNK_TWO_SIDED
    runs = None
    if form.segment_ids is not None:
        runs, kept = runs_of(form.segment_ids, None if state is None else state.segment)
        kept = kept[:, :, None, None]
        query, key, x = (zero_where_masked(t, kept) for t in (query, key, x))
    gates = None if form.log_gates is None else ops.transpose(form.log_gates, (0, 2, 1))
    length = x.shape[1] if isinstance(x.shape[1], int) else None
    if state is None and length is not None and length <= chunk_size:
        scores = ops.einsum("btnm,bsnm->bnts", query, key)
        return ops.einsum("bnts,bsnd->btnd", _masked(scores, runs, form, gates), x)
    kernels = chosen_kernels() if form.causal and runs is None and state is None else None
    if kernels is not None and length is not None and dtype_name(x.dtype) == "float32":
        return _by_kernel(query, key, x, form, kernels)
    chunk_size = chunk_size if length is None else min(chunk_size, length)
    return _in_chunks(query, key, x, form, runs, gates, state, chunk_size)


def _in_chunks(
    query: Features,
    key: Features,
    x: Signal,
    form: Form,
    runs: Int[Tensor, "B T"] | None,
    gates: Float[Tensor, "B N T"] | None,
    state: ChunkedState | None,
    chunk_size: int,
) -> Signal:
    size = ops.shape(x)[1]
    # (B, T, N, ...) -> (B, N, C, c, ...)
    query, key, x = (
        cut_into_chunks(ops.transpose(t, (0, 2, 1, 3)), chunk_size) for t in (query, key, x)
    )
    if runs is not None:
        runs = cut_into_chunks(runs[:, None], chunk_size, -1)[:, 0]  # (B, C, c)
    if gates is not None:
        gates = cut_into_chunks(gates, chunk_size)  # (B, N, C, c)
    outputs = _masked(query @ ops.swapaxes(key, -1, -2), runs, form, gates) @ x
    outputs = outputs + _outside(query, key, x, runs, form.decay, gates, state=state)
    if not form.causal:
        outputs = outputs + _outside(query, key, x, runs, form.decay, reverse=True)
    outputs = first_of(_without_chunks(outputs), size, axis=2)
    return ops.transpose(outputs, (0, 2, 1, 3))


def _by_kernel(query: Features, key: Features, x: Signal, form: Form, kernels: Kernels) -> Signal:
    """The same by a kernel, one call for each exponential."""
    if keras.backend.backend() == "torch":
        from keras_graphattn.operators.triton_kernels import decayed_attention as in_triton

        attend = partial(in_triton, _under_gates, query, key, x)
    else:
        from keras_graphattn.operators.pallas_decay import decayed_attention

        attend = partial(decayed_attention, query, key, x, **kernels._asdict())
    gates = ops.zeros_like(x[..., 0]) if form.log_gates is None else form.log_gates
    if form.decay is None:
        return attend(log_gates=gates)
    rates, weights = form.decay
    total: Signal = 0.0
    for r in range(rates.shape[1]):
        part = attend(log_gates=gates - rates[:, r])
        total = total + (part if weights is None else part * weights[:, r, None])
    return total


def _under_gates(query: Features, key: Features, x: Signal, gates: Tensor) -> Signal:
    """Causal attention under gates (B, T, N), without a kernel."""
    gates = ops.transpose(gates, (0, 2, 1))
    return _in_chunks(query, key, x, Form(causal=True), None, gates, None, CHUNK)


def advanced_state(state: ChunkedState, key: Features, x: Signal, form: Form) -> ChunkedState:
    """The state after new tokens, for tensors of one dtype."""
    keep, segment = 1.0, state.segment
    if form.segment_ids is not None:
        runs, kept = runs_of(form.segment_ids, state.segment)
        # only the last run can continue in later tokens
        last = ops.logical_and(ops.equal(runs, runs[:, -1:]), kept)
        key, x = (zero_where_masked(t, last[:, :, None, None]) for t in (key, x))
        keep = ops.cast(ops.equal(runs[:, -1], 0), x.dtype)[:, None, None, None]
        segment = ops.cast(form.segment_ids, "int32")[:, -1]
    key = ops.transpose(key, (0, 2, 1, 3))
    if form.decay is not None:
        length, rates = ops.shape(x)[1], form.decay.rates
        key = form.decay.times(key, length - 1 - positions_of(length))
        rates = ops.repeat(rates, state.sums.shape[2] // rates.shape[1], axis=1)
        keep = keep * ops.exp(-rates * size_tensor(length, rates.dtype))[:, :, None]
    if form.log_gates is not None:
        gates = ops.transpose(form.log_gates, (0, 2, 1))[:, :, None]  # (B, N, 1, t)
        key = key * ops.swapaxes(ops.exp(sums_behind(gates)), -1, -2)
        keep = keep * ops.exp(ops.sum(gates, axis=-1, keepdims=True))
    sums = keep * ops.cast(state.sums, x.dtype) + ops.einsum("bnjf,bjnd->bnfd", key, x)
    return ChunkedState(sums, segment)


def runs_of(
    ids: Int[Tensor, "B T"], before: Int[Tensor, " B"] | None = None
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The number of each token's run of equal ids, and which tokens are not padding.

    The run that continues `before`, the id of the token before the first one, has number 0.
    """
    ids = ops.cast(ids, "int32")
    first = ids[:, :1] if before is None else ops.cast(before, "int32")[:, None]
    shifted = ops.concatenate([first, ids], axis=1)[:, :-1]
    return ops.cumsum(ops.cast(ops.not_equal(ids, shifted), "int32"), axis=1), ids >= 0


def _masked(
    scores: Float[Tensor, "B N ..."],
    runs: Int[Tensor, "B ..."] | None,
    form: Form,
    gates: Float[Tensor, "B N ..."] | None,
) -> Float[Tensor, "B N ..."]:
    """phi(Q) phi(K)^T of the tokens of each chunk, times M."""
    if gates is not None:
        behind = ops.arange(1, scores.shape[-1] + 1, dtype="int32")
        scores = scores * ops.exp(sums_between(gates, behind, behind))
    if form.decay is not None:
        order = ops.arange(0, scores.shape[-1], dtype=scores.dtype)
        factors = form.decay.matrix(ops.abs(order[:, None] - order))  # (N, c, c)
        scores = scores * (factors if len(scores.shape) == 4 else factors[:, None])
    if runs is not None:
        same = ops.equal(runs[..., :, None], runs[..., None, :])[:, None]
        scores = ops.where(same, scores, ops.cast(0.0, scores.dtype))
    return ops.tril(scores) if form.causal else scores


def _outside(
    query: Chunks,
    key: Chunks,
    x: Chunks,
    runs: Int[Tensor, "B C c"] | None,
    decay: Decay | None,
    gates: Float[Tensor, "B N C c"] | None = None,
    reverse: bool = False,
    state: ChunkedState | None = None,
) -> Chunks:
    """The contributions of earlier chunks and of the state, or of later chunks if `reverse`."""
    batch, heads, _, size, width = ops.shape(x)
    order = positions_of(size)
    to_edge = order if reverse else size - 1 - order
    source, target, reached = None, None, None
    if runs is not None:  # only the run at the edge of a chunk can continue in the next chunk
        first, last = runs[:, :, 0], runs[:, :, -1]
        source, target = (first, last) if reverse else (last, first)
        reached = ops.cast(ops.equal(runs, target[..., None]), x.dtype)[:, None, ..., None]
        key = key * ops.cast(ops.equal(runs, source[..., None]), x.dtype)[:, None, ..., None]
    if decay is not None:
        key = decay.times(key, to_edge)
    if gates is not None:
        behind_chunk = sums_between(gates, order + 1, order[-1:] + 1)  # (B, N, C, 1, c)
        key = key * ops.swapaxes(ops.exp(behind_chunk), -1, -2)
    decays = 1 if decay is None else decay.rates.shape[1]
    updates = ops.swapaxes(key, -1, -2) @ x  # (B, N, C, R m, D)
    features = updates.shape[3]
    if state is not None:
        sums = ops.cast(state.sums, x.dtype)[:, :, None]
        updates = ops.concatenate([sums, updates], axis=2)
        if source is not None:
            start = ops.zeros((batch, 1), source.dtype)  # the run of the state is number 0
            source, target = (ops.concatenate([start, x], axis=1) for x in (source, target))
    shape = ops.shape(updates)
    # (B, N, C, R m, D) -> (B, N, R, C, m D)
    updates = ops.reshape(updates, (batch, heads, shape[2], decays, features // decays * width))
    updates = ops.transpose(updates, (0, 1, 3, 2, 4))
    if reverse:
        updates = ops.flip(updates, axis=3)
        source, target = (x if x is None else ops.flip(x, axis=1) for x in (source, target))
    log_decay = None if decay is None else -float(size) * decay.rates
    if gates is not None:
        of_chunks = ops.sum(gates, axis=-1)[:, :, None]  # (B, N, 1, C)
        if state is not None:  # nothing decays over the state, which comes first
            of_chunks = pad(of_chunks, ((0, 0), (0, 0), (0, 0), (1, 0)))
        log_decay = of_chunks if log_decay is None else log_decay[:, :, None] + of_chunks
    sums = _sums_before(updates, log_decay, source, target)
    if reverse:
        sums = ops.flip(sums, axis=3)
    sums = ops.reshape(ops.transpose(sums, (0, 1, 3, 2, 4)), shape)
    sums = sums if state is None else sums[:, :, 1:]
    if decay is None:
        outputs = query @ sums
    elif decays > 1:
        outputs = decay.times(query, size - to_edge, weighted=True) @ sums
    else:
        # One exponential is a factor for each row. On the product, it can be fused with the sum
        # that follows, in one pass over memory.
        outputs = decay.times(query @ sums, size - to_edge, weighted=True)
    if gates is not None:
        outputs = outputs * ops.exp(sums_between(gates, order[:1], order + 1))
    return outputs if reached is None else outputs * reached


def _sums_before(
    updates: Float[Tensor, "B N R C F"],
    log_decay: Float[Tensor, "N R"] | Float[Tensor, "B N R C"] | None,
    source: Int[Tensor, "B C"] | None,
    target: Int[Tensor, "B C"] | None,
    is_cut: bool = True,
) -> Float[Tensor, "B N R C F"]:
    """S_c of each chunk, from updates u_c with contiguous segments `source`, cut into groups.

    `log_decay` is the logarithm of the decay over a chunk, at most 0: one number for all chunks, or
    one for each.
    """
    batch, heads, decays, count, width = ops.shape(updates)
    varies = log_decay is not None and len(log_decay.shape) == 4
    is_known, dtype = isinstance(count, int), updates.dtype
    # the other backends cannot derive the shapes of an open number of groups
    is_cut = is_cut and (count > GROUP if is_known else keras.backend.backend() == "tensorflow")
    if not is_cut:
        size, updates = count, updates[:, :, :, None]
        log_decay = log_decay[:, :, :, None] if varies else log_decay  # type: ignore[index]
        source, target = (x if x is None else x[:, None] for x in (source, target))
    else:
        size = -(-count // -(-count // GROUP)) if is_known else GROUP_OF_OPEN
        updates = cut_into_chunks(ops.reshape(updates, (batch, -1, count, width)), size)
        updates = ops.reshape(updates, (batch, heads, decays, *ops.shape(updates)[2:]))
        if varies:
            log_decay = cut_into_chunks(ops.reshape(log_decay, (batch, -1, count)), size)
            log_decay = ops.reshape(log_decay, (batch, heads, decays, -1, size))
        source, target = (
            x if x is None else cut_into_chunks(x[:, None], size, -1)[:, 0]
            for x in (source, target)
        )
    # u is (B, N, R, groups, size, F) now, source and target (B, groups, size)

    def factors(first: Tensor, behind: Tensor, targets: Tensor, sources: Tensor) -> Tensor:
        """The decay over the chunks first <= c < behind of each group; 0 if first > behind."""
        steps = behind[:, None] - first
        powers = ops.cast(ops.maximum(steps, 0), dtype)
        decayed = ops.ones_like(powers)
        if varies:
            decayed = ops.exp(sums_between(log_decay, first, behind))
        elif log_decay is not None:
            decayed = ops.exp(log_decay[:, :, None, None, None] * powers)
        decayed = ops.where(steps >= 0, decayed, ops.cast(0.0, dtype))
        if targets is None:
            return decayed
        same = ops.equal(targets[..., :, None], sources[..., None, :])
        return decayed * ops.cast(same, dtype)[:, None, None]

    order = positions_of(size)
    sums = factors(order + 1, order, target, source) @ updates
    if is_cut:  # and the sum before each group, which comes from the sums of whole groups
        last = None if source is None else source[:, :, -1:]
        first = None if target is None else target[:, :, :1]
        totals = factors(order + 1, order[-1:] + 1, last, source) @ updates
        ends, starts = (x if x is None else x[:, :, 0] for x in (last, first))
        group_decay = ops.sum(log_decay, axis=-1) if varies else None
        if log_decay is not None and not varies:
            group_decay = size * log_decay
        before = _sums_before(totals[:, :, :, :, 0], group_decay, ends, starts, is_known)
        sums = sums + factors(order[:1], order, target, first) * before[:, :, :, :, None]
    sums = _without_chunks(sums)
    return first_of(sums, count, axis=3) if is_cut else sums


def _without_chunks(x: Float[Tensor, "... C c F"]) -> Float[Tensor, "... T F"]:
    """Joins the axes of chunks and of positions in a chunk."""
    *others, chunks, size, width = ops.shape(x)
    length = chunks * size if isinstance(chunks, int) else -1  # an empty batch has no -1
    return ops.reshape(x, (*others, length, width))


# Sums over intervals of numbers of one sign add only the numbers of the interval: the difference of
# two cumulative sums loses the digits of a short one.


def sums_between(
    numbers: Float[Tensor, "... c"], first: Int[Tensor, " columns"], behind: Int[Tensor, " rows"]
) -> Float[Tensor, "... rows columns"]:
    """The sums of `numbers[k]` over first <= k < behind, for all pairs; 0 for empty intervals.

    Example:

    >>> order = keras.ops.arange(3, dtype="int32")
    >>> sums = sums_between(np.array([1.0, 2.0, 4.0], "float32"), order, order + 1)
    >>> keras.ops.convert_to_numpy(sums).tolist()
    [[1.0, 0.0, 0.0], [3.0, 2.0, 0.0], [7.0, 6.0, 4.0]]
    """
    numbers = ops.convert_to_tensor(numbers)
    order = positions_of(ops.shape(numbers)[-1])
    before = ops.cast(order[None, :] < behind[:, None], numbers.dtype)  # (rows, c)
    after = ops.cast(order[:, None] >= first[None, :], numbers.dtype)  # (c, columns)
    return numbers[..., None, :] * before @ after


def sums_behind(numbers: Float[Tensor, "B N R T"]) -> Float[Tensor, "B N R T"]:
    """The sum of all numbers after each one, along the last axis, in O(T) for each row.

    Example:

    >>> sums = sums_behind(np.array([1.0, 2.0, 4.0], "float32").reshape((1, 1, 1, 3)))
    >>> keras.ops.convert_to_numpy(sums).ravel().tolist()
    [6.0, 4.0, 0.0]
    """
    numbers = ops.convert_to_tensor(numbers)
    batch, heads, rows, length = ops.shape(numbers)
    parts = cut_into_chunks(ops.reshape(numbers, (batch, heads * rows, length)), PART)
    sums = _behind(parts) + _behind(ops.sum(parts, axis=-1))[..., None]  # (B, N R, parts, PART)
    sums = first_of(ops.reshape(sums, (batch, heads * rows, -1)), length, axis=2)
    return ops.reshape(sums, (batch, heads, rows, length))


def _behind(numbers: Float[Tensor, "... c"]) -> Float[Tensor, "... c"]:
    """`sums_behind` by the matrix of all pairs."""
    order = positions_of(ops.shape(numbers)[-1])
    return numbers @ ops.cast(order[:, None] > order[None, :], numbers.dtype)


class ChunkedMask(Mask):
    """Base of the masks with a `Form`: linear in the length, with a state if causal."""

    paths: tuple[str, ...] = ("dense", "blockwise", "chunked")

    num_decays: int = 1  # R; the state has R m x D numbers for each head

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        """Returns the mask's form, from its weights and inputs."""
        raise NotImplementedError(f"{type(self).__name__} must write `form`.")

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        form = self.form(parameters, inputs)
        order = positions_of(length)
        distance = ops.cast(positions, "int32")[:, None] - order[None, :]  # (R, T)
        rows = ops.ones((1, 1, 1, 1), "float32")
        if form.decay is not None:
            dtype = form.decay.rates.dtype
            rows = form.decay.matrix(ops.cast(ops.abs(distance), dtype))[None]  # (1, N, R, T)
        if form.log_gates is not None:
            gates = ops.transpose(form.log_gates, (0, 2, 1))[:, :, None]  # (B, N, 1, T)
            gates = zero_where_masked(gates, distance >= 0)
            rows = ops.cast(rows, gates.dtype) * ops.exp(sums_behind(gates))
        if form.causal:
            rows = ops.where(distance >= 0, rows, ops.cast(0.0, rows.dtype))
        if form.segment_ids is not None:
            runs, kept = runs_of(form.segment_ids)
            seen = ops.equal(take(runs, positions, axis=1)[:, :, None], runs[:, None, :])
            seen = ops.logical_and(seen, kept[:, None, :])  # (B, R, T)
            rows = ops.where(seen[:, None], rows, ops.cast(0.0, rows.dtype))
        return rows

    def _attend(self, tokens: Operands, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        x, query, key, _ = tokens
        return attention_by_form(query, key, x, self.form(parameters, inputs))

    @checked(batch_size=size(0), num_heads=whole(), features=whole(), width=whole())
    def get_initial_state(
        self, batch_size: int, num_heads: int, features: int, width: int
    ) -> ChunkedState:
        if not self.has_state:
            raise self._no_state()
        return ChunkedState(
            ops.zeros((batch_size, num_heads, self.num_decays * features, width)),
            ops.full((batch_size,), -1, "int32"),  # an id of padding: no token belongs to it
        )

    @checked(query_features=tensor("B T N m"), key_features=tensor("B T N m"), x=tensor("B T N D"))
    def step(
        self,
        state: ChunkedState,
        query_features: Features,
        key_features: Features,
        x: Signal,
        **inputs: Tensor,
    ) -> tuple[Signal, ChunkedState]:
        if not self.has_state:
            raise self._no_state()
        dtype = x.dtype
        tensors, wrong, _ = self.prepare(x, **inputs)
        (query, key, x), parameters, tensors = in_one_dtype(
            (query_features, key_features, x), self.parameters(), tensors
        )
        form = self.form(parameters, tensors)
        state = state._replace(sums=ops.cast(state.sums, x.dtype))
        outputs = attention_by_form(query, key, x, form, state)  # (B, t, N, D)
        state = advanced_state(state, key, x, form)
        state = state._replace(sums=marked(state.sums, wrong))
        return ops.cast(marked(outputs, wrong), dtype), state


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Causal(ChunkedMask):
    """M[i, j] = 1 for j <= i, else 0: each token sees itself and the tokens before it.

    Example:

    >>> mask = Causal()
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    >>> x = np.array([1.0, 10.0, 100.0], "float32").reshape((1, 3, 1, 1))
    >>> keras.ops.convert_to_numpy(mask.apply(x)).ravel().tolist()
    [1.0, 11.0, 111.0]
    """

    is_causal = True
    has_state = True

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        return Form(causal=True)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Segments(ChunkedMask):
    """M[i, j] = 1 if i and j are in the same segment, else 0: for packing and padding.

    Several sequences that are packed into one do not see each other, and no token sees padding.
    Each call takes the segments as an integer tensor `segment_ids` of shape (B, T). A segment is a
    run of equal ids. If an id appears again after another id or after padding, it starts a new
    segment, on every path. To let separate runs of one id see each other, sort the tokens by id
    first, or give an `attention_mask` to the layer. A negative id marks padding: it sees no token,
    and no token sees it.

    Example:

    >>> mask = Segments()
    >>> matrix = mask.dense(segment_ids=np.array([[4, 4, 9, -1]]))
    >>> keras.ops.convert_to_numpy(matrix)[0, 0].tolist()
    [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    inputs_at_call = ("segment_ids",)

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        return Form(segment_ids=inputs["segment_ids"])


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Exponential(ChunkedMask):
    """M[i, j] = sum_r c_r exp(-a_r |i - j|), with rates and weights learned per head.

    The product is linear in the length for all rates. A causal mask decodes token by token with a
    state of fixed size. Rates and weights stay positive, because their logarithms are learned.

    Args:
        num_decays: Number R of exponentials, at least 1.
        causal: Whether M[i, j] = 0 for j > i.
        initial_rates: Start values of the a_r: a positive number, or numbers that broadcast to
            (num_heads, num_decays). By default 2^(-8 k / (N R)) for k = 1 ... N R, where k counts
            the rates of the first head, then of the second, and so on. With one decay these are
            ALiBi's slopes.
        **kwargs: Those of every `Mask`.

    Weights:
        `log_rates` and, with several decays, `log_weights`, of shape (num_heads, num_decays). The
        weights start at 1 / R. With one decay there is no weight: the normaliser would cancel it.

    Raises:
        ValueError: For an invalid number of decays or invalid rates.

    Example:

    >>> mask = Exponential(initial_rates=np.log(2.0), causal=True)
    >>> mask.build((None, None, 1, 8))
    >>> keras.ops.convert_to_numpy(mask.dense(3))[0, 0].round(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]

    Source: ours. The slopes come from Press et al., "Train Short, Test Long", arXiv 2108.12409.
    Their bias -a |i - j| on logits is this factor on kernels.
    """

    _settings = ("num_decays", "causal", "initial_rates")

    def __init__(
        self,
        num_decays: int = 1,
        causal: bool = False,
        initial_rates: ArrayLike | None = None,
        **kwargs: Unpack[MaskOptions],
    ) -> None:
        super().__init__(**kwargs)
        self.num_decays = whole()("num_decays", num_decays, {})
        self.causal = self.is_causal = flag("causal", causal)
        self.hides_keys = self.has_state = self.causal
        if initial_rates is not None:
            initial_rates = finite("initial_rates", initial_rates, positive=True)
        self.initial_rates = initial_rates

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        shape = (self.num_heads, self.num_decays)
        count = self.num_heads * self.num_decays
        rates = self.initial_rates
        if rates is None:
            rates = 2.0 ** (-8.0 * np.arange(1, count + 1) / count).reshape(shape)
        rates = self._of_heads("initial_rates", rates, *shape)
        self.log_rates = self._add_parameter("log_rates", np.log(rates))
        if self.num_decays > 1:
            weights = np.full(shape, -math.log(self.num_decays))
            self.log_weights = self._add_parameter("log_weights", weights)

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        weights = ops.exp(parameters["log_weights"]) if self.num_decays > 1 else None
        return Form(self.is_causal, Decay(ops.exp(parameters["log_rates"]), weights))
