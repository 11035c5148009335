"""Tiny image towers of models that read images and texts.

They are models of their own, and parts of a backbone where it takes images.
"""

import functools

import keras_hub
import numpy as np

from tests.hub import composed_models
from tests.hub.models import WIDTHS

models = keras_hub.models


def pali_gemma():
    return composed_models.pali_gemma(image_size=12, vit_num_layers=2).vit_encoder


gemma3 = functools.partial(
    models.Gemma3VisionEncoder, image_size=12, patch_size=4, pool_size=3, output_dim=8, **WIDTHS
)
# Two heads of queries for each head of keys and values.
gemma4 = functools.partial(
    models.Gemma4VisionEncoder,
    **{**WIDTHS, "num_heads": 4, "num_key_value_heads": 2, "hidden_dim": 16},
    **{"image_size": 12, "patch_size": 4, "head_dim": 4, "output_dim": 8, "pool_size": 3},
    position_embedding_size=8,
)


def qwen3_5():
    """The tower has no public name: it is made through a backbone's configuration."""
    from keras_hub.src.models.qwen3_5.qwen3_5_vision_encoder import Qwen3_5VisionEncoder

    tower = Qwen3_5VisionEncoder(
        **{"depth": 2, "num_heads": 2, "hidden_size": 8, "intermediate_size": 16},
        **{"patch_size": 4, "out_hidden_size": 8, "num_position_embeddings": 16, "name": "tower"},
    )
    tower.build()
    return tower


TOWERS = {
    "pali_gemma_tower": pali_gemma,
    "gemma3_tower": gemma3,
    "gemma4_tower": gemma4,
    "qwen3_5_tower": qwen3_5,
}
PLACES = np.array([(row, column) for row in range(3) for column in range(3)], "int32")
REAL = np.array([7, 9])  # patches of each of Gemma 4's images; the others fill up


def inputs_of(name, tower=None, filling=0.0):
    """What the tower is called with. `filling` is what Gemma 4 gets in patches that fill up."""
    generator = np.random.default_rng(1)
    if name in ("pali_gemma_tower", "gemma3_tower"):
        shape = (2, 12, 12, 3) if name == "pali_gemma_tower" else (2, 1, 12, 12, 3)
        return {"images": generator.standard_normal(shape).astype("float32")}
    if name == "gemma4_tower":
        real = (np.arange(9) < REAL[:, None])[:, None, :, None]  # (B, 1, T, 1)
        patches = generator.random((2, 1, 9, 48))
        return {
            "pixel_values": np.where(real, patches, filling).astype("float32"),
            "pixel_position_ids": np.where(real, PLACES, -1).astype("int32"),
        }
    patches = generator.standard_normal((2 * 8 + 4, 2, 4, 4, 3)).astype("float32")
    return patches, np.array([[2, 2, 4], [1, 2, 2]])  # two frames of 2 x 4 patches, one of 2 x 2
