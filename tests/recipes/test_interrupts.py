"""Ctrl-C between any two steps: one line, exit code 130, and the next start continues."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.recipes.command_line import heed_interrupts, wait_until_it_listens

ROOT = Path(__file__).parents[2]
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


def own_lines(errors):
    """Lines of standard error without what TensorFlow's C++ code logs."""
    logged = ("I0000", "W0000", "E0000", "WARNING: All log messages")
    return [line for line in errors.splitlines() if not line.startswith(logged)]


def start(arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
        # output is buffered, as it is where it goes to a file
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONUNBUFFERED": ""},
    )


def interrupt(process):
    """Sends SIGINT; the exit code and standard error, in time for someone who waits."""
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    return process.returncode, own_lines(errors), output


@pytest.mark.parametrize("name", ACTIONS)
def test_a_program_ends_whatever_it_does(name):
    process = start(["-c", PROGRAM, ACTIONS[name]])
    try:
        printed = process.stdout.readline()
        code, errors, output = interrupt(process)
    finally:
        process.kill()
    assert (code, errors) == (130, [LINE])
    assert printed.startswith("ready")
    assert output == ("more" if name == "has printed" else "")


def test_a_program_that_ignores_ctrl_c_goes_on_doing_so():
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = start(["-c", ignore + PROGRAM, "ready(); time.sleep(0.5)"])
    assert process.stdout.readline().startswith("ready")
    assert interrupt(process)[:2] == (0, [])


def command(arguments, output, *more):
    run = ["--attention", "agf", "--skip-saved-model", "--output", str(output)]
    return ["-m", "recipes.time_series", *arguments, *run, "--verbose", "2", *more]


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_recipe_ends_where_its_training_begins(tiny_arguments, tmp_path):
    process = start(["-u", *command(tiny_arguments, tmp_path)])
    try:
        for line in process.stdout:
            if "training, " in line:  # then it compiles
                break
        code, errors, _ = interrupt(process)
    finally:
        process.kill()
    assert (code, errors) == (130, [LINE])
    assert not (tmp_path / "results.json").exists()


@pytest.mark.slow
def test_a_recipe_ends_at_any_moment_and_continues(tiny_arguments, tmp_path):
    moment, ended = 0.3, []  # seconds
    while True:
        process = start(["-u", *command(tiny_arguments, tmp_path, "--epochs", "8")])
        wait_until_it_listens(process)
        time.sleep(moment)
        code, errors, _ = interrupt(process)
        if code == 0:
            break
        assert (code, errors) == (130, [LINE]), f"after {moment} s"
        ended.append(moment)
        moment *= 1.3
        if moment > 30:  # each start gets further than the one before
            process = start(command(tiny_arguments, tmp_path, "--epochs", "8"))
            assert process.wait(300) == 0
            break
    assert len(ended) > 5
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert run["epochs"] == 8 or run["epochs"] >= run["chosen_epoch"] + 8
    assert not list(tmp_path.rglob(".writing-*"))
