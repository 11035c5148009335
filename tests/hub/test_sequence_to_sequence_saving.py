"""Models of two towers, converted: files, presets, LoRA, int8, half precision."""

import dataclasses
import re

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.models import assert_equal_outputs, outputs
from tests.hub.sequence_to_sequence import (
    CLASSES,
    MODELS,
    TASKS,
    attentions_of,
    converted,
    fast_for,
    greedy,
    inputs_of,
    prompts,
    random_model,
    task,
)
from tests.hub.test_sequence_to_sequence import step, variables
from tests.numerics import to_numpy

NAMES = fast_for(MODELS, ("t5",))
# Layers between the backbone and its blocks that tell their configuration: Whisper's do not.
COMPOSED = ("edrec", "bart", "t5", "t5_gemma", "moonshine")
LORA = {"t5": ["query_projector", "value_projector"]}


def rows(model):
    """What `inspect` shows but for paths: Keras numbers the layers that Moonshine does not name."""
    return [dataclasses.replace(row, path="") for row in keras_graphattn.inspect(model)]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", NAMES)
def test_files_and_presets(name, attention, tmp_path):
    backbone = converted(name, attention)
    inputs = inputs_of(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    backbone.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    preset = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    for each in (loaded, preset):
        assert rows(each) == rows(backbone)
        assert_equal_outputs(outputs(each, inputs), expected)


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


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", fast_for(TASKS, ("t5",)))
def test_a_preset_of_a_task(name, tmp_path):
    model = keras_graphattn.convert(task(name, random_model(name)), order=4)
    inputs = prompts(model, 8, (1, 1))
    model.save_to_preset(str(tmp_path))
    loaded = type(model).from_preset(str(tmp_path), preprocessor=None)
    assert type(loaded).__name__ == f"GraphAttention{TASKS[name].__name__}"
    np.testing.assert_array_equal(greedy(loaded, inputs), greedy(model, inputs))


def unnumbered(paths):
    """Paths in order, without the numbers that Keras gives to layers without a name."""
    return sorted(re.sub(r"(moonshine_multi_head_attention)_\d+", r"\1", path) for path in paths)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("converted_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_lora(name, converted_first):
    targets = LORA.get(name)
    plain = random_model(name)
    plain.enable_lora(2, target_layer_names=targets)
    backbone = converted(name) if converted_first else random_model(name)
    backbone.enable_lora(2, target_layer_names=targets)
    if not converted_first:
        keras_graphattn.convert(backbone, order=4)
    trained = {v.path: to_numpy(v) for v in backbone.trainable_variables}
    as_before = unnumbered(v.path for v in plain.trainable_variables)
    assert any("lora" in path for path in as_before)
    assert unnumbered(path for path in trained if "coefficient" not in path) == as_before
    assert len(trained) == len(as_before) + 3 * len(attentions_of(backbone))
    step(backbone, inputs_of(backbone))
    for path, old in trained.items():
        if "coefficient" in path:
            assert np.abs(to_numpy(variables(backbone)[path]) - old).max() > 1e-6, path


@pytest.mark.slow
@pytest.mark.parametrize("quantised_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_int8(name, quantised_first, tmp_path):
    backbone = random_model(name)
    inputs = inputs_of(backbone)
    exact = outputs(backbone, inputs)
    if quantised_first:
        backbone.quantize("int8")
    keras_graphattn.convert(backbone, order=4)
    if not quantised_first:
        backbone.quantize("int8")
    rounded = outputs(backbone, inputs)
    for new, old in zip(rounded, exact, strict=True):
        assert np.abs(new - old).max() < 0.3 * np.abs(old).max()
    assert any(np.abs(new - old).max() > 0 for new, old in zip(rounded, exact, strict=True))
    if name == "parseq":
        return  # KerasHub 0.32 does not load the file of an int8 PARSeq, converted or not
    backbone.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    assert_equal_outputs(outputs(loaded, inputs), rounded, tolerance=1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", fast_for(CLASSES, ("t5",)))
def test_bfloat16(name, attention, tmp_path):
    exact = converted(name, attention)
    # Moonshine hands the dtype of its variables on, and so computes in float32 under a mixed one.
    policy = "bfloat16" if name == "moonshine" else "mixed_bfloat16"
    backbone = type(exact).from_config({**exact.get_config(), "dtype": policy})
    exact.save_weights(tmp_path / "model.weights.h5")
    backbone.load_weights(tmp_path / "model.weights.h5")
    assert attentions_of(backbone)[0].compute_dtype == "bfloat16"
    inputs = inputs_of(exact)
    for new, old in zip(outputs(backbone, inputs), outputs(exact, inputs), strict=True):
        assert np.abs(new - old).max() < 0.2 * np.abs(old).max()  # T5 does not scale its scores
