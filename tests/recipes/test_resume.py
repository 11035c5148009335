import json
import re

import pytest

from recipes.common.training.records import ACCURACY, BOTH, Criterion, RunState
from recipes.time_series.__main__ import RECIPE
from tests.recipes.command_line import assert_one_error_line, history_of, results_of, start

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

# Kills its own process in the middle of an epoch, or between an epoch's weights and its state.
KILLED = """
import os, signal, sys
import torch
from recipes.time_series.__main__ import RECIPE
from tests.recipes.command_line import history_of, results_of, start

where, arguments = sys.argv[1], sys.argv[2:]
from recipes.common.data import batches
from recipes.common.training import runs
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
take, write = batches.Batches.__getitem__, runs.write_json

def take_or_die(self, index):
    if self.seed is not None and (self.epoch, index) == (2, 3):
        die()
    return take(self, index)

def write_or_die(path, content):
    if len(content.get("history", ())) == 4 and not content["finished"]:
        die()
    write(path, content)

if where == "mid-epoch":
    batches.Batches.__getitem__ = take_or_die
else:
    runs.write_json = write_or_die
sys.exit(RECIPE.main(arguments))
"""


def files(output):
    """The names of all files that runs leave."""
    endings = (".json", ".csv", ".h5", ".keras", ".png")
    paths = (path for path in output.rglob("*") if path.suffix in endings)
    return sorted(str(path.relative_to(output)) for path in paths)


@pytest.mark.slow_on("torch")
def test_killed_training_continues_to_the_same_end(tiny_arguments, tmp_path):
    arguments = [*tiny_arguments, "--attention", "agf", "--skip-saved-model"]
    arguments += ["--epochs", "6", "--patience", "6", "--dropout", "0.3"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    state = broken / "runs" / "agf-seed0" / "state.json"
    for where, epochs in (("mid-epoch", 2), ("between files", 3)):
        with start("-c", KILLED, where, *arguments, "--output", broken) as process:
            process.communicate(timeout=200)
        assert process.returncode == -9
        assert len(json.loads(state.read_text())["history"]) == epochs
    assert not (broken / "results.json").exists()
    assert RECIPE.main([*arguments, "--output", str(broken)]) == 0
    assert RECIPE.main([*arguments, "--output", str(whole)]) == 0

    assert files(broken) == files(whole)
    resumed, expected = map(results_of, (broken, whole))
    for key in set(expected) - {"runs", "table"}:
        assert resumed[key] == expected[key], key
    (run,), (expected_run,) = resumed["runs"], expected["runs"]
    assert run["epochs"] == 6
    similarity = pytest.approx(expected_run["token_similarity"], abs=1e-4)
    assert run["token_similarity"] == similarity
    pairs = zip(history_of(broken, run), history_of(whole, run), strict=True)
    assert all(row == pytest.approx(expected, rel=1e-4) for row, expected in pairs)


def test_orders_of_a_filter_stand_in_one_table_and_more_can_be_added(
    tiny_arguments, tmp_path, capsys
):
    tiny = [*tiny_arguments, "--epochs", "1", "--skip-saved-model", "--output", str(tmp_path)]
    assert RECIPE.main([*tiny, "--attention", "softmax,gfsa", "--order", "2,3"]) == 0
    assert RECIPE.main([*tiny, "--attention", "gfsa", "--order", "3,12"]) == 0
    assert "gfsa-order3-seed0: finished before" in capsys.readouterr().out
    names = ["softmax", "gfsa-order2", "gfsa-order3", "gfsa-order12"]
    assert [row["attention"] for row in results_of(tmp_path)["table"]] == names
    for order in (2, 12):
        history = (tmp_path / "histories" / f"gfsa-order{order}-seed0.csv").read_text()
        assert len(history.splitlines()) == 2
    (tmp_path / "runs" / "gfsa-order2-seed0" / "run.json").unlink()
    assert RECIPE.main([*tiny, "--attention", "softmax"]) == 0
    words = "gfsa-order2-seed0: left out, not finished (1 epochs); --attention gfsa --seeds 0, with"
    assert f"{words} the same --order, continues it" in capsys.readouterr().out


def test_runs_that_are_older_than_an_option_have_its_usual_value(tiny_arguments, tmp_path, capsys):
    tiny = [*tiny_arguments, "--epochs", "1", "--attention", "softmax", "--skip-saved-model"]
    tiny += ["--output", str(tmp_path)]
    assert RECIPE.main(tiny) == 0
    path = tmp_path / "settings.json"
    settings = json.loads(path.read_text())
    assert settings.pop("readout") == "mean"
    assert settings["filters"].pop("agf_ones")  # an attention that is newer than the runs
    path.write_text(json.dumps(settings))
    assert RECIPE.main(tiny) == 0
    assert "softmax-seed0: finished before" in capsys.readouterr().out
    words = ["other settings", "readout (was 'mean', now 'flatten')"]
    assert_one_error_line(RECIPE.main, [*tiny, "--readout", "flatten"], words, capsys)
    settings["filters"]["softmax"] = {"landmarks": 9}
    path.write_text(json.dumps(settings))
    assert_one_error_line(RECIPE.main, tiny, ["other settings", "filters (was", "9"], capsys)
    settings["filters"].pop("softmax")
    settings.pop("learning_rate")  # given, and not the usual one
    path.write_text(json.dumps(settings))
    words = ["other settings", "learning_rate (was 0.001, now 0.03)"]
    assert_one_error_line(RECIPE.main, tiny, words, capsys)


# In one step of an epoch only the weights break: its loss is that of the weights before it.
@pytest.mark.parametrize(("batch_size", "steps"), [(4, 2), (30, 1)])
def test_a_loss_that_is_not_finite_ends_the_run_with_one_error(
    batch_size, steps, tiny_arguments, tmp_path, capsys
):
    arguments = [*tiny_arguments, "--attention", "agf", "--batch-size", str(batch_size)]
    arguments += ["--learning-rate", "1e39", "--output", str(tmp_path)]
    assert RECIPE.main(arguments) == 1
    (line,) = re.findall(r"^error: .*", capsys.readouterr().err, re.M)
    assert re.search(f"agf-seed0: .* in epoch 1, after {steps} steps.* --learning-rate .*", line)
    assert files(tmp_path) == ["settings.json"]


def test_early_stopping_counts_over_interruptions():
    def state(accuracies):
        kept = RunState()
        for accuracy in accuracies:
            kept.add({"val_accuracy": accuracy, "val_cross_entropy": 1.0}, ACCURACY)
        return kept

    assert not RunState().ends(10, 1)
    assert not state([0.5, 0.6, 0.6]).ends(10, 2)
    assert state([0.5, 0.6, 0.6, 0.6]).ends(10, 2)
    assert not state([0.5, 0.6, 0.6, 0.7]).ends(10, 2)
    assert state([0.5, 0.6]).ends(2, 5)


def test_with_both_metrics_patience_counts_from_one_and_the_epoch_has_both():
    kept, chosen, gains = RunState(), [], []
    # as good in: both, accuracy, both, cross-entropy, none, accuracy (the same), none
    metrics = [(0.5, 1.0), (0.6, 1.1), (0.6, 0.9), (0.5, 0.8), (0.5, 0.85), (0.6, 0.81), (0.5, 0.9)]
    for accuracy, cross_entropy in metrics:
        row = {"val_accuracy": accuracy, "val_cross_entropy": cross_entropy}
        kept.add(row, ACCURACY._replace(choose_by=BOTH))
        chosen.append(kept.best_epoch)
        gains.append(kept.last_gain)
    assert chosen == [1, 1, 3, 3, 3, 3, 3]
    assert gains == [1, 2, 3, 4, 4, 6, 6]
    assert kept.ends(100, 1)
    assert not kept.ends(100, 2)


NAN = float("nan")


@pytest.mark.parametrize(
    ("criterion", "falling"),
    [
        (ACCURACY, [(0.9, 5.0), (0.8, 0.1), (0.8, 0.2), (0.8, NAN)]),
        (
            ACCURACY._replace(choose_by="cross_entropy"),
            [(0.5, 0.1), (0.9, 0.2), (0.8, 0.2), (0.9, NAN)],
        ),
        (
            Criterion("mean_absolute_error", lower_is_better=True, ties="squared_error"),
            [(0.1, 9.0), (0.2, 0.1), (0.2, 0.2), (None, 0.0)],
        ),
    ],
)
def test_the_metric_that_chooses_comes_first_and_the_other_one_decides_ties(criterion, falling):
    def score(first, second):
        return criterion.score({f"val_{criterion.name}": first, f"val_{criterion.ties}": second})

    scores = [score(*values) for values in falling]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4
    assert score(0.8, None) == score(0.8, NAN)
