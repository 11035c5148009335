"""Attention of vision models written from its formulas, in float64 on torch, with every matrix
formed and every bias summed entry by entry.
"""

import math

import torch

from keras_graphattn.hub.families import view
from tests.hub.decoder_twins import applied


def names_of_weights(layer):
    """The layer's trainable weights as the twins call them, in their order."""
    found = view(layer).projection_layers()
    names = {id(v): f"{name}/{v.name}" for name, each in found.items() for v in each.weights}
    return [
        names.get(id(v), "/".join(v.path.split("/")[-2:]) if "norm" in v.path else v.name)
        for v in layer.trainable_variables
    ]


def projection(weights, x, name, part=slice(None)):
    kernel, bias = weights[f"{name}/kernel"], weights.get(f"{name}/bias")
    kernel = kernel.reshape(kernel.shape[0], -1)[:, part]
    return x @ kernel + (0.0 if bias is None else bias.reshape(-1)[part])


def parts_of_head(weights, x, heads, head):
    """Query, key and value of one head, (B, T, H), of fused or separate projections."""
    width = weights["attention_output/kernel"].shape[0]
    size = width // heads
    if "key/kernel" in weights:
        part = slice(head * size, (head + 1) * size)
        return [projection(weights, x[name], name, part) for name in ("query", "key", "value")]
    starts = [which * width + head * size for which in range(3)]
    return [projection(weights, x["query"], "query", slice(at, at + size)) for at in starts]


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
    return projection(weights, torch.cat(found, dim=-1), "attention_output")


def places(height, width):
    return [(row, column) for row in range(height) for column in range(width)]


def window_bias(table, window, head):
    """Of the relative positions in a window: (T, T), out of a table ((2w - 1)^2, N)."""
    across = 2 * window - 1
    tokens = places(window, window)
    return torch.stack(
        [
            torch.stack(
                [table[(r - s + window - 1) * across + c - d + window - 1, head] for s, d in tokens]
            )
            for r, c in tokens
        ]
    )


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
    tokens = places(height, width)
    return torch.stack(
        [
            torch.stack(
                [
                    query[:, index] @ (rows[r - s + height - 1] + columns[c - d + width - 1])
                    for s, d in tokens
                ],
                dim=-1,
            )
            for index, (r, c) in enumerate(tokens)
        ],
        dim=1,
    )


def turned_in_two_dimensions(x, height, width, prefix, theta=100.0):
    """One head (B, prefix + height * width, H), its patches rotated by row and by column."""
    size = x.shape[-1]
    inverse = theta ** (-torch.arange(0, size, 4, dtype=torch.float64) / size)  # (H / 4,)
    rows = 2 * (torch.arange(height, dtype=torch.float64) + 0.5) / height - 1
    columns = 2 * (torch.arange(width, dtype=torch.float64) + 0.5) / width - 1
    angles = torch.stack(
        [torch.cat([rows[r] * inverse, columns[c] * inverse]) for r, c in places(height, width)]
    )  # (T, H / 2)
    cosine, sine = (2 * math.pi * angles).cos(), (2 * math.pi * angles).sin()
    first, second = x[:, prefix:, : size // 2], x[:, prefix:, size // 2 :]
    patches = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return torch.cat([x[:, :prefix], patches], dim=1)
