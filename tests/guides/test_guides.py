import re
import runpy
from pathlib import Path

import keras
import pytest

GUIDES = sorted((Path(__file__).parents[2] / "guides").glob("*.py"))
# What is special about serving is in the tests of exports, from each backend.
SLOW = {"torch": ("serving",), "jax": ("serving", "masks", "masked_attention")}


def test_there_are_guides():
    assert GUIDES


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            p,
            marks=[pytest.mark.slow] * (p.stem in SLOW.get(keras.backend.backend(), ())),
            id=p.stem,
        )
        for p in GUIDES
    ],
)
def test_guide_runs_and_its_models_learn(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    accuracies = [float(a) for a in re.findall(r"test accuracy (\d\.\d+)", printed)]
    assert accuracies, printed
    assert min(accuracies) > 0.8, printed
