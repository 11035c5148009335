"""
Title: Which attention for my problem?
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/22
Description: The time of each layer, measured on the spot, and one problem for three of them.
Accelerator: None
"""

"""
All layers replace `keras.layers.MultiHeadAttention`, so it costs little to try them. This
guide measures what a training step takes on your machine, and trains the same small model with
three of them. The numbers of your own problem count, so replace the data by yours.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import time

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.layers import (
    AttentiveGraphFilter,
    DifferentialAttention,
    GraphFilterAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
)
from keras_graphattn.masks import Exponential

HEADS, SIZE = 4, 16
keras.utils.set_random_seed(0)

attentions = {
    "softmax": lambda: keras.layers.MultiHeadAttention(HEADS, SIZE),
    "GFSA": lambda: GraphFilterAttention(HEADS, SIZE, order=3),
    "p-LaT": lambda: PLaplacianAttention(HEADS, SIZE, p=[1.5, 1.5, 2.5, 2.5], epsilon=0.5),
    "differential": lambda: DifferentialAttention(HEADS // 2, SIZE),
    "AGF": lambda: AttentiveGraphFilter(HEADS, SIZE, order=3),
    "kernel": lambda: MaskedKernelAttention(HEADS, SIZE, feature_map="squared_relu"),
    "kernel, exponential mask": lambda: MaskedKernelAttention(HEADS, SIZE, mask=Exponential(2)),
}

"""
## What a step takes

The table has the time of a training step, relative to softmax attention at the same length. Steps
of all layers take turns, so that other programs disturb all of them alike, and the median counts.
On torch, Keras' layer runs on a fused kernel of the backend; GFSA does, too, with
`attention_path="fused"`. AGF and the kernels never form an n x n matrix: their share falls with the
length.
"""

LENGTHS, TOKENS = (128, 1024), 1024  # each step has as many tokens


def step_of(attention, length):
    """A function that makes one training step of a model with one attention layer."""
    tokens = keras.Input((length, HEADS * SIZE))
    model = keras.Model(tokens, attention()(tokens, tokens))
    model.compile("sgd", "mse")
    shape = (TOKENS // length, length, HEADS * SIZE)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    return lambda: model.train_on_batch(x, x)


def medians(steps, rounds=4):
    """Median time of each step, in turns, after one that compiles."""
    times = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: np.median(each) for name, each in times.items()}


measured = {}
for length in LENGTHS:
    measured[length] = medians({name: step_of(make, length) for name, make in attentions.items()})

print(f"{'n':>30}", *(f"{length:>6}" for length in LENGTHS))
for name in attentions:
    shares = [measured[length][name] / measured[length]["softmax"] for length in LENGTHS]
    print(f"{name:>30}", *(f"{share:6.2f}" for share in shares))

"""
## One problem

Handwritten digits, as sequences of eight rows, and three of the layers; the others train in the
same way. The sequences are short, so time does not matter here: what counts is what the layers can
find. `MaskedKernelAttention` has the order of the rows in its mask, too. With so little data,
differences of about 0.01 say nothing: three seeds or more, and a validation set, should decide.
"""

digits = load_digits()
images = (digits.images / 16.0).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(
    images, digits.target, train_size=1280, test_size=512, random_state=0, stratify=digits.target
)


def transformer(attention):
    """One block over the eight rows of an image."""
    inputs = keras.Input((8, 8), name="rows")
    order = keras.ops.cumsum(keras.ops.ones_like(inputs[:, :, 0]), axis=1) - 1
    x = keras.layers.Dense(32)(inputs) + keras.layers.Embedding(8, 32)(order)
    normed = keras.layers.LayerNormalization()(x)
    x = x + attention()(normed, normed)
    hidden = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
    pooled = keras.layers.GlobalAveragePooling1D()(x + keras.layers.Dense(32)(hidden))
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(pooled))


for name in ("softmax", "GFSA", "kernel, exponential mask"):
    keras.utils.set_random_seed(0)
    model = transformer(attentions[name])
    model.compile(
        keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x_train, y_train, epochs=5, batch_size=64, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=64, verbose=0)
    print(f"{name}: test accuracy {accuracy:.3f}, {model.count_params():,} weights")

"""
## Choose

| your problem | take |
| --- | --- |
| a pretrained model to fine-tune | `convert(model, "graph_filter")`, which starts as the model |
| a deep model whose tokens become alike | a graph filter, `FirstOrder(start="high_pass")` |
| values that should stay apart or come together | `PLaplacianAttention`, p above or below 2 |
| attention that is spread over tokens without meaning | `DifferentialAttention` |
| long sequences | `AttentiveGraphFilter` or `MaskedKernelAttention` |
| long sequences in which distance counts | masks `Exponential` and `Toeplitz` |
| images as grids of patches | the mask `BlockToeplitz` |
| trees and graphs | masks `Tree` and `GraphDiffusion`, `GraphKernelAttention` |
| graphs of many thousands of nodes | `EdgeAttention` |
| distances, or edges on paths, in softmax attention | a `bias` of `keras_graphattn.biases` |
| none of these | softmax: it is the simplest, and has the fastest kernels |
| token by token, with a state of fixed size | a causal mask, `AttentiveGraphFilter(causal=True)` |
| the same, where the tokens decide what is forgotten | the mask `GatedDecay`, `GatedDeltaRule` |
"""
