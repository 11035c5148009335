"""Naive references in float64, written to be easy to read.

Every backend is tested against them. They use torch as a NumPy with gradients. Every function takes
and returns float64 torch tensors and forms all matrices explicitly.
"""

import math

import torch


def softmax(scores, mask=None, dim=-1):
    """Softmax over the entries that the mask allows; zeros in rows where it allows none."""
    if mask is not None:
        scores = torch.where(mask.bool(), scores, -torch.inf)
    peak = scores.amax(dim=dim, keepdim=True)
    weights = torch.exp(scores - torch.where(peak.isinf(), 0.0, peak))
    total = weights.sum(dim=dim, keepdim=True)
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def attention_matrix(query, key, mask=None):
    """query, key (B, T, N, H) -> A (B, N, T, S)."""
    scores = torch.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(query.shape[-1])
    return softmax(scores, mask)


def first_order_filter(matrix, identity, linear, power, order):
    """H of Choi et al. Eq. 4-6, with A @ A formed. Coefficients (N,), A (B, N, T, T)."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    squared = matrix @ matrix
    w0, w1, wk = (c[:, None, None] for c in (identity, linear, power))
    return w0 * eye + w1 * matrix + wk * (matrix + (order - 1) * (squared - matrix))


def project(x, weights, name):
    """x (B, T, d) through the projection `name`: (B, T, N, H)."""
    out = torch.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"])
    return out + weights[f"{name}/bias"] if f"{name}/bias" in weights else out


def project_out(x, weights):
    out = torch.einsum("btnh,nhd->btd", x, weights["attention_output/kernel"])
    bias = weights.get("attention_output/bias")
    return out if bias is None else out + bias


def graph_filter_attention(x, weights, order, mask=None, keys=None):
    """The layer GraphFilterAttention: x (B, T, d), mask (B, N, T, T) of zeros and ones.

    Values of tokens that `keys` (B, T) marks as padding are 0, also in their own row.
    """
    query, key, value = (project(x, weights, name) for name in ("query", "key", "value"))
    value = value if keys is None else value * torch.tensor(keys)[:, :, None, None]
    matrix = attention_matrix(query, key, mask)
    filtered = first_order_filter(
        matrix,
        weights["identity_coefficient"],
        weights["linear_coefficient"],
        weights["power_coefficient"],
        order,
    )
    if mask is not None:  # rows that see nothing are 0; this includes the identity
        filtered = filtered * mask.any(dim=-1, keepdim=True)
    return project_out(torch.einsum("bnts,bsnh->btnh", filtered, value), weights), matrix


def polynomial_value(x, coefficients, basis, alpha=0.0, beta=0.0):
    """sum_k c_k P_k(x), each P_k from its textbook sum in powers of x."""
    total = torch.zeros_like(x)
    for k, coefficient in enumerate(coefficients):
        total = total + coefficient * _basis_polynomial(x, k, basis, alpha, beta)
    return total


def _basis_polynomial(x, k, basis, alpha, beta):
    if basis == "monomial":
        return x**k
    alpha, beta = {"legendre": (0.0, 0.0), "chebyshev": (-0.5, -0.5)}.get(basis, (alpha, beta))
    # P_k^(a,b)(x) = sum_s C(k+a, k-s) C(k+b, s) ((x-1)/2)^s ((x+1)/2)^(k-s)
    total = torch.zeros_like(x)
    for s in range(k + 1):
        factor = _binomial(k + alpha, k - s) * _binomial(k + beta, s)
        total = total + factor * ((x - 1) / 2) ** s * ((x + 1) / 2) ** (k - s)
    return total


def _binomial(top, bottom):
    """Generalised binomial coefficient of a real number and a non-negative integer."""
    result = 1.0
    for j in range(bottom):
        result *= (top - j) / (j + 1)
    return result


def attentive_graph_filter(
    x, weights, basis="jacobi", alpha=0.0, beta=0.0, query_mask=None, source_mask=None
):
    """The layer AttentiveGraphFilter with its n x n matrix. Masks (B, T) of zeros and ones.

    Returns the outputs, the matrix H (B, N, T, S) and the orthogonality penalty.
    """
    left = softmax(project(x, weights, "query"), dim=-1)
    if query_mask is not None:
        left = left * query_mask[:, :, None, None]
    columns = None if source_mask is None else source_mask[:, :, None, None]
    right = softmax(project(x, weights, "key"), columns, dim=1)
    singular = torch.sigmoid(project(x, weights, "singular"))
    coefficients = [1.0, *torch.tanh(weights["theta"])]
    gain = polynomial_value(singular, coefficients, basis, alpha, beta)
    matrix = torch.einsum("btnh,bsnh->bnts", left * gain, right)
    outputs = torch.einsum("bnts,bsnh->btnh", matrix, project(x, weights, "value"))
    penalty = 0.0
    for vectors in (left, right):
        gram = torch.einsum("btnh,btng->bnhg", vectors, vectors)
        penalty = penalty + (gram - torch.eye(gram.shape[-1])).abs().mean()
    return project_out(outputs, weights), matrix, penalty
