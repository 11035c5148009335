"""Callbacks that save and restore models during training, and weights in several files."""

import json

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import layers, masks
from keras_graphattn.optimizers import with_coefficient_rates
from tests.layers.capabilities import chain
from tests.numerics import BACKEND, to_numpy

pytestmark = pytest.mark.slow

BATCH, LENGTH, CHANNELS, EPOCHS = 4, 6, 8, 4


def of_layers():
    """Layers with coefficients of a filter, weights of a mask, and state of their own."""
    return chain(
        [
            layers.GraphFilterAttention(2, 4, order=3, name="filter"),
            layers.MaskedKernelAttention(2, 4, mask=masks.Exponential(), name="kernel"),
            layers.GatedDeltaRule(2, 4, name="delta"),
        ],
        {},
        (BATCH, LENGTH, CHANNELS),
    )


def converted():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=CHANNELS,
        intermediate_dim=16,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    keras_graphattn.convert(backbone)
    return keras.Model(backbone.input, backbone.output["sequence_output"])


MODELS = {"layers": of_layers, "converted": converted}


def made(name, seed=0, **options):
    """A compiled model, and its data."""
    keras.utils.set_random_seed(seed)
    model = MODELS[name]()
    model.compile(with_coefficient_rates(keras.optimizers.Adam(1e-2, **options)), "mse")
    draw = np.random.default_rng(0)
    target = draw.standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
    if name == "layers":
        return model, {"tokens": draw.standard_normal(target.shape).astype("float32")}, target
    inputs = {key: np.ones((BATCH, LENGTH), "int32") for key in model.input}
    inputs["token_ids"] = draw.integers(0, 20, (BATCH, LENGTH))
    inputs["segment_ids"] = np.zeros((BATCH, LENGTH), "int32")
    return model, inputs, target


def fit(model, inputs, target, epochs, *callbacks, batch_size=2):
    options = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    return model.fit(inputs, target, epochs=epochs, callbacks=list(callbacks), **options)


def state_of(model):
    """All numbers of a model and of its optimizer, in order."""
    return [to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]


def assert_same_state(model, expected):
    for found, value in zip(state_of(model), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_where_it_was_interrupted(name, tmp_path):
    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    model, *data = made(name)
    fit(model, *data, EPOCHS)
    expected = state_of(model)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    model, *data = made(name)
    with pytest.raises(InterruptedError):
        fit(model, *data, EPOCHS, backup, Stops())
    model, *data = made(name, seed=1)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    assert fit(model, *data, EPOCHS, backup).epoch == [2, 3]
    assert_same_state(model, expected)


@pytest.mark.parametrize("name", MODELS)
def test_averages_of_weights_are_swapped_in_for_a_checkpoint(name, tmp_path):
    model, *data = made(name, use_ema=True, ema_momentum=0.5)
    path = tmp_path / "model.weights.h5"
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit(model, *data, 3, swap, save)
    again, *_ = made(name, seed=1)
    again.load_weights(path)
    last, *data = made(name)  # the same training without averages
    fit(last, *data, 3)
    moved = 0
    for saved, swapped, plain in zip(
        again.trainable_variables, model.trainable_variables, last.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(to_numpy(saved), to_numpy(swapped), err_msg=saved.path)
        moved += "coefficient" in saved.path and (to_numpy(saved) != to_numpy(plain)).any()
    assert moved


@pytest.mark.parametrize("name", MODELS)
def test_weights_in_several_files(name, tmp_path):
    model, inputs, target = made(name)
    fit(model, inputs, target, 1)
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=1e-6)  # gigabytes
    assert len(list(tmp_path.glob("*.h5"))) > 2
    again, *_ = made(name, seed=1)
    again.load_weights(tmp_path / "model.weights.json")
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)
    index = json.loads((tmp_path / "model.weights.json").read_text())
    assert index["metadata"]


@pytest.mark.parametrize("name", MODELS)
def test_orbax_keeps_the_state_of_training(name, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    model, *data = made(name)
    callback = keras.callbacks.OrbaxCheckpoint(tmp_path, save_on_background=False)
    fit(model, *data, 2, callback)
    again = keras.saving.load_model(tmp_path)
    inputs = data[0]
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution is jax's")
def test_weights_that_eight_devices_hold_in_parts_are_loaded_on_one(tmp_path):
    from pathlib import Path

    from tests.recipes.command_line import run_to_its_end

    run_to_its_end(Path(__file__).with_name("checkpoint_of_eight.py"), tmp_path)
    for name in MODELS:
        expected = np.load(tmp_path / f"{name}.npy")
        for file in (f"{name}.keras", f"{name}.weights.h5", f"{name}.weights.json"):
            model, inputs, _ = made(name, seed=1)
            if file.endswith(".keras"):
                model = keras.saving.load_model(tmp_path / file)
            else:
                model.load_weights(tmp_path / file)
            np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5, err_msg=file)
