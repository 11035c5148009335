"""Converted models train their coefficients at a rate of their own, however they are compiled."""

import warnings

import keras
import keras_hub
import pytest

import keras_graphattn
from keras_graphattn import layers, masks
from keras_graphattn.optimizers import applies_coefficient_rates, with_coefficient_rates
from tests.hub.models import BACKBONES, VOCABULARY


def classifier(attention="graph_filter", num_layers=1, **options):
    task = keras_hub.models.BertTextClassifier(BACKBONES["bert"](num_layers=num_layers), 2)
    return keras_graphattn.convert(task, attention, **options)


@pytest.mark.parametrize("optimizer", ["auto", "sgd", keras.optimizers.Lion(1e-4)])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_compiling_a_converted_task_gives_the_rate(optimizer, policy):
    keras.config.set_dtype_policy(policy)
    task = classifier()
    task.compile(optimizer)
    assert applies_coefficient_rates(task.optimizer)
    assert keras_graphattn.inspect(task).note == ""
    scales = isinstance(task.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == (policy == "mixed_float16")


def test_converting_a_compiled_task_gives_the_rate_and_reverting_takes_it_back():
    task = keras_hub.models.BertTextClassifier(BACKBONES["bert"](), 2)
    task.compile(keras.optimizers.Adam(1e-3))
    around = keras.Model(task.input, task.output)
    around.compile(keras.optimizers.Adam(1e-3))
    for model in (task, around):
        keras_graphattn.convert(model)
        assert applies_coefficient_rates(model.optimizer)
        keras_graphattn.revert(model)
        assert not applies_coefficient_rates(model.optimizer)
        assert type(model.optimizer).__name__ == "Adam"


def test_no_warning_where_compile_gave_rates_to_a_model_without_coefficients():
    task = classifier("p_laplacian")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.compile("adam")
        task.optimizer.build(task.trainable_variables)
    assert applies_coefficient_rates(task.optimizer)


def test_multipliers_are_shown_and_adjustable(tmp_path):
    task = classifier(num_layers=2, where=0, coefficient_learning_rate_multiplier=30)
    keras_graphattn.convert(task, "p_laplacian", where=1)
    task.compile(with_coefficient_rates("adam", multiplier=7.0))
    assert task.optimizer.coefficient_learning_rate_multiplier == 7.0
    rows = keras_graphattn.inspect(task)
    assert [row.coefficient_learning_rate_multiplier for row in rows] == [30.0, None]
    assert "x30" in str(rows)
    task.backbone.save(tmp_path / "backbone.keras")
    loaded = keras.saving.load_model(tmp_path / "backbone.keras")
    assert str(keras_graphattn.inspect(loaded)) == str(rows)


def test_a_composed_model_takes_one_line_and_inspect_says_so():
    backbone = keras_graphattn.convert(BACKBONES["bert"]())
    outputs = keras.layers.Dense(2)(backbone.output["pooled_output"])
    model = keras.Model(backbone.input, outputs)
    model.compile("adam", loss="mse")
    assert "with_coefficient_rates" in str(keras_graphattn.inspect(model))
    model.compile(with_coefficient_rates("adam"), loss="mse")
    assert "with_coefficient_rates" not in str(keras_graphattn.inspect(model))


def test_inspect_says_where_a_plain_optimizer_ignores_the_multiplier_of_a_mask():
    tokens = keras.Input((4, 6))
    layer = layers.MaskedKernelAttention(2, 3, mask=masks.Exponential())
    model = keras.Model(tokens, layer(tokens))
    model.compile("adam", loss="mse")
    [row] = table = keras_graphattn.inspect(model)
    assert row.coefficient_learning_rate_multiplier == layer.mask.default_multiplier
    assert "does not apply these rates" in table.note
    model.compile(with_coefficient_rates("adam"), loss="mse")
    assert keras_graphattn.inspect(model).note == ""


def test_a_saved_backbone_is_loaded_compiled_as_it_was(tmp_path):
    backbone = keras_graphattn.convert(BACKBONES["bert"]())
    backbone.compile(keras.optimizers.Adam(1e-4), loss="mse")
    backbone.optimizer.build(backbone.trainable_variables)
    backbone.optimizer.iterations.assign(5)
    backbone.save(tmp_path / "backbone.keras")
    loaded = keras.saving.load_model(tmp_path / "backbone.keras")
    assert applies_coefficient_rates(loaded.optimizer)
    assert int(loaded.optimizer.iterations) == 5
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(1e-4)
    assert loaded.vocabulary_size == VOCABULARY
