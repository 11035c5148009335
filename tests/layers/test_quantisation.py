"""`model.quantize` on models of the layers: errors, what stays, files, serving, refusals."""

import json

import keras
import numpy as np
import pytest

from keras_graphattn import export_saved_model
from keras_graphattn.layers import GraphFilterAttention
from keras_graphattn.layers.quantisation import CALIBRATES, NOT_CALIBRATED
from tests.layers.capabilities import ROWS as CAPABLE
from tests.layers.capabilities import model_of as small_model_of
from tests.layers.quantisation import (
    MODES,
    ROWS,
    STOCK_ROWS,
    assert_within_limits,
    error,
    model_of,
    quantised,
)
from tests.layers.quantisation_table import ERRORS, PAGE, rendered
from tests.numerics import BACKEND, to_numpy

GFA = "`GraphFilterAttention`"
OURS = [name for name in ROWS if name not in STOCK_ROWS]


def test_the_page_is_that_of_the_errors_and_all_are_within_their_limits():
    kept = json.loads(ERRORS.read_text())
    assert PAGE.read_text() == rendered(kept)
    for of_backend in kept["errors"].values():
        assert list(of_backend) == list(MODES)
        for measured in of_backend.values():
            assert list(measured) == list(ROWS)
            assert_within_limits(measured)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_error_is_near_that_of_keras_own_layer(mode):
    assert_within_limits({name: error(name, mode) for name in ROWS})


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPABLE)
def test_coefficients_and_the_weights_of_masks_and_biases_stay(name):
    model, inputs = small_model_of(CAPABLE[name])
    before = {v.path: (v.dtype, to_numpy(v)) for v in model.variables}
    quantised(model, inputs, "int8")
    after = {v.path: (v.dtype, to_numpy(v)) for v in model.variables}
    for path, (dtype, value) in before.items():
        if not path.endswith("/kernel") or "convolution" in path:  # projections have kernels
            assert after[path][0] == dtype, path
            np.testing.assert_array_equal(after[path][1], value, err_msg=path)
    assert any(dtype == "int8" for dtype, _ in after.values())


def assert_lasts(name, mode, folder, channels):
    model, inputs = model_of(name, 0, channels)
    expected = to_numpy(quantised(model, inputs, mode)(inputs))
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    modes = [layer.quantization_mode for layer in model._flatten_layers()]
    assert mode in modes
    assert [layer.quantization_mode for layer in loaded._flatten_layers()] == modes
    np.testing.assert_allclose(to_numpy(loaded(inputs)), expected, atol=1e-6)
    model.save_weights(folder / "model.weights.h5")
    other = quantised(*model_of(name, 1, channels)[:1], inputs, mode)
    assert np.abs(to_numpy(other(inputs)) - expected).max() > 1e-3
    other.load_weights(folder / "model.weights.h5")
    np.testing.assert_allclose(to_numpy(other(inputs)), expected, atol=1e-6)
    return model, inputs, expected


@pytest.mark.slow_on("jax")
def test_a_file_of_a_quantised_model_is_loaded(tmp_path):
    assert_lasts(GFA, "float8", tmp_path, 8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OURS)
def test_files_and_served_graphs_hold_the_rounded_numbers(name, mode, tmp_path):
    model, inputs, expected = assert_lasts(name, mode, tmp_path, 16)
    if BACKEND == "torch" and name != GFA:
        return  # a process of TensorFlow loads the file: one layer is enough
    import tensorflow as tf

    served = tf.saved_model.load(str(export_saved_model(model, tmp_path / "served")))
    found = served.signatures["serving_default"](**{k: tf.constant(x) for k, x in inputs.items()})
    (outputs,) = found.values()
    np.testing.assert_allclose(outputs.numpy(), expected, atol=1e-4)


def test_quantisers_of_ones_own_are_refused_in_a_file(tmp_path):
    """A policy names the kind of quantisation only: the loaded model would give other numbers."""
    tokens = keras.Input((5, 8))
    model = keras.Model(tokens, GraphFilterAttention(2, 4)(tokens))
    model.quantize(config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
    with pytest.raises(ValueError, match=r"quantisers of your own.*save_weights"):
        model.save(tmp_path / "model.keras")


@pytest.mark.skipif(CALIBRATES, reason="this release of Keras calibrates")
@pytest.mark.parametrize("mode", NOT_CALIBRATED)
def test_methods_that_keras_does_not_calibrate_are_refused(mode):
    tokens = keras.Input((5, 8))
    block = GraphFilterAttention(2, 4, name="block")
    model = keras.Model(tokens, block(tokens))
    kind = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}[mode]
    structure = {"pre_block_layers": [keras.layers.Embedding(9, 8)], "sequential_blocks": [block]}
    config = kind(
        dataset=[np.arange(8)[None]],
        tokenizer=list,
        num_samples=1,
        sequence_length=5,
        group_size=8,
        quantization_layer_structure=structure,
    )
    with pytest.raises(ValueError, match=r"does not run with GPTQ or AWQ.*Make the model again"):
        model.quantize(config=config)
