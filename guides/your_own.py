"""
Title: Your own filter, mask, feature map or bias
Author: The keras_graphattn authors
Date created: 2026/11/22
Last modified: 2026/11/26
Description: A class of some lines each, which then works in every layer and in files.
Accelerator: None
"""

"""
Layers are made of objects: a filter, a mask, a feature map, a bias. To try an idea, you write one
of these objects, and no layer. Register the class with Keras, so that models with it can be saved.
"""

"""
## A filter

A filter is a function of the attention operator A. A polynomial basis needs its three-term
recurrence only: P_k = (slope x + offset) P_{k-1} - previous P_{k-2}. Here are the Laguerre
polynomials. The filter starts as plain attention; its base class sees to that.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_graphattn.biases import Bias, LogMask
from keras_graphattn.feature_maps import FeatureMap
from keras_graphattn.filters import Polynomial, Step
from keras_graphattn.layers import GraphFilterAttention, MaskedKernelAttention
from keras_graphattn.masks import Mask

keras.utils.set_random_seed(0)


@keras.saving.register_keras_serializable(package="guide")
class Laguerre(Polynomial):
    """H = sum_k c_k L_k(A), with the Laguerre polynomials L_k."""

    def recurrence(self):
        degrees = range(1, self.order + 1)
        return [Step(-1 / k, (2 * k - 1) / k, (k - 1) / k) for k in degrees]


layer = GraphFilterAttention(4, 8, filter=Laguerre(3))
layer.build((None, 9, 32))
start = ops.convert_to_numpy(layer.filter_coefficients)[:, 0]
print("coefficients of the first head before training:", start)  # L_0 - L_1 = 1 - (1 - A) = A

"""
## A mask

A mask is a matrix M of factors that are not negative. Write `_rows`, some rows of M, and the base
class does the rest: the matrix, products in blocks of rows, and attention. The weights come as
`parameters`: read only settings from `self`.

This one is a power law, M[i, j] = (1 + |i - j|)^-a, with an exponent a that each head learns. All
its factors are positive, so it hides no key.
"""


@keras.saving.register_keras_serializable(package="guide")
class PowerLaw(Mask):
    """M[i, j] = (1 + |i - j|)^-a."""

    hides_keys = False

    def build(self, input_shape):
        super().build(input_shape)
        self.exponent = self.add_weight(
            shape=(self.num_heads,), initializer="zeros", autocast=False, name="exponent"
        )

    def parameters(self):
        return {"exponent": ops.convert_to_tensor(self.exponent)}  # (N,)

    def _rows(self, positions, length, parameters, inputs):
        distance = ops.abs(
            positions[:, None] - ops.arange(length, dtype="int32")[None, :]
        )  # (R, T)
        exponent = parameters["exponent"][None, :, None, None]
        logarithms = ops.log(1.0 + ops.cast(distance, exponent.dtype))
        return ops.exp(-exponent * logarithms)  # (1, N, R, T)


mask = PowerLaw()
mask.build((None, 5, 2, 1))
mask.exponent.assign([0.0, 1.0])
print("row 2 of the mask, for each head:")
print(np.round(ops.convert_to_numpy(mask.dense(5))[0, :, 2], 3))
signal = keras.random.normal((1, 5, 2, 3), seed=1)
by_matrix = ops.einsum("bnij,bjnd->bind", mask.dense(5), signal)
wrong = ops.convert_to_numpy(ops.max(ops.abs(mask.apply(signal, path="blockwise") - by_matrix)))
print(f"apply in blocks - matrix: at most {wrong:.1e}")

"""
For long sequences a mask may also name a path of its own, and write `_signal`, a product M x that
is cheaper than the matrix. `Exponential` in `masks/chunked.py` is a short example.

## A feature map

A feature map turns queries and keys into features that are not negative. Write `__call__`.
"""


@keras.saving.register_keras_serializable(package="guide")
class Softplus(FeatureMap):
    """phi(x) = log(1 + exp(x))."""

    def __call__(self, x):
        return ops.softplus(x)


"""
## A bias

A mask multiplies kernels. Softmax attention adds a bias to its scores instead, and a bias has the
same methods as a mask. This one is T5's idea with one learned number for each of the nearest
distances. `LogMask` makes a bias of any mask: its logarithm.
"""


@keras.saving.register_keras_serializable(package="guide")
class Nearest(Bias):
    """b[i, j] is a learned number for |i - j|, and for all distances from 3 on."""

    def build(self, input_shape):
        super().build(input_shape)
        self.of_distance = self.add_weight(
            shape=(4, self.num_heads), initializer="zeros", autocast=False, name="of_distance"
        )

    def parameters(self):
        return {"of_distance": ops.convert_to_tensor(self.of_distance)}

    def _rows(self, positions, length, parameters, inputs):
        distance = ops.abs(positions[:, None] - ops.arange(length, dtype="int32")[None, :])
        numbers = ops.take(parameters["of_distance"], ops.minimum(distance, 3), axis=0)
        return ops.transpose(numbers, (2, 0, 1))[None]  # (1, N, R, T)


tokens = keras.random.normal((1, 5, 32), seed=2)
same = ops.convert_to_numpy(LogMask(mask).dense(5)) - np.log(ops.convert_to_numpy(mask.dense(5)))
print(f"LogMask - log of the mask: at most {np.abs(same).max():.1e}")
for bias in (Nearest(), LogMask(PowerLaw())):
    attention = GraphFilterAttention(4, 8, filter=Laguerre(3), bias=bias)
    print(type(bias).__name__, "in a layer:", attention(tokens).shape)

"""
## Filter, mask and feature map in a model

Two blocks over the eight rows of handwritten digits, without position embeddings: all that the
model knows of the order is in the mask.
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
        4,
        12,
        mask=PowerLaw(),
        feature_map=Softplus(),
        filter=Laguerre(2),
        name=f"attention_{number}",
    )
    x = x + attention(keras.layers.LayerNormalization()(x))
    hidden = keras.layers.Dense(96, activation="gelu")(keras.layers.LayerNormalization()(x))
    x = x + keras.layers.Dense(48)(hidden)
outputs = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(x))
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, epochs=8, batch_size=64, verbose=0)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"own filter, mask and features: test accuracy {accuracy:.3f}")
for number in (1, 2):
    exponent = ops.convert_to_numpy(model.get_layer(f"attention_{number}").mask.exponent)
    print(f"layer {number}: exponent of each head {np.round(exponent, 2)}")

"""
A file has everything. To load it, import the module that registers your classes.
"""

with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "digits.keras")
    again = keras.saving.load_model(Path(folder) / "digits.keras")
difference = again.predict(x_test, verbose=0) - model.predict(x_test, verbose=0)
print(f"largest difference after loading: {np.abs(difference).max():.1e}")

"""
`keras_graphattn.convert(model, "graph_filter", filter=Laguerre(3))` puts the filter into a KerasHub
model, and `generate()` decodes with it. To bring your object into this package, follow the lists of
files in CONTRIBUTING.md: the tests there then compare it with a naive twin on all backends.
"""
