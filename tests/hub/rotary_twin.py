"""The naive twin of attention with rotary embedding, in float64, from the formulas."""

import math

import torch

from tests.filters import reference as filters
from tests.reference import softmax


def rotated(x, frequencies):
    """Queries or keys (B, T, N, H), the pair (h, h + H/2) of token t rotated by t * frequency h."""
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), frequencies)[:, None]
    cosine, sine = torch.cos(angles), torch.sin(angles)  # (T, 1, H/2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def frequencies_of(size, wavelength=10000.0):
    """The frequencies of heads of a size: wavelength^(-2 h / size) for h = 0 ... size / 2 - 1."""
    return wavelength ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)


def normalised(x, scale, epsilon):
    """Each query or key divided by its root mean square, times a learned scale."""
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + epsilon) * scale


def visible(padding, window=None):
    """The mask (B, T, T): no padding, no later token, none as far away as the window."""
    length = padding.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    seen = (distance >= 0) & (distance < (window or length))
    return seen[None] & torch.tensor(padding, dtype=torch.bool)[:, None]


def _projected(x, weights, names, heads):
    """x (B, T, d) in heads, (B, T, N, H), by the first of the names that the layer has."""
    name = next(name for name in names if f"{name}/kernel" in weights)
    kernel = weights[f"{name}/kernel"]
    found = torch.tensordot(x, kernel, dims=1)
    found = found + weights.get(f"{name}/bias", torch.zeros(found.shape[2:], dtype=x.dtype))
    return found if found.dim() == 4 else found.reshape(*x.shape[:2], heads, -1)


def matrix_and_values(x, weights, mask, frequencies, factor=1.0, epsilon=None):
    """A (B, N, T, T) and the values (B, T, N, H) of all query heads.

    Args:
        x: The tokens, (B, T, d).
        weights: The weights of the layer by name.
        mask: Boolean, (B, T, T).
        frequencies: Those of the rotation, (H / 2,); `None` for a layer that does not rotate.
        factor: What rotated queries and keys are multiplied by.
        epsilon: That of the norms of queries and keys; `None` for a layer without norms.
    """
    query = _projected(x, weights, ("query", "q_proj"), 4)
    key = _projected(x, weights, ("key", "k_proj"), 2)
    value = _projected(x, weights, ("value", "v_proj"), 2)
    if epsilon is not None:
        query = normalised(query, weights["query_dense_layernorm/scale"], epsilon)
        key = normalised(key, weights["key_dense_layernorm/scale"], epsilon)
    if frequencies is not None:
        query, key = (factor * rotated(x, frequencies) for x in (query, key))
    key, value = (x.repeat_interleave(2, dim=2) for x in (key, value))
    scores = torch.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(query.shape[-1])
    return softmax(scores, mask[:, None]), value


def filtered(filter, matrix, value, weights):
    """H(A) V (B, T, N, H); rows that see nothing are 0."""
    found = filters.matrix(filter, matrix, weights)
    found = found * (matrix.sum(dim=-1, keepdim=True) > 0)
    return torch.einsum("bnts,bsnh->btnh", found, value)


def p_laplacian(p, matrix, value, epsilon=0.1):
    """A re-weighted by the distances between values, applied to them."""
    squares = ((value[:, :, None] - value[:, None]) ** 2).sum(-1) + epsilon**2  # (B, T, S, N)
    p = torch.tensor(p, dtype=torch.float64)
    weighted = matrix * (squares ** ((p - 2) / 2)).permute(0, 3, 1, 2)
    return torch.einsum("bnts,bsnh->btnh", weighted, value)


def project_out(x, weights):
    """The heads' outputs (B, T, N, H) as the layer's, (B, T, d)."""
    name = "o_proj" if "o_proj/kernel" in weights else "attention_output"
    return torch.tensordot(x, weights[f"{name}/kernel"], dims=2)
