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


def attention_matrix(query, key, mask=None, bias=0.0):
    """query, key (B, T, N, H) -> A (B, N, T, S); a bias of minus infinity hides the key."""
    scores = torch.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(query.shape[-1])
    bias = torch.as_tensor(bias, dtype=scores.dtype)
    if bias.isneginf().any():
        seen = ~bias.isneginf().expand_as(scores)
        mask = seen if mask is None else seen & mask.bool()
        bias = torch.where(bias.isneginf(), 0.0, bias)
    return softmax(scores + bias, mask)


def apply_matrix(matrix, x):
    """matrix (B, N, T, S), x (B, S, N, H) -> (B, T, N, H)."""
    return torch.einsum("bnts,bsnh->btnh", matrix, x)


def project(x, weights, name):
    """x (B, T, d) through the projection `name`: (B, T, N, H)."""
    out = torch.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"])
    return out + weights[f"{name}/bias"] if f"{name}/bias" in weights else out


def project_out(x, weights):
    out = torch.einsum("btnh,nhd->btd", x, weights["attention_output/kernel"])
    bias = weights.get("attention_output/bias")
    return out if bias is None else out + bias


def projections(x, weights):
    """Query, key and value of all heads; keys and values are repeated if they have fewer heads."""
    query, key, value = (project(x, weights, name) for name in ("query", "key", "value"))
    groups = query.shape[2] // key.shape[2]
    return query, key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)


def p_laplacian_matrix(
    query, key, value, p, epsilon, mask=None, drop_diagonal=False, keys=None, bias=0.0
):
    """softmax * (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2), of shape (B, N, T, S).

    Values of tokens that `keys` (B, S) marks as padding are 0, also in their own row.
    """
    matrix = attention_matrix(query, key, mask, bias)
    value = value if keys is None else value * torch.tensor(keys)[:, :, None, None]
    differences = value[:, :, None] - value[:, None]  # (B, T, S, N, D)
    squares = (differences**2).sum(-1).permute(0, 3, 1, 2) + epsilon**2
    p = torch.tensor(p, dtype=torch.float64)[:, None, None]
    matrix = matrix * squares ** ((p - 2) / 2)
    if drop_diagonal:
        diagonal = torch.eye(matrix.shape[-1], dtype=bool)
        matrix = torch.where(diagonal & (p != 2), torch.zeros_like(matrix), matrix)
    return matrix


def causal_singular_attention(left, logits, values, mask=None):
    """left, logits (B, T, N, H), values (B, T, N, D): one softmax per token, feature and head."""
    outputs = []
    for t in range(left.shape[1]):
        seen = None if mask is None else mask[:, : t + 1, None, None]
        right = softmax(logits[:, : t + 1], seen, dim=1)
        matrix = torch.einsum("bnh,bsnh->bns", left[:, t], right)
        kept = values[:, : t + 1]
        kept = kept if seen is None else torch.where(seen.bool(), kept, 0.0)
        outputs.append(torch.einsum("bns,bsnd->bnd", matrix, kept))
    return torch.stack(outputs, dim=1)


def delta_rule_matrix(query, key, decay, strength):
    """A of o_t = S_t^T q_t = sum_s A_ts v_s, token by token: the state holds parts of each value.

    query, key (B, T, N, H), decay and strength (B, T, N):
    S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T.
    """
    length = query.shape[1]
    state, rows = query.new_zeros((*query[:, 0].shape, length)), []  # (B, N, H, T)
    for t, value in enumerate(torch.eye(length, dtype=query.dtype)):
        state = decay[:, t, :, None, None] * state
        held = torch.einsum("bnh,bnhs->bns", key[:, t], state)
        state = state + torch.einsum("bn,bnh,bns->bnhs", strength[:, t], key[:, t], value - held)
        rows.append(torch.einsum("bnh,bnhs->bns", query[:, t], state))
    return torch.stack(rows, dim=2)


def short_convolution(x, kernel):
    """silu(sum_i w_i x_(t - i)) of x (B, T, N, H), for a kernel (size, N, H) with w_0 last."""
    past = x.new_zeros((x.shape[0], len(kernel) - 1, *x.shape[2:]))
    windows = torch.cat([past, x], dim=1).unfold(1, len(kernel), 1)  # (B, T, N, H, size)
    return torch.nn.functional.silu(torch.einsum("btnhi,inh->btnh", windows, kernel))


def polynomial_value(x, coefficients, basis, alpha=0.0, beta=0.0):
    """sum_k c_k P_k(x) of each number of x."""
    return sum(
        coefficient * basis_polynomial(x, k, basis, alpha, beta)
        for k, coefficient in enumerate(coefficients)
    )


def basis_polynomial(
    x, k, basis, alpha=0.0, beta=0.0, *, one=1.0, power=torch.pow, times=torch.mul
):
    """P_k(x) from its textbook sum in powers of x; of a matrix with its own powers and products."""
    if basis == "monomial":
        return power(x, k)
    alpha, beta = {"legendre": (0.0, 0.0), "chebyshev": (-0.5, -0.5)}.get(basis, (alpha, beta))
    # P_k^(a,b)(x) = sum_s C(k+a, k-s) C(k+b, s) ((x-1)/2)^s ((x+1)/2)^(k-s)
    total = torch.zeros_like(x)
    for s in range(k + 1):
        factor = _binomial(k + alpha, k - s) * _binomial(k + beta, s)
        total = total + factor * times(power((x - one) / 2, s), power((x + one) / 2, k - s))
    return total


def _binomial(top, bottom):
    """Generalised binomial coefficient of a real number and a non-negative integer."""
    result = 1.0
    for j in range(bottom):
        result *= (top - j) / (j + 1)
    return result
