"""Encoders with attention of their own: files, presets, tasks, LoRA, int8, half precision."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.biased_decoders import attentions_of, moved, variables
from tests.hub.encoders import (
    ENCODERS,
    SITES,
    SPAN,
    converted,
    inputs_of,
    random_encoder,
)
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs
from tests.numerics import to_numpy

models = keras_hub.models
# In the fast suite, one family stands for all.
NAMES = [
    name if name == "deberta_v3" else pytest.param(name, marks=pytest.mark.slow)
    for name in ENCODERS
]
LORA = {name: ["q_dense_layer", "v_dense_layer"] for name in ("roformer_v2", "esm", "esm_absolute")}
TASKS = {
    "deberta_v3": (models.DebertaV3TextClassifier, models.DebertaV3MaskedLM),
    "esm": (models.ESMProteinClassifier, models.ESMMaskedPLM),
    "roformer_v2": (models.RoformerV2TextClassifier, models.RoformerV2MaskedLM),
}


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", NAMES)
def test_files_and_presets(name, attention, tmp_path):
    backbone = converted(name, attention)
    inputs = inputs_of(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    backbone.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    preset = models.Backbone.from_preset(str(tmp_path / "preset"))
    for each in (loaded, preset):
        assert str(keras_graphattn.inspect(each)) == str(keras_graphattn.inspect(backbone))
        assert_equal_outputs(outputs(each, inputs), expected)
    backbone.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="Layer"):  # the original does not take them for its own
        ENCODERS[name]().load_weights(tmp_path / "model.weights.h5")


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_its_layers(name, tmp_path):
    """The layers that hold the attention tell their own configuration."""
    backbone = converted(name)
    inputs = inputs_of(backbone)
    if name == "deberta_v3":  # KerasHub's embedding of distances cannot be loaded outside of it
        tokens, distances = keras.Input((None, 8)), keras.Input((2 * SPAN, 8))
        made = backbone.transformer_layers[1](tokens, rel_embeddings=distances)
        model = keras.Model({"tokens": tokens, "distances": distances}, made)
        generator = np.random.default_rng(1)
        inputs = {
            "tokens": generator.standard_normal((2, 7, 8)).astype("float32"),
            "distances": generator.standard_normal((2, 2 * SPAN, 8)).astype("float32"),
        }
    elif name == "video_prism_with_texts":
        model = keras.Model(backbone.input["pixel_values"], backbone.output["vision_embeddings"])
        inputs = {"images": inputs["pixel_values"]}
    elif name == "video_prism":
        model = keras.Model(backbone.input, backbone.output)
    else:
        found = keras.tree.flatten(backbone.transformer_layers[1].output)
        model = keras.Model(backbone.input, found[0])  # XLNet's second one is `None`
    expected = outputs(model, inputs)
    model.save(tmp_path / "model.keras")
    assert_equal_outputs(
        outputs(keras.saving.load_model(tmp_path / "model.keras"), inputs), expected
    )


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("kind", ["classifier", "masked_lm"])
@pytest.mark.parametrize("name", [n for n in NAMES if n == "deberta_v3" or n.values[0] in TASKS])
def test_tasks(name, kind, tmp_path):
    backbone = random_encoder(name)
    inputs = inputs_of(backbone)
    if kind == "classifier":
        task = TASKS[name][0](backbone=backbone, num_classes=3)
    else:
        task = TASKS[name][1](backbone=backbone)
        inputs["mask_positions"] = np.array([[1, 2], [0, 4]])
    before = task.predict_on_batch(inputs)
    keras_graphattn.convert(task, order=4)
    np.testing.assert_allclose(task.predict_on_batch(inputs), before, atol=1e-5)
    moved(task)
    expected = task.predict_on_batch(inputs)
    assert np.abs(expected - before).max() > 1e-3
    task.save(tmp_path / "task.keras")
    task.save_to_preset(str(tmp_path / "preset"))
    of_kind = models.TextClassifier if kind == "classifier" else models.MaskedLM
    for loaded in (
        keras.saving.load_model(tmp_path / "task.keras"),
        of_kind.from_preset(str(tmp_path / "preset"), preprocessor=None),
    ):
        assert (
            type(loaded).__name__ == f"GraphAttention{TASKS[name][kind != 'classifier'].__name__}"
        )
        np.testing.assert_allclose(loaded.predict_on_batch(inputs), expected, atol=1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("converted_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_lora(name, converted_first):
    plain = random_encoder(name)
    plain.enable_lora(2, target_layer_names=LORA.get(name))
    backbone = converted(name) if converted_first else random_encoder(name)
    backbone.enable_lora(2, target_layer_names=LORA.get(name))
    if not converted_first:
        keras_graphattn.convert(backbone, order=4)
    trained = {v.path: to_numpy(v) for v in backbone.trainable_variables}
    as_before = {v.path for v in plain.trainable_variables}
    assert any("lora" in path for path in as_before)
    assert {path for path in trained if "coefficient" not in path} == as_before
    assert len(trained) == len(as_before) + 3 * SITES.get(name, 2)
    fit_one_step(backbone, inputs_of(backbone))
    for path, old in trained.items():
        if "coefficient" in path:
            assert np.abs(to_numpy(variables(backbone)[path]) - old).max() > 1e-6, path


@pytest.mark.slow
@pytest.mark.parametrize("quantised_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_int8(name, quantised_first, tmp_path):
    backbone = random_encoder(name)
    inputs = inputs_of(backbone)
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
    inputs = inputs_of(backbone)
    for new, old in zip(outputs(backbone, inputs), outputs(exact, inputs), strict=True):
        assert np.abs(new - old).max() < 0.1 * np.abs(old).max()
