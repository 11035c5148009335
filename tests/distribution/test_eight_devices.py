"""Eight devices give the results of one: layouts of weights, tokens over a mesh (jax)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.numerics import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is jax's")

LENGTH, HEADS, HEAD = 1024, 2, 8
SUMS = ("kernel", "favor", "agf")
CHUNKED = ("causal", "exponential", "causal_agf")


def run(folder, what):
    results = folder / "found.json"
    program = [sys.executable, str(Path(__file__).with_name("eight_devices.py")), str(results)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [*program, what], capture_output=True, text=True, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(results.read_text())


def check_fit(found, kinds):
    """Ten steps give the losses and weights of one device; each device holds its part."""
    for kind in kinds:
        assert found[f"{kind}_fit"] < 1e-5, kind
    assert found["model_part"] == 0.25


def check_tokens(found, layers):
    """A split sequence gives equal values and gradients; devices exchange few numbers."""
    for layer in layers:
        assert found[f"{layer}_value"] < 1e-5, layer
        assert found[f"{layer}_gradient"] < 1e-5, layer
        assert found[f"{layer}_part"] == found[f"{layer}_gradient_part"] == 1 / 8, layer
        if layer in SUMS:  # only sums over tokens, with no more entries than FAVOR+ has features
            assert found[f"{layer}_gathered"] == 0, layer
            assert 0 < found[f"{layer}_summed"] <= HEADS * 2 * HEAD * (HEAD + 1), layer
        else:  # one sum for each chunk
            chunk = 64 if layer != "causal_agf" else 48
            states = -(-LENGTH // (8 * chunk)) * 8 * HEADS * HEAD * (HEAD + 1)
            assert 0 < found[f"{layer}_gathered"] <= states, layer


@pytest.mark.slow  # as the guide on distribution, which is fast on jax
def test_model_parallel_training_and_tokens_over_a_mesh(tmp_path):
    found = run(tmp_path, "few")
    check_fit(found, ["model"])
    check_tokens(found, ["agf"])


@pytest.mark.slow
def test_all_layers_and_all_distributions(tmp_path):
    found = run(tmp_path, "all")
    check_fit(found, ["data", "model", "sequence"])
    assert found["data_part"] == 1.0
    assert found["sequence_slots"] == 0  # the optimizer's variables are placed like the weights
    check_tokens(found, [*SUMS, *CHUNKED])
