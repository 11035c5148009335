import re
import runpy
from pathlib import Path

import keras
import pytest

GUIDES = sorted((Path(__file__).parents[2] / "guides").glob("*.py"))
# The guides that the fast suite runs: each on one backend, most on torch, which compiles nothing;
# in `make test-slow` all on all backends.
FAST = {
    "torch": (
        *("first_steps", "masked_attention", "filters"),
        *("which_attention", "long_sequences", "distribution", "your_own"),
    ),
    "tensorflow": ("serving",),
}
# in `make test-slow` only
LONG = ("decoders", "graphs", "images", "masks", "smoothing", "speech_recognition")
LONG += ("torch_processes",)


def test_the_fast_suites_run_each_guide_once_but_the_long_ones():
    fast = [name for names in FAST.values() for name in names]
    assert sorted([*fast, *LONG]) == [p.stem for p in GUIDES]


def cases():
    for path in GUIDES:
        slow = path.stem not in FAST.get(keras.backend.backend(), ())
        yield pytest.param(path, marks=[pytest.mark.slow] * slow, id=path.stem)


@pytest.mark.all_cases
@pytest.mark.parametrize("path", cases())
def test_guide_runs_and_its_models_learn(path, capsys, tmp_path, monkeypatch):
    text = path.read_text()
    assert "gettempdir" not in text  # shared by all programs of the machine
    monkeypatch.setenv("GUIDE_OUTPUT", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    accuracies = [float(a) for a in re.findall(r"test accuracy (\d\.\d+)", printed)]
    assert accuracies, printed
    assert min(accuracies) > 0.8, printed
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    for file in files:  # in the guide's own folder, and the reader learns where
        assert file.parent == tmp_path / path.stem
        assert f"picture: {file}\n" in printed
    assert bool(files) == ("GUIDE_OUTPUT" in text)
