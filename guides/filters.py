"""
Title: Graph filters
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Choose a filter by name, set it up as an object, and read what it learned.
Accelerator: None
"""

"""
A graph filter is a function of the attention operator A, such as a polynomial with learned
coefficients. `keras_graphattn.filters` has several. All of them start as plain attention.
"""

"""
## By name or as an object

A layer takes a filter by its name, with its order. Everything else belongs to the filter's own
constructor: which coefficients are trained, what they start as, the parameters of a basis.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.filters import FILTERS, FirstOrder, Jacobi, Legendre
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention, MaskedKernelAttention

keras.utils.set_random_seed(0)
print("filters with a name:", ", ".join(FILTERS))

by_name = GraphFilterAttention(4, 8, filter="chebyshev", order=4)
as_object = GraphFilterAttention(4, 8, filter=Jacobi(4, alpha=1.0, beta=0.5))
only_power = GraphFilterAttention(4, 8, filter=FirstOrder(3, trainable_coefficients=["power"]))
high_pass = GraphFilterAttention(4, 8, filter=FirstOrder(3, start="high_pass"))
for layer in (by_name, as_object, only_power, high_pass):
    layer.build((None, 8, 32))
    count = sum(int(np.prod(v.shape)) for v in layer.coefficients if v.trainable)
    print(f"{type(layer.filter).__name__}: {count} trained coefficients")

"""
## The same words in every layer

`MaskedKernelAttention` filters an operator that never forms the matrix. `AttentiveGraphFilter`
takes the polynomials of a filter for its singular values.
"""

linear_time = MaskedKernelAttention(4, 8, filter="page_rank", order=4)
singular = AttentiveGraphFilter(4, 8, filter="legendre", order=3)
tokens = keras.random.normal((2, 8, 32))
print("outputs:", linear_time(tokens).shape, singular(tokens).shape)

"""
## What a filter learns

One block over the eight rows of handwritten digits, with Legendre polynomials of A. For a filter of
your own, read [the next guide](your_own.py): it works in every layer, in `convert`, and in files.
"""

digits = load_digits()
images = (digits.images / 16.0).astype("float32")
x_train, x_test, y_train, y_test = train_test_split(
    images, digits.target, train_size=1280, test_size=512, random_state=0, stratify=digits.target
)


def transformer(filter):
    """One block over the eight rows of an image."""
    inputs = keras.Input((8, 8), name="rows")
    x = keras.layers.Dense(32)(inputs)
    positions = keras.layers.Embedding(8, 32)
    x = x + positions(keras.ops.cumsum(keras.ops.ones_like(inputs[:, :, 0]), axis=1) - 1)
    normed = keras.layers.LayerNormalization()(x)
    x = x + GraphFilterAttention(4, 8, filter=filter, name="attention")(normed, normed)
    hidden = keras.layers.Dense(64, activation="gelu")(keras.layers.LayerNormalization()(x))
    pooled = keras.layers.GlobalAveragePooling1D()(x + keras.layers.Dense(32)(hidden))
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(pooled))


model = transformer(Legendre(3))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, epochs=10, batch_size=64, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"Legendre filter: test accuracy {accuracy:.3f}")

learned = keras.ops.convert_to_numpy(model.get_layer("attention").filter_coefficients)
print("coefficients of the first head:", np.round(learned[:, 0], 3))
