"""A linear recurrence whose factors are matrices: S_c+1 = P_c S_c + U_c.

The gradient is the same recurrence from the last step to the first, with transposed factors, so it
is written by hand. Then no backend differentiates a loop, and each compiles it.
"""

from keras import ops

from keras_graphattn.numerics.blocks import loop_over_blocks
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import matmul
from keras_graphattn.types import Float, Tensor

Tensors = tuple[Tensor, ...]


def matrix_recurrence(
    factors: Float[Tensor, "B N C H H"],
    updates: Float[Tensor, "B N C H D"],
    start: Float[Tensor, "B N H D"],
) -> Float[Tensor, "B N _ H D"]:
    """The states before each step, and after the last: (B, N, C + 1, H, D).

    Example:

    >>> factors, updates = np.full((1, 1, 2, 1, 1), 0.5), np.ones((1, 1, 2, 1, 1))
    >>> states = matrix_recurrence(factors, updates, np.zeros((1, 1, 1, 1)))
    >>> keras.ops.convert_to_numpy(states).ravel().tolist()
    [0.0, 1.0, 1.5]
    """
    (states,) = _RECURRENCE(factors, updates, start)
    return states


def _value(factors: Tensor, updates: Tensor, start: Tensor) -> tuple[Tensors, Tensors]:
    def step(index: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return matmul(factors[:, :, index], state) + updates[:, :, index], state

    last, before = loop_over_blocks(ops.shape(factors)[2], step, start, like=start)
    states = ops.concatenate([ops.transpose(before, (1, 2, 0, 3, 4)), last[:, :, None]], axis=2)
    return (states,), (states,)


def _gradient(tensors: Tensors, kept: Tensors, upstream: Tensors) -> Tensors:
    factors, (states,), (given,) = tensors[0], kept, upstream
    turned = ops.flip(ops.swapaxes(factors, -1, -2), axis=2)
    back = matrix_recurrence(turned, ops.flip(given[:, :, :-1], axis=2), given[:, :, -1])
    back = ops.flip(back, axis=2)  # the gradient of each state
    to_updates = back[:, :, 1:]
    return matmul(to_updates, ops.swapaxes(states[:, :, :-1], -1, -2)), to_updates, back[:, :, 0]


_RECURRENCE = FunctionWithGradient(_value, _gradient)
