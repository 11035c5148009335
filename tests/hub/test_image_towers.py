"""The towers of PaliGemma, Gemma 3, Gemma 4 and Qwen3.5 that read images."""

import keras
import numpy as np
import pytest

import keras_graphattn
from tests.hub.image_towers import (
    CLASSES,
    LAYERS,
    REAL,
    TOWERS,
    answers,
    converted,
    inputs_of,
    random_tower,
)
from tests.hub.models import assert_equal_outputs
from tests.hub.twins import assert_is_twin
from tests.hub.vision_models import attentions_of
from tests.hub.vision_twins import names_of_weights
from tests.numerics import to_numpy

EXPONENTS = {2: [1.5, 2.5], 4: [1.5, 2.5, 1.0, 3.0]}


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", TOWERS)
def test_starts_with_the_outputs_of_the_original(name, attention):
    tower, inputs = random_tower(name), inputs_of(name)
    before = answers(tower, inputs)
    keras_graphattn.convert(tower, attention, **({"p": 2} if attention == "p_laplacian" else {}))
    assert_equal_outputs(answers(tower, inputs), before, tolerance=1e-5)
    assert [type(x).__name__ for x in attentions_of(tower)] != [CLASSES[name]] * 2
    keras_graphattn.revert(tower)
    assert_equal_outputs(answers(tower, inputs), before, tolerance=0)
    assert [type(x).__name__ for x in attentions_of(tower)] == [CLASSES[name]] * 2


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    shape, call, twin = LAYERS[name]
    heads = 4 if name == "gemma4" else 2
    exponents = None if attention == "graph_filter" else EXPONENTS[heads]
    tower = converted(name, attention, **({} if exponents is None else {"p": exponents}))
    layer = attentions_of(tower)[0]
    x = np.random.default_rng(5).standard_normal(shape).astype("float32")
    assert_is_twin(
        layer,
        lambda x: call(layer, x),
        lambda weights, x: twin(weights, x, exponents),
        names_of_weights(layer),
        input=x,
    )


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", [name for name in TOWERS if name != "qwen3_5"])
def test_a_training_step_moves_every_coefficient(name):
    tower = keras_graphattn.convert(random_tower(name), order=4)
    coefficients = [v for layer in attentions_of(tower) for v in layer.coefficients]
    before = [to_numpy(v) for v in coefficients]
    inputs = inputs_of(name)
    (found,) = answers(tower, inputs)
    tower.compile(keras.optimizers.SGD(1e-2), "mse")
    tower.train_on_batch(inputs, np.random.default_rng(2).standard_normal(found.shape))
    assert len(coefficients) == 6
    for variable, old in zip(coefficients, before, strict=True):
        assert (np.abs(to_numpy(variable) - old) > 1e-7).all(), variable.path


@pytest.mark.parametrize("name", TOWERS)
def test_lasts_in_a_keras_file(name, tmp_path):
    tower, inputs = converted(name), inputs_of(name)
    tower.save(tmp_path / "tower.keras")
    loaded = keras.saving.load_model(tmp_path / "tower.keras")
    assert [row.parameters_added for row in keras_graphattn.inspect(loaded)] == [
        row.parameters_added for row in keras_graphattn.inspect(tower)
    ]
    assert_equal_outputs(answers(loaded, inputs), answers(tower, inputs), tolerance=1e-6)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("path", ["blockwise", "fused"])
def test_paths_change_no_number(name, path):
    inputs = inputs_of(name)
    found = answers(converted(name, attention_path=path, block_size=4), inputs)
    assert_equal_outputs(found, answers(converted(name), inputs), tolerance=1e-5)


@pytest.mark.parametrize("path", ["blockwise", "fused"])
def test_a_bias_that_a_path_would_leave_out_is_refused(path):
    shape, call, _ = LAYERS["pali_gemma"]
    (layer, _) = attentions_of(converted("pali_gemma", attention_path=path))
    with pytest.raises(ValueError, match=f'bias of its scores.*attention_path="{path}"'):
        call(layer, np.zeros(shape, "float32"))


@pytest.mark.parametrize("name", ["pali_gemma", "gemma3"])
def test_returns_the_matrix_of_which_the_filter_is_one(name):
    (shape, *_) = LAYERS[name]
    x = np.random.default_rng(5).standard_normal(shape).astype("float32")
    (plain, _), (layer, _) = attentions_of(random_tower(name)), attentions_of(converted(name))
    matrix = layer(x, return_attention_scores=True)[1]
    np.testing.assert_allclose(to_numpy(matrix), to_numpy(plain(x)[1]), atol=1e-6)
    assert layer(x)[1] is None


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("filling", [1.0, 1e15])
def test_patches_that_fill_an_image_up_change_nothing(attention, filling):
    tower = converted("gemma4", attention)
    expected = answers(tower, inputs_of("gemma4"))
    assert REAL.min() < 9
    assert_equal_outputs(answers(tower, inputs_of("gemma4", filling)), expected, tolerance=1e-6)


@pytest.mark.parametrize("attention", ["masked_kernel", "attentive_graph_filter"])
@pytest.mark.parametrize("name", TOWERS)
def test_refuses_attention_of_another_kind(name, attention):
    with pytest.raises(
        ValueError, match=f"'{attention}' cannot take the place of .*{CLASSES[name]}"
    ):
        keras_graphattn.convert(TOWERS[name](), attention)
