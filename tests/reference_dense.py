"""Naive references of exact filters, p-Laplacian attention and their layers, in float64."""

import torch

from tests.reference import _binomial, attention_matrix, first_order_filter, project, project_out


def polynomial_filter(matrix, coefficients, basis, alpha=0.0, beta=0.0):
    """H = sum_k c_k P_k(A), each P_k from its textbook sum. A (B, N, T, T), c (K + 1, N)."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    total = torch.zeros_like(matrix)
    for k, coefficient in enumerate(coefficients):
        term = _basis_polynomial(matrix, eye, k, basis, alpha, beta)
        total = total + coefficient[:, None, None] * term
    return total


def _basis_polynomial(matrix, eye, k, basis, alpha, beta):
    power = torch.linalg.matrix_power
    if basis == "monomial":
        return power(matrix, k)
    alpha, beta = {"legendre": (0.0, 0.0), "chebyshev": (-0.5, -0.5)}.get(basis, (alpha, beta))
    total = torch.zeros_like(matrix)
    for s in range(k + 1):
        factor = _binomial(k + alpha, k - s) * _binomial(k + beta, s)
        total = total + factor * power((matrix - eye) / 2, s) @ power((matrix + eye) / 2, k - s)
    return total


def p_laplacian_matrix(query, key, value, p, epsilon, mask=None, drop_diagonal=False, keys=None):
    """softmax * (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2), of shape (B, N, T, S).

    Values of tokens that `keys` (B, S) marks as padding are 0, also in their own row.
    """
    matrix = attention_matrix(query, key, mask)
    value = value if keys is None else value * torch.tensor(keys)[:, :, None, None]
    differences = value[:, :, None] - value[:, None]  # (B, T, S, N, D)
    squares = (differences**2).sum(-1).permute(0, 3, 1, 2) + epsilon**2
    p = torch.tensor(p, dtype=torch.float64)[:, None, None]
    matrix = matrix * squares ** ((p - 2) / 2)
    if drop_diagonal:
        diagonal = torch.eye(matrix.shape[-1], dtype=bool)
        matrix = torch.where(diagonal & (p != 2), torch.zeros_like(matrix), matrix)
    return matrix


def apply_matrix(matrix, x):
    return torch.einsum("bnts,bsnh->btnh", matrix, x)


def projections(x, weights):
    """Query, key and value of all heads; keys and values are repeated if they have fewer heads."""
    query, key, value = (project(x, weights, name) for name in ("query", "key", "value"))
    groups = query.shape[2] // key.shape[2]
    return query, key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)


def graph_filter_layer(x, weights, order, basis=None, mask=None, alpha=0.0, beta=0.0, keys=None):
    """The layer GraphFilterAttention with any filter. Returns the outputs and H.

    Values of tokens that `keys` (B, T) marks as padding are 0, also in their own row.
    """
    query, key, value = projections(x, weights)
    value = value if keys is None else value * torch.tensor(keys)[:, :, None, None]
    matrix = attention_matrix(query, key, mask)
    if basis is None:
        names = ("identity", "linear", "power")
        coefficients = [weights[f"{name}_coefficient"] for name in names]
        filtered = first_order_filter(matrix, *coefficients, order)
    else:
        coefficients = weights["filter_coefficients"]
        filtered = polynomial_filter(matrix, coefficients, basis, alpha, beta)
    sighted = filtered if mask is None else filtered * mask.any(dim=-1, keepdim=True)
    return project_out(apply_matrix(sighted, value), weights), filtered


def p_laplacian_layer(x, weights, p, epsilon=0.1, mask=None, drop_diagonal=False, keys=None):
    """The layer PLaplacianAttention. Returns the outputs and the re-weighted matrix."""
    query, key, value = projections(x, weights)
    matrix = p_laplacian_matrix(query, key, value, p, epsilon, mask, drop_diagonal, keys)
    return project_out(apply_matrix(matrix, value), weights), matrix
