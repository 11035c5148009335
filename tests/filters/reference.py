"""The naive twins of the filters: their matrices H(A), by the formulas of their papers."""

import math

import torch


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


def _jacobi(degree, A, alpha, beta):
    """P_k by its explicit sum over binomials, not by a recurrence."""

    def binomial(top, bottom):
        return math.gamma(top + 1) / math.gamma(bottom + 1) / math.gamma(top - bottom + 1)

    below, above = (A - _identity(A)) / 2, (A + _identity(A)) / 2
    total = torch.zeros_like(A)
    for s in range(degree + 1):
        factor = binomial(degree + alpha, degree - s) * binomial(degree + beta, s)
        powers = torch.matrix_power(below, s) @ torch.matrix_power(above, degree - s)
        total = total + factor * powers
    return total


def _polynomial(of_degree):
    def twin(filter, A, weights):
        coefficients = weights["filter_coefficients"]
        return sum(
            _of_heads(coefficients[k]) * of_degree(filter, k, A) for k in range(filter.order + 1)
        )

    return twin


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
    "Monomial": _polynomial(lambda filter, k, A: torch.matrix_power(A, k)),
    "Chebyshev": _polynomial(lambda filter, k, A: _jacobi(k, A, -0.5, -0.5)),
    "Legendre": _polynomial(lambda filter, k, A: _jacobi(k, A, 0.0, 0.0)),
    "Jacobi": _polynomial(lambda filter, k, A: _jacobi(k, A, filter.alpha, filter.beta)),
    "Inverted": _inverted,
    "PageRank": _page_rank,
    "Resolvent": _resolvent,
}
