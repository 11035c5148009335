"""Tiny image presets of KerasHub's families, with random weights, in folders."""

import keras
import keras_hub

from recipes.image_classification.__main__ import RECIPE

models = keras_hub.models
SCALE, OFFSET = [0.02, 0.01, 0.015], [-2.0, -1.0, 0.5]
WIDTHS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16}
PATCHES = {"image_shape": (16, 16, 3), "patch_size": 8}
STAGES = {"depths": (2, 1), "num_heads": (2, 2), "embed_dim": 8, "window_size": 4}


def vit(**options):
    return models.ViTBackbone(**{**PATCHES, **WIDTHS, "mlp_dim": 32, **options})


def deit():
    return models.DeiTBackbone(**PATCHES, **WIDTHS, intermediate_dim=32)


def dinov2():
    positions = {"position_embedding_shape": (16, 16), "intermediate_dim": 32}
    return models.DINOV2Backbone(**PATCHES, **WIDTHS, **positions)


def dinov3():
    registers = {"num_register_tokens": 2, "intermediate_dim": 32}
    return models.DINOV3Backbone(**PATCHES, **WIDTHS, **registers)


def swin():
    return models.SwinTransformerBackbone(image_shape=(16, 16, 3), patch_size=2, **STAGES)


def mit():
    """Its first layer looks at fewer tokens than there are, which no filter can."""
    return models.MiTBackbone(
        image_shape=(16, 16, 3),
        layerwise_depths=[1, 1],
        num_layers=2,
        layerwise_num_heads=[2, 2],
        layerwise_sr_ratios=[2, 1],
        max_drop_path_rate=0.0,
        layerwise_patch_sizes=[3, 3],
        layerwise_strides=[2, 2],
        hidden_dims=[8, 12],
    )


ALL = set(RECIPE.attentions)
WITH_BIASES = {"softmax", "gfsa", "gfsa_high_pass", "p_laplacian"}
# of each family: how it is made, its layer of preprocessing, the attentions it can have
FAMILIES = {
    "vit": (vit, keras_hub.layers.ViTImageConverter, ALL),
    "deit": (deit, keras_hub.layers.DeiTImageConverter, ALL),
    "dinov2": (dinov2, keras_hub.layers.DINOV2ImageConverter, ALL),
    "dinov3": (dinov3, keras_hub.layers.DINOV3ImageConverter, WITH_BIASES),
    "swin": (swin, keras_hub.layers.SwinTransformerImageConverter, WITH_BIASES),
    "mit": (mit, keras_hub.layers.MiTImageConverter, {"softmax"}),
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
