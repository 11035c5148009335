"""The naive twins of the filters: their matrices H(A), by the formulas of their papers."""

import torch

from tests.reference import basis_polynomial


def matrix(filter, A, weights):
    """H of shape (B, N, T, T) from A of that shape and weights by name, (..., N)."""
    return TWINS[type(filter).__name__](filter, A, weights)


def _of_heads(weight):
    return weight[..., :, None, None]  # (..., N, 1, 1)


def _identity(A):
    return torch.eye(A.shape[-1], dtype=A.dtype).expand_as(A)


def _first_order(filter, A, weights):
    identity, linear, power = (
        _of_heads(weights[f"{name}_coefficient"]) for name in ("identity", "linear", "power")
    )
    approximate = A + (filter.order - 1) * (A @ A - A)
    return identity * _identity(A) + linear * A + power * approximate


def _polynomial(filter, A, weights):
    basis = type(filter).__name__.lower()
    parameters = [getattr(filter, name, 0.0) for name in ("alpha", "beta")]
    of_matrices = {"one": _identity(A), "power": torch.matrix_power, "times": torch.matmul}
    return sum(
        _of_heads(coefficient) * basis_polynomial(A, k, basis, *parameters, **of_matrices)
        for k, coefficient in enumerate(weights["filter_coefficients"])
    )


def _inverted(filter, A, weights):
    low, high = (_of_heads(weights[f"{name}_pass_coefficient"]) for name in ("low", "high"))
    return low * A + high * (_identity(A) - A)


def _page_rank(filter, A, weights):
    mix = _of_heads(weights["mix_coefficient"])
    c = _of_heads(torch.sigmoid(weights["restart_coefficient"]))
    walk = ((1 - c) * A).matrix_power(filter.order)
    for k in range(filter.order):
        walk = walk + c * ((1 - c) * A).matrix_power(k)
    return (1 - mix) * A + mix * walk


def _resolvent(filter, A, weights):
    b = _of_heads(filter.bound * torch.tanh(weights["feedback_coefficient"]))
    return sum((-b) ** k * A.matrix_power(k + 1) for k in range(filter.order))


TWINS = {
    "FirstOrder": _first_order,
    "Monomial": _polynomial,
    "Chebyshev": _polynomial,
    "Legendre": _polynomial,
    "Jacobi": _polynomial,
    "Inverted": _inverted,
    "PageRank": _page_rank,
    "Resolvent": _resolvent,
}
