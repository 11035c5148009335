"""Decoder attention written from its formulas, in float64 on torch, with every matrix formed.

One function for all families. What a family has, its `Twin` says in numbers.
"""

import math
from typing import NamedTuple

import torch

from tests.numerics import BACKEND

ORDER = 4
EPSILON = 0.1


class Twin(NamedTuple):
    heads: int = 4
    key_value_heads: int = 4
    fused: bool = False  # one projection, per head first of the queries, then keys, then values
    features_last: bool = True  # kernels are (d, N, H), else (N, d, H)
    names: tuple = ("query", "key", "value", "attention_output")
    rotated: int = 0  # how many of the features are rotated
    wavelength: float = 10000.0
    yarn: float | None = None
    norms: tuple = ()  # the names of those of queries and keys
    norm_start: float = 1.0  # what is added to their learned scale
    value_norm: bool = False
    soft_cap: float | None = None
    alibi: float = 0.0  # factor of slope times position of the key
    sink: bool = False
    before: int | None = None  # how many tokens before itself a token sees
    after: int | None = None
    causal: bool = True
    scale: float | None = None  # where it is not 1 / sqrt(H)
    interleaved: bool = False  # features are rotated in pairs of neighbours
    gated: bool = False  # the projection of the queries also has the logits of a gate


NORMS = ("query_norm", "key_norm")
NEAR = 2 if BACKEND == "tensorflow" else None  # where KerasHub applies the window on a CPU
QWEN3_5 = Twin(key_value_heads=2, rotated=2, norms=NORMS, gated=True, before=NEAR, after=NEAR)
TWINS = {
    "gemma": Twin(key_value_heads=2, features_last=False, rotated=4),
    "gemma2": Twin(
        key_value_heads=2, features_last=False, rotated=4, soft_cap=2.0, before=2, after=2
    ),
    "gpt_neo_x": Twin(
        fused=True, names=("query_key_value",) * 3 + ("attention_output",), rotated=2
    ),
    "bloom": Twin(names=("query_dense", "key_dense", "value_dense", "output_dense"), alibi=1.0),
    "falcon": Twin(names=("query_dense", "key_dense", "value_dense", "output_dense"), alibi=0.5),
    "gemma3": Twin(
        key_value_heads=2, features_last=False, rotated=4, norms=NORMS, before=2, after=2
    ),
    "gemma3_embedding": Twin(
        key_value_heads=2,
        features_last=False,
        rotated=4,
        norms=NORMS,
        before=1,
        after=2,
        causal=False,
    ),
    "gpt_oss": Twin(key_value_heads=2, rotated=4, yarn=4.0, sink=True, before=3),
    "gemma3n": Twin(
        key_value_heads=2,
        names=("q_proj", "k_proj", "v_proj", "o_proj"),
        rotated=4,
        norms=("q_norm", "k_norm"),
        norm_start=0.0,
        value_norm=True,
        scale=1.0,
        before=2,
        after=2,
    ),
    "gemma4": Twin(  # the window is in the mask of the decoder
        key_value_heads=2,
        features_last=False,
        rotated=4,
        norms=NORMS,
        norm_start=0.0,
        value_norm=True,
        scale=1.0,
    ),
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
}


def visible(twin, real):
    """The mask (B, T, T) of the decoder: causal, and without padding; `real` is (B, T)."""
    length = real.shape[1]
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    seen = (columns <= rows) if twin.causal else torch.ones(length, length, dtype=torch.bool)
    mask = seen[None] & real[:, None, :]
    return mask if twin.causal else mask & real[:, :, None]


def seen_in_window(twin, length):
    behind = torch.arange(length)[:, None] - torch.arange(length)[None]
    seen = torch.ones(length, length, dtype=torch.bool)
    if twin.before is not None:
        seen &= behind <= twin.before
    if twin.after is not None:
        seen &= behind >= -twin.after
    return seen


def frequencies(twin):
    size = twin.rotated
    plain = twin.wavelength ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if twin.yarn is None:
        return plain, 1.0

    def dimension(rotations):
        return size * math.log(4096 / (rotations * 2 * math.pi)) / (2 * math.log(twin.wavelength))

    low, high = max(dimension(32.0), 0.0), min(dimension(1.0), size - 1)
    ramp = (torch.arange(size // 2, dtype=torch.float64) - low) / max(high - low, 0.001)
    ramp = ramp.clamp(0, 1)
    return plain / twin.yarn * ramp + plain * (1 - ramp), 0.1 * math.log(twin.yarn) + 1.0


def turned(twin, x):
    """One head (B, T, H), its first features rotated by the position."""
    inverse, factor = frequencies(twin)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * inverse
    size, half = twin.rotated, twin.rotated // 2
    cos, sin = angles.cos() * factor, angles.sin() * factor
    if twin.interleaved:
        first, second = x[..., 0:size:2], x[..., 1:size:2]
        pairs = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return torch.cat([pairs.flatten(-2), x[..., size:]], dim=-1)
    first, second, rest = x[..., :half], x[..., half:size], x[..., size:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def normalised(x, scale=1.0):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale


def projection(twin, weights, x, which, head):
    """Queries, keys or values of one head, (B, T, H)."""
    name = twin.names[which]
    kernel, bias = weights[f"{name}/kernel"], weights.get(f"{name}/bias")
    if len(kernel.shape) == 2:  # all heads in one
        count = twin.heads if which == 0 else twin.key_value_heads
        kernel = kernel.reshape(len(kernel), count, -1)
    kernel = kernel[:, head] if twin.features_last else kernel[head]  # (d, H)
    found = x @ kernel
    if bias is not None:
        found = found + bias[head]
    if twin.fused:
        size = found.shape[-1] // 3
        found = found[..., which * size : (which + 1) * size]
    return found


def twin_attention(twin, x, weights, real, exponents=None, bias=None):
    """The layer's output (B, T, d), of a graph filter or, with `exponents`, of p-LaT.

    `bias`, (N, T, T), is added to the scores.
    """
    mask = visible(twin, real) & seen_in_window(twin, x.shape[1])
    groups = twin.heads // twin.key_value_heads
    heads = []
    for head in range(twin.heads):
        query = projection(twin, weights, x, 0, head)
        if twin.gated:
            query, gate = query.chunk(2, dim=-1)
        key = projection(twin, weights, x, 1, head // groups)
        value = projection(twin, weights, x, 2, head // groups)
        if twin.norms:
            of_query, of_key = (twin.norm_start + weights[f"{x}/scale"] for x in twin.norms)
            query, key = normalised(query, of_query), normalised(key, of_key)
        if twin.value_norm:
            value = normalised(value)
        if twin.rotated:
            query, key = turned(twin, query), turned(twin, key)
        scale = twin.scale or 1 / math.sqrt(query.shape[-1])
        scores = query @ key.transpose(1, 2) * scale
        if bias is not None:
            scores = scores + bias[head]
        if twin.soft_cap:
            scores = twin.soft_cap * torch.tanh(scores / twin.soft_cap)
        slope = 2.0 ** (-8.0 * (head + 1) / twin.heads)
        scores = scores + twin.alibi * slope * torch.arange(x.shape[1], dtype=torch.float64)
        scores = scores.masked_fill(~mask, -math.inf)
        if twin.sink:
            sink = weights["sinks"][head] * torch.ones_like(scores[..., :1])
            scores = torch.cat([scores, sink], dim=-1)
        blind = ~mask.any(-1, keepdim=True)
        matrix = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1)[..., : x.shape[1]]
        matrix = matrix * mask
        found = applied(matrix, value, weights, head, exponents).masked_fill(blind, 0.0)
        heads.append(found * torch.sigmoid(gate) if twin.gated else found)
    name = twin.names[3]
    kernel = weights[f"{name}/kernel"]
    joined = torch.cat(heads, dim=-1)  # (B, T, N H)
    return joined @ kernel.reshape(joined.shape[-1], -1) + weights.get(f"{name}/bias", 0.0)


def applied(matrix, value, weights, head, exponents):
    if exponents is not None:
        apart = (value[:, :, None] - value[:, None]).pow(2).sum(-1) + EPSILON**2
        return (matrix * apart ** ((exponents[head] - 2) / 2)) @ value
    squared = matrix @ matrix
    names = ("identity_coefficient", "linear_coefficient", "power_coefficient")
    identity, linear, power = (weights[name][head] for name in names)
    approximation = matrix + (ORDER - 1) * (squared - matrix)
    return identity * value + (linear * matrix + power * approximation) @ value
