"""The benchmark for GPUs runs on a CPU at tiny sizes; its page says what is on record."""

import importlib
import json

import pytest

from tests.devices.table import ROOT
from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end, start

PROGRAM = ROOT / "benchmarks/gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return importlib.import_module("gpu")


def row(case, length, ratio, **more):
    of_group = {"group": "attention", "dtype": "bfloat16", "case": case, "length": length}
    return {**of_group, "ms": 2.0 * ratio, "ratio": ratio, **more}


def test_the_page_is_that_of_its_record(gpu):
    record = json.loads(gpu.RECORD.read_text())
    assert gpu.PAGE.read_text() == gpu.rendered(record)
    assert ("No GPU numbers are on record yet" in gpu.PAGE.read_text()) == (not record["runs"])


def test_the_page_says_where_a_case_is_slower_and_what_is_left_out(gpu):
    settings = {"device": "A", "backend": "jax", "quick": False}
    rows = [row("flash", 1024, 1.0), row("GFSA", 1024, 2.5, **{"peak MiB": 7.0})]
    rows += [row("GFSA", 4096, 0.5), {**row("flash", 4096, 1.0), "dtype": "float32"}]
    del rows[-1]["ms"]
    page = gpu.rendered({"runs": [{"settings": settings, "rows": rows, "left_out": ["trees"]}]})
    assert "Numbers are on record for: A (jax)." in page
    assert "| GFSA, bfloat16 | 5.00 ms (2.50), 7 MiB | 1.00 ms (0.50) |" in page
    assert "| flash, float32 |  | out of memory |" in page
    assert "Slower than the rival:\n\n* GFSA, bfloat16: n = 1024\n" in page
    assert "Time was up before these: trees." in page


def test_runs_with_the_same_settings_are_joined(gpu, tmp_path):
    """What the second measures replaces the first's; what it leaves out stays."""
    file = tmp_path / "gpu.json"

    def joined(device, rows, left_out=()):
        settings = {"device": device, "backend": "jax"}
        run = {"settings": settings, "rows": rows, "left_out": list(left_out)}
        file.write_text(json.dumps(gpu.kept(file, run)))
        return json.loads(file.read_text())["runs"]

    old, far, gone = row("GFSA", 1024, 2.0), row("GFSA", 4096, 3.0), row("dropped", 1024, 9.0)
    new = row("GFSA", 1024, 1.0)
    trees, place = "trees, n = 9, float32", "attention, n = 4096, bfloat16"
    assert joined("A", [old, gone], [place, trees])[0]["left_out"] == [place, trees]
    (other,) = joined("B", [old])[1:]
    first, last = joined("A", [far])
    assert first == other
    assert (last["rows"], last["left_out"]) == ([old, gone, far], [trees])
    assert joined("A", [new], [place])[1] == {**last, "rows": [far, new]}


@pytest.mark.slow
def test_the_program_runs_at_tiny_sizes(gpu, tmp_path):
    run_to_its_end(PROGRAM, "--quick", "--memory", "--output", tmp_path)
    (run,) = json.loads((tmp_path / "gpu.json").read_text())["runs"]
    groups = {row["group"] for row in run["rows"]}
    assert groups == set(gpu.GROUPS)
    assert not run["left_out"]
    assert all(row["ms"] > 0 for row in run["rows"])
    peaks = {row["case"] for row in run["rows"] if "peak MiB" in row}
    assert {"GFSA, fused", "Llama 1B, graph_filter"} <= peaks
    page = (tmp_path / "gpu.md").read_text()
    assert f"backend {BACKEND}" in page
    assert "nothing was measured" in page


@pytest.mark.slow
def test_a_cpu_is_not_put_on_record():
    with start(PROGRAM, "--quick", "--record") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 2
    assert errors.startswith("error: --record needs a GPU")
