"""Graph filters: polynomials of an attention operator that never see its matrix.

Attention is a linear operator `x -> A x` on token signals. A filter here is a pure function of
`apply` (a callable that applies the operator once to a signal), the values and the coefficients.
So it works unchanged over a dense softmax matrix, a fused attention kernel or a linear-time
masked kernel.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_graphattn.checks import check_broadcast, check_shape, checked, function, tensor
from keras_graphattn.numerics.precision import at_least_float32, matmul
from keras_graphattn.ops.filters.polynomials import Step, basis_steps, check_order
from keras_graphattn.ops.filters.triangular import solve_causal

Tensor = Any
Operator = Callable[[Tensor], Tensor]


@checked(apply=function, values=tensor(), identity=tensor(), linear=tensor(), power=tensor())
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
    two applications of the operator, and not the product A A. An operator that can apply itself
    twice in a row for less than twice the cost has a method `apply.twice(x)`, which returns both
    results.

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

    Example:

    >>> values = np.ones((1, 2, 1, 1), "float32")
    >>> no, one = np.zeros(1, "float32"), np.ones(1, "float32")
    >>> outputs = first_order_filter(lambda x: 0.5 * x, values, no, no, one, order=2)
    >>> float(outputs[0, 0, 0, 0])  # A A
    0.25
    """
    check_order(order)
    values = ops.convert_to_tensor(values)
    for name, given in (("identity", identity), ("linear", linear), ("power", power)):
        check_broadcast(name, given, "values", values)
    identity, linear, power = (at_least_float32(c) for c in (identity, linear, power))
    # A V and A A V; K = 1 needs the first only
    once, twice = (apply(values), None) if order == 1 else _twice(apply, values)
    # `once` and `twice` lie alike in memory, often unlike `values`: these two come first
    result = (linear + power * float(2 - order)) * at_least_float32(once)
    if twice is not None:
        result += (power * float(order - 1)) * at_least_float32(twice)
    result += identity * at_least_float32(values)
    return ops.cast(result, values.dtype)


def _twice(apply: Operator, x: Tensor) -> tuple[Tensor, Tensor]:
    both = getattr(apply, "twice", None)
    if both is not None:
        once, twice = both(x)
        return once, twice
    once = apply(x)
    return once, apply(once)


@checked(apply=function, values=tensor(), coefficients=tensor(), steps=basis_steps)
def polynomial_filter(
    apply: Operator, values: Tensor, coefficients: Tensor, steps: list[Step]
) -> Tensor:
    """An exact polynomial of the operator, `sum_k coefficients[k] P_k(A) values`.

    The three-term recurrence works on the signal: P_k(A) V = (a_k A + b_k) P_{k-1}(A) V -
    c_k P_{k-2}(A) V. It takes K applications of the operator, and no product of matrices.

    Args:
        apply: Callable that maps a tensor of the shape of `values` to A times it.
        values: Tensor of token values V.
        coefficients: Tensor of K + 1 coefficients; `coefficients[k]` must broadcast to `values`.
            For values of shape (B, T, N, H) and one coefficient per head, the shape is
            (K + 1, N, 1).
        steps: The basis, from `keras_graphattn.ops.recurrence(basis, K, ...)`.

    Returns:
        A tensor of the shape and dtype of `values`; the recurrence and the sum use float32.

    Raises:
        ValueError: If the number of coefficients is not `len(steps) + 1`.

    Example:

    >>> steps = [Step(1.0, 0.0, 0.0)] * 3  # recurrence("monomial", 3)
    >>> values, coefficients = np.ones((1, 5, 2, 4)), np.ones((4, 2, 1))
    >>> outputs = polynomial_filter(lambda x: 0.5 * x, values, coefficients, steps)
    >>> float(outputs[0, 0, 0, 0])  # 1 + 1/2 + 1/4 + 1/8
    1.875

    Source: the exact filters that Choi et al., arXiv 2312.04234, approximate in Eq. 5; the
    bases of Wi et al., arXiv 2505.08516, Eq. 22-26.
    """
    values = ops.convert_to_tensor(values)
    coefficients = at_least_float32(coefficients)
    check_shape("coefficients", coefficients, ("k", "k ..."), {})
    if coefficients.shape[0] != len(steps) + 1:
        raise ValueError(
            f"A polynomial of degree {len(steps)} has {len(steps) + 1} coefficients. Received: "
            f"coefficients.shape={tuple(coefficients.shape)}"
        )
    check_broadcast("coefficients[k]", coefficients[0], "values", values)
    # `signal` is P_{k-1}(A) V in the caller's dtype, `current` the same in float32
    signal, current = values, at_least_float32(values)
    result = coefficients[0] * current
    before = None
    for degree, step in enumerate(steps, start=1):
        following = step.slope * at_least_float32(apply(signal))
        if step.offset != 0.0:
            following = following + step.offset * current
        if before is not None and step.previous != 0.0:
            following = following - step.previous * before
        before, current = current, following
        result = result + coefficients[degree] * current
        signal = ops.cast(current, values.dtype)
    return ops.cast(result, values.dtype)


@checked(steps=basis_steps)
def plain_attention_coefficients(steps: list[Step]) -> list[float]:
    """The coefficients for which `sum_k coefficients[k] P_k(A)` is A itself.

    P_1(A) = a A + b I, so A = (P_1 - b P_0) / a.

    Args:
        steps: The basis, from `keras_graphattn.ops.recurrence(basis, K, ...)`.

    Returns:
        A list of K + 1 numbers.

    Raises:
        ValueError: If P_1 is a constant, as for Jacobi parameters with alpha + beta = -2.

    Example:

    >>> plain_attention_coefficients([Step(1.0, 0.0, 0.0)] * 3)
    [-0.0, 1.0, 0.0, 0.0]
    """
    slope, offset, _ = steps[0]
    if slope == 0.0:
        raise ValueError(
            "P_1 of this basis is a constant, so no sum of P_0 and P_1 is plain attention. "
            "Received: slope=0.0 in the first step. For Jacobi polynomials, change alpha or beta: "
            "their sum must not be -2."
        )
    return [-offset / slope, 1.0 / slope] + [0.0] * (len(steps) - 1)


@checked(graph_filter=function, matrix=tensor("... n n"))
def filter_matrix(graph_filter: Callable[[Operator, Tensor], Tensor], matrix: Tensor) -> Tensor:
    """The matrix H of a filter over A, by filtering the identity: O(n^3).

    Args:
        graph_filter: Callable of `apply` and `values`, its coefficients shaped to broadcast to
            `matrix`: (N, 1, 1) for one per head.
        matrix: A, of shape (..., n, n).

    Returns:
        A tensor of the shape and dtype of `matrix`.

    Example:

    >>> matrix = np.full((1, 2, 2), 0.5, "float32")
    >>> found = filter_matrix(lambda apply, x: x + apply(x), matrix)
    >>> keras.ops.convert_to_numpy(found)[0].tolist()
    [[1.5, 0.5], [0.5, 1.5]]
    """
    identity = ops.broadcast_to(
        ops.eye(ops.shape(matrix)[-1], dtype=matrix.dtype), ops.shape(matrix)
    )
    return graph_filter(_OnIdentity(matrix, identity), identity)


class _OnIdentity:
    """Products with A; that with the identity is A itself and costs nothing."""

    def __init__(self, matrix: Tensor, identity: Tensor) -> None:
        self.matrix, self.identity = matrix, identity

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix if x is self.identity else matmul(self.matrix, x)

    def solve(self, factor: Tensor, x: Tensor) -> Tensor:
        return ops.cast(solve_causal(self.matrix, factor, x), x.dtype)
