"""A folder gets further runs, loses some or has unfinished ones: the table is of all whole ones."""

import shutil

import keras
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.training.records import read_run
from recipes.time_series.__main__ import RECIPE
from tests.recipes.command_line import results_of

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")


@pytest.fixture(scope="module")
def arguments(tiny_arguments):
    return [*tiny_arguments, "--epochs", "1", "--d-model", "4", "--skip-saved-model"]


@pytest.fixture(scope="module")
def first(arguments, tmp_path_factory):
    """A folder with two runs, which two commands made."""
    output = tmp_path_factory.mktemp("first")
    for attention, seed in (("agf", "1"), ("linear", "0")):
        assert again(arguments, output, attention, seed) == 0
    return output


@pytest.fixture
def output(first, tmp_path):
    return shutil.copytree(first, tmp_path / "copy")


def names(output):
    return [f"{run['attention']}-seed{run['seed']}" for run in results_of(output)["runs"]]


def again(arguments, output, attention="linear", seed="0"):
    """The command of one run of the folder."""
    run = ["--attention", attention, "--seeds", seed, "--output", str(output)]
    return RECIPE.main([*arguments, *run])


def test_the_table_the_plot_and_the_best_model_are_of_all_runs(first, arguments, monkeypatch):
    results = results_of(first)
    assert names(first) == ["linear-seed0", "agf-seed1"]
    assert [row["attention"] for row in results["table"]] == ["linear", "agf"]
    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: pytest.fail("trained again"))
    drawn = []
    monkeypatch.setattr(
        "recipes.common.output.plot.plot", lambda path, title, runs, _: drawn.extend(runs)
    )
    assert again(arguments, first, "agf", "1") == 0
    assert results_of(first) == results
    assert [run.attention for run in drawn] == ["linear", "agf"]
    best = results["best_model"]["attention"]
    layers = [layer.name for layer in keras.saving.load_model(first / "model.keras").layers]
    assert any("block_1_attention" in name for name in layers)
    assert ("block_1_attention_query" in layers) == (best == "linear")


def test_a_run_that_was_removed_is_no_longer_in_the_table(output, arguments):
    shutil.rmtree(output / "runs" / "agf-seed1")
    assert again(arguments, output) == 0
    assert names(output) == ["linear-seed0"]
    assert results_of(output)["best_model"]["attention"] == "linear"


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
def test_a_damaged_run_is_one_line_that_names_its_folder(damage, output, arguments, capsys):
    folder = output / "runs" / "agf-seed1"
    DAMAGES[damage](folder)
    with pytest.raises(UsageError, match="Remove this folder to train the run anew"):
        read_run(output, "agf", 1)
    assert again(arguments, output) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {folder}: ")
    assert printed.count("\n") == 1


def test_a_run_that_is_not_finished_is_left_out_until_it_is(output, arguments, capsys):
    (output / "histories" / "agf-seed1.csv").unlink()
    (output / "runs" / "agf-seed1" / "run.json").unlink()  # killed before the last file
    (output / "runs" / "mine").mkdir()
    assert again(arguments, output) == 0
    printed = capsys.readouterr().out
    assert "agf-seed1: left out, not finished (1 epochs); --attention agf --seeds 1" in printed
    assert names(output) == ["linear-seed0"]
    assert again(arguments, output, "agf", "1") == 0
    assert names(output) == ["linear-seed0", "agf-seed1"]
    assert (output / "histories" / "agf-seed1.csv").exists()


@pytest.mark.parametrize("content", [None, '{"epochs": '])
def test_runs_whose_settings_are_not_known_are_refused(content, output, arguments, capsys):
    (output / "settings.json").unlink()
    if content is not None:
        (output / "settings.json").write_text(content)
    assert again(arguments, output) == 2
    printed = capsys.readouterr().err
    assert "settings.json" in printed
    assert "--overwrite" in printed
    assert printed.count("\n") == 1
