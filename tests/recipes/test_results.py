"""A folder of results: what two commands leave in it, and others that add or lose runs."""

import json
import shutil
import statistics

import keras
import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.output import plot
from recipes.common.output.notes import coefficient_notes
from recipes.common.training.records import read_run
from recipes.time_series.__main__ import RECIPE
from recipes.time_series.data import read
from tests.export.served import assert_served
from tests.recipes.command_line import (
    assert_one_error_line,
    assert_validation_chooses_the_epoch,
    best_run,
    history_of,
    predictions_in_another_process,
    results_of,
)

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

LAYERS = {"gfsa": "GraphFilterAttention", "agf": "AttentiveGraphFilter"}


def again(arguments, output, attention="gfsa", seeds="0", *more):
    """The command of some runs of the folder; it writes no SavedModel."""
    runs = ["--attention", attention, "--seeds", seeds, "--output", str(output)]
    return RECIPE.main([*arguments, *runs, *(more or ["--skip-saved-model"])])


@pytest.fixture(scope="module")
def first(tiny_arguments, tmp_path_factory):
    """A folder with four runs, which two commands made."""
    output = tmp_path_factory.mktemp("first")
    assert again(tiny_arguments, output, "agf", "0,1") == 0
    assert again(tiny_arguments, output, "gfsa", "0,1", "--precision", "float32") == 0
    return output


@pytest.fixture(scope="module")
def results(first):
    return results_of(first)


@pytest.fixture
def output(first, tmp_path):
    return shutil.copytree(first, tmp_path / "copy")


def names(output):
    return [f"{run['attention']}-seed{run['seed']}" for run in results_of(output)["runs"]]


ALL = ["gfsa-seed0", "gfsa-seed1", "agf-seed0", "agf-seed1"]


def test_every_run_is_there_and_only_validation_chooses(first, results):
    assert_validation_chooses_the_epoch(first)
    runs = results["runs"]
    scores = [(run["validation_accuracy"], -run["validation_cross_entropy"]) for run in runs]
    assert runs[scores.index(max(scores))] == best_run(results)
    assert names(first) == ALL
    for run in runs:
        assert run["epochs"] == 4
        assert len(run["token_similarity"]) == 2
        assert all(-1 <= value <= 1 for value in run["token_similarity"])
    assert len({tuple(run["token_similarity"]) for run in runs}) == len(runs)


def test_how_far_coefficients_moved_is_that_of_the_best_epoch(first, results):
    assert all(run["coefficient_distance"] > 1e-3 for run in results["runs"])
    run = best_run(results)
    assert ("mean_absolute_power_coefficient" in run) == (run["attention"] == "gfsa")
    model = keras.saving.load_model(first / "model.keras")
    distances = []
    for layer in model.layers:
        for variable in getattr(layer, "coefficients", ()):
            start = 1.0 if variable.name == "linear_coefficient" else 0.0
            values = keras.ops.convert_to_numpy(variable.value)
            distances.extend(np.abs(values - start).ravel())
    assert run["coefficient_distance"] == pytest.approx(np.mean(distances), rel=1e-5)
    notes = coefficient_notes(results)
    assert ["mean |w_K|" in note for note in notes] == [True, False]


def test_the_table_is_mean_and_deviation_over_seeds(results):
    assert [row["attention"] for row in results["table"]] == list(LAYERS)
    for row in results["table"]:
        runs = [run for run in results["runs"] if run["attention"] == row["attention"]]
        values = [run["test_accuracy"] for run in runs]
        assert row["test_accuracy_mean"] == pytest.approx(statistics.mean(values))
        deviation = pytest.approx(statistics.stdev(values))
        assert row["test_accuracy_standard_deviation"] == deviation


def test_results_say_what_made_them_and_nothing_is_half_written(first, results):
    assert results["dataset"] == "Tiny"
    assert results["backend"] == keras.backend.backend()
    assert results["versions"]["keras"] == keras.__version__
    assert results["settings"]["epochs"] == 4
    assert results["settings"]["filters"]["agf"]["orthogonality_weight"] == 0.01
    assert results["series"] == {"train": 30, "test": 18}
    assert (first / "results.png").stat().st_size > 20_000
    assert not [path for path in first.rglob("*") if path.name.startswith(".writing")]
    for folder in (first / "runs").iterdir():  # only the best epoch's weights are kept
        assert len(list(folder.glob("*.weights.h5"))) == 1


def test_the_best_model_loads_with_the_package_only_and_is_served(
    first, results, tiny_folder, tmp_path
):
    split = read("Tiny", tiny_folder).test
    file = first / "model.keras"
    probabilities = predictions_in_another_process(file, split.inputs, tmp_path)
    accuracy = np.mean(probabilities.argmax(axis=1) == split.labels)
    assert accuracy == pytest.approx(best_run(results)["test_accuracy"])

    # and the served model says the same, for batches of any size
    batches = [split.inputs, {name: array[2:3] for name, array in split.inputs.items()}]
    expected = [{"probabilities": one} for one in (probabilities, probabilities[2:3])]
    assert_served(first / "saved_model" / "1", batches, expected, tmp_path)


def test_table_plot_and_best_model_are_of_all_runs(first, results, tiny_arguments, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: pytest.fail("trained again"))
    drawn, draw = [], plot.draw
    monkeypatch.setattr(
        plot, "draw", lambda title, runs, _: drawn.extend(runs) or draw(title, runs)
    )
    assert again(tiny_arguments, first, "agf", "1") == 0
    assert results_of(first) == results
    assert [f"{run.attention}-seed{run.seed}" for run in drawn] == ALL
    layer = keras.saving.load_model(first / "model.keras").get_layer("block_1_attention")
    assert type(layer).__name__ == LAYERS[results["best_model"]["attention"]]


def test_a_run_that_was_removed_is_no_longer_in_the_table(output, results, tiny_arguments):
    best = best_run(results)
    shutil.rmtree(output / "runs" / f"{best['attention']}-seed{best['seed']}")
    attention = "agf" if best["attention"] == "gfsa" else "gfsa"
    assert again(tiny_arguments, output, attention) == 0
    assert names(output) == [name for name in ALL if (output / "runs" / name).exists()]
    assert len(names(output)) == 3
    assert best_run(results_of(output)) != best


def cut(path):
    path.write_bytes(path.read_bytes()[:-50])


DAMAGES = {
    "state cut off": lambda folder: cut(folder / "state.json"),
    "state missing": lambda folder: (folder / "state.json").unlink(),
    "state of other content": lambda folder: (folder / "state.json").write_text('{"a": 1}'),
    "run cut off": lambda folder: cut(folder / "run.json"),
    "run of other content": lambda folder: (folder / "run.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_one_line_that_names_its_folder(damage, output, tiny_arguments, capsys):
    folder = output / "runs" / "agf-seed1"
    DAMAGES[damage](folder)
    with pytest.raises(UsageError, match="Remove this folder to train the run anew"):
        read_run(output, "agf", 1)
    words = [f"error: {folder}: "]
    assert_one_error_line(lambda _: again(tiny_arguments, output), [], words, capsys)


@pytest.mark.parametrize("damage", [cut, lambda path: path.unlink()])
def test_damaged_weights_are_one_line(damage, output, results, tiny_arguments, capsys):
    best = best_run(results)
    folder = output / "runs" / f"{best['attention']}-seed{best['seed']}"
    for path in folder.glob("*.weights.h5"):
        damage(path)
    words = [f"error: {folder}", "Remove", "to train the run anew"]
    assert_one_error_line(lambda _: again(tiny_arguments, output), [], words, capsys)


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_damaged_settings_are_one_line(text, output, tiny_arguments, capsys):
    (output / "settings.json").write_text(text)
    words = ["settings.json is not whole", "--overwrite"]
    assert_one_error_line(lambda _: again(tiny_arguments, output), [], words, capsys)


def test_a_folder_of_another_name_is_no_run(output, tiny_arguments):
    (output / "runs" / "gfsa-orderX-seed0").mkdir()
    assert again(tiny_arguments, output) == 0


def test_a_run_that_is_not_finished_is_left_out_until_it_is(output, tiny_arguments, capsys):
    (output / "histories" / "agf-seed1.csv").unlink()
    (output / "runs" / "agf-seed1" / "run.json").unlink()  # killed before the last file
    (output / "runs" / "mine").mkdir()
    assert again(tiny_arguments, output) == 0
    printed = capsys.readouterr().out
    assert "agf-seed1: left out, not finished (4 epochs); --attention agf --seeds 1" in printed
    assert names(output) == ALL[:3]
    assert again(tiny_arguments, output, "agf", "1") == 0
    assert names(output) == ALL
    assert (output / "histories" / "agf-seed1.csv").exists()


@pytest.mark.parametrize("content", [None, '{"epochs": '])
def test_runs_of_unknown_settings_are_refused(content, output, tiny_arguments, capsys):
    (output / "settings.json").unlink()
    if content is not None:
        (output / "settings.json").write_text(content)
    words = ["settings.json", "--overwrite"]
    assert_one_error_line(lambda _: again(tiny_arguments, output), [], words, capsys)


def test_mixed_precision_and_overwrite(tiny_arguments, tmp_path):
    precision = "mixed_float16"  # the one that scales the loss
    (tmp_path / "settings.json").write_text('{"epochs": 77}')
    (tmp_path / "notes.txt").write_text("mine")
    extra = ["--precision", precision, "--epochs", "2", "--overwrite", "--skip-saved-model"]
    if keras.backend.backend() == "jax":
        extra.append("--distribute")
    assert again(tiny_arguments, tmp_path, "agf", "0", *extra) == 0
    results = results_of(tmp_path)
    assert results["settings"]["precision"] == precision
    assert np.isfinite(results["runs"][0]["validation_cross_entropy"])
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert model.get_layer("block_1_attention").compute_dtype == precision.removeprefix("mixed_")
    assert model.get_layer("probabilities").compute_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"  # left as it was
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_all_training_data_trains_where_nothing_is_held_out(tiny_arguments, tmp_path, capsys):
    more = ("--skip-saved-model", "--validation-fraction", "0", "--epochs", "2")
    assert again(tiny_arguments, tmp_path, "gfsa", "0,1", *more) == 0
    results = results_of(tmp_path)
    count = results["series"]["train"]
    assert f"gfsa-seed0: {count} training, no validation examples" in capsys.readouterr().out
    assert (results["tested_at"], results["protocol"]) == ("the last epoch", "own")
    last = {}
    for entry in results["runs"]:
        assert entry["chosen_epoch"] == entry["epochs"] == 2
        assert not [name for name in entry if name.startswith("validation")]
        last[entry["seed"]] = history_of(tmp_path, entry)[-1]
        assert entry["test_accuracy"] == last[entry["seed"]]["test_accuracy"]
    best = max(last, key=lambda seed: (last[seed]["accuracy"], -last[seed]["cross_entropy"]))
    assert results["best_model"]["seed"] == best
    assert results["best_model"]["chosen_by"].startswith("its last epoch; among runs: training")


def test_costs_of_each_run_are_recorded(results):
    for entry in results["runs"]:
        costs = entry["costs"]
        assert sorted(costs) == [
            *("inference_seconds_per_example", "peak_memory_of_process", "seconds_per_epoch")
        ]
        assert 0 < costs["inference_seconds_per_example"] < costs["seconds_per_epoch"]
        assert 1e8 < costs["peak_memory_of_process"] < 1e11


def test_a_run_that_an_older_version_trained_is_finished_without_costs(tiny_arguments, output):
    folder = output / "runs" / "gfsa-seed0"
    state = json.loads((folder / "state.json").read_text())
    del state["seconds"]
    (folder / "state.json").write_text(json.dumps({**state, "finished": False}))
    (folder / "run.json").unlink()
    assert again(tiny_arguments, output) == 0
    entries = {(run["attention"], run["seed"]): run for run in results_of(output)["runs"]}
    assert [pair for pair, run in entries.items() if "costs" not in run] == [("gfsa", 0)]
