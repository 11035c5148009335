"""Naive masked kernel attention, everything formed, for torch tensors in float64."""

import torch


def masked_kernel_attention(query, key, values, matrix):
    """D^-1 [(phi(Q) phi(K)^T) o M] V, from features; rows with nothing to see are zero."""
    weights = torch.einsum("btnm,bsnm->bnts", query, key) * matrix
    total = weights.sum(-1, keepdim=True)
    weights = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)
    return torch.einsum("bnts,bsnd->btnd", weights, values)


def unnormalised(query, key, x, matrix):
    """[(phi(Q) phi(K)^T) o M] x."""
    return torch.einsum("btnm,bsnm,bnts,bsnd->btnd", query, key, matrix, x)


def distances(length):
    """|i - j|, of shape (T, T)."""
    order = torch.arange(length)
    return (order[:, None] - order[None, :]).abs()


def causal_matrix(length):
    """[j <= i], of shape (1, 1, T, T)."""
    return torch.tril(torch.ones((1, 1, length, length), dtype=torch.float64))


def segment_matrix(ids):
    """[i and j in one run of equal ids, neither of them padding], of shape (B, 1, T, T)."""
    batch, length = ids.shape
    matrix = torch.zeros((batch, 1, length, length), dtype=torch.float64)
    for b in range(batch):
        for i in range(length):
            for j in range(i, length):
                if ids[b, j] != ids[b, i] or ids[b, j] < 0:
                    break
                matrix[b, 0, i, j] = matrix[b, 0, j, i] = 1.0
    return matrix


def exponential_matrix(length, log_rates, log_weights=None):
    """sum_r c_r exp(-a_r |i - j|), of shape (1, N, T, T)."""
    powers = torch.exp(-torch.exp(log_rates)[..., None, None] * distances(length))
    if log_weights is not None:
        powers = powers * torch.exp(log_weights)[..., None, None]
    return powers.sum(1)[None]
