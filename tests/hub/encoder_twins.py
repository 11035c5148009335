"""Encoder attention written from its formulas, in float64 on torch, with every matrix formed."""

import functools
import math

import torch

from tests.hub.decoder_twins import applied
from tests.hub.encoders import ENCODERS, LONGEST, SEES_PADDING, SOFT_CAP, SPAN, Case
from tests.hub.twins import LayerCase, joined, projected, rotated

HEADS = 2
DENSE = tuple(f"{letter}_dense_layer" for letter in "qkvo")
USUAL = ("query", "key", "value", "attention_output")
NAMES = {
    **dict.fromkeys(("roformer_v2", "esm", "esm_absolute"), DENSE),
    **dict.fromkeys(("video_prism", "video_prism_with_texts"), (*USUAL[:3], "output")),
}


def angles_of(x):
    """Angles (T, H / 2): the position times the wave number of each pair of features."""
    size = x.shape[-1]
    inverse = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.arange(x.shape[1], dtype=torch.float64)[:, None] * inverse


def scores_plain(query, key, weights, given, head):
    return query @ key.transpose(1, 2) / 2.0  # H = 4


def scores_roformer(query, key, *others):
    query, key = (rotated(x, angles_of(x), interleaved=True) for x in (query, key))
    return scores_plain(query, key, *others)


def scores_esm(query, key, *others):
    return scores_plain(*(rotated(x, angles_of(x)) for x in (query, key)), *others)


def scores_capped(*given):
    return SOFT_CAP * torch.tanh(scores_plain(*given) / SOFT_CAP)


def bucket(distance):
    """The row of DeBERTa's embeddings for a distance: exact when near, logarithmic when far."""
    middle = SPAN // 2
    away = abs(distance)
    if away > middle:
        ratio = math.log(away / middle) / math.log((LONGEST - 1) / middle)
        away = middle + math.ceil(ratio * (middle - 1))
    return min(max(int(math.copysign(away, distance)) + SPAN, 0), 2 * SPAN - 1)


def scores_deberta(query, key, weights, given, head):
    """q_i k_j + q_i r^k_(i - j) + k_j r^q_(i - j)."""
    length = query.shape[1]
    rows = torch.tensor([[bucket(i - j) for j in range(length)] for i in range(length)])
    positions = given["rel_embeddings"]
    position_keys = projected(positions, weights, "key", head, HEADS)[:, rows]  # (B, T, T, H)
    position_queries = projected(positions, weights, "query", head, HEADS)[:, rows]
    total = query @ key.transpose(1, 2)
    total = total + (query[:, :, None] * position_keys).sum(-1)
    total = total + (key[:, None] * position_queries).sum(-1)
    return total / math.sqrt(3 * 4)


def scores_xlnet(query, key, weights, given, head):
    """(q_i + u) k_j + (q_i + v) r_(i - j) + (q_i + w) s_ij."""
    length = query.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    encodings = projected(given["relative_position_encoding"], weights, "encoding", head, HEADS)
    of_pairs = encodings[:, length - distance]  # the first is for the distance T
    segment = given["segment_encoding"][given["segment_matrix"].long(), head]  # (B, T, T, H)
    total = (query + given["content_attention_bias"][head]) @ key.transpose(1, 2)
    shifted = query + given["positional_attention_bias"][head]
    total = total + (shifted[:, :, None] * of_pairs).sum(-1)
    shifted = query + given["segment_attention_bias"][head]
    return (total + (shifted[:, :, None] * segment).sum(-1)) / 2.0


SCORES = {
    "roformer_v2": scores_roformer,
    "esm": scores_esm,
    "esm_absolute": scores_plain,
    "deberta_v3": scores_deberta,
    "video_prism": scores_plain,
    "video_prism_with_texts": scores_capped,
    "xlnet": scores_xlnet,
}


def twin_attention(case, x, weights, given, exponents=None):
    """The layer's output (B, T, d), of a graph filter or, with `exponents`, of p-LaT."""
    names = NAMES.get(case.name, USUAL)
    mask, real = torch.tensor(case.mask), torch.tensor(case.real)
    blind = ~mask.any(-1, keepdim=True)
    heads = []
    for head in range(HEADS):
        query, key, value = (projected(x, weights, name, head, HEADS) for name in names[:3])
        scores = SCORES[case.name](query, key, weights, given, head)
        if case.name in SEES_PADDING:  # rows of padding are uniform
            scores = scores.masked_fill(~real[:, :, None], 0.0)
        scores = scores.masked_fill(~mask, -math.inf).masked_fill(blind, 0.0)
        matrix = torch.softmax(scores, dim=-1) * mask
        heads.append(applied(matrix, value, weights, head, exponents).masked_fill(blind, 0.0))
    if case.name == "xlnet":  # its output projection is (d, N, H)
        return torch.cat(heads, dim=-1) @ weights[f"{names[3]}/kernel"].flatten(1).T
    return joined(heads, weights, names[3])


def encoder_case(name, backbone):
    """The last attention layer of a backbone."""
    case = Case(name)
    layer, constants = case.layer(backbone), case.arguments()

    def call(x, *found):
        return case.call(layer, x, dict(zip(case.given, found, strict=True)))

    def twin(exponents, weights, x, *found):
        given = dict(zip(case.given, found, strict=True))
        given |= {k: torch.tensor(v) for k, v in constants.items() if k == "segment_matrix"}
        return twin_attention(case, x, weights, given, exponents)

    return LayerCase(layer, {"input": case.x, **case.given}, call, twin)


ENCODER_CASES = {name: functools.partial(encoder_case, name) for name in ENCODERS}
