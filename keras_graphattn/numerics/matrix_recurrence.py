"""A linear recurrence whose factors are matrices: S_(c+1) = P_c S_c + U_c.

Its gradient is the same recurrence from the last step to the first, with transposed factors:
G_c = P_c^T G_(c+1) + what comes to S_c itself. It is written by hand, so no backend differentiates
a loop, and each compiles it.
"""

import functools

import keras
from keras import ops

from keras_graphattn.numerics.blocks import loop_over_blocks
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import matmul, positions_of, take
from keras_graphattn.types import Float, Tensor

DOUBLINGS = 20  # torch traces an open number of steps up to 2^20

Tensors = tuple[Tensor, ...]


def matrix_recurrence(
    factors: Float[Tensor, "C G H H"],
    updates: Float[Tensor, "C G H D"],
    start: Float[Tensor, "G H D"],
) -> tuple[Float[Tensor, "C G H D"], Float[Tensor, "G H D"]]:
    """The states before each step, and the state after the last.

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


def _value(
    backwards: bool, factors: Tensor, updates: Tensor, start: Tensor
) -> tuple[Tensors, Tensors]:
    def step(index: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        factor = factors[index]
        factor = ops.swapaxes(factor, -1, -2) if backwards else factor
        return matmul(factor, state) + updates[index], state

    last, states = loop_over_blocks(
        ops.shape(factors)[0], step, start, like=start, backwards=backwards
    )
    return (states, last), (states,)


def _gradient(backwards: bool, tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    factors, (states,) = tensors[0], kept
    back, first = (_FORWARDS if backwards else _BACKWARDS)(factors, *upstream)
    left, right = (states, back) if backwards else (back, states)
    return matmul(left, ops.swapaxes(right, -1, -2)), back, first


_FORWARDS, _BACKWARDS = (
    FunctionWithGradient(
        functools.partial(_value, backwards), functools.partial(_gradient, backwards)
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
        updates = ops.where(joins, matmul(factors, earlier_updates) + updates, updates)
        factors = ops.where(joins, matmul(factors, earlier_factors), factors)
    after = matmul(factors, start[None]) + updates
    return ops.concatenate([start[None], after], axis=0)[:-1], after[-1]
