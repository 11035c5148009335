"""The gated delta rule: a state that forgets, and that replaces what it holds for a key.

    S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T,    o_t = S_t^T q_t

The state S_t has shape (H, D), a_t is the decay and b_t the strength of the write. Outputs are
linear in the values, so this is an operator: o = A v, where A is lower triangular.

Tokens are cut into chunks. With E_ij = a_(j+1) ... a_i, the decay from token j to token i of a
chunk, and e_i the decay from the state before the chunk to token i,

    T = (I + L)^-1,    L_ij = b_i E_ij (k_i . k_j) for j < i
    O = M T diag(b) V + (diag(e) Q - M T diag(b e) K) S,    M_ij = E_ij (q_i . k_j) for j <= i
    S' = K'^T T diag(b) V + (e_c I - K'^T T diag(b e) K) S,    K'_j = E_cj k_j

T exists and its entries are at most 1 if keys have at most length 1 and b at most 1. The states
before all chunks come from a recurrence with matrices as factors.

Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464 (ICLR 2025), Eq. 10 and Section 3.3.
"""

import functools
from typing import NamedTuple

import keras
from keras import ops

from keras_graphattn.checks import dtype_name
from keras_graphattn.numerics.blocks import (
    cut_into_chunks,
    first_of,
    loop_over_blocks,
    number_of_blocks,
)
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import (
    at_least_float32,
    identity,
    nan_where,
    positions_of,
    take,
    without_padding,
    zero_where_masked,
)
from keras_graphattn.operators.device_kernels import chosen_kernels
from keras_graphattn.operators.operator import Operator
from keras_graphattn.types import Bool, Float, Tensor

CHUNK = 32  # tokens in a chunk
FORGETS = -1e30  # the logarithm of a decay of 0; sums of it over a chunk are finite
DOUBLINGS = 20  # torch traces an open number of steps up to 2^20

Tensors = tuple[Tensor, ...]


class Factors(NamedTuple):
    """O = inside V + of_state S and S' = update V + carried S, for G = C B N chunks of heads."""

    inside: Float[Tensor, "G c c"]
    of_state: Float[Tensor, "G c H"]
    update: Float[Tensor, "G H c"]
    carried: Float[Tensor, "G H H"]


class DeltaRuleOperator(Operator):
    """`x -> A x` for the gated delta rule, in time linear in the length.

    Args:
        query: Queries, of shape (B, T, N, H).
        key: Keys, of shape (B, T, N, H), of at most length 1.
        log_decay: log a_t, at most 0, of shape (B, T, N). `FORGETS` stands for a decay of 0.
        strength: b_t, of shape (B, T, N), from 0 to 1.
        state: The state before the first token, of shape (B, N, H, applications * D): one part for
            each call of the operator. By default it is 0.
        rows: Optional booleans (B, T); `False` marks rows that must be 0.
        non_finite: Optional booleans (B, T); `True` marks rows that must be NaN.

    Attributes:
        following: The states after the last token, one for each call, if `state` was given.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> gates = keras.ops.zeros((2, 10, 4))
    >>> operator = DeltaRuleOperator(query, key / 10.0, gates, gates + 0.5)
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        log_decay: Float[Tensor, "B T N"],
        strength: Float[Tensor, "B T N"],
        state: Float[Tensor, "B N H _"] | None = None,
        *,
        rows: Bool[Tensor, "B T"] | None = None,
        non_finite: Bool[Tensor, "B T"] | None = None,
    ) -> None:
        self.query, self.key, self.log_decay, self.strength = query, key, log_decay, strength
        self.state, self.rows, self.non_finite = state, rows, non_finite
        self.following: list[Tensor] = []
        self.factors: Factors | None = None

    def __call__(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if not self._fits_kernel(x):
            return self._in_chunks(x)
        from keras_graphattn.operators.triton_kernels import delta_rule

        batch, _, heads, width = ops.shape(x)
        start = ops.reshape(self._start(x), (batch, heads, self.key.shape[-1], width))
        given = self.query, self.key, x, self.log_decay, self.strength, start
        outputs, last = delta_rule(_portable, *given)
        self.following.append(last)
        return outputs

    def _fits_kernel(self, x: Float[Tensor, "B T N D"]) -> bool:
        """Whether the kernel of torch is asked for, takes these tensors, and they are many."""
        if chosen_kernels() is None or keras.backend.backend() != "torch":
            return False
        from keras_graphattn.operators.triton_kernels import WIDEST

        length, width = x.shape[1], self.key.shape[-1]
        is_long = isinstance(length, int) and length > CHUNK
        return is_long and dtype_name(x.dtype) == "float32" and width <= WIDEST

    def _in_chunks(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if self.factors is None:
            self.factors = self._factors()
        inside, of_state, update, carried = self.factors
        batch, length, heads, width = ops.shape(x)
        values = self._cut(x, inside.shape[-1])  # (G, c, D)
        outputs = inside @ values
        size = inside.shape[-1]
        count = number_of_blocks(length, size)
        if self.state is not None or not (isinstance(count, int) and count == 1):
            carried, updates = (
                ops.reshape(z, (count, batch * heads, *ops.shape(z)[1:]))
                for z in (carried, update @ values)
            )
            states, last = matrix_recurrence(carried, updates, self._start(x))
            states = ops.reshape(states, (count * batch * heads, *ops.shape(states)[2:]))
            outputs = outputs + of_state @ states
            self.following.append(ops.reshape(last, (batch, heads, *ops.shape(last)[1:])))
        outputs = ops.reshape(outputs, (count, batch, heads, size, width))
        outputs = ops.transpose(outputs, (1, 0, 3, 2, 4))  # (B, C, c, N, D)
        outputs = ops.reshape(outputs, (batch, count * size, heads, width))
        return ops.cast(first_of(outputs, length, axis=1), x.dtype)

    def _start(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "_ H D"]:
        """The part of the state that belongs to this call."""
        batch, _, heads, width = ops.shape(x)
        shape = (batch * heads, self.key.shape[-1], width)
        dtype = at_least_float32(self.key[:, :0]).dtype
        if self.state is None:
            return ops.zeros(shape, dtype)
        first = len(self.following) * width
        return ops.reshape(ops.cast(self.state[..., first : first + width], dtype), shape)

    def _cut(self, x: Float[Tensor, "B T N F"], size: int) -> Float[Tensor, "G c F"]:
        """Chunks: all examples and heads of the first, then of the second, and so on."""
        batch, length, heads, width = ops.shape(x)
        chunks = cut_into_chunks(at_least_float32(x)[:, None], size)[:, 0]  # (B, C, c, N, F)
        count = number_of_blocks(length, size)
        chunks = ops.transpose(chunks, (1, 0, 3, 2, 4))
        return ops.reshape(chunks, (count * batch * heads, size, width))

    def _factors(self) -> Factors:
        length = self.key.shape[1]
        size = min(CHUNK, length) if isinstance(length, int) else CHUNK
        size = 1 << max(0, size - 1).bit_length()  # a power of two
        query, key = (self._cut(x, size) for x in (self.query, self.key))
        log_decay, strength = (
            self._cut(x[..., None], size) for x in (self.log_decay, self.strength)
        )
        turned = ops.swapaxes(key, -1, -2)
        decay = decays(log_decay[..., 0])  # E, (G, c, c)
        before = ops.exp(log_decay[..., :1, :]) * decay[..., :1]  # e, (G, c, 1)
        inverse = unit_lower_inverse(strength * decay * (key @ turned))
        weights = inverse * ops.swapaxes(strength, -1, -2)  # T diag(b)
        of_state = weights @ (before * key)
        scores = decay * (query @ turned)  # M
        to_end = turned * decay[..., -1:, :]  # K'^T, (G, H, c)
        carried = before[..., -1:, :] * identity(key.shape[-1], dtype=key.dtype)
        return Factors(
            scores @ weights,
            before * query - scores @ of_state,
            to_end @ weights,
            carried - to_end @ of_state,
        )

    def matrix(self) -> Float[Tensor, "B N T T"]:
        # the operator applied to the identity: (1, T, 1, T), broadcast to (B, T, N, T)
        query = without_padding(self.query, self.rows)
        eye = ops.eye(ops.shape(query)[1], dtype=query.dtype)[None, :, None, :]
        operator = DeltaRuleOperator(query, self.key, self.log_decay, self.strength)
        matrix = ops.transpose(operator(eye * ops.ones_like(query[..., :1])), (0, 2, 1, 3))
        if self.non_finite is None:
            return matrix
        return nan_where(self.non_finite[:, None, :, None], matrix)

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        outputs = without_padding(outputs, self.rows)
        if self.non_finite is None:
            return outputs
        return nan_where(self.non_finite[:, :, None, None], outputs)


def _portable(
    query: Tensor, key: Tensor, x: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor
) -> Tensors:
    """The outputs and the state after the last token, without a kernel."""
    operator = DeltaRuleOperator(query, key, log_decay, strength, state)
    return operator._in_chunks(x), *operator.following


def decays(log_decay: Float[Tensor, "... c"]) -> Float[Tensor, "... c c"]:
    """E_ij = exp(sum of log_decay over j < l <= i) for j <= i, and 0 for j > i.

    Each sum is of its own numbers only. A difference of two longer sums would round, and would be
    no number after a decay of 0.
    """
    order = positions_of(log_decay.shape[-1])
    lower = order[:, None] >= order[None, :]
    of_each = zero_where_masked(log_decay[..., None], order[:, None] > order[None, :])
    sums = ops.cast(lower, log_decay.dtype) @ of_each
    return zero_where_masked(ops.exp(sums), lower)


def unit_lower_inverse(x: Float[Tensor, "G c c"]) -> Float[Tensor, "G c c"]:
    """(I + L)^-1, where L is `x` below its diagonal and c a power of two.

    The two halves of the diagonal are inverted first, and so on down to blocks of four. The numbers
    stay about as small as those of the inverse. A power series of L would grow first, and lose all
    digits.

    Example:

    >>> x = np.ones((1, 4, 4), "float32")
    >>> keras.ops.convert_to_numpy(unit_lower_inverse(x))[0].tolist()[3]
    [0.0, 0.0, -1.0, 1.0]
    """
    return _INVERSE(x)[0]


def _value(x: Tensor) -> tuple[Tensors, Tensors]:
    inverse = _inverted(x)
    return (inverse,), (inverse,)


def _inverted(x: Tensor) -> Tensor:
    count, half = ops.shape(x)[0], x.shape[-1] // 2
    if half <= 2:
        lower, one = ops.tril(x, -1), identity(x.shape[-1], dtype=x.dtype)
        return (one - lower) @ (one + lower @ lower)  # the fourth power of L is 0
    halves = _inverted(ops.concatenate([x[:, :half, :half], x[:, half:, half:]], axis=0))
    first, second = halves[:count], halves[count:]
    below = -(second @ x[:, half:, :half] @ first)
    above = ops.concatenate([first, ops.zeros_like(first)], axis=2)
    return ops.concatenate([above, ops.concatenate([below, second], axis=2)], axis=1)


def _gradient(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    turned = ops.swapaxes(kept[0], -1, -2)
    return (-ops.tril(turned @ upstream[0] @ turned, -1),)


_INVERSE = FunctionWithGradient(_value, _gradient)


def matrix_recurrence(
    factors: Float[Tensor, "C G H H"],
    updates: Float[Tensor, "C G H D"],
    start: Float[Tensor, "G H D"],
) -> tuple[Float[Tensor, "C G H D"], Float[Tensor, "G H D"]]:
    """S_(c+1) = P_c S_c + U_c: the states before each step, and the state after the last.

    Its gradient is the same recurrence from the last step to the first, with transposed factors:
    G_c = P_c^T G_(c+1) + what comes to S_c itself. So no backend differentiates a loop.

    Example:

    >>> factors, updates = np.full((2, 1, 1, 1), 0.5), np.ones((2, 1, 1, 1))
    >>> states, last = matrix_recurrence(factors, updates, np.zeros((1, 1, 1)))
    >>> [float(states[0, 0, 0, 0]), float(states[1, 0, 0, 0]), float(last[0, 0, 0])]
    [0.0, 1.0, 1.5]
    """
    count = ops.shape(factors)[0]
    if isinstance(count, int) and count == 0:
        return updates, start
    if not isinstance(count, int) and keras.backend.backend() == "torch":
        return _by_doubling(factors, updates, start)
    states, last = _FORWARDS(factors, updates, start)
    return states, last


def _states(
    backwards: bool, factors: Tensor, updates: Tensor, start: Tensor
) -> tuple[Tensors, Tensors]:
    def step(index: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        factor = factors[index]
        factor = ops.swapaxes(factor, -1, -2) if backwards else factor
        return factor @ state + updates[index], state

    last, states = loop_over_blocks(
        ops.shape(factors)[0], step, start, like=start, backwards=backwards
    )
    return (states, last), (states,)


def _gradient_of_states(
    backwards: bool, tensors: Tensors, kept: Tensors, upstream: Tensors
) -> Tensors:
    factors, (states,) = tensors[0], kept
    back, first = (_FORWARDS if backwards else _BACKWARDS)(factors, *upstream)
    left, right = (states, back) if backwards else (back, states)
    return left @ ops.swapaxes(right, -1, -2), back, first


_FORWARDS, _BACKWARDS = (
    FunctionWithGradient(
        functools.partial(_states, backwards), functools.partial(_gradient_of_states, backwards)
    )
    for backwards in (False, True)
)


def _by_doubling(factors: Tensor, updates: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Without a loop over steps: each step joins 1, 2, 4, ... steps before it."""
    order = positions_of(ops.shape(factors)[0])
    for power in range(DOUBLINGS):
        joins = (order >= 1 << power)[:, None, None, None]
        before = ops.maximum(order - (1 << power), 0)
        earlier_factors, earlier_updates = (take(x, before, axis=0) for x in (factors, updates))
        updates = ops.where(joins, factors @ earlier_updates + updates, updates)
        factors = ops.where(joins, factors @ earlier_factors, factors)
    after = factors @ start[None] + updates
    return ops.concatenate([start[None], after], axis=0)[:-1], after[-1]
