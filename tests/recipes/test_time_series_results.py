import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from recipes.common.output.notes import coefficient_notes
from recipes.time_series.__main__ import RECIPE
from recipes.time_series.data import read

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

ATTENTIONS, SEEDS = ("gfsa", "agf"), (0, 1)
SERVED = Path(__file__).parents[1] / "export" / "served.py"
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
    return json.loads((output / "results.json").read_text())


@pytest.fixture(scope="module")
def test_split(tiny_folder):
    return read("Tiny", tiny_folder).test


def history(output, run):
    path = output / "histories" / f"{run['attention']}-seed{run['seed']}.csv"
    with path.open() as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def test_every_run_is_there_and_chosen_by_validation_alone(output, results):
    runs = results["runs"]
    assert {(run["attention"], run["seed"]) for run in runs} == {
        (attention, seed) for attention in ATTENTIONS for seed in SEEDS
    }
    for run in runs:
        rows = history(output, run)
        assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
        best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_cross_entropy"]))
        assert run["chosen_epoch"] == best["epoch"]
        assert run["test_accuracy"] == best["test_accuracy"]
        assert run["validation_accuracy"] == best["val_accuracy"]
        peak = max(row["test_accuracy"] for row in rows)
        assert run["test_accuracy_at_best_test_epoch"] == peak
        assert len(run["token_similarity"]) == 2
        assert all(-1 <= value <= 1 for value in run["token_similarity"])
    assert len({tuple(run["token_similarity"]) for run in runs}) == len(runs)


def test_what_coefficients_have_moved_is_told_of_the_best_epoch(output, results):
    best = results["best_model"]
    runs = {(run["attention"], run["seed"]): run for run in results["runs"]}
    assert all(run["coefficient_distance"] > 1e-3 for run in runs.values())
    run = runs[best["attention"], best["seed"]]
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
        accuracies = [
            run["test_accuracy"] for run in results["runs"] if run["attention"] == row["attention"]
        ]
        assert row["test_accuracy_mean"] == pytest.approx(statistics.mean(accuracies))
        assert row["test_accuracy_standard_deviation"] == pytest.approx(
            statistics.stdev(accuracies)
        )


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


def test_best_model_reloads_where_only_the_package_is_imported(
    output, results, test_split, tmp_path
):
    best = results["best_model"]
    run = next(
        one
        for one in results["runs"]
        if (one["attention"], one["seed"]) == (best["attention"], best["seed"])
    )
    for other in results["runs"]:
        assert (run["validation_accuracy"], -run["validation_cross_entropy"]) >= (
            other["validation_accuracy"],
            -other["validation_cross_entropy"],
        )
    np.savez(tmp_path / "in.npz", **test_split.inputs)
    paths = [str(tmp_path / "in.npz"), str(tmp_path / "out.npy")]
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", RELOAD, str(output / "model.keras"), *paths]
    subprocess.run(command, check=True, cwd=root, timeout=120)
    probabilities = np.load(tmp_path / "out.npy")
    accuracy = np.mean(probabilities.argmax(axis=1) == test_split.labels)
    assert accuracy == pytest.approx(run["test_accuracy"])

    # and the served model says the same, for batches of any size
    served = {
        f"{name}:serving_default:{key}": array[part]
        for name, part in (("all", slice(None)), ("one", slice(2, 3)))
        for key, array in test_split.inputs.items()
    }
    np.savez(tmp_path / "served.npz", **served)
    folder = str(output / "saved_model" / "1")
    command = [
        sys.executable,
        str(SERVED),
        folder,
        *(str(tmp_path / f"served{x}.npz") for x in ("", "-out")),
    ]
    subprocess.run(command, check=True, timeout=120)
    answers = np.load(tmp_path / "served-out.npz")
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
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["settings"]["precision"] == precision
    assert np.isfinite(results["runs"][0]["validation_cross_entropy"])
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert model.get_layer("block_1_attention").compute_dtype == precision.removeprefix("mixed_")
    assert model.get_layer("probabilities").compute_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"  # left as it was
    assert (tmp_path / "notes.txt").read_text() == "mine"
