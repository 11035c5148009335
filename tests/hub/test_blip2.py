"""BLIP-2: the tower, the learned tokens and the text attend; the text is OPT's or T5's."""

import keras
import numpy as np
import pytest

import keras_graphattn
from tests.hub.composed_models import blip2
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs, random_inputs
from tests.hub.vision_models import attentions_of, randomised
from tests.numerics import to_numpy

SITES = {"opt": 2 + 2 + 2, "t5": 2 + 2 + 4}  # layers of the tower, of the tokens, and of the text


def made(kind):
    backbone = randomised(blip2(kind))
    return backbone, random_inputs(backbone)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("kind", SITES)
def test_starts_with_the_outputs_of_the_original(kind, attention):
    backbone, inputs = made(kind)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention, **({"p": 2} if attention == "p_laplacian" else {}))
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)
    assert len(keras_graphattn.inspect(backbone)) == SITES[kind]
    keras_graphattn.revert(backbone)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0)


@pytest.mark.parametrize("kind", SITES)
def test_the_attention_of_the_learned_tokens_at_the_image_stays_as_it_is(kind):
    backbone, _ = made(kind)
    layer = backbone.qformer.transformer_layers[0]
    keras_graphattn.convert(backbone)
    assert type(layer.cross_attention.attention) is keras.layers.MultiHeadAttention
    assert type(layer.self_attention.attention).__name__ == "GraphFilterAttention"


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("kind", SITES)
def test_a_training_step_moves_every_coefficient_and_a_file_keeps_them(kind, tmp_path):
    backbone, inputs = made(kind)
    keras_graphattn.convert(backbone, order=4)
    coefficients = [v for layer in attentions_of(backbone) for v in layer.coefficients]
    before = [to_numpy(v) for v in coefficients]
    fit_one_step(backbone, inputs)
    assert len(coefficients) == 3 * SITES[kind]
    for variable, old in zip(coefficients, before, strict=True):
        assert (np.abs(to_numpy(variable) - old) > 1e-6).all(), variable.path
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), outputs(backbone, inputs))
