"""Fine-tuning of KerasHub's image presets: tiny ones of random weights, in folders."""

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
from tests.recipes.command_line import assert_one_error_line, run
from tests.recipes.conftest import write_images
from tests.recipes.test_image_classification import decayed_weights

pytest.importorskip("keras_hub")
from keras_hub import layers, models

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


IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 16, 16, 3)).astype("float32")
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


def made(folder, attention, *more, channels=3, classes=5):
    options = parsed(folder, "--attention", attention, *more)
    problem = SimpleNamespace(channels=channels, classes=[str(one) for one in range(classes)])
    keras.utils.set_random_seed(3)
    return build(RECIPE.trial(problem, attention, options))


def kinds(model):
    """The class names of the attention layers."""
    rows = keras_graphattn.inspect(model.get_layer("network"))
    return [row.class_name for row in rows if row.index is not None]


def all_layers(model):
    """All layers, those in layers too."""
    return list(model.get_layer("network")._flatten_layers())


def answers(model, channels=3):
    return model.predict({"images": IMAGES[..., :channels]}, verbose=0)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("family", ["vit", *OTHERS])
def test_the_start_is_the_preset_with_a_new_head(family, preset):
    folder = preset(family)
    model = made(folder, "softmax")
    network, stored = model.get_layer("network"), models.Backbone.from_preset(folder)
    held = [one for one in network.layers if type(one) is type(stored)]
    (backbone,) = held or [network.backbone]
    for variable, expected in zip(backbone.weights, stored.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(expected))
    kernel, bias = (to_numpy(v) for v in network.weights if v.path.startswith("predictions"))
    assert (kernel.shape[1], bias.shape) == (5, (5,))
    # the preset's own preprocessing, then its model, by hand
    converter = layers.ImageConverter.from_preset(folder)

    def by_hand(images):
        inputs = keras.tree.map_structure(lambda _: converter(images), stored.input)
        features = to_numpy(stored(inputs))
        if family in ("swin", "mit"):
            features = features.reshape(len(features), -1, features.shape[-1]).mean(axis=1)
        else:
            features = features[:, 0]
        powers = np.exp(features @ kernel + bias)
        return powers / powers.sum(axis=-1, keepdims=True)

    expected = by_hand(IMAGES)
    assert np.ptp(expected, axis=0).max() > 1e-2  # the images count
    np.testing.assert_allclose(answers(model), expected, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("family", ["vit", *(one for one in OTHERS if one.values[0] != "mit")])
def test_gfsa_starts_with_the_outputs_of_the_preset(family, preset):
    both = [made(preset(family), name) for name in ("softmax", "gfsa")]
    stock, filtered = map(kinds, both)
    assert len(stock) == len(filtered) > 0
    assert set(stock).isdisjoint(filtered)
    stock, filtered = map(answers, both)
    np.testing.assert_allclose(filtered, stock, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_grey_images_have_the_channels_of_the_preset(preset):
    grey, coloured = (made(preset("vit"), "softmax", channels=count) for count in (1, 3))
    repeated = np.repeat(IMAGES[..., :1], 3, axis=-1)
    expected = coloured.predict({"images": repeated}, verbose=0)
    np.testing.assert_allclose(answers(grey, channels=1), expected, atol=1e-6)


@pytest.mark.slow_on("jax")
def test_the_rates_are_those_of_fine_tuning(preset):
    options = parsed(preset("vit"))
    names = ("learning_rate", "epochs", "warm_up_epochs", "mix_up")
    assert [getattr(options, name) for name in names] == [5e-5, 5, 0.5, 0.0]
    assert (options.image_size, options.layers, options.patience) == (16, 2, 5)
    digits, others = RECIPE.parse([]), RECIPE.parse(["--dataset", "cifar10"])
    assert [getattr(digits, name) for name in names] == [3e-3, 20, 5.0, 0.3]
    assert [getattr(others, name) for name in names] == [2e-3, 30, 5.0, 0.3]
    asked = parsed(preset("vit"), "--learning-rate", "1e-3", "--epochs", "7", "--mix-up", "0.2")
    assert (asked.learning_rate, asked.epochs, asked.mix_up) == (1e-3, 7, 0.2)
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
    decayed, matrices = decayed_weights(model)
    assert decayed == matrices


OF_SCRATCH = [
    *("--model vit", "--size deit-tiny", "--image-size 32", "--patch 4", "--layers 2"),
    *("--d-model 8", "--heads 2", "--feed-forward 8", "--dropout 0.1", "--drop-path 0.1"),
    *("--post-norm", "--start-from x.keras", "--published", "--released"),
]


def test_options_of_models_from_scratch_are_refused(preset, tmp_path, capsys):
    for wrong in OF_SCRATCH:
        flag = wrong.partition(" ")[0]
        words = [flag, "--preset", *(["from scratch"] if flag.endswith("ed") else [])]
        arguments = ["--preset", preset("vit"), *wrong.split(), "--output", tmp_path / "output"]
        assert_one_error_line(RECIPE.main, arguments, words, capsys)


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
    arguments = ["--preset", preset(family), "--attention", attention, "--output", str(output)]
    assert_one_error_line(RECIPE.main, arguments, words, capsys)
    assert not output.exists()


@pytest.mark.slow_on("jax", "tensorflow")
def test_presets_that_cannot_be_used_are_refused(tmp_path, capsys):
    bare = saved(tmp_path / "bare", converter=False)
    wide = saved(tmp_path / "wide", backbone=vit(image_shape=(16, 24, 3)))
    four = saved(tmp_path / "four", backbone=vit(image_shape=(16, 16, 4)))
    whole = models.Backbone.from_preset(saved(tmp_path / "whole"))
    converted = saved(tmp_path / "converted", backbone=keras_graphattn.convert(whole))
    write_images(tmp_path / "images", count=5)
    images = ["--dataset", "folder", "--data-dir", tmp_path / "images"]
    cases = [
        (tmp_path / "nowhere", ["cannot be loaded"], []),
        (bare, ["cannot be loaded", "image_converter.json"], []),
        (wide, ["16 x 24 pixels", "square"], []),
        (converted, ["converted attention already"], []),
        (four, ["4 channels", "have 3"], images),
    ]
    for folder, words, data in cases:
        asked = ["--preset", folder, "--attention", "softmax", "--output", tmp_path / "out"]
        assert_one_error_line(RECIPE.main, [*data, *asked], ["--preset", *words], capsys)
    assert not (tmp_path / "out").exists()


def test_other_layers_keep_their_attention(preset):
    model = made(preset("vit"), "gfsa", "--where", "last-half")
    assert kinds(model) == ["MultiHeadAttention", "GraphFilterAttention"]


def test_tables_of_masks_are_named_by_block_and_cover_the_grid(preset):
    model = made(preset("deit"), "topological")  # two tokens before 2 x 2 patches
    shapes = {name: table.shape for name, table in tables_of_masks(model).items()}
    assert shapes == dict.fromkeys(("block 1", "block 2"), (2, 3, 3))
    masks = [getattr(layer, "mask", None) for layer in all_layers(model)]
    assert [mask.num_prefix_tokens for mask in masks if mask is not None] == [2, 2]


@pytest.mark.slow
def test_softmax_and_gfsa_are_trained_reported_and_served(preset, tmp_path):
    output = tmp_path / "output"
    training = "--attention softmax,gfsa --epochs 1 --batch-size 1024 --verbose 0"
    results = run(RECIPE, output, f"--preset {preset('vit')}", training)
    assert results["model"] == "vit"
    assert results["settings"]["learning_rate"] == 5e-5
    for one in results["runs"]:
        assert len(one["token_similarity"]) == 3
        assert 0 < min(one["token_similarity"]) < max(one["token_similarity"]) < 1
    expected = answers(keras.saving.load_model(output / "model.keras"), channels=1)
    np.testing.assert_allclose(expected.sum(axis=-1), 1.0, atol=1e-5)
    tf = pytest.importorskip("tensorflow")
    served = tf.saved_model.load(str(output / "saved_model" / "1"))
    probabilities = served.signatures["serving_default"](images=tf.constant(IMAGES[..., :1]))
    np.testing.assert_allclose(*probabilities.values(), expected, atol=1e-5)


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
    asked = ["--batch-size", "4", "--attention", attention, "--precision", precision]
    options = parsed(preset(family), *asked, "--epochs", "1", "--warm-up-epochs", "0")
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
        assert precision.removeprefix("mixed_") in {
            layer.compute_dtype for layer in all_layers(model)
        }
        before = [to_numpy(one) for one in model.trainable_variables]
        # two steps each; no weight moves until the scale of the loss is low enough for float16
        epochs = 5 if precision == "mixed_float16" else 1
        history = model.fit(training.batches, epochs=epochs, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
        moved = zip(model.trainable_variables, before, strict=True)
        assert np.mean([(to_numpy(one) != old).any() for one, old in moved]) > 0.8
        assert len(training.measure()) == (0 if family == "swin" else 3)
