"""Requests of clients and warm-up records are checked against the signature."""

import re
import sys

import keras
import numpy as np
import pytest

from keras_graphattn.export import PredictRequests, export_saved_model
from keras_graphattn.export.requests import WARMUP_FILE, warmup_requests, write_warmup
from keras_graphattn.export.signature import served_signatures
from keras_graphattn.layers import GraphFilterAttention
from keras_graphattn.version import INSTALL_EXTRA

SPECS = {
    "series": ((None, 3, 2), "float32"),
    "mask": ((None, 3), "int32"),
    "real": ((None, 3), "bool"),
}
REQUESTS = PredictRequests(SPECS, "mine")


def batch(**changes):
    arrays = {"series": np.ones((4, 3, 2)), "mask": np.ones((4, 3), bool)}
    return {**arrays, "real": np.ones((4, 3), bool), **changes}


def make_model(length=None):
    series = keras.Input((length, 4), name="series")
    mask = keras.Input((length,), dtype="bool", name="mask")
    outputs = GraphFilterAttention(1, 2)(series, value_mask=mask)
    return keras.Model({"series": series, "mask": mask}, outputs)


def example(length, batch=2, mask_length=None):
    mask = np.ones((batch, mask_length or length), bool)
    return {"series": np.full((batch, length, 4), 0.5), "mask": mask}


@pytest.mark.parametrize("kind", ["arrays", "lists", "tensors"])
def test_inputs_are_cast_to_what_is_served(kind):
    inputs = batch()
    if kind == "lists":
        inputs = {name: array.tolist() for name, array in inputs.items()}
    if kind == "tensors":
        inputs = {name: keras.ops.convert_to_tensor(array) for name, array in inputs.items()}
    arrays = REQUESTS.arrays(inputs)
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        name: dtype for name, (_, dtype) in SPECS.items()
    }
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, batch()[name])


def test_the_only_input_needs_no_name():
    requests = PredictRequests({"ids": ((None, 2), "int64")}, "mine")
    assert requests.arrays([[1, 2]])["ids"].dtype == np.int64
    text = PredictRequests({"text": ((None,), "string")}, "mine")
    assert text.grpc(["a", "b"]).inputs["text"].string_val == [b"a", b"b"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mask": np.full((4, 3), 0.5)}, r"'mask' as int32\. .* Received: dtype=float64"),
        ({"mask": np.full((4, 3), 2**40)}, "'mask' as int32"),
        ({"real": np.ones((4, 3), int)}, "'real' as bool"),
        ({"series": np.full((4, 3, 2), "a")}, "'series' as float32"),
        ({"series": np.ones((4, 5, 2))}, r"'series' of shape \(None, 3, 2\). .*\(4, 5, 2\)"),
        ({"series": np.ones((4, 3))}, r"Received: shape=\(4, 3\)"),
        ({"series": np.ones((2, 3, 2))}, "one batch size of at least 1.*'series': 2"),
        ({name: np.ones((0, *shape[1:]), bool) for name, (shape, _) in SPECS.items()}, "at least"),
        ({"mask": [[1, 2, 3], [1]]}, "'mask' must be an array.* Pad rows of different lengths"),
        ({"more": 1}, r"takes a dictionary of \['mask', 'real', 'series'\]. Received: .*'more'"),
    ],
)
def test_what_a_server_would_refuse(wrong, words):
    with pytest.raises(ValueError, match=words):
        REQUESTS.arrays(batch(**wrong))
    with pytest.raises(ValueError, match="takes a dictionary"):
        REQUESTS.arrays(np.ones((4, 3, 2)))


def test_warmup_records_are_read_back(tmp_path):
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    model = make_model()
    short = {"series": (5, 4), "mask": (5,)}
    signatures = served_signatures(model, {"serving_default": None, "short": short})
    requests = warmup_requests(model, signatures, [example(5), example(9, batch=3)])
    assert [name for name, _ in requests] == ["serving_default", "short", "serving_default"]
    write_warmup(requests, tmp_path, "mine")
    assert WARMUP_FILE.as_posix() == "assets.extra/tf_serving_warmup_requests"
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(tmp_path / WARMUP_FILE))]
    assert len(records) == 3
    for record, (name, arrays) in zip(records, requests, strict=True):
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request = log.predict_log.request
        assert (request.model_spec.name, request.model_spec.signature_name) == ("mine", name)
        assert set(request.inputs) == {"series", "mask"}
        for key, proto in request.inputs.items():
            assert proto.dtype == {"series": tf.float32, "mask": tf.bool}[key]
            np.testing.assert_array_equal(tf.make_ndarray(proto), arrays[key])


@pytest.mark.parametrize(
    ("warmup", "words"),
    [
        ([], "empty list"),
        ([example(5), {"series": np.ones((2, 5, 4))}], r"`warmup\[1\]` fits no signature. .*takes"),
        (example(5, batch=0), "one batch size of at least 1"),
        (example(5, mask_length=6), r"`warmup\[0\]` has the shapes .*the model fails on it"),
    ],
)
def test_wrong_warmup_leaves_no_trace(warmup, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        export_saved_model(make_model(), tmp_path / "served", warmup=warmup)
    assert list(tmp_path.iterdir()) == []


def test_without_the_messages_of_the_server(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow_serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    with pytest.raises(ImportError, match=re.escape(INSTALL_EXTRA.format("serving"))):
        export_saved_model(make_model(), tmp_path / "served", warmup=example(5))
    with pytest.raises(ImportError, match="tensorflow-serving-api"):
        REQUESTS.grpc(batch())
    assert list(tmp_path.iterdir()) == []
