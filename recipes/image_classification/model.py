"""The model of images and the training and the measures of one run.

Its inputs are `images` (B, size, size, C), raw values from 0 to 255; its output is `probabilities`
(B, classes).
"""

import argparse
import math
import pkgutil
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

import keras_graphattn
from keras_graphattn.analysis import token_similarity
from keras_graphattn.hub.verbs import select
from keras_graphattn.layers import ContraNorm
from keras_graphattn.masks import BlockToeplitz
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.command.checks import keras_configured
from recipes.common.command.parsing import UsageError
from recipes.common.data.image_batches import Augmentation, ImageBatches
from recipes.common.data.images import Images
from recipes.common.images import cait, vit
from recipes.common.images.sizes import SIZES, Size
from recipes.common.training.layers import plain_attention, similarity_by_depth, where_of
from recipes.common.training.measures import one_hot_loss_and_metrics
from recipes.common.training.optimizers import averaged, with_rates
from recipes.common.training.runs import Training
from recipes.image_classification.data import Problem

# of the pixels of ImageNet, by channel, on a scale from 0 to 1; for one channel, of scikit-learn's
# digits
MEANS = {1: (0.305,), 3: (0.485, 0.456, 0.406)}
DEVIATIONS = {1: (0.376,), 3: (0.229, 0.224, 0.225)}
MEASURED = 1024  # images on which the similarity of tokens is measured, at most
MEASURED_PRESET = 128  # the same for presets, which are larger
NOT_DECAYED = (
    *("bias", "gamma", "beta", "table", "vector", "scale", "log_factors", "coefficient"),
    *("embedding", "token", "lambda"),  # of KerasHub's models
)


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    model = build(trial)
    if options.start_from is not None:
        _start(model, options)
    augmentation = {name: getattr(options, name) for name in Augmentation._fields}
    shape = (len(problem.classes), options.image_size)
    batches = ImageBatches(
        problem.train, *shape, options.batch_size, trial.seed, Augmentation(**augmentation)
    )
    validation, test = (
        ImageBatches(images, *shape, 2 * options.batch_size)
        for images in (problem.validation, problem.test)
    )
    compile_model(model, len(problem.classes), batches.num_batches, options)

    def report() -> dict[str, Any]:
        values = model.evaluate(test, verbose=0, return_dict=True)
        kept = ("accuracy", "cross_entropy", "accuracy_top_5")
        return {f"test_{name}": values[name] for name in kept if name in values}

    measure = None if options.model == "swin" else lambda: similarities(model, trial)
    return Training(model, batches, validation, measure=measure, report=report)


def compile_model(
    model: keras.Model, classes: int, steps: int, options: argparse.Namespace
) -> None:
    """Compiles for AdamW: a linear warm-up, then half a cosine; weight decay only for matrices."""
    all_steps = options.epochs * steps  # Keras counts those that only accumulate too
    warm_up = min(round(options.warm_up_epochs * steps), all_steps - 1)
    peak = options.learning_rate
    rate = keras.optimizers.schedules.CosineDecay(
        peak if warm_up == 0 else 0.0,
        all_steps - warm_up,
        alpha=options.final_learning_rate / peak,
        warmup_target=None if warm_up == 0 else peak,
        warmup_steps=warm_up,
    )
    optimizer = keras.optimizers.AdamW(
        rate,
        weight_decay=options.weight_decay,
        global_clipnorm=options.clip,
        **averaged(options.ema),
        gradient_accumulation_steps=options.accumulate if options.accumulate > 1 else None,
    )
    optimizer.exclude_from_weight_decay(var_names=list(NOT_DECAYED))
    model.compile(
        optimizer=with_rates(optimizer, model),
        **one_hot_loss_and_metrics(classes, options.label_smoothing),
    )


def build(trial: Trial) -> keras.Model:
    """The model of one attention; the layer `network` maps standardised images to logits."""
    problem, options = trial.problem, trial.options
    size = options.image_size
    images = keras.Input((size, size, problem.channels), name="images", dtype="float32")
    if options.preset is None:
        standardise = layers.Normalization(
            mean=[255 * one for one in MEANS[problem.channels]],
            variance=[(255 * one) ** 2 for one in DEVIATIONS[problem.channels]],
            dtype="float32",
            name="standardise",
        )
        standardised = standardise(images)
        network = _network(trial)
    else:
        from recipes.common.images import pretrained

        standardised = pretrained.normalised(images, options.preset)
        network = pretrained.classifier(trial, replaced_layers(options))
    network.name = "network"
    probabilities = layers.Softmax(dtype="float32", name="probabilities")(network(standardised))
    return keras.Model({"images": images}, probabilities, name=f"images_{trial.attention}")


def check_preset(trial: Trial) -> None:
    """Raises `UsageError` for what `--preset` cannot have: an attention, images, a precision."""
    from recipes.common.images import pretrained

    problem, options = trial.problem, trial.options
    channels = pretrained.preset_of(options.preset).channels
    if problem.channels not in (1, channels):
        raise UsageError(
            f"--preset {options.preset} takes images of {channels} channels; those of "
            f"{problem.name} have {problem.channels}"
        )
    with keras_configured(options.precision):
        network = pretrained.classifier(trial, replaced_layers(options), load_weights=False)
        pretrained.check_precision(network)


def size_of(options: argparse.Namespace) -> Size:
    """The size of the model."""
    own = {
        "layers": options.layers,
        "width": options.d_model,
        "heads": options.heads,
        "feed_forward": options.feed_forward,
        "patch": options.patch,
        "image": options.image_size,
    }
    return SIZES[options.size]._replace(**own) if options.size else Size("vit", **own)


def replaced_layers(options: argparse.Namespace) -> list[int]:
    """The numbers of the blocks with the selected attention; the others have softmax.

    They count from 0, as in `keras_graphattn.convert`; "even" are 0, 2, 4 and so on.

    Raises:
        UsageError: If `--where` selects no block, or one that does not exist.
    """
    count = options.layers
    half = math.ceil(count / 2)
    halves = {"first-half": f"first:{half}", "last-half": f"last:{half}"}
    where = where_of(halves.get(options.where, options.where))
    try:
        return select(where, [f"block_{number}" for number in range(1, count + 1)])
    except ValueError as error:
        raise UsageError(f"--where {options.where}: {error}".partition("\n")[0]) from error


def similarities(model: keras.Model, trial: Trial) -> list[float]:
    """Mean token similarity over test images, before the blocks and after each.

    For a preset, around the blocks that `similarity_by_depth` finds.
    """
    problem, options = trial.problem, trial.options
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


def tables_of_masks(model: keras.Model) -> dict[str, np.ndarray]:
    """The logarithms of the factors of each block's mask, (N, 2 h - 1, 2 w - 1)."""
    tables = {}
    for row in keras_graphattn.inspect(model.get_layer("network")):
        block = row.path.removesuffix("_attention").replace("_", " ")
        if row.index is not None:  # of a preset
            block = f"block {row.index + 1}"
        for name, coefficient in row.coefficients.items():
            if name.endswith("log_factors"):
                tables[block] = coefficient.values
    return tables


def _start(model: keras.Model, options: argparse.Namespace) -> None:
    """Takes over the weights of a saved model of this recipe."""
    try:
        other = keras.saving.load_model(options.start_from)
        vit.start_from(model.get_layer("network"), other.get_layer("network"))
    except (ValueError, OSError) as error:
        raise UsageError(f"--start-from {options.start_from}: {error}") from error


def _network(trial: Trial) -> keras.Model:
    """The model from standardised images to logits; refuses patches that do not fill the images."""
    options = trial.options
    arguments = {
        "image_size": options.image_size,
        "channels": trial.problem.channels,
        "classes": len(trial.problem.classes),
        "size": size_of(options),
        "dropout": options.dropout,
        "drop_path": options.drop_path,
    }
    try:
        if options.model == "swin":
            from recipes.common.images import swin

            network = swin.classifier(**arguments)
            if trial.attention != "softmax":
                kind, where = ATTENTIONS[trial.attention].convert, replaced_layers(options)
                settings = layer_arguments(trial.settings)
                keras_graphattn.convert(network.backbone, kind, where, **settings)
            return network
        arguments["seed"] = trial.seed
        if options.model == "cait":
            return cait.classifier(**arguments, attention=_maker(trial, prefix=0))
        make = _maker(trial, prefix=1)
        return vit.classifier(**arguments, attention=make, post_norm=options.post_norm)
    except ValueError as error:
        raise UsageError(f"--model {options.model}: {error}") from error


def _then_contra_norm(attention: layers.Layer) -> Callable[[Any, Any], Any]:
    """The attention, and `ContraNorm` of its outputs."""
    norm = ContraNorm(name=f"{attention.name}_contra_norm")
    return lambda tokens, value: norm(attention(tokens, value))


def _maker(trial: Trial, prefix: int) -> Callable[[int, int, int, str], Callable[..., Any]]:
    """The function that makes the attention of a block; `prefix` tokens precede the patches."""
    attention, options = trial.attention, trial.options
    side = options.image_size // options.patch
    replaced = replaced_layers(options)
    talking = options.model == "cait"

    def make(index: int, num_heads: int, key_dim: int, name: str) -> Callable[..., Any]:
        arguments = {"num_heads": num_heads, "key_dim": key_dim, "name": name}
        plain = cait.TalkingHeadsAttention if talking else plain_attention
        if index not in replaced or attention == "softmax":
            return plain(**arguments)
        if attention == "contra_norm" and talking:
            return _then_contra_norm(plain(**arguments))
        arguments |= layer_arguments(trial.settings)
        if attention in ("gfsa", "gfsa_high_pass") and talking:
            return cait.TalkingHeadsAttention(**arguments)
        if attention == "topological":
            arguments["mask"] = BlockToeplitz((side, side), num_prefix_tokens=prefix)
        return pkgutil.resolve_name(ATTENTIONS[attention].layer)(**arguments)

    return make
