"""Decoders with soft cap, bias, sink or window: files, presets, LoRA, int8, half precision."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.biased_decoders import (
    DECODERS,
    TASKS,
    attentions_of,
    converted,
    greedy,
    prompts,
    random_decoder,
    task_of,
    variables,
)
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs, random_inputs
from tests.numerics import to_numpy

# In the fast suite, one family stands for all.
NAMES = [
    name if name == "gemma2" else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS
]
LORA = {"gpt_neo_x": ["query_key_value"]}


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", NAMES)
def test_files_and_presets(name, attention, tmp_path):
    backbone = converted(name, attention)
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    backbone.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    preset = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    for each in (loaded, preset):
        assert str(keras_graphattn.inspect(each)) == str(keras_graphattn.inspect(backbone))
        assert_equal_outputs(outputs(each, inputs), expected)
    backbone.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="Layer"):  # the original does not take them for its own
        DECODERS[name]().load_weights(tmp_path / "model.weights.h5")


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma3_embedding"])
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


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [n for n in NAMES if n == "gemma2" or n.values[0] in TASKS])
def test_a_preset_of_a_task(name, tmp_path):
    task = task_of(name, converted(name))
    task.save_to_preset(str(tmp_path))
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path), preprocessor=None)
    assert type(loaded).__name__ == f"GraphAttention{TASKS[name].__name__}"
    np.testing.assert_array_equal(greedy(loaded, prompts(8)), greedy(task, prompts(8)))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("converted_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_lora(name, converted_first):
    plain = random_decoder(name)
    plain.enable_lora(2, target_layer_names=LORA.get(name))
    backbone = converted(name) if converted_first else random_decoder(name)
    backbone.enable_lora(2, target_layer_names=LORA.get(name))
    if not converted_first:
        keras_graphattn.convert(backbone, order=4)
    trained = {v.path: to_numpy(v) for v in backbone.trainable_variables}
    as_before = {v.path for v in plain.trainable_variables}
    assert any("lora" in path for path in as_before)
    assert {path for path in trained if "coefficient" not in path} == as_before
    assert len(trained) == len(as_before) + 6
    fit_one_step(backbone, random_inputs(backbone))
    for path, old in trained.items():
        if "coefficient" in path:
            assert np.abs(to_numpy(variables(backbone)[path]) - old).max() > 1e-6, path


@pytest.mark.slow
@pytest.mark.parametrize("quantised_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_int8(name, quantised_first, tmp_path):
    backbone = random_decoder(name)
    inputs = random_inputs(backbone)
    exact = outputs(backbone, inputs)
    if quantised_first:
        backbone.quantize("int8")
    keras_graphattn.convert(backbone, order=4)
    if not quantised_first:
        backbone.quantize("int8")
    rounded = outputs(backbone, inputs)
    for new, old in zip(rounded, exact, strict=True):
        assert 0 < np.abs(new - old).max() < 0.3 * np.abs(old).max()
    backbone.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    assert_equal_outputs(outputs(loaded, inputs), rounded, tolerance=1e-5)


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", NAMES)
def test_mixed_bfloat16(name, attention, tmp_path):
    exact = converted(name, attention)
    backbone = type(exact).from_config({**exact.get_config(), "dtype": "mixed_bfloat16"})
    exact.save_weights(tmp_path / "model.weights.h5")
    backbone.load_weights(tmp_path / "model.weights.h5")
    layer = attentions_of(backbone)[0]
    assert layer.compute_dtype == "bfloat16"
    assert {v.dtype for v in layer.coefficients} <= {"float32"}
    inputs = random_inputs(backbone)
    for new, old in zip(outputs(backbone, inputs), outputs(exact, inputs), strict=True):
        assert np.abs(new - old).max() < 0.1 * np.abs(old).max()
