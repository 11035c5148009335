"""Naive references of the other forms of AttentiveGraphFilter, in float64."""

import torch

from tests import reference


def causal_attention(left, logits, values, mask=None):
    """left, logits (B, T, N, H), values (B, T, N, D): one softmax per token, feature and head."""
    outputs = []
    for t in range(left.shape[1]):
        seen = None if mask is None else mask[:, : t + 1, None, None]
        right = reference.softmax(logits[:, : t + 1], seen, dim=1)
        matrix = torch.einsum("bnh,bsnh->bns", left[:, t], right)
        kept = values[:, : t + 1]
        kept = kept if seen is None else torch.where(seen.bool(), kept, 0.0)
        outputs.append(torch.einsum("bns,bsnd->bnd", matrix, kept))
    return torch.stack(outputs, dim=1)


def singular_value_layer(x, weights, filter="polynomial", causal=False, query_mask=None, mask=None):
    """AttentiveGraphFilter with the Jacobi basis, alpha = beta = 0, in each of its forms."""
    left = reference.softmax(reference.project(x, weights, "query"))
    if query_mask is not None:
        left = left * query_mask[:, :, None, None]
    if filter != "ones":
        singular = torch.sigmoid(reference.project(x, weights, "singular"))
    if filter == "polynomial":
        constant = torch.tanh(weights["theta_constant"]) if "theta_constant" in weights else 1.0
        coefficients = [constant, *torch.tanh(weights["theta"])]
        singular = reference.polynomial_value(singular, coefficients, "jacobi")
    if filter != "ones":
        left = left * singular
    logits, values = (reference.project(x, weights, name) for name in ("key", "value"))
    if causal:
        outputs = causal_attention(left, logits, values, mask)
    else:
        columns = None if mask is None else mask[:, :, None, None]
        right = reference.softmax(logits, columns, dim=1)
        outputs = torch.einsum("btnh,bsnh,bsnd->btnd", left, right, values)
    return reference.project_out(outputs, weights)
