"""Models of an encoder and a decoder: a model of their layers lasts in a file."""

import dataclasses

import keras
import pytest

import keras_graphattn
from tests.hub.models import assert_equal_outputs, outputs
from tests.hub.sequence_to_sequence import (
    MODELS,
    converted,
    fast_for,
    inputs_of,
)

NAMES = fast_for(MODELS, ("t5",))
# Layers between the backbone and its blocks that tell their configuration: Whisper's do not.
COMPOSED = ("edrec", "bart", "t5", "t5_gemma", "t5_gemma_2", "moonshine")


def rows(model):
    """What `inspect` shows but for paths: Keras numbers the layers that Moonshine does not name."""
    return [dataclasses.replace(row, path="") for row in keras_graphattn.inspect(model)]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", fast_for(COMPOSED, ("t5",)))
def test_a_model_of_its_layers(name, tmp_path):
    """The layers that hold the attention tell their own configuration."""
    backbone = converted(name)
    model, inputs = keras.Model(backbone.input, backbone.output), inputs_of(backbone)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert rows(loaded) == rows(model)
    assert_equal_outputs(outputs(loaded, inputs), outputs(model, inputs))
