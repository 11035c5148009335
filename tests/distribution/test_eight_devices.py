"""Eight devices give the results of one: layouts of weights, tokens over a mesh (jax)."""

import json
from pathlib import Path

import pytest

from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is jax's")

LENGTH, HEADS, HEAD = 1024, 2, 8
SUMS = ("kernel", "favor", "agf")
CHUNKED = ("causal", "exponential", "gated", "causal_agf")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """The numbers of eight devices, from a process that has so many."""
    results = tmp_path_factory.mktemp("devices") / "numbers.json"
    run_to_its_end(Path(__file__).with_name("eight_devices.py"), results)
    return json.loads(results.read_text())


@pytest.mark.slow
def test_ten_steps_give_the_losses_and_weights_of_one_device(numbers):
    for kind in ("data", "model", "sequence"):
        assert numbers[f"{kind}_fit"] < 1e-5, kind
    # The parts of a weight on each device
    assert (numbers["model_part"], numbers["data_part"]) == (0.25, 1.0)
    assert numbers["sequence_slots"] == 0  # the optimizer's variables are placed like the weights


@pytest.mark.slow
def test_a_split_sequence_gives_equal_values_and_gradients_and_little_is_exchanged(numbers):
    for layer in (*SUMS, *CHUNKED):
        assert numbers[f"{layer}_value"] < 1e-5, layer
        assert numbers[f"{layer}_gradient"] < 1e-5, layer
        assert numbers[f"{layer}_part"] == numbers[f"{layer}_gradient_part"] == 1 / 8, layer
        if layer in SUMS:  # only sums over tokens, with no more entries than FAVOR+ has features
            assert numbers[f"{layer}_gathered"] == 0, layer
            assert 0 < numbers[f"{layer}_summed"] <= HEADS * 2 * HEAD * (HEAD + 1), layer
        else:  # one sum for each chunk
            chunk = 64 if layer != "causal_agf" else 48
            # with a column for the normaliser, and one for tokens that are not finite
            states = -(-LENGTH // (8 * chunk)) * 8 * HEADS * HEAD * (HEAD + 2)
            assert 0 < numbers[f"{layer}_gathered"] <= states, layer
