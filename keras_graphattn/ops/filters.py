"""Graph filters: polynomials of an attention operator that never see its matrix.

Attention is a linear operator `x -> A x` on token signals. A filter here is a pure
function of `apply` (a callable that applies the operator once to a signal), the values
and the coefficients, so that it runs unchanged over a dense softmax matrix, a fused
attention kernel or a linear-time masked kernel.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_graphattn.ops.polynomials import check_order
from keras_graphattn.ops.precision import at_least_float32

Tensor = Any
Operator = Callable[[Tensor], Tensor]


def first_order_filter(
    apply: Operator,
    values: Tensor,
    identity: Tensor,
    linear: Tensor,
    power: Tensor,
    order: int,
) -> Tensor:
    """Graph-filter self-attention: identity, first power, and an approximate K-th power.

        H = identity I + linear A + power (A + (K - 1)(A^2 - A)),    result = H values

    evaluated as `identity V + (linear + power (2 - K)) U + power (K - 1) A U` with U = A V:
    two applications of the operator, never the product A A.

    Args:
        apply: Callable that maps a tensor of the shape of `values` to A times it.
        values: Tensor of token values; the coefficients must broadcast to it.
        identity: Coefficient w_0 of the identity.
        linear: Coefficient w_1 of A.
        power: Coefficient w_K of the K-th power's first-order approximation.
        order: The power K, an integer of at least 1. K = 1 is A itself, K = 2 exactly A^2.

    Returns:
        A tensor of the shape and dtype of `values`; sums are taken in float32.

    Raises:
        ValueError: If `order` is not an integer of at least 1.

    Source: Choi et al., arXiv 2312.04234, Eq. 4-6.
    """
    check_order(order)
    values = ops.convert_to_tensor(values)
    identity, linear, power = (at_least_float32(c) for c in (identity, linear, power))
    once = apply(values)
    result = identity * at_least_float32(values)
    result += (linear + power * float(2 - order)) * at_least_float32(once)
    if order > 1:
        result += (power * float(order - 1)) * at_least_float32(apply(once))
    return ops.cast(result, values.dtype)
