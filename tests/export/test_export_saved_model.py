"""Exports whole models and runs their graphs without Keras."""

import logging
import re

import keras
import numpy as np
import pytest

from keras_graphattn.export import export_saved_model
from keras_graphattn.export.saved_model import STABLEHLO, _write_by_tensorflow_process
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention
from tests.export.registered_layer import Doubled, Unregistered, halved
from tests.export.served import assert_served, run_in_process, signature_of

LENGTH, CHANNELS = 12, 5
BATCHES = (1, 7, 370)


def attention(series, padding_mask, dtype=None):
    x = keras.layers.Dense(8, dtype=dtype)(series)
    for layer in (
        AttentiveGraphFilter(2, 4, dropout=0.5, dtype=dtype),
        GraphFilterAttention(2, 4, dropout=0.5, dtype=dtype),
    ):
        x = x + layer(x, query_mask=padding_mask, value_mask=padding_mask)
    pool = keras.layers.GlobalAveragePooling1D(dtype=dtype)
    return pool(x, mask=padding_mask)


def masked_inputs(length=LENGTH):
    series = keras.Input((length, CHANNELS), name="series")
    return series, keras.Input((length,), dtype="bool", name="padding_mask")


def arrays(batch, length=LENGTH):
    generator = np.random.default_rng(batch)
    series = generator.normal(size=(batch, length, CHANNELS)).astype("float32")
    lengths = generator.integers(1, length + 1, size=(batch, 1))
    return {"series": series, "padding_mask": np.arange(length) < lengths}


def assert_served_like_predicted(model, path, batches, scratch, names, tolerance=1e-5):
    expected = []
    for batch in batches:
        structure = batch if isinstance(model.input, dict) else list(batch.values())
        outputs = model.predict(structure, batch_size=BATCHES[-1], verbose=0)
        arrays = [array.astype("float32") for array in keras.tree.flatten(outputs)]
        expected.append(dict(zip(names, arrays, strict=True)))
    assert_served(path, batches, expected, scratch, tolerance=tolerance)


@pytest.mark.slow_on("jax", "torch")
def test_trained_model_with_a_dict_of_inputs(tmp_path):
    series, padding_mask = masked_inputs()
    speaker = keras.Input((), dtype="int64", name="speaker")
    x = attention(series, padding_mask) + keras.layers.Embedding(4, 8)(speaker)
    x = Doubled()(keras.layers.BatchNormalization()(x))
    outputs = {"scores": keras.layers.Dense(3)(x), "half": keras.layers.Activation(halved)(x)}
    inputs = {"series": series, "padding_mask": padding_mask, "speaker": speaker}
    model = keras.Model(inputs, outputs)
    batches = [
        {**arrays(batch), "speaker": np.arange(batch, dtype="int64") % 4} for batch in BATCHES
    ]
    model.compile("sgd", loss="mse", metrics={"scores": "mae"})
    targets = {"scores": np.zeros((BATCHES[-1], 3)), "half": np.zeros((BATCHES[-1], 8))}
    model.fit(batches[-1], targets, batch_size=BATCHES[-1], verbose=0)

    path = export_saved_model(model, tmp_path / "served")

    assert path == tmp_path / "served" / "1"
    assert [entry.name for entry in path.parent.iterdir()] == ["1"]
    names = sorted(outputs)
    assert_served_like_predicted(model, path, batches, tmp_path, names)
    assert signature_of(path) == (
        {
            "series": ((-1, LENGTH, CHANNELS), "float32"),
            "padding_mask": ((-1, LENGTH), "bool"),
            "speaker": ((-1,), "int64"),
        },
        {"half": ((-1, 8), "float32"), "scores": ((-1, 3), "float32")},
    )


@pytest.mark.slow_on("jax", "torch")
@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 0.1)])
def test_list_of_inputs_with_open_length_leaves_as_float32(policy, tolerance, tmp_path):
    series, padding_mask = masked_inputs(length=None)
    x = attention(series, padding_mask, dtype=policy)
    outputs = keras.layers.Dense(3, name="classes", dtype=policy)(x)
    model = keras.Model([series, padding_mask], outputs)
    assert keras.backend.standardize_dtype(model.output.dtype) == policy.removeprefix("mixed_")
    path = export_saved_model(model, tmp_path / "served", version=20260101)
    assert path.name == "20260101"
    batches = [arrays(batch, length) for batch, length in zip(BATCHES, (1, 31, 12), strict=True)]
    assert_served_like_predicted(model, path, batches, tmp_path, ["classes"], tolerance)


@pytest.mark.slow_on("torch")
def test_vocabularies_are_served(tmp_path):
    numbers = keras.Input((None,), dtype="int64", name="numbers")
    lookup = keras.layers.IntegerLookup(vocabulary=[5, 6, 7], name="lookup")
    outputs = keras.layers.Embedding(5, 2)(keras.Sequential([lookup])(numbers))
    model = keras.Model(numbers, outputs)
    batch = {"numbers": np.array([[6, 9, 7]], "int64")}
    if keras.backend.backend() == "jax":
        pytest.skip("a lookup cannot be traced on jax")
    path = export_saved_model(model, tmp_path / "served", signature={"three": {"numbers": (3,)}})
    (result,) = run_in_process(path, [batch], tmp_path, ["three"])
    table = keras.ops.convert_to_numpy(model.weights[0])
    np.testing.assert_allclose(next(iter(result.values()))[0], table[[2, 0, 3]])


@pytest.mark.slow_on("jax")
def test_failure_of_the_other_process_is_told(tmp_path):
    model = keras.Sequential([keras.Input((3,), name="series"), Unregistered()])
    with pytest.raises(
        RuntimeError, match=r"status 1:\nTypeError(.*\n)+.*Could not locate class 'Unregistered'"
    ):
        _write_by_tensorflow_process(model, tmp_path / "saved_model", "serving_default")
    assert not (tmp_path / "saved_model").exists()


@pytest.fixture
def logged():
    """What is logged to absl, where Keras and TensorFlow tell of errors."""
    records, logger = [], logging.getLogger("absl")
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    assert not logger.disabled


@pytest.mark.slow_on("torch")
def test_an_export_with_two_open_lengths_logs_nothing(tmp_path, logged):
    tokens, padding_mask = masked_inputs(length=None)
    outputs = keras.layers.MultiHeadAttention(2, 4)(tokens, tokens, value_mask=padding_mask)
    export_saved_model(keras.Model([tokens, padding_mask], outputs), tmp_path / "served")
    assert [record.getMessage() for record in logged] == []


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of jax")
def test_jax_writes_what_the_oldest_supported_tensorflow_reads(tmp_path):
    series = keras.Input((None, CHANNELS), name="series")
    x = keras.layers.Dense(CHANNELS, activation="gelu")(AttentiveGraphFilter(2, 4)(series))
    path = export_saved_model(keras.Model(series, x), tmp_path)
    written = (path / "saved_model.pb").read_bytes()
    assert set(re.findall(rb"StableHLO_v([.\d]+)", written)) == {STABLEHLO.encode()}
    assert b"chlo" not in written  # `erf` of JAX 0.12, without its arithmetic


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only jax is tried twice")
def test_an_export_that_fails_both_times_is_logged_once_and_raised(tmp_path, logged):
    tokens, padding_mask = masked_inputs(length=None)
    other = keras.layers.MultiHeadAttention(2, 4)(tokens, tokens[:, 1:], value_mask=padding_mask)
    model = keras.Model([tokens, padding_mask], other)
    with pytest.raises(ValueError, match="could not be exported with the open lengths"):
        export_saved_model(model, tmp_path / "served")
    (record,) = logged
    assert "dot_product_attention" in record.getMessage()
