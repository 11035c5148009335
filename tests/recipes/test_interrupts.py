"""Ctrl-C between any two steps: one line and exit code 130. `tests/faults` kills and continues."""

import pytest

from tests.recipes.command_line import ROOT, interrupt, start, wait_until_it_listens

LINE = "interrupted: the same command continues after the last epoch"
# What programs do when Ctrl-C comes; each says "ready" when it is about to do it.
ACTIONS = {
    "waits": "ready(); time.sleep(60)",
    "forgives every error": """
        while True:
            try:
                ready(); time.sleep(60)
            except BaseException:
                pass
    """,
    "collects garbage": """
        gc.callbacks.append(lambda *_: time.sleep(0.05))
        ready()
        while True:
            gc.collect()
    """,
    "has printed": "print('more', end=''); os.write(1, b'ready\\n'); time.sleep(60)",
}
PROGRAM = """
import gc, os, sys, textwrap, time
from recipes.common.command.parsing import run_program

def ready(what=""):
    print("ready", what, flush=True)

def main():
    exec(textwrap.dedent(sys.argv[1]))

run_program(main)
"""


@pytest.fixture
def started():
    """Starts programs that end with the test."""
    processes = []

    def begin(*arguments):
        processes.append(start(*arguments))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


@pytest.mark.parametrize("name", ACTIONS)
def test_a_program_ends_whatever_it_does(name, started):
    process = started("-c", PROGRAM, ACTIONS[name])
    assert process.stdout.readline().startswith("ready")
    assert interrupt(process) == (130, [LINE], "more" if name == "has printed" else "")


def test_a_program_that_ignores_ctrl_c_goes_on_doing_so(started):
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = started("-c", ignore + PROGRAM, "ready(); time.sleep(0.5)")
    assert process.stdout.readline().startswith("ready")
    assert interrupt(process)[:2] == (0, [])


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_recipe_ends_where_its_training_begins(tiny_arguments, tmp_path, started):
    run = ["--attention", "agf", "--skip-saved-model", "--output", tmp_path]
    process = started("-u", "-m", "recipes.time_series", *tiny_arguments, *run)
    for line in process.stdout:
        if "training, " in line:  # then it compiles
            break
    assert interrupt(process)[:2] == (130, [LINE])
    assert not (tmp_path / "results.json").exists()


BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = [path for path in BENCHMARKS.glob("*.py") if "\n    run(main)" in path.read_text()]


def one_error_line(process):
    """The line with which a program has ended that cannot do what was asked for."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert not printed
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem == "precision"))
        for p in sorted(SCRIPTS)
    ],
)
def test_wrong_options_of_a_benchmark_are_one_line(script, started):
    other = {"precision": "--length", "large_decoder": "--layers", "image_models": "--classes"}
    other["published_code"] = "--length"
    length = other.get(script.stem, "--lengths")
    line = one_error_line(started(script, length, "0"))
    assert line.startswith(f"error: argument {length}: '0' is not a whole number of at least 1")


@pytest.mark.parametrize("name", ["dense_attention", "tree_and_graph_masks"])
def test_a_folder_that_cannot_be_written_is_refused_before_a_benchmark(name, tmp_path, started):
    (tmp_path / "file").write_text("")
    process = started(BENCHMARKS / f"{name}.py", "--output", tmp_path / "file" / "out")
    assert one_error_line(process).startswith("error: cannot write to --output ")


def test_ctrl_c_in_a_benchmark_is_one_line(started):
    process = started(BENCHMARKS / "dense_attention.py", "--lengths", "64")
    wait_until_it_listens(process)
    line = "interrupted: results are written at the end, so nothing was written"
    assert interrupt(process)[:2] == (130, [line])
