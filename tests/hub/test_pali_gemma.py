"""PaliGemma: Gemma's attention after image tokens, which see each other as the prompt does."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.biased_decoders import WINDOWED, attentions_of, moved
from tests.hub.composed_models import pali_gemma
from tests.hub.models import VOCABULARY, assert_equal_outputs, fit_one_step, outputs, random_inputs
from tests.numerics import to_numpy

models = keras_hub.models
PROMPT = 4


def random_backbone(**options):
    backbone = pali_gemma(**options)
    generator = np.random.default_rng(4)
    for variable in backbone.weights:
        shape = tuple(variable.shape)
        start = 0.0 if len(shape) > 1 else to_numpy(variable)
        variable.assign(start + 0.4 * generator.standard_normal(shape).astype("float32"))
    return backbone


def inputs_of(length=7):
    """Images, and texts whose first tokens are the prompt."""
    generator = np.random.default_rng(1)
    mask = np.ones((2, length), "int32")
    return {
        "images": generator.random((2, 8, 8, 3)).astype("float32"),
        "token_ids": generator.integers(2, VOCABULARY, mask.shape),
        "padding_mask": mask,
        "response_mask": mask * (np.arange(length) >= PROMPT),
    }


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
def test_starts_as_the_original_and_has_coefficients_in_tower_and_decoder(attention):
    backbone = random_backbone()
    inputs = random_inputs(backbone)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention, **({"p": 2} if "p_" in attention else {}))
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)
    rows = keras_graphattn.inspect(backbone)
    parts = [row.path.split("/")[0] for row in rows]
    assert parts == ["image_encoder", "decoder_block_0", "decoder_block_1"]
    keras_graphattn.revert(backbone)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0)


@pytest.mark.slow_on("jax")
def test_a_training_step_moves_every_coefficient():
    backbone = keras_graphattn.convert(random_backbone(), order=4)
    found = [v for layer in attentions_of(backbone) for v in layer.coefficients]
    before = [to_numpy(v) for v in found]
    fit_one_step(backbone, inputs_of())
    for variable, old in zip(found, before, strict=True):
        assert (np.abs(to_numpy(variable) - old) > 1e-6).all(), variable.path


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("kind", ["pali_gemma", "pali_gemma2"])
def test_files_presets_and_tasks(kind, tmp_path):
    options = {} if kind == "pali_gemma" else {**WINDOWED, "attention_logit_soft_cap": 2.0}
    backbone = moved(keras_graphattn.convert(random_backbone(**options), order=4))
    inputs = inputs_of()
    task = models.PaliGemmaCausalLM(preprocessor=None, backbone=backbone)
    backbone.save(tmp_path / "model.keras")
    task.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    preset = models.PaliGemmaCausalLM.from_preset(str(tmp_path / "preset"), preprocessor=None)
    assert type(preset).__name__ == "GraphAttentionPaliGemmaCausalLM"
    for each in (loaded, preset.backbone):
        assert_equal_outputs(outputs(each, inputs), outputs(backbone, inputs))


def greedy_without_cache(task, inputs):
    ids = inputs["token_ids"].copy()
    for index in range(PROMPT, ids.shape[1]):
        (logits,) = outputs(task, {**inputs, "token_ids": ids})
        ids[:, index] = np.argmax(logits[:, index - 1], axis=-1)
    return ids


def generated(task, inputs):
    task.compile(sampler="greedy", run_eagerly=keras.backend.backend() == "tensorflow")
    mask = inputs["response_mask"] == 0
    given = {**inputs, "token_ids": inputs["token_ids"] * mask, "padding_mask": mask}
    found = task.generate(given, stop_token_ids=None)
    return np.asarray(ops.convert_to_numpy(found["token_ids"]))


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian", "new"])
@pytest.mark.parametrize("length", [9, pytest.param(PROMPT + 64, marks=pytest.mark.slow)])
def test_decoding_gives_the_tokens_of_the_full_pass(attention, length):
    task = models.PaliGemmaCausalLM(preprocessor=None, backbone=random_backbone())
    inputs = inputs_of(length)
    if attention == "new":
        expected = generated(task, inputs)
        keras_graphattn.convert(task)
    else:
        moved(keras_graphattn.convert(task, attention))
        expected = greedy_without_cache(task, inputs)
    np.testing.assert_array_equal(generated(task, inputs), expected)
    assert len(np.unique(expected[:, PROMPT:])) > 2
