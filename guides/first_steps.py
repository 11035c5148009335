"""
Title: First steps with graph-filter attention
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/25
Description: Replace attention in a small transformer, read what the filters learned, serve it.
Accelerator: None
"""

"""
Attention multiplies the tokens by a matrix A whose rows sum to one: a low-pass filter on the
graph of tokens. Apply it layer after layer and all tokens grow alike. A *graph filter* puts a
polynomial of A there instead; the coefficients are learned, one set per head.
"""

"""
## A transformer for waves

Each signal has 64 readings of a wave, with noise: a sequence of eight windows of eight readings.
The model recognises the form of the wave. Keras reads the backend's name when it is imported, so
this comes first. The splits make whole batches, as JAX and TensorFlow compile each step again for a
batch of another size.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import keras
import numpy as np

import keras_graphattn
from keras_graphattn.analysis import token_similarity
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention

keras.utils.set_random_seed(0)
random, count = np.random.default_rng(0), 1280 + 512
forms = random.integers(0, 4, count)  # sine, square, triangle, sawtooth
periods, start = random.uniform(1, 3, (count, 1)), random.random((count, 1))
turn = (periods * np.arange(64) / 64 + start) % 1  # from 0 to 1 in each period
waves = [np.sin(2 * np.pi * turn), np.sign(turn - 0.5), 4 * abs(turn - 0.5) - 1, 2 * turn - 1]
signals = np.choose(forms[:, None], waves) + 0.3 * random.normal(size=turn.shape)
windows = signals.reshape(-1, 8, 8).astype("float32")
x_train, x_test, y_train, y_test = windows[:1280], windows[1280:], forms[:1280], forms[1280:]


def transformer(attention):
    """Two pre-normalised blocks; `attention` makes the layer of each."""
    inputs = keras.Input((8, 8), name="windows")
    x = keras.layers.Dense(32)(inputs)
    positions = keras.layers.Embedding(8, 32, name="positions")
    x = x + positions(keras.ops.cumsum(keras.ops.ones_like(inputs[:, :, 0]), axis=1) - 1)
    for number in (1, 2):
        normed = keras.layers.LayerNormalization()(x)
        x = x + attention(name=f"attention_{number}")(normed, normed)
        hidden = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add(name=f"block_{number}")([x, keras.layers.Dense(32)(hidden)])
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    outputs = keras.layers.Dense(4, activation="softmax", name="form")(pooled)
    return keras.Model(inputs, outputs)


"""
## One line changes

`GraphFilterAttention` has the arguments of `keras.layers.MultiHeadAttention`, and starts as it:
its coefficients are 0 for the identity, 1 for A and 0 for the higher power. `order` is the power K.
`AttentiveGraphFilter` has no attention matrix at all: its time is linear in the sequence length.
"""

choices = {
    "softmax": lambda name: keras.layers.MultiHeadAttention(4, 8, name=name),
    "graph filter": lambda name: GraphFilterAttention(4, 8, order=3, name=name),
    "attentive graph filter": lambda name: AttentiveGraphFilter(4, 8, order=3, name=name),
}
models = {}
for label, attention in choices.items():
    model = models[label] = transformer(attention)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, y_train, epochs=8, batch_size=64, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"{label}: test accuracy {accuracy:.3f}")

"""
## What the filters learned

The power coefficient of a head says how much its filter leans on neighbours of neighbours. The
similarity of tokens after each block shows how far smoothing went.
"""

filtered = models["graph filter"]
for number in (1, 2):
    layer = filtered.get_layer(f"attention_{number}")
    power = keras.ops.convert_to_numpy(layer.power_coefficient)
    print(f"block {number}: power coefficient of each head {np.round(power, 3)}")

for label, model in models.items():
    blocks = keras.Model(model.input, [model.get_layer(f"block_{n}").output for n in (1, 2)])
    similarity = [
        float(keras.ops.mean(token_similarity(tokens)))
        for tokens in blocks.predict(x_test, verbose=0)
    ]
    print(f"{label}: token similarity after each block {np.round(similarity, 2)}")

"""
## Save and serve

A `.keras` file needs no more than `import keras_graphattn` to load.
"""

import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    filtered.save(Path(folder) / "waves.keras")
    again = keras.saving.load_model(Path(folder) / "waves.keras")
    difference = again.predict(x_test, verbose=0) - filtered.predict(x_test, verbose=0)
    print(f"largest difference after loading: {np.abs(difference).max():.1e}")

"""
A SavedModel needs nothing of Python: TensorFlow Serving loads it. It is written from any backend;
with JAX or PyTorch, this needs the extra `serving`.
"""

with tempfile.TemporaryDirectory() as folder:
    version = keras_graphattn.export_saved_model(filtered, Path(folder) / "served")
    print("served files:", sorted(path.name for path in version.iterdir()))
    print(f"they were in {folder}, a temporary folder that is removed now")
