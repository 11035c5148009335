"""Commands of recipes in tests: programs, their ends by Ctrl-C, their errors and results."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
LOWER_IS_BETTER = ("perplexity", "mean_absolute_error", "word_error_rate")


def start(*arguments):
    """A Python program in the repository, which SIGINT ends.

    A shell that starts tests in the background has them ignore SIGINT. Output is buffered, as it
    is where it goes to a file.
    """
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
    )


def run_to_its_end(*arguments):
    """Runs a Python program in the repository, which must succeed; what it printed."""
    with start(*arguments) as process:
        output, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors
    return output


LOAD = """
import sys
import keras_graphattn, keras, numpy as np
for module in sys.argv[4:]:
    __import__(module)
assert sys.argv[4:] or not any(name.startswith("recipes") for name in sys.modules)
model = keras.saving.load_model(sys.argv[1], safe_mode=True)
np.save(sys.argv[3], model.predict(dict(np.load(sys.argv[2])), verbose=0))
"""


def predictions_in_another_process(model, inputs, folder, *modules):
    """The outputs of a saved model where only the package and some modules are imported."""
    files = [folder / "inputs.npz", folder / "outputs.npy"]
    np.savez(files[0], **inputs)
    run_to_its_end("-c", LOAD, model, *files, *modules)
    return np.load(files[1])


def wait_until_it_listens(process):
    """Waits until a program imports Keras, which it does after `run_program` has begun."""
    maps = Path(f"/proc/{process.pid}/maps")
    for _ in range(6000):
        if process.poll() is not None or "h5py" in maps.read_text():
            return
        time.sleep(0.01)
    raise AssertionError("the program did not begin within a minute")


def interrupt(process):
    """Sends SIGINT; the exit code, the program's own errors and what it printed, soon after."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    of_tensorflow = ("I0000", "W0000", "E0000", "WARNING: All log messages")
    own = [line for line in errors.splitlines() if not line.startswith(of_tensorflow)]
    return process.returncode, own, output


def assert_one_error_line(main, arguments, words, capsys):
    """The command fails with exit code 2 and one line that has `words` in it."""
    environment = dict(os.environ)
    try:
        code = main(list(map(str, arguments)))
    finally:
        os.environ.clear()
        os.environ.update(environment)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    for word in words:
        assert word in printed.err


def results_of(output):
    return json.loads((output / "results.json").read_text())


def run(recipe, output, *options):
    """The results of a command that must succeed; an option with its value may be one text."""
    words = [word for one in options for word in str(one).split()]
    assert recipe.main([*words, "--output", str(output)]) == 0
    return results_of(output)


def best_run(results):
    """The run of the best model: no other one is better on validation data."""
    best = results["best_model"]
    is_best = {"attention": best["attention"], "seed": best["seed"]}.items()
    (run,) = (run for run in results["runs"] if is_best <= run.items())
    return run


def history_of(output, run):
    """The metrics of each epoch of an entry of `runs` in results."""
    with (output / "histories" / f"{run['attention']}-seed{run['seed']}.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def assert_validation_chooses_the_epoch(output):
    """Of each run; its numbers are those of that epoch."""
    results = results_of(output)
    column = next(key for key in results["table"][0] if key.endswith("_mean"))
    name = column.removeprefix("test_").removesuffix("_mean")
    sign = -1 if name in LOWER_IS_BETTER else 1
    for run in results["runs"]:
        rows = history_of(output, run)
        assert [row["epoch"] for row in rows] == list(range(1, run["epochs"] + 1))
        measures = ("val_squared_error", "val_cross_entropy", "val_loss")
        ties = next(one for one in measures if one in rows[0])
        best = max(rows, key=lambda row: (sign * row[f"val_{name}"], -row[ties]))
        assert run["chosen_epoch"] == best["epoch"]
        assert run[f"validation_{name}"] == best[f"val_{name}"]
        if f"test_{name}" in best:
            assert run[f"test_{name}"] == best[f"test_{name}"]
            tests = [sign * row[f"test_{name}"] for row in rows]
            assert run[f"test_{name}_at_best_test_epoch"] == sign * max(tests)
