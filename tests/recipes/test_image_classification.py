"""The recipe on digits, folders and TFDS: what it reads, trains, writes and refuses."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from recipes.common.images.sizes import SIZES
from recipes.image_classification.__main__ import MODELS, RECIPE
from recipes.image_classification.data import SYNSETS, load
from recipes.image_classification.model import build, compile_model, prepare, replaced_layers
from tests.numerics import to_numpy
from tests.recipes.command_line import assert_one_error_line, predictions_in_another_process, run
from tests.recipes.conftest import write_images

WIDTHS = ["--layers", "2", "--d-model", "8", "--heads", "2", "--feed-forward", "8"]
TINY = [*WIDTHS, "--batch-size", "256", "--epochs", "2", "--patch", "4", "--verbose", "0"]


def of_folder(folder, *more):
    return load(RECIPE.parse(["--dataset", "folder", "--data-dir", str(folder), *more]))


def test_every_model_has_a_size_of_its_family_and_known_attentions():
    for family, size, attentions in MODELS.values():
        assert SIZES[size].model == family
        assert set(attentions) <= set(RECIPE.attentions)


def test_long_grids_are_filtered_in_blocks_of_rows():
    settings = RECIPE.settings(RECIPE.parse(["--image-size", "64", "--patch", "2"]))
    for attention in ("gfsa", "gfsa_high_pass"):
        assert settings[attention]["attention_path"] == "blockwise"
    assert "attention_path" not in RECIPE.settings(RECIPE.parse([]))["gfsa"]


@pytest.mark.parametrize(
    ("where", "blocks"),
    [
        *(("all", [0, 1, 2]), ("even", [0, 2]), ("first-half", [0, 1]), ("last-half", [1, 2])),
        *(("first:1", [0]), ("0,2", [0, 2]), ("last:2", [1, 2])),
    ],
)
def test_where_attention_is_converted_and_other_blocks_have_softmax(where, blocks):
    options = RECIPE.parse([*TINY, "--where", where, "--layers", "3"])
    assert replaced_layers(options) == blocks
    problem = SimpleNamespace(channels=1, classes=["a", "b"])
    network = build(RECIPE.trial(problem, "topological", options)).get_layer("network")
    kinds = [type(network.get_layer(f"block_{n + 1}_attention")).__name__ for n in range(3)]
    names = ("MultiHeadAttention", "MaskedKernelAttention")
    assert kinds == [names[number in blocks] for number in range(3)]


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_class_token_of_cait_is_no_prefix():
    options = RECIPE.parse(["--model", "cait", *TINY])
    problem = SimpleNamespace(channels=1, classes=["a", "b"])
    model = build(RECIPE.trial(problem, "topological", options))
    layer = model.get_layer("network").get_layer("block_1_attention")
    assert layer.mask.num_prefix_tokens == 0  # it comes after the blocks
    assert model.predict({"images": np.zeros((2, 8, 8, 1))}, verbose=0).shape == (2, 2)


def test_classes_are_divided_alike_and_the_parts_have_nothing_in_common():
    problem = load(RECIPE.parse([]))
    counts = {name: len(part) for name, part in problem.splits.items()}
    assert counts == {"training": 1151, "validation": 287, "test": 359}
    for part in problem.splits.values():
        shares = np.bincount(part.labels) / len(part)
        assert shares == pytest.approx(np.full(10, 0.1), abs=0.01)
    assert problem.digest() == load(RECIPE.parse([])).digest()
    other = load(RECIPE.parse(["--data-seed", "1"]))
    assert (other.test.labels != problem.test.labels).any()


def test_folders_are_divided_or_have_their_parts(tmp_path):
    write_images(tmp_path / "flat")
    problem = of_folder(tmp_path / "flat")
    assert problem.classes == ["bird", "cat"]
    assert [len(part) for part in problem.splits.values()] == [8, 2, 2]
    write_images(tmp_path / "parts" / "train")
    write_images(tmp_path / "parts" / "test", count=3, value=50)
    problem = of_folder(tmp_path / "parts")
    assert [len(part) for part in problem.splits.values()] == [10, 2, 6]
    write_images(tmp_path / "parts" / "val", count=4, value=90)
    again = of_folder(tmp_path / "parts")
    assert [len(part) for part in again.splits.values()] == [12, 8, 6]
    assert again.digest() != problem.digest()
    for place, message in (("none", "not a folder"), ("flat/cat", "no sub-folders")):
        with pytest.raises(Exception, match=message):
            of_folder(tmp_path / place)
    write_images(tmp_path / "parts" / "test", classes=("dog",))
    with pytest.raises(Exception, match="lacks: dog"):
        of_folder(tmp_path / "parts")


def test_corrupt_images_are_named_in_one_line(tmp_path, capsys):
    write_images(tmp_path / "data")
    whole = (tmp_path / "data" / "cat" / "1.png").read_bytes()
    (tmp_path / "data" / "cat" / "1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "data" / "bird" / "2.png").write_text("no image")
    data, output = tmp_path / "data", tmp_path / "out"
    arguments = ["--dataset", "folder", "--data-dir", data, "--output", output]
    words = ["not readable as images", "cat/1.png", "bird/2.png"]
    assert_one_error_line(RECIPE.main, [*arguments, *TINY], words, capsys)


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_run_writes_table_pictures_and_the_best_model(tmp_path):
    output, asked = tmp_path / "results", "--attention topological --epochs 1 --skip-saved-model"
    (one,) = run(RECIPE, output, *TINY, asked)["runs"]
    assert 0 <= one["test_accuracy"] <= one["test_accuracy_top_5"] <= 1
    assert len(one["token_similarity"]) == 3
    for name in ("masks.png", "predictions.png"):
        assert (output / name).read_bytes().startswith(b"\x89PNG")
    images = np.random.default_rng(0).uniform(0, 255, (3, 8, 8, 1)).astype("float32")
    file, module = output / "model.keras", "recipes.common.images.tokens"
    expected = keras.saving.load_model(file).predict({"images": images}, verbose=0)
    answers = predictions_in_another_process(file, {"images": images}, tmp_path, module)
    np.testing.assert_allclose(answers, expected, atol=1e-6)


def decayed_weights(model):
    """The paths of the weights that decay, and those of all matrices."""
    optimizer, variables = model.optimizer, model.trainable_variables
    decayed = {v.path for v in variables if optimizer._use_weight_decay(v)}
    return decayed, {v.path for v in variables if v.path.endswith("kernel")}


@pytest.mark.slow_on("jax")
def test_only_matrices_decay_and_the_rate_rises_and_falls():
    rates = "--learning-rate 1e-2 --final-learning-rate 1e-4 --warm-up-epochs 2 --epochs 10"
    options = RECIPE.parse([*TINY, *rates.split(), "--accumulate", "2"])
    problem = SimpleNamespace(channels=1, classes=[str(n) for n in range(10)])
    model = build(RECIPE.trial(problem, "topological", options))
    compile_model(model, len(problem.classes), 5, options)
    rates = [float(model.optimizer._learning_rate(step)) for step in range(51)]
    assert np.argmax(rates) == 10
    assert rates[10] == pytest.approx(1e-2)
    assert rates[5] == pytest.approx(5e-3)
    assert rates[30] == pytest.approx((1e-2 + 1e-4) / 2)
    assert rates[50] == pytest.approx(1e-4)
    decayed, matrices = decayed_weights(model)
    assert decayed == matrices


@pytest.mark.slow_on("jax")
def test_two_steps_on_data_shaped_like_cifar(tmp_path):
    """`test_models` has all kinds of models."""
    tfds = pytest.importorskip("tensorflow_datasets")
    widths = [*WIDTHS, "--patch", "16", "--batch-size", "8", "--mix-up", "0.8", "--flip"]
    arguments = ["--dataset", "cifar10", *widths, "--epochs", "1", "--attention", "topological"]
    options = RECIPE.parse([*arguments, "--data-dir", str(tmp_path)])
    with tfds.testing.mock_data(num_examples=12, data_dir=str(tmp_path)):
        problem = load(options)
        assert len(problem.classes) == 10
        training = prepare(RECIPE.trial(problem, "topological", options))
        before = [to_numpy(v) for v in training.model.trainable_variables]
        history = training.model.fit(training.batches, steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    moved = zip(training.model.trainable_variables, before, strict=True)
    assert np.mean([(to_numpy(v) != old).any() for v, old in moved]) > 0.9


def test_imagenet_100_keeps_a_hundred_classes_and_numbers_them_anew(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    assert len(set(SYNSETS)) == 100
    options = RECIPE.parse(["--dataset", "imagenet100", "--data-dir", str(tmp_path)])
    with tfds.testing.mock_data(num_examples=60, data_dir=str(tmp_path)):
        builder = tfds.builder("imagenet2012", data_dir=str(tmp_path))
        names = builder.info.features["label"].names
        labels = [int(one["label"]) for one in builder.as_dataset(split="train")]
        problem = load(options)
    assert problem.classes == list(SYNSETS)
    expected = [SYNSETS.index(names[one]) for one in labels if names[one] in SYNSETS]
    assert problem.train.labels.tolist() == expected
    assert len(problem.train) == len(expected) > 0
