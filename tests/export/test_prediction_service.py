"""A gRPC PredictionService on the serving stubs, with TensorFlow but no Keras, under load."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_graphattn.export import PredictRequests, export_saved_model
from keras_graphattn.export.signature import model_signature
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention
from tests.numerics import randomise

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving")

STAND_IN = Path(__file__).parents[2] / "guides" / "serving" / "stand_in.py"
CHANNELS, ROWS, REQUESTS, CLIENTS = 5, 40, 100, 16
LENGTHS = (4, 12, 31)


@contextmanager
def serving(folder, *arguments):
    """Runs the substitute server and yields its output: addresses, version, warm-up count."""
    command = [sys.executable, str(STAND_IN), str(folder), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            line = process.stdout.readline()
            assert line, "the server did not start"
            yield json.loads(line)
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def make_model():
    series = keras.Input((None, CHANNELS), name="series")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    seen = keras.ops.cast(mask, "bool")
    x = GraphFilterAttention(2, 4)(series, query_mask=seen, value_mask=seen)
    x = x + AttentiveGraphFilter(2, 4)(x, query_mask=seen, value_mask=seen)
    scores = keras.layers.Dense(3, name="scores")(x)
    pooled = keras.layers.GlobalAveragePooling1D(name="pooled")(scores)
    model = keras.Model([series, mask], {"scores": scores, "pooled": pooled})
    randomise(model)
    return model


def rows_of(length):
    generator = np.random.default_rng(length)
    mask = np.arange(length) < generator.integers(1, length + 1, (ROWS, 1))
    series = generator.standard_normal((ROWS, length, CHANNELS))
    return {"series": series, "padding_mask": mask}  # these types differ from those served


def predicted(model, rows):
    mask = rows["padding_mask"].astype("int32")
    return model.predict([rows["series"].astype("float32"), mask], batch_size=ROWS, verbose=0)


def arrays_of(response):
    from tensorflow import make_ndarray

    return {name: make_ndarray(proto) for name, proto in response.outputs.items()}


def check_concurrent_requests(stub, requests, rows, expected):
    def ask(seed):
        generator = np.random.default_rng(seed)
        length = generator.choice(LENGTHS)
        size = int(generator.integers(1, 17))
        start = int(generator.integers(0, ROWS - size + 1))
        part = {name: array[start : start + size] for name, array in rows[length].items()}
        answer = arrays_of(stub.Predict(requests.grpc(part), 60))
        errors = [
            np.abs(answer[name] - array[start : start + size]).max()
            for name, array in expected[length].items()
        ]
        return size, max(errors)

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(ask, range(REQUESTS)))
    assert len({size for size, _ in answers}) > 10
    assert max(error for _, error in answers) < 1e-5


def check_refusals(stub, requests, rows):
    request = requests.grpc(rows)
    request.inputs["padding_mask"].dtype = 10  # DT_BOOL, the type that preprocessing gave
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request, 60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(PredictRequests(requests.inputs, "other").grpc(rows), 60)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(ValueError, match=r"no signature 'long'. It has: \['any', 'serving_def"):
        PredictRequests.of_server(stub, "reviews", "long", 60)


def check_rest(url, requests, rows, expected):
    def ask(body):
        return json.load(urllib.request.urlopen(url, body.encode(), timeout=60))

    outputs = ask(requests.json(rows))["outputs"]
    for name, array in expected.items():
        np.testing.assert_allclose(outputs[name], array, atol=1e-5)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask('{"inputs": {"series": []}}')


@pytest.mark.slow_on("jax", "torch")
def test_a_server_answers_concurrent_clients(tmp_path):
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    model, folder = make_model(), tmp_path / "served"
    rows = {length: rows_of(length) for length in LENGTHS}
    expected = {length: predicted(model, one) for length, one in rows.items()}
    signature = {"short": {"series": (4, CHANNELS), "padding_mask": (4,)}, "any": None}
    signature = {"serving_default": None, **signature}
    export_saved_model(model, folder, signature=signature, warmup=[rows[4], rows[12]])
    with serving(folder, "--model", "reviews") as server:
        assert server["version"] == 1
        assert server["warmed_up"] == 5  # three signatures take length 4, two take 12
        with grpc.insecure_channel(server["grpc"]) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            requests = PredictRequests.of_server(stub, "reviews", timeout=60)
            assert requests.inputs == model_signature(model).inputs
            check_concurrent_requests(stub, requests, rows, expected)
            check_refusals(stub, requests, rows[4])
        url = server["rest"] + "/v1/models/reviews:predict"
        check_rest(url, requests, rows[12], expected[12])
