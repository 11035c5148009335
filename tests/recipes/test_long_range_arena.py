import numpy as np
import pytest

from recipes.common.data.ragged import majority_level
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.long_range_arena.__main__ import RECIPE, TASKS
from recipes.long_range_arena.data import listops_rules, load
from tests.recipes.command_line import assert_validation_chooses_the_epoch, results_of, start

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
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def arguments(output, tmp_path_factory):
    folders = ["--cache-dir", str(tmp_path_factory.mktemp("cache")), "--output", str(output)]
    return [*TINY, *folders, "--attention", "linear,agf"]


def test_a_run_leaves_everything_behind(arguments, output, capsys):
    assert RECIPE.main(arguments) == 0
    results = results_of(output)
    level = majority_level(load(RECIPE.parse(arguments)).test.labels)
    assert results["majority"]["test"] == level
    assert results["examples"] == {"train": 64, "validation": 32, "test": 32}
    assert [row["attention"] for row in results["table"]] == ["linear", "agf"]
    assert_validation_chooses_the_epoch(output)
    printed = capsys.readouterr().out
    assert "without looking at the input" in printed
    assert f"{level['cross_entropy']:.4f}" in printed


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_best_model_loads_with_the_package_alone(arguments, output):
    assert RECIPE.main(arguments) == 0
    with start("-c", RELOAD, output / "model.keras") as process:
        assert "(1, 10)" in process.communicate()[0]


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
