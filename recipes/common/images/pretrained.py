"""A KerasHub preset as an image classifier, with a new head and another attention."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np
from keras import layers

import keras_graphattn
from keras_graphattn.masks import BlockToeplitz
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.command.parsing import UsageError
from recipes.common.data.sources import loading_preset, refuse_converted
from recipes.common.training.layers import NO_FLOAT16, is_float16_of_jax_on_cpu

Number = float | list[float]  # of all channels, or of each


class Preset(NamedTuple):
    """The inputs of a preset, and its size."""

    image_size: int
    channels: int
    layers: int  # attention layers
    scale: Number  # its images are scale * x + offset, with x from 0 to 255
    offset: Number
    grid: int | None  # patches of a side, where the tokens are those of a grid
    prefix: int  # tokens before the patches


@functools.cache
def preset_of(preset: str) -> Preset:
    """The form of a preset, read without its weights; refuses what cannot be used here."""
    with loading_preset(preset):
        backbone = keras_hub.models.Backbone.from_preset(preset, load_weights=False)
        converter = keras_hub.layers.ImageConverter.from_preset(preset)
    refuse_converted(preset, backbone)
    try:
        count = len(keras_graphattn.inspect(backbone))
    except ValueError as error:
        raise UsageError(f"--preset {preset}: {error}") from error
    *sides, channels = backbone.image_shape
    if None in sides:
        sides = list(converter.image_size or sides)
    if sides[0] is None or sides[0] != sides[1]:
        raise UsageError(
            f"--preset {preset} takes images of {sides[0]} x {sides[1]} pixels, this recipe makes "
            "square images of one size"
        )
    scale, offset = (
        default if value is None else np.asarray(value, float).tolist()
        for value, default in ((converter.scale, 1.0), (converter.offset, 0.0))
    )
    return Preset(sides[0], channels, count, scale, offset, *_grid(backbone, sides[0]))


def normalised(images: Any, preset: str) -> Any:
    """Images (B, h, w, C) from 0 to 255, as the preset's own preprocessor normalises them.

    Images of one channel become grey ones of as many channels as the preset takes.
    """
    form = preset_of(preset)
    if images.shape[-1] != form.channels:
        images = layers.Concatenate(dtype="float32", name="grey")([images] * form.channels)
    return layers.Rescaling(form.scale, form.offset, dtype="float32", name="standardise")(images)


def classifier(trial: Trial, replaced: Sequence[int], *, load_weights: bool = True) -> keras.Model:
    """The preset's backbone with a new head, from normalised images to logits (B, classes).

    The head is drawn before the conversion: all attentions start with the same weights for the
    same Keras seed. `replaced` are the numbers of the layers that have the attention.

    Raises `UsageError` when the preset cannot be loaded, or cannot have the attention.
    """
    preset, attention = trial.options.preset, trial.attention
    with loading_preset(preset):
        network = _with_head(preset, len(trial.problem.classes), load_weights)
    if attention == "softmax":
        return network
    form, arguments = preset_of(preset), layer_arguments(trial.settings)
    if attention == "topological":
        if form.grid is None:
            raise UsageError(
                f"--attention topological: the tokens of --preset {preset} are no grid of patches"
            )
        arguments["mask"] = BlockToeplitz((form.grid,) * 2, num_prefix_tokens=form.prefix)
    kind = ATTENTIONS[attention].convert
    if kind is None:
        raise UsageError(f"--attention {attention}: no --preset has it, only models from scratch")
    try:
        return keras_graphattn.convert(network, kind, list(replaced), **arguments)
    except ValueError as error:
        raise UsageError(
            f"--attention {attention} cannot be had with --preset {preset}: {error}"
        ) from error


def check_precision(network: keras.Model) -> None:
    """Raises `UsageError` for a network that JAX cannot compute on a CPU in Keras' precision."""
    if not is_float16_of_jax_on_cpu(keras.config.dtype_policy().compute_dtype):
        return
    try:
        network.predict(np.zeros((1, *network.input.shape[1:])), verbose=0)  # compiled
    except ValueError as error:
        raise UsageError(NO_FLOAT16) from error


def _with_head(preset: str, classes: int, load_weights: bool) -> keras.Model:
    """KerasHub's classifier, or a dense layer on the class token if the family has none."""
    arguments = {"activation": None, "preprocessor": None, "head_dtype": "float32"}
    try:
        return keras_hub.models.ImageClassifier.from_preset(
            preset, load_weights=load_weights, num_classes=classes, **arguments
        )
    except ValueError:
        if not preset_of(preset).prefix:
            raise
    backbone = keras_hub.models.Backbone.from_preset(preset, load_weights=load_weights)
    images = keras.Input(backbone.image_shape, name="images")
    tokens = backbone(keras.tree.map_structure(lambda _: images, backbone.input))
    logits = layers.Dense(classes, dtype="float32", name="predictions")(tokens[:, 0])
    return keras.Model(images, logits)


def _grid(backbone: Any, image_size: int) -> tuple[int | None, int]:
    """Patches of a side and the number of tokens before them; (None, 0) for other backbones."""
    patch, shape = getattr(backbone, "patch_size", None), getattr(backbone.output, "shape", ())
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    if patch is None or len(shape) != 3 or shape[1] is None:
        return None, 0
    side = image_size // patch
    prefix = shape[1] - side * side
    return (side, prefix) if prefix >= 0 else (None, 0)
