import statistics
from pathlib import Path

import keras
import numpy as np
import pytest

from recipes.common.output.notes import coefficient_notes
from recipes.time_series.__main__ import RECIPE
from recipes.time_series.data import read
from tests.recipes.command_line import (
    ROOT,
    assert_validation_chooses_the_epoch,
    best_run,
    results_of,
    start,
)

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

ATTENTIONS, SEEDS = ("gfsa", "agf"), (0, 1)
SERVED = ROOT / "tests" / "export" / "served.py"
RELOAD = """
import sys
import keras_graphattn, keras, numpy as np
assert not any(name.startswith("recipes") for name in sys.modules)
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
data = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], model.predict(data, verbose=0))
"""


@pytest.fixture(scope="module")
def arguments(tiny_arguments, tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    lists = ["--attention", ",".join(ATTENTIONS), "--seeds", ",".join(map(str, SEEDS))]
    return [*tiny_arguments, *lists, "--output", str(output)]


@pytest.fixture(scope="module")
def output(arguments):
    assert RECIPE.main(arguments) == 0
    return Path(arguments[-1])


@pytest.fixture(scope="module")
def results(output):
    return results_of(output)


@pytest.fixture(scope="module")
def test_split(tiny_folder):
    return read("Tiny", tiny_folder).test


def test_every_run_is_there_and_chosen_by_validation_alone(output, results):
    assert_validation_chooses_the_epoch(output)
    runs = results["runs"]
    scores = [(run["validation_accuracy"], -run["validation_cross_entropy"]) for run in runs]
    assert runs[scores.index(max(scores))] == best_run(results)
    pairs = {(attention, seed) for attention in ATTENTIONS for seed in SEEDS}
    assert {(run["attention"], run["seed"]) for run in runs} == pairs
    for run in runs:
        assert run["epochs"] == 4
        assert len(run["token_similarity"]) == 2
        assert all(-1 <= value <= 1 for value in run["token_similarity"])
    assert len({tuple(run["token_similarity"]) for run in runs}) == len(runs)


def test_what_coefficients_have_moved_is_told_of_the_best_epoch(output, results):
    assert all(run["coefficient_distance"] > 1e-3 for run in results["runs"])
    run = best_run(results)
    assert ("mean_absolute_power_coefficient" in run) == (run["attention"] == "gfsa")
    model = keras.saving.load_model(output / "model.keras")
    distances = []
    for layer in model.layers:
        for variable in getattr(layer, "coefficients", ()):
            start = 1.0 if variable.name == "linear_coefficient" else 0.0
            values = keras.ops.convert_to_numpy(variable.value)
            distances.extend(np.abs(values - start).ravel())
    assert run["coefficient_distance"] == pytest.approx(np.mean(distances), rel=1e-5)
    notes = coefficient_notes(results)
    assert ["mean |w_K|" in note for note in notes] == [True, False]


def test_table_is_mean_and_deviation_over_seeds(results):
    assert [row["attention"] for row in results["table"]] == list(ATTENTIONS)
    for row in results["table"]:
        runs = [run for run in results["runs"] if run["attention"] == row["attention"]]
        values = [run["test_accuracy"] for run in runs]
        assert row["test_accuracy_mean"] == pytest.approx(statistics.mean(values))
        deviation = pytest.approx(statistics.stdev(values))
        assert row["test_accuracy_standard_deviation"] == deviation


def test_results_say_what_made_them(results):
    assert results["dataset"] == "Tiny"
    assert results["backend"] == keras.backend.backend()
    assert results["versions"]["keras"] == keras.__version__
    assert results["settings"]["epochs"] == 4
    assert results["settings"]["filters"]["agf"]["orthogonality_weight"] == 0.01
    assert results["series"] == {"train": 30, "test": 18}


def test_picture_and_nothing_half_written(output):
    assert (output / "results.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "results.png").stat().st_size > 20_000
    assert not [path for path in output.rglob("*") if path.name.startswith(".writing")]
    for folder in (output / "runs").iterdir():  # the best epoch's weights alone are kept
        assert len(list(folder.glob("*.weights.h5"))) == 1


def run_program(*arguments):
    with start(*arguments) as process:
        assert process.wait(120) == 0, process.stderr.read()


def test_best_model_reloads_where_only_the_package_is_imported(
    output, results, test_split, tmp_path
):
    np.savez(tmp_path / "in.npz", **test_split.inputs)
    files = [output / "model.keras", tmp_path / "in.npz", tmp_path / "out.npy"]
    run_program("-c", RELOAD, *files)
    probabilities = np.load(files[2])
    accuracy = np.mean(probabilities.argmax(axis=1) == test_split.labels)
    assert accuracy == pytest.approx(best_run(results)["test_accuracy"])

    # and the served model says the same, for batches of any size
    served = {
        f"{name}:serving_default:{key}": array[part]
        for name, part in (("all", slice(None)), ("one", slice(2, 3)))
        for key, array in test_split.inputs.items()
    }
    np.savez(tmp_path / "served.npz", **served)
    files = [tmp_path / "served.npz", tmp_path / "served-out.npz"]
    run_program(SERVED, output / "saved_model" / "1", *files)
    answers = np.load(files[1])
    np.testing.assert_allclose(answers["all:probabilities"], probabilities, atol=1e-5)
    np.testing.assert_allclose(answers["one:probabilities"], probabilities[2:3], atol=1e-5)


def test_mixed_precision_and_overwrite(tiny_arguments, tmp_path):
    precision = "mixed_float16"  # the one that scales the loss
    base = [*tiny_arguments, "--attention", "agf", "--skip-saved-model", "--output", str(tmp_path)]
    (tmp_path / "settings.json").write_text('{"epochs": 77}')
    (tmp_path / "notes.txt").write_text("mine")
    extra = ["--precision", precision, "--epochs", "2", "--overwrite"]
    if keras.backend.backend() == "jax":
        extra.append("--distribute")
    assert RECIPE.main([*base, *extra]) == 0
    results = results_of(tmp_path)
    assert results["settings"]["precision"] == precision
    assert np.isfinite(results["runs"][0]["validation_cross_entropy"])
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert model.get_layer("block_1_attention").compute_dtype == precision.removeprefix("mixed_")
    assert model.get_layer("probabilities").compute_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"  # left as it was
    assert (tmp_path / "notes.txt").read_text() == "mine"
