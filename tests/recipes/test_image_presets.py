"""Fine-tuning of KerasHub's image presets: tiny ones of random weights, in folders."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.optimizers import applies_coefficient_rates, learning_rate_multiplier
from recipes.common.command.checks import keras_configured
from recipes.common.command.options import PRECISIONS
from recipes.common.command.parsing import UsageError
from recipes.common.data.images import in_memory
from recipes.image_classification.__main__ import RECIPE
from recipes.image_classification.data import Problem
from recipes.image_classification.model import (
    build,
    check_preset,
    compile_model,
    prepare,
    tables_of_masks,
)
from tests.numerics import BACKEND, to_numpy
from tests.recipes.command_line import assert_one_error_line

pytest.importorskip("keras_hub")
from keras_hub.layers import ImageConverter
from keras_hub.models import Backbone

from tests.recipes.image_presets import FAMILIES, saved, vit

OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "vit"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """The folder of the tiny preset of a family."""
    made = {}

    def of(family):
        if family not in made:
            made[family] = saved(tmp_path_factory.mktemp("presets") / family, family)
        return made[family]

    return of


def parsed(folder, *more):
    return RECIPE.parse(["--preset", folder, *more])


def made(folder, attention, channels=3, classes=5):
    options = parsed(folder, "--attention", attention)
    problem = SimpleNamespace(channels=channels, classes=[str(one) for one in range(classes)])
    keras.utils.set_random_seed(3)
    return build(RECIPE.trial(problem, attention, options))


def kinds(model):
    """The class names of the attention layers."""
    rows = keras_graphattn.inspect(model.get_layer("network"))
    return [row.class_name for row in rows if row.index is not None]


def layers(model):
    """All layers, those in layers too."""
    return list(model.get_layer("network")._flatten_layers())


def images(channels=3):
    return np.random.default_rng(0).uniform(0, 255, (2, 16, 16, channels)).astype("float32")


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("family", ["vit", *OTHERS])
def test_the_start_is_the_preset_with_a_new_head(family, preset):
    folder = preset(family)
    model = made(folder, "softmax")
    network = model.get_layer("network")
    known = Backbone.from_preset(folder)
    held = [one for one in network.layers if type(one) is type(known)]
    (backbone,) = held if held else [network.backbone]
    for variable, expected in zip(backbone.weights, known.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(expected))
    head = [one for one in network.weights if one.path.startswith("predictions")]
    assert [tuple(one.shape) for one in head] == [(head[0].shape[0], 5), (5,)]
    # the preset's own preprocessing, then its model, by hand
    converter = ImageConverter.from_preset(folder)
    features = known(keras.tree.map_structure(lambda _: converter(images()), known.input))
    features = to_numpy(features)
    if family == "swin":
        pooled = features.mean(axis=1)
    else:
        pooled = features.mean(axis=(1, 2)) if family == "mit" else features[:, 0]
    logits = pooled @ to_numpy(head[0]) + to_numpy(head[1])
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    found = model.predict({"images": images()}, verbose=0)
    expected = powers / powers.sum(axis=-1, keepdims=True)
    assert np.ptp(expected, axis=0).max() > 1e-2  # the images count
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("family", ["vit", *(one for one in OTHERS if one.values[0] != "mit")])
def test_gfsa_starts_with_the_outputs_of_the_preset(family, preset):
    both = [made(preset(family), name) for name in ("softmax", "gfsa")]
    stock, filtered = map(kinds, both)
    assert len(stock) == len(filtered) > 0
    assert set(stock).isdisjoint(filtered)
    outputs = [model.predict({"images": images()}, verbose=0) for model in both]
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5)


def test_grey_images_have_the_channels_of_the_preset(preset):
    grey = made(preset("vit"), "softmax", channels=1)
    coloured = made(preset("vit"), "softmax")
    expected = coloured.predict({"images": np.repeat(images(1), 3, axis=-1)}, verbose=0)
    found = grey.predict({"images": images(1)}, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_rates_are_those_of_fine_tuning(preset):
    options = parsed(preset("vit"))
    names = ("learning_rate", "epochs", "warm_up_epochs", "mix_up")
    assert [getattr(options, name) for name in names] == [5e-5, 5, 0.5, 0.0]
    assert (options.image_size, options.layers, options.patience) == (16, 2, 5)
    digits, others = RECIPE.parse([]), RECIPE.parse(["--dataset", "cifar10"])
    assert [getattr(digits, name) for name in names] == [3e-3, 20, 5.0, 0.3]
    assert [getattr(others, name) for name in names] == [2e-3, 30, 5.0, 0.3]
    given = parsed(preset("vit"), "--learning-rate", "1e-3", "--epochs", "7", "--mix-up", "0.2")
    assert (given.learning_rate, given.epochs, given.mix_up) == (1e-3, 7, 0.2)
    model = made(preset("vit"), "gfsa")
    compile_model(model, 5, 10, options)
    rates = [float(model.optimizer._learning_rate(step)) for step in range(51)]
    assert rates[5] == max(rates) == pytest.approx(5e-5)
    assert rates[50] == pytest.approx(0.0, abs=1e-9)
    multipliers = {learning_rate_multiplier(one) for one in model.trainable_variables}
    assert multipliers == {1.0, 100.0}
    assert applies_coefficient_rates(model.optimizer)


@pytest.mark.parametrize("family", ["vit", *OTHERS])
def test_only_matrices_decay(family, preset):
    model = made(preset(family), "softmax")
    compile_model(model, 5, 10, parsed(preset(family)))
    decayed = {v.path for v in model.trainable_variables if model.optimizer._use_weight_decay(v)}
    assert decayed == {v.path for v in model.trainable_variables if v.path.endswith("kernel")}


OF_SCRATCH = [
    *("--model vit", "--size deit-tiny", "--image-size 32", "--patch 4", "--layers 2"),
    *("--d-model 8", "--heads 2", "--feed-forward 8", "--dropout 0.1", "--drop-path 0.1"),
    *("--post-norm", "--start-from x.keras", "--published", "--released"),
]


@pytest.mark.parametrize("wrong", OF_SCRATCH)
def test_options_of_models_from_scratch_are_refused(wrong, preset, tmp_path, capsys):
    flag = wrong.partition(" ")[0]
    words = [flag, "--preset", *(["from scratch"] if flag.endswith("ed") else [])]
    given = ["--preset", preset("vit"), *wrong.split(), "--output", str(tmp_path / "output")]
    assert_one_error_line(RECIPE.main, given, words, capsys)


@pytest.mark.parametrize(
    ("family", "attention", "words"),
    [
        ("swin", "softmax,agf", ["--attention agf", "--preset", "WindowAttention"]),
        ("mit", "softmax,gfsa", ["--attention gfsa", "--preset", "not square"]),
        ("swin", "topological", ["--attention topological", "no grid of patches"]),
    ],
)
@pytest.mark.slow_on("jax", "tensorflow")
def test_attentions_that_a_family_cannot_have_are_refused_before_training(
    family, attention, words, preset, tmp_path, capsys
):
    output = tmp_path / "output"
    given = ["--preset", preset(family), "--attention", attention, "--output", str(output)]
    assert_one_error_line(RECIPE.main, given, words, capsys)
    assert not output.exists()


@pytest.mark.slow_on("jax", "tensorflow")
def test_presets_that_cannot_be_used_are_refused(tmp_path, capsys):
    bare = saved(tmp_path / "bare", converter=False)
    wide = saved(tmp_path / "wide", backbone=vit(image_shape=(16, 24, 3)))
    four = saved(tmp_path / "four", backbone=vit(image_shape=(16, 16, 4)))
    whole = Backbone.from_preset(saved(tmp_path / "whole"))
    converted = saved(tmp_path / "converted", backbone=keras_graphattn.convert(whole))
    images = ["--dataset", "folder", "--data-dir", str(tmp_path / "images")]
    for name in ("bird", "cat"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            path = tmp_path / "images" / name / f"{number}.png"
            keras.utils.save_img(path, np.full((4, 4, 3), 10 * number, "uint8"), scale=False)
    cases = [
        (str(tmp_path / "nowhere"), ["cannot be loaded"], []),
        (bare, ["cannot be loaded", "image_converter.json"], []),
        (wide, ["16 x 24 pixels", "square"], []),
        (converted, ["converted attention already"], []),
        (four, ["4 channels", "have 3"], images),
    ]
    for folder, words, data in cases:
        given = [*data, "--preset", folder, "--attention", "softmax"]
        output = ["--output", str(tmp_path / "output")]
        assert_one_error_line(RECIPE.main, [*given, *output], ["--preset", *words], capsys)
    assert not (tmp_path / "output").exists()


def test_other_layers_keep_their_attention(preset):
    options = parsed(preset("vit"), "--attention", "gfsa", "--where", "last-half")
    problem = SimpleNamespace(channels=3, classes=["a", "b"])
    model = build(RECIPE.trial(problem, "gfsa", options))
    assert kinds(model) == ["MultiHeadAttention", "GraphFilterAttention"]


def test_masks_are_told_by_block_and_cover_the_grid(preset):
    model = made(preset("deit"), "topological")  # two tokens before 2 x 2 patches
    tables = tables_of_masks(model)
    assert {name: table.shape for name, table in tables.items()} == {
        "block 1": (2, 3, 3),
        "block 2": (2, 3, 3),
    }
    masks = [getattr(layer, "mask", None) for layer in layers(model)]
    assert [mask.num_prefix_tokens for mask in masks if mask is not None] == [2, 2]


@pytest.mark.slow
def test_softmax_and_gfsa_are_trained_reported_and_served(preset, tmp_path):
    output = tmp_path / "output"
    run = ["--attention", "softmax,gfsa", "--epochs", "1", "--batch-size", "1024"]
    run += ["--verbose", "0", "--output", str(output)]
    assert RECIPE.main(["--preset", preset("vit"), *run]) == 0
    results = json.loads((output / "results.json").read_text())
    assert results["model"] == "vit"
    assert results["settings"]["learning_rate"] == 5e-5
    assert [row["attention"] for row in results["table"]] == ["softmax", "gfsa"]
    for found in results["runs"]:
        assert len(found["token_similarity"]) == 3
        assert 0 < min(found["token_similarity"]) < max(found["token_similarity"]) < 1
    for name in ("results.png", "predictions.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    model = keras.saving.load_model(output / "model.keras")
    expected = model.predict({"images": images(1)}, verbose=0)
    np.testing.assert_allclose(expected.sum(axis=-1), 1.0, atol=1e-5)
    tf = pytest.importorskip("tensorflow")
    served = tf.saved_model.load(str(output / "saved_model" / "1"))
    found = served.signatures["serving_default"](images=tf.constant(images(1)))
    np.testing.assert_allclose(*found.values(), expected, atol=1e-5)


FAST = ("vit", "gfsa", "float32")
TRAINED = [
    pytest.param(*case, marks=[] if case == FAST else [pytest.mark.slow])
    for family in FAMILIES
    for attention in RECIPE.attentions
    for precision in (PRECISIONS if attention in ("softmax", "gfsa") else ["float32"])
    for case in [(family, attention, precision)]
]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("family", "attention", "precision"), TRAINED)
def test_every_family_trains_with_every_attention_it_can_have(family, attention, precision, preset):
    given = ["--batch-size", "4", "--attention", attention, "--precision", precision]
    options = parsed(preset(family), *given, "--epochs", "1", "--warm-up-epochs", "0")
    random = np.random.default_rng(0)
    examples = random.integers(0, 256, (8, 16, 16, 3)).astype("uint8"), np.arange(8) % 2
    problem = Problem("made", ["a", "b"], 3, *[in_memory(*examples)] * 3, "")
    trial = RECIPE.trial(problem, attention, options)
    refused = None if attention in FAMILIES[family][2] else f"--attention {attention}"
    if BACKEND == "jax" and (attention, precision) == ("softmax", "mixed_float16"):
        refused = None if family in ("swin", "mit") else "only on accelerators"
    if refused is not None:
        with pytest.raises(UsageError, match=refused):
            check_preset(trial)
        return
    check_preset(trial)
    with keras_configured(precision):
        training = prepare(trial)
        model = training.model
        assert precision.removeprefix("mixed_") in {layer.compute_dtype for layer in layers(model)}
        before = [to_numpy(one) for one in model.trainable_variables]
        # two steps each; no weight moves until the scale of the loss is low enough for float16
        epochs = 5 if precision == "mixed_float16" else 1
        found = model.fit(training.batches, epochs=epochs, verbose=0)
        assert np.isfinite(found.history["loss"]).all()
        moved = zip(model.trainable_variables, before, strict=True)
        assert np.mean([(to_numpy(one) != old).any() for one, old in moved]) > 0.8
        assert len(training.measure()) == (0 if family == "swin" else 3)
