"""`--distribute`: recipes give the same numbers on several devices as on one."""

import json
from pathlib import Path

import keras
import pytest

from recipes.common.command.devices import check_devices
from recipes.common.command.parsing import UsageError
from recipes.time_series.__main__ import RECIPE
from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "torch", reason="Keras trains on one device on torch")
def test_every_epoch_of_every_recipe_has_the_numbers_of_one_device(tmp_path):
    run_to_its_end(Path(__file__).with_name("train_recipes.py"), tmp_path)
    differences = json.loads((tmp_path / "differences.json").read_text())
    assert len(differences) == 2
    for name, difference in differences.items():
        assert difference < 1e-5, name


@pytest.mark.parametrize(
    ("backend", "devices", "wrong", "words"),
    [
        ("torch", 1, "--distribute", "on torch, Keras' fit trains on one device"),
        ("jax", 8, "--distribute --batch-size 12", "12 cannot be shared out over 8 devices"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(backend, devices, wrong, words, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(
        keras.distribution, "list_devices", lambda: [f"cpu:{n}" for n in range(devices)]
    )
    with pytest.raises(UsageError, match=words):
        check_devices(RECIPE.parse(wrong.split()))


def test_nothing_asked_for_is_nothing_done():
    assert RECIPE.parse([]).distribute is False
    assert RECIPE.parse(["--distribute"]).distribute == "data"
    check_devices(RECIPE.parse([]))
