import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from recipes.common.data.ragged import majority_level
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.long_range_arena.__main__ import RECIPE, TASKS
from recipes.long_range_arena.data import listops_rules, load
from recipes.long_range_arena.model import build

TINY = (
    *("--train-examples", "64", "--evaluation-examples", "32", "--max-length", "24"),
    *("--batch-size", "16", "--epochs", "2", "--warm-up", "2", "--verbose", "0"),
    *("--d-model", "8", "--heads", "2", "--key-dim", "4", "--feed-forward", "8", "--layers", "1"),
)
# AGF on the arena, as METHODS.md has it: K, gamma, a, b, learning rate
PUBLISHED = """Text 5, .001, 1, 1, 5e-5; Image 7, .01, 2, -1, 1e-3; Retrieval 5, .1, 1, 1, 5e-4;
ListOps 5, .1, 1.5, 1, 1e-3; Pathfinder 3, 1e-4, 1.5, -1, 1e-4"""
RELOAD = """
import sys
import keras_graphattn, keras, numpy as np
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
assert not any(name.startswith("recipes") for name in sys.modules)
print(model.predict({"tokens": np.array([[12, 3, 4, 15, 0, 0]])}, verbose=0).shape)
"""


def test_published_settings():
    for line in PUBLISHED.replace("\n", " ").split(";"):
        name, _, numbers = line.strip().partition(" ")
        order, weight, alpha, beta, rate = map(float, numbers.split(","))
        task = TASKS[name.lower()]
        assert task.filter == (order, weight, alpha, beta, False)
        assert task.learning_rate == rate
        data = ["--data-dir", "x"] if name == "Retrieval" else []
        options = RECIPE.parse(["--task", name.lower(), "--preset", "paper", *data])
        assert (options.layers, options.d_model, options.heads) == (2, 64, 2)
        assert options.learning_rate == rate
        settings = RECIPE.settings(options)["agf"]
        assert settings["orthogonality_weight"] == weight / 2
        jacobi = {"name": "jacobi", "order": order, "alpha": alpha, "beta": beta}
        assert settings["filter"] == jacobi
    listops = listops_rules(RECIPE.parse(["--preset", "paper"]))
    assert listops == (10, 10, 500, 2000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return ["--cache-dir", str(cache), "--output", str(tmp_path_factory.mktemp("results"))]


@pytest.fixture(scope="module")
def arguments(folders):
    return [*TINY, *folders, "--attention", "linear,agf"]


@pytest.fixture(scope="module")
def results(arguments, folders):
    assert RECIPE.main(arguments) == 0
    return json.loads((Path(folders[-1]) / "results.json").read_text())


def test_a_run_leaves_everything_behind(arguments, folders, results, capsys):
    output = Path(folders[-1])
    problem = load(RECIPE.parse(arguments))
    assert results["majority"]["test"] == majority_level(problem.test.labels)
    assert results["examples"] == {"train": 64, "validation": 32, "test": 32}
    assert [row["attention"] for row in results["table"]] == ["linear", "agf"]
    for run in results["runs"]:
        with (output / "histories" / f"{run['attention']}-seed0.csv").open() as file:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
        assert [row["epoch"] for row in rows] == [1, 2]
        best = max(rows, key=lambda row: (row["val_accuracy"], -row["val_cross_entropy"]))
        assert run["chosen_epoch"] == best["epoch"]
        assert run["test_cross_entropy"] == best["test_cross_entropy"]
    assert RECIPE.main(arguments) == 0  # finished: not made again
    printed = capsys.readouterr().out
    assert "making" not in printed
    assert "without looking at the input" in printed
    assert f"{results['majority']['test']['cross_entropy']:.4f}" in printed


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_best_model_loads_with_the_package_alone(folders, results):
    command = [sys.executable, "-c", RELOAD, str(Path(folders[-1]) / "model.keras")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=True, cwd=root, capture_output=True, text=True)
    assert "(1, 10)" in done.stdout


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", RECIPE.attentions)
def test_padding_has_no_influence(attention, folders):
    options = RECIPE.parse([*TINY, *folders, "--attention", attention])
    problem = load(options)
    model = build(RECIPE.trial(problem, attention, options))
    for weight in model.trainable_weights:
        weight.assign(0.5 * np.random.default_rng(1).normal(size=weight.shape))
    chosen = np.argsort(problem.test.lengths)[:4]
    tokens = problem.test.tokens["tokens"]
    longest = int(problem.test.lengths[chosen].max())
    short, long = (
        ops.convert_to_numpy(model({"tokens": tokens.padded(chosen, length)}))
        for length in (longest, longest + 6)
    )
    np.testing.assert_allclose(short, long, atol=1e-5)
    np.testing.assert_allclose(short.sum(axis=-1), 1, atol=1e-5)
    assert np.abs(short[0] - short[1]).max() > 1e-3


def test_learning_rate_rises_then_falls():
    schedule = WarmUpLinearDecay(0.5, warm_up=4, steps=10)
    rates = [float(schedule(step)) for step in range(12)]
    np.testing.assert_allclose(rates[:4], [0.125, 0.25, 0.375, 0.5], rtol=1e-6)
    np.testing.assert_allclose(np.diff(rates[3:11]), -0.5 / 7, rtol=1e-5)
    assert rates[9] > 0
    assert rates[10] == rates[11] == 0
    assert WarmUpLinearDecay(0.5, 0, 10)(0) == 0.5
    longer = [float(WarmUpLinearDecay(0.5, 40, 10)(step)) for step in (0, 8, 9)]
    np.testing.assert_allclose(longer, [0.5 / 9, 0.5, 0.25], rtol=1e-6)
