"""
Title: Serving with TensorFlow Serving
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Export from any backend, fix lengths, warm up, configure the server, write clients.
Accelerator: None
Environment: KERAS_BACKEND=tensorflow
"""

"""
TensorFlow Serving loads a SavedModel and needs neither Python nor Keras nor the backend that
trained the model. The extra `serving` brings what the exporting side and a Python client need.
"""

"""
## A model of sequences

A handwritten digit becomes the sequence of its inked pixels: numbers from 1 to 64, as many as
there is ink, padded with 0. The model takes any length.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # or "jax", "torch"

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_graphattn
from keras_graphattn.export import PredictRequests
from keras_graphattn.layers import GraphFilterAttention

LENGTHS = {"short": 24, "long": 48}


def sequences(images, length):
    """Images (N, 8, 8) as padded numbers of their inked pixels, (N, length) int32."""
    tokens = np.zeros((len(images), length), "int32")
    for row, image in zip(tokens, images, strict=True):
        inked = np.flatnonzero(image >= 8)[:length] + 1
        row[: len(inked)] = inked
    return tokens


keras.utils.set_random_seed(0)
digits = load_digits()
train, test, y_train, y_test = train_test_split(
    digits.images,
    digits.target,
    train_size=1280,
    test_size=512,
    random_state=0,
    stratify=digits.target,
)

tokens = keras.Input((None,), dtype="int32", name="tokens")
seen = keras.ops.not_equal(tokens, 0)
x = keras.layers.Embedding(65, 32)(tokens)
x = x + GraphFilterAttention(num_heads=4, key_dim=8)(x, query_mask=seen, value_mask=seen)
x = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
x = keras.layers.GlobalAveragePooling1D()(x, mask=seen)
model = keras.Model(tokens, keras.layers.Dense(10, activation="softmax", name="digit")(x))
model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(sequences(train, 48), y_train, epochs=12, batch_size=64, verbose=0)
_, accuracy = model.evaluate(sequences(test, 48), y_test, verbose=0)
print(f"test accuracy {accuracy:.3f}")

"""
## Export: names, lengths, warm-up

A server batches requests only where their lengths are equal, and an accelerator compiles again for
each length. So give it a few: a signature for each, by which clients ask. All share the weights.
(`jax` cannot export every layer at an open length either; the error says so.)

`warmup` takes example batches. The server runs them when it loads a version, before it moves the
traffic to it, so that no client waits for compilation. Each (batch size, length) is a shape of its
own: give those that the server will see.
"""

folder = tempfile.TemporaryDirectory()
served = Path(folder.name) / "digits"
warmup = [sequences(test[:size], length) for size in (1, 8, 32) for length in LENGTHS.values()]
version = keras_graphattn.export_saved_model(
    model,
    served,
    signature={name: {"tokens": (length,)} for name, length in LENGTHS.items()},
    warmup=warmup,
)
files = sorted(str(file.relative_to(served)) for file in version.rglob("*") if file.is_file())
print(f"in {served}, a temporary folder that is removed at the end:")
print("\n".join(files))

"""
The version appears in one step: a server that watches the folder never sees half of it. The next
export is version 2; the server loads it and drops the first. `serving_default`, which a request
gets that names no signature, is the first one.

## The server

`models.config` names the models and pins versions. A version policy with two versions and two
labels makes a canary: clients ask for "stable" or "canary". Without a policy the server serves
the highest version.
"""

(served.parent / "models.config").write_text("""\
model_config_list {
  config {
    name: "digits"
    base_path: "/models/digits"
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 1 } }
    version_labels { key: "stable" value: 1 }
  }
}
""")

"""
The batching parameters. The largest batch of a request must not exceed `max_batch_size`; batches
are filled up to one of `allowed_batch_sizes`, so those are the sizes to warm up.
`pad_variable_length_inputs` stays off: padding is for the client, who knows what padding means.
`num_batch_threads` is about the number of cores, or a small number for one accelerator.
"""

(served.parent / "batching.config").write_text("""\
max_batch_size { value: 32 }
allowed_batch_sizes: 1
allowed_batch_sizes: 8
allowed_batch_sizes: 32
batch_timeout_micros { value: 1000 }
num_batch_threads { value: 4 }
max_enqueued_batches { value: 100 }
""")

"""
With Docker and the image at hand:

    docker run --rm -p 8500:8500 -p 8501:8501 -v "$PWD":/models tensorflow/serving:<release> \\
        --model_config_file=/models/models.config \\
        --model_config_file_poll_wait_seconds=60 \\
        --allow_version_labels_for_unavailable_models=true \\
        --enable_batching=true \\
        --batching_parameters_file=/models/batching.config

Pin the image: its release of TensorFlow must not be older than the one that wrote the graph
(`tensorflow.__version__` where you export, with any backend), which older servers may not
understand. Pin `jax` with it if you export from jax: its graphs carry a version of their own.
Clients need `tensorflow-serving-api` of any release since 2.21; the messages hardly change.

Here a stand-in answers: TensorFlow and the serving messages, no Keras. It is enough to try a
client or to test one where there is no image.
"""

guide = Path(__file__) if "__file__" in globals() else Path("guides/serving.py")
stand_in = subprocess.Popen(
    [sys.executable, str(guide.with_suffix("") / "stand_in.py"), str(served)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
server = json.loads(stand_in.stdout.readline())  # with a server: localhost:8500 and :8501
print(f"version {server['version']}, {server['warmed_up']} warm-up requests")

"""
## A gRPC client

Preprocessing stays here. What it gives seldom has the very types that the graph takes, and a
server casts nothing. `PredictRequests` asks the server for a signature, checks and casts each
batch (arrays, lists or tensors of any backend), and makes the message.
"""

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

expected = model.predict(sequences(test, 48), verbose=0)
channel = grpc.insecure_channel(server["grpc"])
stub = PredictionServiceStub(channel)
requests = {name: PredictRequests.of_server(stub, "digits", name) for name in LENGTHS}


def ask(images):
    """Probabilities (N, 10) of at most 32 images, by the shortest signature that holds them."""
    longest = (images >= 8).sum(axis=(1, 2)).max()
    name = next(name for name, length in LENGTHS.items() if longest <= length)
    message = requests[name].grpc({"tokens": sequences(images, LENGTHS[name])})
    response = stub.Predict(message, timeout=10.0)
    return tf.make_ndarray(response.outputs["digit"])


answers = np.concatenate([ask(test[start : start + 8]) for start in range(0, 96, 8)])
print(f"gRPC: largest difference {np.abs(answers - expected[:96]).max():.1e}")

"""
A client without this package writes the message itself. The types must be right.
"""

message = predict_pb2.PredictRequest()
message.model_spec.name = "digits"
message.model_spec.signature_name = "long"
batch = sequences(test[:8], LENGTHS["long"])
message.inputs["tokens"].CopyFrom(tf.make_tensor_proto(batch, tf.int32))
answer = tf.make_ndarray(stub.Predict(message, timeout=10.0).outputs["digit"])
print(f"plain messages: largest difference {np.abs(answer - expected[:8]).max():.1e}")
channel.close()

"""
## A REST client

The same signature, in JSON, from any language. Requests in columns (`inputs`) are compact; with one
output the answer's `outputs` is its values, with several a dictionary.
"""

body = requests["long"].json({"tokens": batch})
address = server["rest"] + "/v1/models/digits:predict"
with urllib.request.urlopen(address, body.encode(), timeout=10.0) as answer:
    outputs = np.array(json.load(answer)["outputs"])
print(f"REST: largest difference {np.abs(outputs - expected[:8]).max():.1e}")

stand_in.stdin.close()
stand_in.wait(timeout=30)
folder.cleanup()

"""
## Text

The stock server has no tokenizers, so a KerasHub task serves token ids, and the client keeps the
preprocessor, which comes out of the task's preset:

    keras_graphattn.export_saved_model(classifier, "served/reviews")
    classifier.save_to_preset("reviews_preset")

The client needs the preset's JSON files and assets, not its `*.weights.h5`, and `keras_hub`
installed (with `keras_graphattn` imported, if the task was converted):

    preprocessor = keras_hub.models.TextClassifierPreprocessor.from_preset("reviews_preset")
    requests = PredictRequests.of_server(stub, "reviews")
    response = stub.Predict(requests.grpc(preprocessor(["a fine film"])), timeout=10.0)
"""
