"""Tiny image presets of KerasHub's families, with random weights, in folders."""

import keras
import keras_hub

from recipes.image_classification.__main__ import RECIPE

models, layers = keras_hub.models, keras_hub.layers
SCALE, OFFSET = [0.02, 0.01, 0.015], [-2.0, -1.0, 0.5]
PATCHES = {"image_shape": (16, 16, 3), "patch_size": 8}
PATCHES |= {"num_layers": 2, "num_heads": 2, "hidden_dim": 16}
STAGES = {"depths": (2, 1), "num_heads": (2, 2), "embed_dim": 8, "window_size": 4}
# its first layer looks at fewer tokens than there are, which no filter can
REDUCED = {"layerwise_depths": [1, 1], "num_layers": 2, "layerwise_num_heads": [2, 2]}
REDUCED |= {"layerwise_sr_ratios": [2, 1], "max_drop_path_rate": 0.0, "hidden_dims": [8, 12]}
REDUCED |= {"layerwise_patch_sizes": [3, 3], "layerwise_strides": [2, 2]}


def vit(**options):
    return models.ViTBackbone(**{**PATCHES, "mlp_dim": 32, **options})


def others(kind, **options):
    return lambda: kind(**{"image_shape": (16, 16, 3), **options})


ALL = set(RECIPE.attentions)
WITH_BIASES = {"softmax", "gfsa", "gfsa_high_pass", "p_laplacian"}
WIDE = {**PATCHES, "intermediate_dim": 32}
# of each family: how it is made, its layer of preprocessing, the attentions it can have
FAMILIES = {
    "vit": (vit, layers.ViTImageConverter, ALL),
    "deit": (others(models.DeiTBackbone, **WIDE), layers.DeiTImageConverter, ALL),
    "dinov2": (
        others(models.DINOV2Backbone, **WIDE, position_embedding_shape=(16, 16)),
        layers.DINOV2ImageConverter,
        ALL,
    ),
    "dinov3": (
        others(models.DINOV3Backbone, **WIDE, num_register_tokens=2),
        layers.DINOV3ImageConverter,
        WITH_BIASES,
    ),
    "swin": (
        others(models.SwinTransformerBackbone, patch_size=2, **STAGES),
        layers.SwinTransformerImageConverter,
        WITH_BIASES,
    ),
    "mit": (others(models.MiTBackbone, **REDUCED), layers.MiTImageConverter, {"softmax"}),
}


def saved(folder, family="vit", backbone=None, *, converter=True):
    """A preset of a family, whose weights are random and not small."""
    make, normalise, _ = FAMILIES[family]
    keras.utils.set_random_seed(7)
    backbone = make() if backbone is None else backbone
    for variable in backbone.weights:
        if "position" not in variable.path:  # DINOv2 keeps two of them that belong together
            noise = 0.2 * keras.random.normal(variable.shape, seed=len(variable.path))
            variable.assign_add(keras.ops.cast(noise, variable.dtype))
    backbone.save_to_preset(str(folder))
    if converter:
        normalise(image_size=(16, 16), scale=SCALE, offset=OFFSET).save_to_preset(str(folder))
    return str(folder)
