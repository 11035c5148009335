"""Tiny image towers of models that read images and texts, and their attention from its formulas.

They are models of their own, and parts of a backbone where it takes images.
"""

from itertools import pairwise

import keras_hub
import numpy as np
import torch
from keras import ops

import keras_graphattn
from tests.hub.biased_decoders import moved
from tests.hub.decoder_twins import applied, normalised
from tests.hub.vision_models import randomised
from tests.hub.vision_twins import attention
from tests.numerics import to_numpy

models = keras_hub.models
WIDTHS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def pali_gemma():
    backbone = models.PaliGemmaBackbone(
        vocabulary_size=11,
        image_size=12,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=8,
        intermediate_dim=16,
        head_dim=4,
        vit_patch_size=4,
        vit_num_heads=2,
        vit_hidden_dim=8,
        vit_num_layers=2,
        vit_intermediate_dim=16,
    )
    return backbone.vit_encoder


def gemma3():
    return models.Gemma3VisionEncoder(
        image_size=12, patch_size=4, pool_size=3, output_dim=8, **WIDTHS
    )


def gemma4():
    """Two heads of queries for each head of keys and values."""
    return models.Gemma4VisionEncoder(
        **{**WIDTHS, "num_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16},
        **{"image_size": 12, "patch_size": 4, "head_dim": 4, "output_dim": 8, "pool_size": 3},
        position_embedding_size=8,
    )


def qwen3_5():
    """The tower has no public name: it is made through a backbone's configuration."""
    from keras_hub.src.models.qwen3_5.qwen3_5_vision_encoder import Qwen3_5VisionEncoder

    tower = Qwen3_5VisionEncoder(
        depth=2,
        hidden_size=8,
        num_heads=2,
        intermediate_size=16,
        patch_size=4,
        out_hidden_size=8,
        num_position_embeddings=16,
        name="tower",
    )
    tower.build()
    return tower


TOWERS = {"pali_gemma": pali_gemma, "gemma3": gemma3, "gemma4": gemma4, "qwen3_5": qwen3_5}
CLASSES = {
    "pali_gemma": "PaliGemmaVitAttention",
    "gemma3": "Gemma3VisionAttention",
    "gemma4": "Gemma4VisionAttention",
    "qwen3_5": "Qwen3_5VisionAttention",
}
PLACES = np.array([(row, column) for row in range(3) for column in range(3)], "int32")
REAL = np.array([7, 9])  # patches of each of Gemma 4's images; the others fill up


def random_tower(name):
    return randomised(TOWERS[name]())


def converted(name, attention="graph_filter", **options):
    """A converted tower; the coefficients of its filter are away from their start."""
    options = {"order": 4, **options} if attention == "graph_filter" else options
    return moved(keras_graphattn.convert(random_tower(name), attention, **options))


def inputs_of(name, filling=0.0):
    """What the tower is called with. `filling` is what Gemma 4 gets in patches that fill up."""
    generator = np.random.default_rng(1)
    if name == "pali_gemma":
        return generator.standard_normal((2, 12, 12, 3)).astype("float32")
    if name == "gemma3":
        return generator.standard_normal((2, 1, 12, 12, 3)).astype("float32")
    if name == "gemma4":
        real = (np.arange(9) < REAL[:, None])[:, None, :, None]  # (B, 1, T, 1)
        patches = generator.random((2, 1, 9, 48))
        return {
            "pixel_values": np.where(real, patches, filling).astype("float32"),
            "pixel_position_ids": np.where(real, PLACES, -1).astype("int32"),
        }
    patches = generator.standard_normal((2 * 8 + 4, 2, 4, 4, 3)).astype("float32")
    return patches, np.array([[2, 2, 4], [1, 2, 2]])  # two frames of 2 x 4 patches, one of 2 x 2


def answers(tower, inputs):
    found = tower(*inputs) if isinstance(inputs, tuple) else tower(inputs, training=False)
    return [to_numpy(found)]


# One layer of each: the shape of its input, how it is called, and what it must be equal to.
BIAS = np.random.default_rng(8).standard_normal((2, 1, 6, 6)).astype("float32")
VISIBLE = np.arange(9) < REAL[:, None]  # (B, T)
ENDS = [0, 4, 9]  # of two frames
ANGLES = np.tile(np.random.default_rng(8).standard_normal((9, 2)), (1, 2)).astype("float32")


def biased_call(layer, x):
    return layer(x, attention_mask=BIAS)[0]


def biased_twin(weights, x, exponents):
    bias = torch.tensor(BIAS[:, 0], dtype=x.dtype)
    return attention(weights, x, 2, exponents, lambda head, query: bias)


def gemma4_call(layer, x):
    return layer(x, attention_mask=VISIBLE, position_ids=np.tile(PLACES, (2, 1, 1)))[0]


def turned_by(x, angles):
    """Rotates x (..., T, H), the first half of its features with the second."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def gemma4_twin(weights, x, exponents):
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
            torch.cat(
                [
                    turned_by(y[..., :2], places[:, :1]),
                    turned_by(y[..., 2:], places[:, 1:]),
                ],
                dim=-1,
            )
            for y in (query, key)
        )
        scores = (query @ key.transpose(1, 2)).masked_fill(~visible, -torch.inf)
        found.append(applied(torch.softmax(scores, -1), value, weights, head, exponents))
    joined = torch.cat(found, dim=-1)
    return joined @ weights["attention_output/kernel"].reshape(joined.shape[-1], -1)


def qwen3_5_call(layer, x):
    angles = ops.convert_to_tensor(ANGLES)
    return layer.call(x, (ops.cos(angles), ops.sin(angles)), np.array(ENDS))  # read while it runs


def qwen3_5_twin(weights, x, exponents):
    frames = []
    for start, end in pairwise(ENDS):
        angles = torch.tensor(ANGLES[start:end, :2], dtype=x.dtype)
        frames.append(
            attention(
                weights,
                x[None, start:end],
                2,
                exponents,
                turned=lambda y, angles=angles: turned_by(y, angles),
            )[0]
        )
    return torch.cat(frames)


LAYERS = {
    "pali_gemma": ((2, 6, 8), biased_call, biased_twin),
    "gemma3": ((2, 6, 8), biased_call, biased_twin),
    "gemma4": ((2, 9, 16), gemma4_call, gemma4_twin),
    "qwen3_5": ((9, 8), qwen3_5_call, qwen3_5_twin),
}
