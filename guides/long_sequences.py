"""
Title: Long sequences
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Attention in linear time, decoding with a state of fixed size, packing, blocks of rows.
Accelerator: None
"""

"""
Softmax attention takes time and memory like the square of the length. There are two ways around
it: layers that never need the n x n matrix, and layers that form some of its rows at a time.
"""

"""
## How time grows

A training step at four times the length takes up to 16 times as long where a matrix is formed, and
about four times as long where it is not.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import time

import keras
import numpy as np

from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    GatedDeltaRule,
    GraphFilterAttention,
    MaskedKernelAttention,
)
from keras_graphattn.masks import Causal, Exponential, GatedDecay, Product, Segments

HEADS, SIZE, WIDTH = 4, 16, 64
keras.utils.set_random_seed(0)

attentions = {
    "softmax": lambda: keras.layers.MultiHeadAttention(HEADS, SIZE),
    "AGF": lambda: AttentiveGraphFilter(HEADS, SIZE, order=3),
    "kernel, causal": lambda: MaskedKernelAttention(HEADS, SIZE, mask=Causal()),
}


def time_of_step(attention, length, rounds=3):
    """Median time of a training step of a model with one attention layer."""
    tokens = keras.Input((length, WIDTH))
    model = keras.Model(tokens, attention()(tokens, tokens))
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(1, length, WIDTH)).astype("float32")
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        model.train_on_batch(x, x)
        times.append(time.perf_counter() - start)
    return np.median(times[1:])  # the first one compiles


for name, attention in attentions.items():
    short, long = (time_of_step(attention, length) for length in (512, 2048))
    print(f"{name}: a step at 2048 tokens takes {long / short:.1f} times as long as at 512")

"""
## Training on 1024 tokens

Each sequence has eight kinds of tokens. One of two kinds comes a little more often than the other:
which one? No single place shows it, so the model has to sum over the whole sequence.
"""

LENGTH, KINDS = 1024, 8
random = np.random.default_rng(0)


def sequences(count):
    labels = random.integers(0, 2, count)
    chances = np.full((2, KINDS), 0.12)
    chances[0, :2], chances[1, :2] = (0.18, 0.10), (0.10, 0.18)
    tokens = [random.choice(KINDS, LENGTH, p=chances[label]) for label in labels]
    return np.stack(tokens).astype("int32"), labels


(x_train, y_train), (x_test, y_test) = sequences(256), sequences(64)
tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
x = keras.layers.Embedding(KINDS, WIDTH)(tokens)
x = x + AttentiveGraphFilter(HEADS, SIZE, order=3)(keras.layers.LayerNormalization()(x))
pooled = keras.layers.GlobalAveragePooling1D()(x)
model = keras.Model(tokens, keras.layers.Dense(2, activation="softmax")(pooled))
model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=2, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, batch_size=16, verbose=0)
print(f"AGF on {LENGTH} tokens: test accuracy {accuracy:.3f}")

"""
## Decoding with a state of fixed size

A causal layer of this kind needs no cache of all tokens before. Its state is a few sums, which are
as large after ten tokens as after a million. The outputs are those of the full pass. A prompt of
several tokens goes through `decode` in one call.

With `GatedDecay` the tokens decide how fast the past fades: that is gated linear attention.
`GatedDeltaRule` also replaces what its state holds for a key.
"""


def largest_difference(one, other):
    return np.abs(keras.ops.convert_to_numpy(one) - keras.ops.convert_to_numpy(other)).max()


text = random.normal(size=(1, 200, WIDTH)).astype("float32")
layers = {
    "AGF": AttentiveGraphFilter(HEADS, SIZE, order=3, causal=True),
    "kernel": MaskedKernelAttention(HEADS, SIZE, mask=Exponential(2, causal=True)),
    "kernel, gated": MaskedKernelAttention(HEADS, SIZE, mask=GatedDecay()),
    "delta rule": GatedDeltaRule(HEADS, SIZE),
}
for name, layer in layers.items():
    start = text[:, :20]
    whole = layer(start)
    state, rows, sizes = layer.get_initial_state(1), [], []
    for place in range(20):
        outputs, state = layer.decode(start[:, place : place + 1], state)
        rows.append(keras.ops.convert_to_numpy(outputs))
        sizes.append(sum(int(np.prod(part.shape)) for part in keras.tree.flatten(state)))
    print(
        f"{name}: {sizes[0]} numbers after 1 token, {sizes[-1]} after 20; difference from the full"
    )
    print(f"    pass at most {largest_difference(np.concatenate(rows, axis=1), whole):.0e}")

"""
## Several texts in one row

Short texts can share a row, so that nothing is lost to padding. `Segments` keeps them apart, and a
`Product` with `Causal` makes it a decoder. Each text has the outputs that it has in a row of its
own.
"""

layer = MaskedKernelAttention(HEADS, SIZE, mask=Product([Segments(), Causal()]))
ids = np.repeat([[0, 1, 2]], [90, 60, 50], axis=1)
packed = layer(text, mask_inputs={"segment_ids": ids})
single = layer(text[:, 90:150], mask_inputs={"segment_ids": ids[:, 90:150]})
print(f"packed or not: difference at most {largest_difference(packed[:, 90:150], single):.0e}")

"""
## Softmax attention without the matrix

Where it has to be softmax attention, `attention_path="blockwise"` forms `block_size` rows of A at a
time, forwards and backwards. The memory then grows with the length, not with its square. The
outputs stay, also under a filter.
"""

options = {"num_heads": HEADS, "key_dim": SIZE, "filter": FirstOrder(3, start="high_pass")}
dense = GraphFilterAttention(**options)
blockwise = GraphFilterAttention(**options, attention_path="blockwise", block_size=64)
expected = dense(text, text)
blockwise.build(text.shape)
blockwise.set_weights(dense.get_weights())
difference = largest_difference(blockwise(text, text), expected)
print(f"dense or blockwise: difference at most {difference:.0e}")
