"""The model of images and what a run trains and measures of it.

Its inputs are `images` (B, size, size, C), raw values from 0 to 255; its output is `probabilities`
(B, classes).
"""

import argparse
import math
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

import keras_graphattn
from keras_graphattn.analysis import token_similarity
from keras_graphattn.masks import BlockToeplitz
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.command.checks import keras_configured
from recipes.common.command.parsing import UsageError
from recipes.common.data.image_batches import Augmentation, ImageBatches
from recipes.common.data.images import Images
from recipes.common.images import cait, vit
from recipes.common.images.sizes import SIZES, Size
from recipes.common.images.training import compile_model
from recipes.common.training.coefficients import coefficient_report
from recipes.common.training.layers import plain_attention
from recipes.common.training.runs import Training
from recipes.common.training.similarity import similarity_by_depth
from recipes.common.training.throughput import Throughput
from recipes.image_classification.data import Problem

# of the pixels of ImageNet, by channel, on a scale from 0 to 1; for one channel, of scikit-learn's
# digits
MEANS = {1: (0.305,), 3: (0.485, 0.456, 0.406)}
DEVIATIONS = {1: (0.376,), 3: (0.229, 0.224, 0.225)}
MEASURED = 1024  # images on which the similarity of tokens is measured, at most
MEASURED_PRESET = 128  # the same for presets, which are larger


def prepare(
    problem: Problem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    model = build(problem, attention, settings, options, seed)
    if options.start_from is not None:
        _start(model, options)
    names = Augmentation._fields
    augmentation = Augmentation(**{name: getattr(options, name) for name in names})
    shape = (len(problem.classes), options.image_size)
    batches = ImageBatches(problem.train, *shape, options.batch_size, seed, augmentation)
    validation, test = (
        ImageBatches(images, *shape, 2 * options.batch_size)
        for images in (problem.validation, problem.test)
    )
    compile_model(model, len(problem.classes), batches.num_batches, options)
    coefficients = coefficient_report(model)

    def report() -> dict[str, Any]:
        found = model.evaluate(test, verbose=0, return_dict=True)
        kept = ("accuracy", "cross_entropy", "accuracy_top_5")
        return {**{f"test_{name}": found[name] for name in kept if name in found}, **coefficients()}

    measure = None if options.model == "swin" else lambda: similarities(model, problem, options)
    shown = [Throughput(options.batch_size)]
    return Training(model, batches, validation, None, measure, report, shown)


def build(
    problem: Problem,
    attention: str,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """The model of one attention; the layer `network` maps standardised images to logits."""
    size = options.image_size
    images = keras.Input((size, size, problem.channels), name="images", dtype="float32")
    if options.preset is None:
        standardised = _standardised(images)
        network = _network(attention, settings, problem, options, seed)
    else:
        from recipes.common.images import pretrained

        standardised = pretrained.normalised(images, options.preset)
        given = (len(problem.classes), replaced_layers(options), options)
        network = pretrained.classifier(attention, settings, *given)
    network.name = "network"
    probabilities = layers.Softmax(dtype="float32", name="probabilities")(network(standardised))
    return keras.Model({"images": images}, probabilities, name=f"images_{attention}")


def check_preset(
    problem: Problem, attention: str, settings: Mapping[str, Any], options: argparse.Namespace
) -> None:
    """Raises `UsageError` for what `--preset` cannot have: an attention, images, a precision."""
    from recipes.common.images import pretrained

    channels = pretrained.preset_of(options.preset).channels
    if problem.channels not in (1, channels):
        raise UsageError(
            f"--preset {options.preset} takes images of {channels} channels; those of "
            f"{problem.name} have {problem.channels}"
        )
    given = (len(problem.classes), replaced_layers(options), options)
    with keras_configured(options.precision):
        network = pretrained.classifier(attention, settings, *given, load_weights=False)
        pretrained.check_precision(network)


def size_of(options: argparse.Namespace) -> Size:
    """How large the model is."""
    given = {
        "layers": options.layers,
        "width": options.d_model,
        "heads": options.heads,
        "feed_forward": options.feed_forward,
        "patch": options.patch,
        "image": options.image_size,
    }
    return SIZES[options.size]._replace(**given) if options.size else Size("vit", **given)


def replaced_layers(options: argparse.Namespace) -> list[int]:
    """The numbers of the blocks that have the attention asked for; the others have softmax.

    They count from 0, as in `keras_graphattn.convert`; "even" are 0, 2, 4 and so on.
    """
    count = options.layers
    return {
        "all": list(range(count)),
        "even": list(range(0, count, 2)),
        "first-half": list(range(math.ceil(count / 2))),
        "last-half": list(range(count // 2, count)),
    }[options.where]


def similarities(model: keras.Model, problem: Problem, options: argparse.Namespace) -> list[float]:
    """Mean token similarity over test images, before the blocks and after each.

    Of a preset, around the blocks that `similarity_by_depth` finds.
    """
    if options.preset is not None:
        images = test_images(problem, MEASURED_PRESET, options)["images"]
        return similarity_by_depth(model, {"images": images})
    network = model.get_layer("network")
    ends = "_feed_forward_added" if options.model == "cait" else ""
    names = ["positions", *(f"block_{block + 1}{ends}" for block in range(options.layers))]
    tokens = [network.get_layer(name).output for name in names]
    measure = keras.Model(network.input, [token_similarity(x) for x in tokens])
    standardise = model.get_layer("standardise")
    images = test_images(problem, MEASURED, options)["images"]
    values = measure.predict(standardise(images), batch_size=2 * options.batch_size, verbose=0)
    return [float(keras.ops.mean(layer)) for layer in values]


def test_images(problem: Problem, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """The first test images and their classes, as the model sees them."""
    count = min(count, len(problem.test))
    first = Images(count, lambda seed: problem.test.examples(seed).take(count), problem.test.decode)
    batches = ImageBatches(first, len(problem.classes), options.image_size, count)
    images, classes, _ = batches[0]
    return {**images, "classes": classes.argmax(axis=-1)}


def tables_of_masks(model: keras.Model, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """By block, the logarithms of its mask's factors, (N, 2 h - 1, 2 w - 1)."""
    network = model.get_layer("network")
    if options.preset is None:
        held = [(one.name.removesuffix("_attention"), one) for one in network.layers]
    else:
        from recipes.common.images import pretrained

        own = pretrained.attention_layers(network)
        held = [(f"block {number}", layer) for number, layer in enumerate(own, start=1)]
    masks = ((name, getattr(layer, "mask", None)) for name, layer in held)
    return {
        name.replace("_", " "): keras.ops.convert_to_numpy(mask.log_factors)
        for name, mask in masks
        if isinstance(mask, BlockToeplitz)
    }


def _standardised(images: Any) -> Any:
    channels = images.shape[-1]
    return layers.Normalization(
        mean=[255 * one for one in MEANS[channels]],
        variance=[(255 * one) ** 2 for one in DEVIATIONS[channels]],
        dtype="float32",
        name="standardise",
    )(images)


def _start(model: keras.Model, options: argparse.Namespace) -> None:
    """Takes over the weights of a saved model of this recipe."""
    try:
        other = keras.saving.load_model(options.start_from)
        vit.start_from(model.get_layer("network"), other.get_layer("network"))
    except (ValueError, OSError) as error:
        raise UsageError(f"--start-from {options.start_from}: {error}") from error


def _network(
    attention: str,
    settings: Mapping[str, Any],
    problem: Problem,
    options: argparse.Namespace,
    seed: int,
) -> keras.Model:
    """The model from standardised images to logits.

    Raises:
        UsageError: If patches do not fill the images.
    """
    given = {
        "image_size": options.image_size,
        "channels": problem.channels,
        "classes": len(problem.classes),
        "size": size_of(options),
        "dropout": options.dropout,
        "drop_path": options.drop_path,
    }
    try:
        if options.model == "swin":
            return _swin(attention, settings, given, options)
        if options.model == "cait":
            make = _maker(attention, settings, options, prefix=0)
            return cait.classifier(**given, attention=make, seed=seed)
        make = _maker(attention, settings, options, prefix=1)
        return vit.classifier(**given, attention=make, seed=seed, post_norm=options.post_norm)
    except ValueError as error:
        raise UsageError(f"--model {options.model}: {error}") from error


def _swin(
    attention: str,
    settings: Mapping[str, Any],
    given: dict[str, Any],
    options: argparse.Namespace,
) -> keras.Model:
    from recipes.common.images import swin

    network = swin.classifier(**given)
    if attention != "softmax":
        kind = ATTENTIONS[attention].convert
        where = replaced_layers(options)
        keras_graphattn.convert(network.backbone, kind, where, **layer_arguments(settings))
    return network


def _maker(
    attention: str, settings: Mapping[str, Any], options: argparse.Namespace, prefix: int
) -> Callable[[int, int, int, str], Any]:
    """What makes the attention of each block; `prefix` tokens come before the patches."""
    side = options.image_size // options.patch
    replaced = replaced_layers(options)
    talking = options.model == "cait"

    def make(index: int, num_heads: int, key_dim: int, name: str) -> Any:
        arguments = {"num_heads": num_heads, "key_dim": key_dim, "name": name}
        if index not in replaced or attention == "softmax":
            plain = cait.TalkingHeadsAttention if talking else plain_attention
            return plain(**arguments)
        arguments |= layer_arguments(settings)
        if attention in ("gfsa", "gfsa_high_pass") and talking:
            return cait.TalkingHeadsAttention(**arguments)
        if attention == "topological":
            arguments["mask"] = BlockToeplitz((side, side), num_prefix_tokens=prefix)
        return pkgutil.resolve_name(ATTENTIONS[attention].layer)(**arguments)

    return make
