"""Encoders with attention of their own: tasks, and models of their layers."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.biased_decoders import moved
from tests.hub.encoders import (
    ENCODERS,
    SPAN,
    converted,
    inputs_of,
    random_encoder,
)
from tests.hub.models import assert_equal_outputs, outputs

models = keras_hub.models
# In the fast suite, one family stands for all.
NAMES = [
    name if name == "deberta_v3" else pytest.param(name, marks=pytest.mark.slow)
    for name in ENCODERS
]
TASKS = {
    "deberta_v3": (models.DebertaV3TextClassifier, models.DebertaV3MaskedLM),
    "esm": (models.ESMProteinClassifier, models.ESMMaskedPLM),
    "roformer_v2": (models.RoformerV2TextClassifier, models.RoformerV2MaskedLM),
}


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
