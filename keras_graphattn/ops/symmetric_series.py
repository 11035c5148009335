"""y = sum_k c_k P_k x for symmetric operators P_k given by a recurrence, in a loop.

Chebyshev polynomials of a graph's operator are such a series, and so are the matrices that say
"at distance k in this tree". The loop is compiled once whatever the number of terms; the backward
pass is one more loop over signal and cotangent side by side:

    dx = sum_k c_k P_k y',      dc_k = y' . P_k x
"""

from collections.abc import Callable
from typing import Any

from keras import ops

Tensor = Any
Carry = tuple[Tensor, ...]


def symmetric_series(
    start: Callable[[Tensor], Carry],
    step: Callable[..., Carry],
    x: Tensor,
    coefficients: Tensor,
    *tensors: Tensor,
) -> Tensor:
    """sum_k coefficients[k] P_k x, with gradients for `x` and `coefficients`.

    Args:
        start: x -> what the recurrence carries, a tuple whose first entry is P_0 x.
        step: From what is carried at k, and `tensors`, to what is carried at k + 1, P_{k+1} x
            first. Neither may capture tensors, but constants.
        x: Tensor of shape (n, N, C).
        coefficients: Tensor of shape (K + 1, N), one column per head.
        *tensors: float32 tensors that `step` takes; they get no gradient.

    Returns:
        A tensor of shape (n, N, C).
    """
    count, width = coefficients.shape[0], ops.shape(x)[2]

    def weighted(term: Tensor, coefficients: Tensor, k: Any) -> Tensor:
        factors = coefficients[k] if isinstance(k, int) else ops.take(coefficients, k, axis=0)
        return term * factors[None, :, None]

    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def series(x: Tensor, coefficients: Tensor, *tensors: Tensor) -> Any:
        def forward(k: Any, state: tuple[Tensor, Carry]) -> tuple[Tensor, Carry]:
            total, carry = state
            carry = step(carry, *tensors)
            return total + weighted(carry[0], coefficients, k), carry

        carry = start(x)
        total, _ = ops.fori_loop(1, count, forward, (weighted(carry[0], coefficients, 0), carry))

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            upstream = arguments[0] if upstream is None else upstream
            both = start(ops.concatenate([upstream, x], axis=2))

            def add(k: Any, total: Tensor, products: Tensor, term: Tensor) -> tuple[Tensor, Tensor]:
                product = ops.sum(upstream * term[:, :, width:], axis=(0, 2))
                here = ops.cast(ops.equal(ops.arange(count), k), product.dtype)
                total = total + weighted(term[:, :, :width], coefficients, k)
                return total, products + here[:, None] * product

            def backward(k: Any, state: Any) -> Any:
                total, products, carry = state
                carry = step(carry, *tensors)
                return (*add(k, total, products, carry[0]), carry)

            zeros = ops.zeros_like(upstream), ops.zeros_like(coefficients)
            state = (*add(0, *zeros, both[0]), both)
            total, products, _ = ops.fori_loop(1, count, backward, state)
            return total, products, *(ops.zeros_like(tensor) for tensor in tensors)

        return total, gradient

    return series(ops.convert_to_tensor(x), ops.convert_to_tensor(coefficients), *tensors)
