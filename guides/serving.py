"""
Title: Serving with TensorFlow Serving
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/26
Description: Export from any backend, fix lengths, configure the server, ask it.
Accelerator: None
Environment: KERAS_BACKEND=tensorflow
"""

"""
TensorFlow Serving loads a SavedModel and needs neither Python nor Keras nor the backend that
trained the model. The extra `serving` brings TensorFlow, which the export needs.
"""

"""
## A model of sequences

A handwritten digit becomes the sequence of its inked pixels: numbers from 1 to 64, as many as
there is ink, padded with 0. The model takes any length.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # or "jax", "torch"

import json
import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_graphattn
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
## Export: names, lengths

A server batches requests only where their lengths are equal, and an accelerator compiles again for
each length. So give it a few: a signature for each, by which clients ask. All share the weights.
(`jax` cannot export every layer at an open length either; the error says so.)
"""

folder = tempfile.TemporaryDirectory()
served = Path(folder.name) / "digits"
signatures = {name: {"tokens": (length,)} for name, length in LENGTHS.items()}
version = keras_graphattn.export_saved_model(model, served, signature=signatures)
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
are filled up to one of `allowed_batch_sizes`. `pad_variable_length_inputs` stays off: padding is
for the client, who knows what padding means.
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

A first request of a shape may wait for compilation. The server can run requests before it moves
the traffic to a version: TensorFlow's page on
[warm-up](https://www.tensorflow.org/tfx/serving/saved_model_warmup) says how to write them, with
the package `tensorflow-serving-api`. A gRPC client in Python needs this package, too.

## A request without a server

A server runs this graph. It casts nothing: names, types and shapes must be those of the signature.
"""

import tensorflow as tf

graphs = tf.saved_model.load(str(version)).signatures
expected = model.predict(sequences(test, 48), verbose=0)


def ask(images):
    """Probabilities (N, 10) of images, by the shortest signature that holds them."""
    longest = (images >= 8).sum(axis=(1, 2)).max()
    name = next(name for name, length in LENGTHS.items() if longest <= length)
    graph = graphs[name]
    return graph(tokens=tf.constant(sequences(images, LENGTHS[name]), tf.int32))["digit"].numpy()


answers = np.concatenate([ask(test[start : start + 8]) for start in range(0, 96, 8)])
print("the inputs of 'long':", graphs["long"].structured_input_signature[1])
print(f"largest difference {np.abs(answers - expected[:96]).max():.1e}")

"""
## A request to the server

The same in JSON, from any language: `signature_name`, and one array for each input in `inputs`. The
server reads the numbers as the types of the signature, but `true` is no integer: preprocessing
often gives a boolean padding mask, so cast it. With one output the answer's `outputs` is its
values, with several a dictionary.
"""

request = {"signature_name": "long", "inputs": {"tokens": sequences(test[:1], 48).tolist()}}
print(json.dumps(request))

"""
Save it as `request.json`, and send it:

    curl -d @request.json http://localhost:8501/v1/models/digits:predict

or in Python, with `urllib.request`:

    address = "http://localhost:8501/v1/models/digits:predict"
    body = json.dumps(request).encode()
    with urllib.request.urlopen(address, body, timeout=10.0) as answer:
        probabilities = np.array(json.load(answer)["outputs"])
"""

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
    arrays = preprocessor(["a fine film"])
    inputs = {name: np.array(array).astype("int32").tolist() for name, array in arrays.items()}
    body = json.dumps({"inputs": inputs}).encode()
"""
