"""Attention of vision models written from its formulas, in float64 on torch, with every matrix
formed and every bias summed entry by entry.
"""

import functools
import math
from itertools import pairwise

import numpy as np
import torch
from keras import ops

from keras_graphattn.hub.families import view
from tests.hub.decoder_twins import applied, normalised
from tests.hub.image_towers import PLACES, REAL
from tests.hub.models import attentions_of
from tests.hub.twins import LayerCase, joined, projected, rotated


def names_of_weights(layer):
    """The layer's trainable weights as the twins call them, in their order."""
    found = view(layer).projection_layers()
    names = {id(v): f"{name}/{v.name}" for name, each in found.items() for v in each.weights}
    return [
        names.get(id(v), "/".join(v.path.split("/")[-2:]) if "norm" in v.path else v.name)
        for v in layer.trainable_variables
    ]


def parts_of_head(weights, x, heads, head):
    """Query, key and value of one head, (B, T, H), of fused or separate projections."""
    if "key/kernel" in weights:
        return [projected(x[name], weights, name, head, heads) for name in x]
    places = [which * heads + head for which in range(3)]
    return [projected(x["query"], weights, "query", place, 3 * heads) for place in places]


def attention(weights, x, heads, exponents=None, bias=None, turned=None):
    """The layer's output (B, T, d), of a graph filter or, with `exponents`, of p-LaT.

    Args:
        x: Tokens (B, T, d); or a dictionary of those of `"query"`, `"key"` and `"value"`.
        bias: A function of a head and its queries (B, T, H) to what is added to the scores.
        turned: A function that rotates queries or keys (B, T, H).
    """
    x = x if isinstance(x, dict) else dict.fromkeys(("query", "key", "value"), x)
    found = []
    for head in range(heads):
        query, key, value = parts_of_head(weights, x, heads, head)
        if turned is not None:
            query, key = turned(query), turned(key)
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        if bias is not None:
            scores = scores + bias(head, query)
        matrix = torch.softmax(scores, dim=-1)
        found.append(applied(matrix, value, weights, head, exponents))
    return joined(found, weights, "attention_output")


def places(height, width):
    return [(row, column) for row in range(height) for column in range(width)]


def window_bias(table, window, head):
    """Of the relative positions in a window: (T, T), out of a table ((2w - 1)^2, N)."""
    across = 2 * window - 1
    tokens = places(window, window)
    rows = [
        [(r - s + window - 1) * across + c - d + window - 1 for s, d in tokens] for r, c in tokens
    ]
    return table[torch.tensor(rows), head]


def shift_bias(side, window, shift):
    """-100 between tokens of a shifted window that were no neighbours: (W, T, T)."""
    padded = -(-side // window) * window

    def region(row):  # which part of the image a row of the shifted map comes from
        if row >= side:
            return 0
        return (row >= side - window) + (row >= side - shift)

    found = []
    for top in range(0, padded, window):
        for left in range(0, padded, window):
            tokens = [(top + row, left + column) for row, column in places(window, window)]
            # what fills a window up counts as the first region
            kinds = [(region(r), region(c)) if r < side and c < side else (0, 0) for r, c in tokens]
            found.append([[0.0 if a == b else -100.0 for b in kinds] for a in kinds])
    return torch.tensor(found, dtype=torch.float64)


def decomposed_bias(query, rows, columns, height, width):
    """Products of queries (B, T, H) with embeddings of distances in rows and in columns."""
    tokens = torch.tensor(places(height, width))
    behind = tokens[:, None] - tokens[None] + torch.tensor([height - 1, width - 1])  # (T, T, 2)
    embeddings = rows[behind[..., 0]] + columns[behind[..., 1]]  # (T, T, H)
    return torch.einsum("bth,tsh->bts", query, embeddings)


def turned_in_two_dimensions(x, height, width, prefix, theta=100.0):
    """One head (B, prefix + height * width, H), its patches rotated by row and by column."""
    size = x.shape[-1]
    inverse = theta ** (-torch.arange(0, size, 4, dtype=torch.float64) / size)  # (H / 4,)
    rows = 2 * (torch.arange(height, dtype=torch.float64) + 0.5) / height - 1
    columns = 2 * (torch.arange(width, dtype=torch.float64) + 0.5) / width - 1
    angles = [
        torch.cat([rows[r] * inverse, columns[c] * inverse]) for r, c in places(height, width)
    ]
    unturned = torch.zeros(prefix, size // 2, dtype=torch.float64)
    return rotated(x, torch.cat([unturned, 2 * math.pi * torch.stack(angles)]))


# A layer of each kind: which one, the shape of its input, and what it must be equal to.


def swin_call(backbone, layer, x):
    mask = shift_bias(6, 3, 1).numpy().astype("float32")
    return layer(x, mask=ops.convert_to_tensor(mask))


def swin_twin(exponents, weights, x):
    mask = shift_bias(6, 3, 1).repeat(2, 1, 1)  # for two images

    def bias(head, query):
        return window_bias(weights["relative_position_bias_table"], 3, head) + mask

    return attention(weights, x, 2, exponents, bias)


def dinov3_call(backbone, layer, x):
    angles = backbone.rope_embedding(np.zeros((1, 8, 12, 3), "float32"))
    return layer(x, position_embeddings=angles, num_prefix_tokens=3)


def dinov3_twin(exponents, weights, x):
    return attention(
        weights, x, 2, exponents, turned=lambda y: turned_in_two_dimensions(y, 2, 3, 3)
    )


def vit_det_twin(exponents, weights, x):
    height, width = x.shape[1:3]

    def bias(head, query):
        return decomposed_bias(query, weights["rel_pos_h"], weights["rel_pos_w"], height, width)

    found = attention(weights, x.flatten(1, 2), 2, exponents, bias)
    return found.reshape(x.shape)


PLACED = np.random.default_rng(8).standard_normal((1, 6, 8)).astype("float32")
HIDDEN = np.triu(np.ones((6, 6), "float32"))


def d_fine_call(backbone, layer, x):
    return layer(x, position_embeddings=PLACED, attention_mask=HIDDEN)


def d_fine_twin(exponents, weights, x):
    placed = x + torch.tensor(PLACED, dtype=x.dtype)
    mask = torch.tensor(HIDDEN, dtype=x.dtype)
    tokens = {"query": placed, "key": placed, "value": x}
    return attention(weights, tokens, 2, exponents, lambda head, query: mask)


def plain_call(backbone, layer, x):
    return layer(x)


# Towers of models that read images and texts.
BIAS = np.random.default_rng(8).standard_normal((2, 1, 6, 6)).astype("float32")
VISIBLE = np.arange(9) < REAL[:, None]  # (B, T)
ENDS = [0, 4, 9]  # of two frames
ANGLES = np.tile(np.random.default_rng(8).standard_normal((9, 2)), (1, 2)).astype("float32")


def biased_call(tower, layer, x):
    return layer(x, attention_mask=BIAS)[0]


def biased_twin(exponents, weights, x):
    bias = torch.tensor(BIAS[:, 0], dtype=x.dtype)
    return attention(weights, x, 2, exponents, lambda head, query: bias)


def gemma4_call(tower, layer, x):
    return layer(x, attention_mask=VISIBLE, position_ids=np.tile(PLACES, (2, 1, 1)))[0]


def gemma4_twin(exponents, weights, x):
    visible = torch.tensor(VISIBLE)[:, None]  # (B, 1, S)
    places = torch.tensor(PLACES, dtype=x.dtype)
    found = []
    for head in range(4):
        query = x @ weights["query/kernel"][head]
        key, value = (x @ weights[f"{name}/kernel"][head // 2] for name in ("key", "value"))
        query = normalised(query, weights["query_norm/scale"])
        key, value = normalised(key, weights["key_norm/scale"]), normalised(value)
        # Two of the four features are turned by the row, two by the column; each by one angle.
        query, key = (
            torch.cat([rotated(y[..., :2], places[:, :1]), rotated(y[..., 2:], places[:, 1:])], -1)
            for y in (query, key)
        )
        scores = (query @ key.transpose(1, 2)).masked_fill(~visible, -torch.inf)
        found.append(applied(torch.softmax(scores, -1), value, weights, head, exponents))
    return joined(found, weights, "attention_output")


def qwen3_5_call(tower, layer, x):
    angles = ops.convert_to_tensor(ANGLES)
    return layer.call(x, (ops.cos(angles), ops.sin(angles)), np.array(ENDS))  # read while it runs


def qwen3_5_twin(exponents, weights, x):
    frames = []
    for start, end in pairwise(ENDS):
        turned = functools.partial(rotated, angles=torch.tensor(ANGLES[start:end, :2]).double())
        frames.append(attention(weights, x[None, start:end], 2, exponents, turned=turned)[0])
    return torch.cat(frames)


LAYERS = {
    "swin": (1, (8, 9, 8), swin_call, swin_twin),
    "dinov3": (0, (2, 9, 16), dinov3_call, dinov3_twin),
    "vit_det": (0, (2, 3, 3, 8), plain_call, vit_det_twin),
    "vit_det in full": (1, (1, 5, 5, 8), plain_call, vit_det_twin),
    "mit": (0, (2, 9, 12), plain_call, lambda p, w, x: attention(w, x, 2, p)),
    "mit_square": (0, (2, 9, 8), plain_call, lambda p, w, x: attention(w, x, 2, p)),
    "d_fine": (0, (2, 6, 8), d_fine_call, d_fine_twin),
    "pali_gemma_tower": (0, (2, 6, 8), biased_call, biased_twin),
    "gemma3_tower": (0, (2, 6, 8), biased_call, biased_twin),
    "gemma4_tower": (0, (2, 9, 16), gemma4_call, gemma4_twin),
    "qwen3_5_tower": (0, (9, 8), qwen3_5_call, qwen3_5_twin),
}


def vision_case(name, backbone):
    """One layer of a backbone."""
    which, shape, call, twin = LAYERS[name]
    layer = attentions_of(backbone)[which]
    x = np.random.default_rng(5).standard_normal(shape).astype("float32")

    def call_it(x):
        return call(backbone, layer, x)

    return LayerCase(layer, {"input": x}, call_it, twin, names_of_weights(layer))


VISION_CASES = {name: functools.partial(vision_case, name) for name in LAYERS}
