"""
Title: Half precision and several devices
Author: The keras_graphattn authors
Date created: 2026/11/21
Last modified: 2026/11/22
Description: bfloat16 and float16; batches, weights and tokens shared out over devices and hosts.
Accelerator: None
Environment: KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

"""
Run it on eight devices made out of one CPU, or on the GPUs and TPU cores that there are:

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    KERAS_BACKEND=jax python guides/distribution.py

Keras shares out batches, weights and other tensors on JAX (`keras.distribution`), and batches on
TensorFlow (`tf.distribute`). On torch, `fit` trains on one device; a Keras model is a
`torch.nn.Module` there, for `DistributedDataParallel` in your own loop.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "torch", "tensorflow"

import keras
import numpy as np

import keras_graphattn
from keras_graphattn.distribution import SequenceParallel, check_layout_map, distribute
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention

LENGTH, SYMBOLS = 128, 8
random = np.random.default_rng(0)


def sequences(count):
    """Sequences of symbols; the class is which of the first two comes more often."""
    labels = random.integers(0, 2, count)
    chances = np.full((2, SYMBOLS), 0.1)
    chances[0, 0] = chances[1, 1] = 0.3
    tokens = np.stack([random.choice(SYMBOLS, LENGTH, p=chances[label]) for label in labels])
    return tokens.astype("int32"), labels


def build():
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(SYMBOLS, 32, name="symbols")(tokens)
    x += AttentiveGraphFilter(num_heads=2, key_dim=16, order=2, name="attention")(x)
    hidden = keras.layers.Dense(64, activation="gelu", name="hidden")(x)
    x += keras.layers.Dense(32, name="output")(hidden)
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, keras.layers.Dense(2, activation="softmax", name="class")(pooled))


def train(model, title):
    model.compile(
        keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x_train, y_train, batch_size=32, epochs=3, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=32, verbose=0)
    print(f"{title}: test accuracy {accuracy:.3f}")


(x_train, y_train), (x_test, y_test) = sequences(512), sequences(128)
backend = keras.backend.backend()
devices = keras.distribution.list_devices() if backend != "torch" else ["cpu:0"]
count = len(devices)
print(f"{count} device(s) on {backend}: {', '.join(devices)}")

"""
## Half precision

Under Keras' policies `mixed_bfloat16` and `mixed_float16`, projections and values are in half
precision. The layers here keep sums over tokens, softmaxes, masks and the coefficients of filters
in float32, so the outputs stay near those of float32. On GPUs and TPUs half precision is faster;
on a CPU it is not. Under `mixed_float16`, `compile` scales the loss.
"""

keras.config.set_dtype_policy("mixed_bfloat16")
half = build()
keras.config.set_dtype_policy("float32")
full = build()
full.set_weights(half.get_weights())
outputs = [model.predict(x_test, verbose=0) for model in (half, full)]
print(
    f"bfloat16 - float32: probabilities differ by at most {np.abs(np.subtract(*outputs)).max():.4f}"
)
attention = half.get_layer("attention")
kept = sorted({keras.backend.standardize_dtype(weight.dtype) for weight in attention.weights})
print(f"the layer computes in {attention.compute_dtype}; its weights are {', '.join(kept)}")
train(half, "bfloat16")

"""
## Batches

Every device has all weights and a part of each batch. Build the model within the scope; on JAX, a
model that exists already, such as one loaded or converted before, is placed by `distribute`. On
TensorFlow one strategy serves the whole program: the collective sums of a second one get mixed up
with those of the first. Inputs are numbers there, not booleans: Keras takes the mean of a first
batch over the replicas.
"""

if backend == "jax":
    model = build()
    with keras.distribution.DataParallel(devices=devices).scope():
        train(distribute(model), "batches shared out")
elif backend == "tensorflow":
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(devices).scope():
        train(build(), "batches shared out")
else:
    train(build(), "one device")

"""
## Weights

`layout_map` gives every weight of a model a layout: projections are split over attention heads, a
feed-forward network over its hidden units, embeddings over their vocabulary; biases, coefficients
of filters, weights of masks and norms are whole on each device. A size that the devices cannot
share evenly is an error that names the weight, and so is a rule that matches none.
"""

if backend == "jax":
    each = 2 if count % 2 == 0 else 1
    mesh = keras.distribution.DeviceMesh((count // each, each), ("batch", "model"), devices)
    layouts = keras_graphattn.layout_map(build(), mesh, large=256)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with parallel.scope():
        model = build()
        for path, axes in check_layout_map(model, layouts).items():
            print(f"{path}: {axes}")
        train(model, "weights shared out")

"""
A model too large for one device can be built on the host, under `keras.device("cpu")`, and placed:

    backbone = keras_hub.models.BertBackbone.from_preset("bert_base_en")
    keras_graphattn.convert(backbone, "graph_filter", order=4)
    layouts = keras_graphattn.layout_map(backbone, mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )
    distribute(backbone)

Within the scope, `convert` works on models that were built there. It refuses a model whose weights
are elsewhere than the new ones would be.
"""

"""
## Tokens

AGF and kernel attention need no more of other tokens than sums over them. With the tokens of each
sequence shared out, every device holds n / p of them, and what crosses devices is a few matrices of
the size of a head, whatever n: XLA puts in all-reduces, and no all-gather. Under causal, segment
and exponential masks one such matrix per chunk of 64 tokens is gathered.

Softmax attention needs all keys. `GraphFilterAttention` and `DifferentialAttention` with
`attention_path="blockwise"` send them around a ring of devices: each device has the keys of n / p
tokens at a time, and the result is exact. The dense path works too, but gathers all tokens on each
device.
"""

if backend == "jax":
    mesh = keras.distribution.DeviceMesh((1, count), ("batch", "sequence"), devices)
    with SequenceParallel(mesh, batch_axis="batch").scope():
        train(build(), "tokens shared out")

"""
## Several hosts

Each host runs the same program. Before anything else it joins the others:

    keras.distribution.initialize()                       # TPU pods: all is found
    keras.distribution.initialize("10.0.0.1:1234", 2, 0)   # GPUs: coordinator, hosts, own one

which is `jax.distributed.initialize` and one seed for all. `list_devices()` then has the devices of
all hosts. Keep the axes that exchange most ("model", "sequence") within a host, and "batch" across
hosts. `fit` takes a `tf.data.Dataset` with whole batches there and gives each host its part; other
data must be shared out beforehand (`auto_shard_dataset=False`). Files are written by one host:
`if jax.process_index() == 0`. The recipes do all this with `--processes`: see
[Several devices and hosts](../docs/pages/scaling.md).

## Layers that filter a dense matrix

Head by head nothing crosses devices between the projections, so `GraphFilterAttention` and
`PLaplacianAttention` go with the weights shared out as they are.
"""

if backend == "jax":
    mesh = keras.distribution.DeviceMesh((count // each, each), ("batch", "model"), devices)
    layer = GraphFilterAttention(num_heads=4, key_dim=8, order=3, name="filter")
    layer.build((None, LENGTH, 32))
    layouts = keras_graphattn.layout_map(layer, mesh)
    print(check_layout_map(layer, layouts))
