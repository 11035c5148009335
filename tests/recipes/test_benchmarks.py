"""Benchmarks answer wrong options and Ctrl-C with one line, as the recipes do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.command_line import heed_interrupts, wait_until_it_listens

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if "\n    run(main)" in path.read_text()
)


def run(script, *arguments):
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem == "precision"))
        for p in SCRIPTS
    ],
)
def test_wrong_options_are_one_line(script):
    other = {"precision": "--length", "large_decoder": "--layers", "image_models": "--classes"}
    length = other.get(script.stem, "--lengths")
    process = run(script, length, "0")
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert not printed
    assert errors.startswith(f"error: argument {length}: '0' is not a whole number of at least 1")
    assert errors.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("dense_attention", "tree_and_graph_masks"):
        process = run(
            ROOT / "benchmarks" / f"{name}.py", "--output", str(tmp_path / "file" / "out")
        )
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 2
        assert errors.startswith("error: cannot write to --output ")
        assert errors.count("\n") == 1


def test_ctrl_c_is_one_line():
    process = run(ROOT / "benchmarks" / "dense_attention.py", "--lengths", "64")
    wait_until_it_listens(process)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert errors.endswith("interrupted: results are written at the end, so nothing was written\n")
    assert "Traceback" not in errors
