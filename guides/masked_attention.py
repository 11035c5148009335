"""
Title: Masked kernel attention
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Masks as linear operators: look at one, train with it, pack sequences, decode.
Accelerator: None
"""

"""
Kernel attention replaces exp(q . k) by a product of features phi(q) . phi(k). Its sums then cost
time linear in the length. A *mask* M brings back what that loses: a factor for each pair of
positions, which can be learned. The layer never forms M; it only applies it to signals.
"""

"""
## A mask and its matrix

Each mask can `apply` itself to a signal (batch, length, heads, width) and show its matrix with
`dense`. Both say the same; the second is for short sequences, tests and pictures. The picture goes
to a folder `masked_attention` in the folder that the environment variable `GUIDE_OUTPUT` names, or
to a new temporary folder. The guide says where.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.analysis import plot_mask
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import Causal, Exponential, Product, Segments, StochasticPositions

keras.utils.set_random_seed(0)
length, ids = 24, np.repeat([[0, 1, 2]], [10, 6, 8], axis=1)
masks = {
    "causal": (Causal(), {}),
    "segments": (Segments(), {"segment_ids": ids}),
    "exponential": (Exponential(2, initial_rates=[0.05, 1.0]), {}),
    "stochastic positions": (StochasticPositions(3, seed=1), {}),
    "segments x one-sided exponential": (
        Product([Segments(), Exponential(causal=True, initial_rates=0.2)]),
        {"segment_ids": ids},
    ),
}
signal = keras.random.normal((1, length, 1, 8), seed=0)
for name, (mask, inputs) in masks.items():
    mask.build(signal.shape)
    matrix = keras.ops.convert_to_numpy(mask.dense(length, **inputs))[0, 0]
    applied = keras.ops.convert_to_numpy(mask.apply(signal, **inputs))[0, :, 0]
    difference = applied - matrix @ keras.ops.convert_to_numpy(signal)[0, :, 0]
    print(f"{name}: apply(x) - dense() @ x is at most {np.abs(difference).max():.1e}")

try:
    from matplotlib.figure import Figure
except ImportError:
    print("no matplotlib: no picture")
else:
    figure = Figure(figsize=(18, 3.4), layout="constrained")
    axes = figure.subplots(1, len(masks))
    for axis, (name, (mask, inputs)) in zip(axes, masks.items(), strict=True):
        plot_mask(mask, length, axis=axis, **inputs).set_title(name, fontsize=10)
    output = Path(os.environ.get("GUIDE_OUTPUT") or tempfile.mkdtemp(prefix="guide_"))
    picture = output / "masked_attention" / "masks.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=100)
    print(f"picture: {picture}")

"""
## Training

Handwritten digits as sequences of eight rows. The model has no position embedding: all it knows
of the order of the rows is in the mask, whose rates are learned per head.
"""

digits = load_digits()
images = (digits.images / 16.0).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(
    images, digits.target, train_size=1280, test_size=512, random_state=0, stratify=digits.target
)
inputs = keras.Input((8, 8), name="rows")
x = keras.layers.Dense(48)(inputs)
for number in (1, 2):
    attention = MaskedKernelAttention(
        4, 12, mask=Exponential(causal=number == 1), feature_map="favor", name=f"attention_{number}"
    )
    x = x + attention(keras.layers.LayerNormalization()(x))
    hidden = keras.layers.Dense(96, activation="gelu")(keras.layers.LayerNormalization()(x))
    x = x + keras.layers.Dense(48)(hidden)
outputs = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(x))
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, epochs=8, batch_size=64, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"exponential masks: test accuracy {accuracy:.3f}")
rates = keras.ops.exp(model.get_layer("attention_1").mask.log_rates)
print("rate of decay of each head:", np.round(keras.ops.convert_to_numpy(rates)[:, 0], 3))

"""
## Decoding

Under a causal mask, all that the past means to the future is one small matrix per head. A new
token costs the same after ten tokens or ten million.
"""

layer = model.get_layer("attention_1")
tokens = keras.random.normal((1, 300, 48), seed=1)
full = layer(tokens)
outputs, state = layer.decode(tokens[:, :200], layer.get_initial_state(1))
rows = [outputs]
for position in range(200, 300):
    outputs, state = layer.decode(tokens[:, position : position + 1], state)
    rows.append(outputs)
difference = keras.ops.max(keras.ops.abs(keras.ops.concatenate(rows, axis=1) - full))
numbers = sum(int(np.prod(part.shape)) for part in keras.tree.flatten(state))
print(f"decoded - full pass: at most {float(difference):.1e}; the state holds {numbers} numbers")
