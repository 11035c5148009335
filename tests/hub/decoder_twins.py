"""Decoder attention written from its formulas, in float64 on torch, with every matrix formed.

One function for all families. What a family has, its `Twin` says in numbers.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from keras import ops

from keras_graphattn.filters import Chebyshev, FirstOrder
from keras_graphattn.hub.families import view
from tests.filters import reference as filters
from tests.hub import rotary_decoders
from tests.hub.models import attentions_of
from tests.hub.rotary_decoders import window_of
from tests.hub.t5_bias import t5_bias
from tests.hub.twins import LayerCase, joined, projected, rotated
from tests.numerics import BACKEND, to_numpy

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
    stretched: tuple = ()  # factors of the wavelengths
    size: float = 1.0  # what rotated queries and keys are multiplied by
    norms: tuple = ()  # the names of those of queries and keys
    norm_start: float = 1.0  # what is added to their learned scale
    epsilon: float = 1e-6  # of the norms
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
DENSE = ("query_projector", "key_projector", "value_projector", "output_projector")
ROTARY = Twin(key_value_heads=2, rotated=4)
T5_GEMMA = ROTARY._replace(soft_cap=2.0, scale=1 / 3)
OF_QWEN3 = ("query_dense_layernorm", "key_dense_layernorm")
QWEN3 = ROTARY._replace(rotated=6, norms=OF_QWEN3, norm_start=0.0)
GEMMA = ROTARY._replace(features_last=False)
UNSCALED = {"norm_start": 0.0, "value_norm": True, "scale": 1.0}
OF_ALL_HEADS = ("query_dense", "key_dense", "value_dense", "output_dense")
SMOLLM3 = ROTARY._replace(names=("q_proj", "k_proj", "v_proj", "o_proj"))
LONGER = math.sqrt(1 + math.log(2, rotary_decoders.PRETRAINED))  # Phi-3 reads twice as far
TWINS = {
    "mistral": ROTARY._replace(rotated=6),
    "mixtral": ROTARY,
    "qwen": ROTARY,
    "qwen_moe": ROTARY,
    "qwen3": QWEN3._replace(epsilon=1e-5),
    "qwen3_moe": QWEN3,
    "phi3": ROTARY._replace(stretched=rotary_decoders.SHORT, size=LONGER),
    "phi3 beyond its pretraining": ROTARY._replace(stretched=rotary_decoders.LONG, size=LONGER),
    "smollm3": SMOLLM3,
    "smollm3 without rotation": SMOLLM3._replace(rotated=0),
    "gemma": GEMMA,
    "gemma2": GEMMA._replace(soft_cap=2.0, before=2, after=2),
    "gpt_neo_x": Twin(
        fused=True, names=("query_key_value",) * 3 + ("attention_output",), rotated=2
    ),
    "bloom": Twin(names=OF_ALL_HEADS, alibi=1.0),
    "falcon": Twin(names=OF_ALL_HEADS, alibi=0.5),
    "gemma3": GEMMA._replace(norms=NORMS, before=2, after=2),
    "gemma3_embedding": GEMMA._replace(norms=NORMS, before=1, after=2, causal=False),
    "gpt_oss": ROTARY._replace(yarn=4.0, sink=True, before=3),
    "gemma3n": SMOLLM3._replace(norms=("q_norm", "k_norm"), before=2, after=2, **UNSCALED),
    "gemma4": GEMMA._replace(norms=NORMS, **UNSCALED),  # the window is in the mask of the decoder
    "qwen3_5": QWEN3_5,
    "qwen3_5_moe": QWEN3_5,
    "t5": Twin(names=DENSE, scale=1.0, causal=False),
    "t5 decoder": Twin(names=DENSE, scale=1.0),
    "t5 later": Twin(names=DENSE, scale=1.0),
    "t5_gemma": T5_GEMMA._replace(causal=False),
    "t5_gemma decoder": T5_GEMMA,
    "t5_gemma_2": T5_GEMMA._replace(causal=False, wavelength=1e6, norms=NORMS),
    "moonshine": Twin(rotated=4, interleaved=True, causal=False),
    "moonshine decoder": Twin(rotated=4, interleaved=True),
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
        return plain / torch.tensor(twin.stretched or 1.0), twin.size

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
    return rotated(x, angles, factor, twin.interleaved)


def normalised(x, scale=1.0, epsilon=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * scale


def projection(twin, weights, x, which, head):
    """Queries, keys or values of one head, (B, T, H)."""
    name = twin.names[which]
    if not twin.features_last:
        return x @ weights[f"{name}/kernel"][head]
    found = projected(x, weights, name, head, twin.heads if which == 0 else twin.key_value_heads)
    return found.chunk(3, dim=-1)[which] if twin.fused else found


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
            query = normalised(query, of_query, twin.epsilon)
            key = normalised(key, of_key, twin.epsilon)
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
    return joined(heads, weights, twin.names[3])


def applied(matrix, value, weights, head, exponents):
    if exponents is not None:
        apart = (value[:, :, None] - value[:, None]).pow(2).sum(-1) + EPSILON**2
        return (matrix * apart ** ((exponents[head] - 2) / 2)) @ value
    of_head = {k: v[..., head : head + 1] for k, v in weights.items() if "coefficient" in k}
    filter = Chebyshev(3) if "filter_coefficients" in weights else FirstOrder(ORDER)
    return filters.matrix(filter, matrix[:, None], of_head)[:, 0] @ value


# How layers are called, by the name of their twin: a family, and a place in it.

PLACES = {  # which layer of the model it is, where it is not the first
    **{"smollm3 without rotation": 1, "gpt_oss": 1},  # the second of GPT-OSS has a window
    **{"t5 decoder": 2, "t5 later": 3, "t5_gemma decoder": 2, "moonshine decoder": 2},
}
ALIBI = 0.25 ** np.arange(1, 5, dtype="float32")[None, :, None, None]  # slopes of Falcon's heads
ANGLES = np.repeat(10000.0 ** (-np.arange(2) / 2), 2)  # of Moonshine, for the first position


def call_of(layer, name, x, mask, position_bias=None):
    """The output of an attention layer for tokens (B, T, d) and a mask (B, T, T)."""
    tokens, arguments = (x,), {"attention_mask": mask}
    if name == "falcon":
        arguments["alibi"] = ALIBI * np.arange(x.shape[1], dtype="float32")  # (1, N, 1, T)
    elif name.startswith("t5_gemma"):
        arguments["attention_mask"] = (1.0 - np.asarray(mask, "float32")[:, None]) * -1e9
    elif name.startswith("t5"):
        arguments = {"mask": mask, "position_bias": position_bias}
    elif name.startswith("moonshine"):
        angles = np.arange(x.shape[1])[:, None] * ANGLES
        tokens, arguments = (x, x, x), {**arguments, "rotary_embedding": angles.astype("float32")}
    found = layer(*tokens, **arguments)
    return found[0] if isinstance(found, tuple) else found


# In T5, several distances share a bucket.
LENGTHS = dict.fromkeys(("t5", "t5 decoder", "t5 later"), 19)
LENGTHS["phi3 beyond its pretraining"] = rotary_decoders.PRETRAINED + 1


def tokens_and_padding(name, width):
    """Tokens (B, T, d), and which of them are not padding, (B, T)."""
    length = LENGTHS.get(name, 7)
    x = np.random.default_rng(5).standard_normal((3, length, width)).astype("float32")
    real = np.arange(length)[None] < np.array([length, length - 2, length])[:, None]
    real[2, :2] = False  # padding on the left: rows that see nothing
    return x, real


def decoder_case(name, backbone, is_padded=True):
    """The layer of a twin in a backbone."""
    layer, twin = attentions_of(backbone)[PLACES.get(name, 0)], TWINS[name]
    x, real = tokens_and_padding(name, width_of(layer, twin))
    real = real if is_padded else np.ones_like(real)
    if name.partition(" ")[0] in rotary_decoders.BACKBONES:  # Mistral's window is in the mask
        twin = twin._replace(before=(window_of(name) or x.shape[1]) - 1)
        mask = to_numpy(
            backbone.transformer_layers[0]._compute_self_attention_mask(
                ops.convert_to_tensor(x), ops.convert_to_tensor(real), None, None, None
            )
        )
    else:
        mask = visible(twin, torch.tensor(real)).numpy()
    length, is_t5 = x.shape[1], name.partition(" ")[0] == "t5"
    added = np.random.default_rng(6).standard_normal((1, 4, length, length)).astype("float32")
    given = added + np.where(mask, 0, -1e9).astype("float32")[:, None] if is_t5 else None

    def formulas(exponents, weights, x):
        bias = None
        if is_t5:
            bias = torch.tensor(added[0], dtype=torch.float64)
            if name != "t5 later":
                bias = t5_bias(weights["embeddings"], length, twin.causal)
        return twin_attention(twin, x, weights, torch.tensor(real), exponents, bias)

    def call(x):
        return call_of(layer, name, x, mask, given if name == "t5 later" else None)

    return LayerCase(layer, {"input": x}, call, formulas)


def width_of(layer, twin):
    """The size of a token; kernels are (d, N, H), (d, N * H), or (N, d, H)."""
    kernel = view(layer).projection_layers()["query"].kernel
    return kernel.shape[0 if twin.features_last else 1]


DECODER_CASES = {name: functools.partial(decoder_case, name) for name in TWINS}
