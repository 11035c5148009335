"""Decoders with soft cap, bias, sink or window: models of their layers."""

import keras
import pytest

from tests.hub.biased_decoders import (
    DECODERS,
    converted,
)
from tests.hub.models import assert_equal_outputs, outputs, random_inputs

# KerasHub 0.32 cannot read a file of a model made of its layers, converted or not.
LEFT_OUT = ("gemma3n",)
# In the fast suite, one family stands for all.
NAMES = [
    name if name == "gemma2" else pytest.param(name, marks=pytest.mark.slow)
    for name in DECODERS
    if name not in LEFT_OUT
]


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_its_layers(name, tmp_path):
    """The layers that hold the attention tell their own configuration."""
    backbone = converted(name)
    model = keras.Model(backbone.input, backbone.transformer_layers[1].output)
    inputs = random_inputs(backbone)
    expected = outputs(model, inputs)
    model.save(tmp_path / "model.keras")
    assert_equal_outputs(
        outputs(keras.saving.load_model(tmp_path / "model.keras"), inputs), expected
    )
