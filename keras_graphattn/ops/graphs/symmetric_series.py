"""y = sum_k c_k P_k x for symmetric operators P_k given by a recurrence, in a loop.

Examples are the Chebyshev polynomials of a graph's operator, and the matrices with 1 for nodes at
distance k in a tree. The size of the compiled loop does not depend on the number of terms. The
backward pass is one more loop, over the signal x and the cotangent y' together:

    dx = sum_k c_k P_k y',      dc_k = y' . P_k x
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import take

Tensor = Any
Carry = tuple[Tensor, ...]


class SymmetricSeries:
    """The function `x, coefficients, *tensors -> sum_k coefficients[k] P_k x` of a recurrence.

    Create one object for each recurrence: on jax it is compiled once for each set of shapes.

    Args:
        start: x -> the state of the recurrence, a tuple whose first entry is P_0 x.
        step: The state at k, and `tensors` -> the state at k + 1, whose first entry is P_{k+1} x.
            `start` and `step` may capture only constants.

    Call arguments:
        x: Tensor of shape (n, N, C).
        coefficients: Tensor of shape (K + 1, N), one column per head.
        *tensors: float32 tensors that `step` takes; they get no gradient.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `coefficients`.
    """

    def __init__(self, start: Callable[[Tensor], Carry], step: Callable[..., Carry]) -> None:
        self.start = start
        self.step = step
        self._sum = FunctionWithGradient(self._value, self._gradient)

    def __call__(self, x: Tensor, coefficients: Tensor, *tensors: Tensor) -> Tensor:
        (found,) = self._sum(x, coefficients, *tensors)
        return found

    def _value(self, x: Tensor, coefficients: Tensor, *tensors: Tensor) -> tuple[Carry, Carry]:
        def forward(k: Any, state: tuple[Tensor, Carry]) -> tuple[Tensor, Carry]:
            total, carry = state
            carry = self.step(carry, *tensors)
            return total + _weighted(carry[0], coefficients, k), carry

        carry, count = self.start(x), coefficients.shape[0]
        first = _weighted(carry[0], coefficients, 0)
        total, _ = ops.fori_loop(1, count, forward, (first, carry))
        return (total,), ()

    def _gradient(self, inputs: Carry, kept: Carry, upstream: Carry) -> tuple[Tensor | None, ...]:
        x, coefficients, *tensors = inputs
        count, width = coefficients.shape[0], ops.shape(x)[2]
        both = self.start(ops.concatenate([upstream[0], x], axis=2))  # (n, N, 2 C)

        def add(k: Any, total: Tensor, products: Tensor, term: Tensor) -> tuple[Tensor, Tensor]:
            product = ops.sum(upstream[0] * term[:, :, width:], axis=(0, 2))  # y' . P_k x, (N,)
            here = ops.cast(ops.equal(ops.arange(count, dtype="int32"), k), product.dtype)
            total = total + _weighted(term[:, :, :width], coefficients, k)
            return total, products + here[:, None] * product

        def backward(k: Any, state: Any) -> Any:
            total, products, carry = state
            carry = self.step(carry, *tensors)
            return (*add(k, total, products, carry[0]), carry)

        zeros = ops.zeros_like(upstream[0]), ops.zeros_like(coefficients)
        state = (*add(0, *zeros, both[0]), both)
        total, products, _ = ops.fori_loop(1, count, backward, state)
        return total, products, *(None for _ in tensors)


def _weighted(term: Tensor, coefficients: Tensor, k: Any) -> Tensor:
    factors = coefficients[k] if isinstance(k, int) else take(coefficients, k, axis=0)
    return term * factors[None, :, None]
