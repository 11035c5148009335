"""`--processes`: several processes train as one does, and all end if one does (jax)."""

import argparse
import json
import socket
import time

import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.command.processes import Place, ended_line, place, shorten, together
from recipes.common.data.batches import OfProcess
from recipes.time_series.__main__ import RECIPE
from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end, start
from tests.recipes.conftest import write_ts

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="--processes is jax's")
EPOCHS = 12
MODEL = (
    "--dataset Tiny --d-model 8 --heads 4 --key-dim 4 --feed-forward 16 --layers 1 --verbose 0 "
    f"--batch-size 4 --dropout 0.1 --learning-rate 0.01 --epochs {EPOCHS} --attention gfsa "
    "--skip-saved-model"
)


def command(data, output):
    folders = ["--data-dir", data, "--output", output]
    return ["-m", "recipes.time_series", *MODEL.split(), *folders]


def start_two(data, output):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        start(*command(data, output), "--processes", f"{address},2,{number}") for number in range(2)
    ]


def outcome(process, seconds):
    """The exit code of a process, what it printed, and its own errors."""
    output, errors = process.communicate(timeout=seconds)
    noise = ("I0000", "W0000", "WARNING: All log messages")
    own = [line for line in errors.splitlines() if not line.startswith(noise)]
    return process.returncode, output, own


def state_of(output):
    return json.loads((output / "runs/gfsa-seed0/state.json").read_text())


def assert_same_epochs(output, expected):
    state = state_of(output)
    assert state["finished"]
    assert len(state["history"]) == EPOCHS
    for row, other in zip(state["history"], expected["history"], strict=True):
        assert row == pytest.approx(other, abs=1e-5)
    assert state["random_states"] == expected["random_states"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(7)
    write_ts(folder / "Tiny_TRAIN.ts", random, 15)
    write_ts(folder / "Tiny_TEST.ts", random, 9)
    return folder


@pytest.fixture(scope="module")
def one_process(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("one") / "results"
    run_to_its_end(*command(data, output))
    return state_of(output)


@on_jax
@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one_and_one_of_them_writes(data, one_process, tmp_path):
    processes = start_two(data, tmp_path)
    ends = [outcome(process, 900) for process in processes]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert_same_epochs(tmp_path, one_process)
    assert "written to" in ends[0][1]
    assert "training" not in ends[1][1]


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other_and_both_continue(
    data, one_process, tmp_path, killed
):
    processes = start_two(data, tmp_path)
    state = tmp_path / "runs/gfsa-seed0/state.json"
    while not state.exists():
        assert processes[1 - killed].poll() is None, outcome(processes[1 - killed], 1)
        time.sleep(0.01)
    processes[killed].kill()
    began = time.monotonic()
    code, _, errors = outcome(processes[1 - killed], 60)
    assert time.monotonic() - began < 60
    assert code != 0
    assert errors == [ended_line(killed)]
    assert outcome(processes[killed], 10)[2] == []
    assert 1 <= len(state_of(tmp_path)["history"]) < EPOCHS
    ends = [outcome(process, 900) for process in start_two(data, tmp_path)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert_same_epochs(tmp_path, one_process)


def test_places():
    assert place("auto") == Place()
    assert place("10.0.0.1:1234,4,3") == Place("10.0.0.1:1234", 4, 3)
    for wrong in ("", "1234,2,0", "10.0.0.1:1234,2,2", "10.0.0.1:x,2,0", "10.0.0.1:1234,2"):
        with pytest.raises(argparse.ArgumentTypeError, match="neither auto nor ADDRESS"):
            place(wrong)
    options = RECIPE.parse(["--processes", "10.0.0.1:1234,2,0"])
    assert options.distribute == "data"
    if BACKEND != "jax":
        with pytest.raises(UsageError, match="--processes: only on jax"), together(options):
            pass


def test_the_page_of_jax_becomes_one_line():
    ours, theirs = "error: no space\n", "E1126 18:33:08 1 preemption_sync_manager.cc:159] Failed\n"
    fatal = "F1126 18:33:08 1 client.h:80] Terminating process because the JAX distributed service"
    assert list(shorten([ours, theirs, fatal, "    @ 0x7f\n"])) == [ours, f"{ended_line(0)}\n"]


def test_processes_share_out_the_rows_of_every_array():
    rows = np.arange(6)
    batches = [({"tokens": rows[:, None]}, 10 * rows, 100 * rows)]
    shares = [OfProcess(batches, number, 3)[0] for number in range(3)]
    assert np.array_equal(np.concatenate([share[1] for share in shares]), 10 * rows)
    inputs, labels, weights = shares[1]
    assert inputs["tokens"].tolist() == [[2], [3]]
    assert (labels.tolist(), weights.tolist()) == ([20, 30], [200, 300])
