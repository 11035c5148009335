"""Softmax attention over a ring of devices gives the results of one device (jax)."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_graphattn.biases import Alibi
from keras_graphattn.distribution import SequenceParallel
from keras_graphattn.layers import GraphFilterAttention, PLaplacianAttention
from tests.distribution.test_layout_map import mesh, on_jax
from tests.numerics import BACKEND
from tests.recipes.command_line import run_to_its_end

HEADS, HEAD, BATCH, LENGTH = 2, 8, 2, 128


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is jax's")
def test_a_ring_gives_the_values_and_gradients_of_one_device(tmp_path):
    results = tmp_path / "numbers.json"
    run_to_its_end(Path(__file__).with_name("ring_of_devices.py"), results)
    cases = json.loads(results.read_text())
    memory = cases.pop("memory")
    assert memory["1"] > 3 * memory["4"]
    for case in ("first_order", "causal"):
        assert set(cases[case]) == {"1x1", "2x1", "4x1", "8x1", "4x2"}
    for case, rings in cases.items():
        assert rings
        for ring, numbers in rings.items():
            devices, batch_devices = map(int, ring.split("x"))
            where = (case, ring)
            assert numbers["value"] < 1e-5, where
            assert numbers["gradient"] < 1e-5, where
            assert numbers["part"] == 1 / (devices * batch_devices), where
            # no more than a boolean or a count for each token is gathered
            assert numbers["gathered"] <= BATCH * (LENGTH + 1), where
            held = BATCH * LENGTH * HEADS * HEAD // (devices * batch_devices)
            assert numbers["passed_on"] == held, where


@on_jax
def test_what_a_ring_refuses():
    x = np.zeros((1, 16, 8), "float32")
    layer = GraphFilterAttention(HEADS, HEAD, attention_path="blockwise")
    layer.build(x.shape)
    with SequenceParallel(mesh((1,), ("sequence",)), shortest=16).scope():
        with pytest.raises(
            ValueError, match=r"Received: attention_bias .*attention_path=\"dense\""
        ):
            layer(x, attention_bias=np.zeros((16, 16), "float32"))
        biased = GraphFilterAttention(HEADS, HEAD, attention_path="fused", bias=Alibi())
        with pytest.raises(ValueError, match=r"adds nothing .* Received: Alibi under"):
            biased(x)
        weighed = PLaplacianAttention(HEADS, HEAD, attention_path="blockwise", bias=Alibi())
        with pytest.raises(ValueError, match=r"adds nothing .* Received: Alibi under"):
            weighed(x)
    with (
        SequenceParallel(mesh((3,), ("sequence",)), shortest=16).scope(),
        pytest.raises(ValueError, match=r"The 3 devices .* evenly divide a sequence of 16 tokens"),
    ):
        layer(x)
