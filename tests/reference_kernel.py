"""Naive masked kernel attention with all matrices formed, for torch tensors in float64."""

import torch

from tests.reference import apply_matrix, project


def normalised(weights):
    """The rows divided by their sums; rows that see nothing are 0."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)


def masked_kernel_attention(query, key, values, matrix):
    """D^-1 [(phi(Q) phi(K)^T) o M] V, from features."""
    weights = torch.einsum("btnm,bsnm->bnts", query, key) * matrix
    return apply_matrix(normalised(weights), values)


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


def gated_matrix(log_gates):
    """exp of the sum of log_gates (B, T, N) over j < l <= i, of shape (B, N, T, T)."""
    rows, gates = [], log_gates.transpose(1, 2)
    for i in range(gates.shape[-1]):
        backwards = torch.cumsum(torch.flip(gates[..., 1 : i + 1], [-1]), -1)
        row = torch.exp(torch.flip(torch.nn.functional.pad(backwards, (1, 0)), [-1]))
        rows.append(torch.nn.functional.pad(row, (0, gates.shape[-1] - i - 1)))
    return torch.stack(rows, dim=2)


def features(x, feature_map, directions=None):
    """phi(x) without scale factors, because the normaliser cancels them."""
    if feature_map == "favor":
        scaled = x / x.shape[-1] ** 0.25
        exponents = torch.einsum("btnh,nhm->btnm", scaled, directions)
        return torch.exp(exponents - (scaled**2).sum(-1, keepdim=True) / 2)
    positive = torch.clamp(x, min=0.0)
    if feature_map == "elu":
        return torch.where(x > 0, x, torch.exp(torch.clamp(x, max=0.0)) - 1.0) + 1.0
    return {"relu": positive, "squared_relu": positive**2}[feature_map] + 1e-3


def layer_matrix(x, weights, matrix, feature_map="relu"):
    """A (B, N, T, T) of the layer MaskedKernelAttention for the mask's matrix."""
    query, key = (
        features(project(x, weights, name), feature_map, weights.get("directions"))
        for name in ("query", "key")
    )
    return normalised(torch.einsum("btnm,bsnm->bnts", query, key) * matrix)
