"""Compares eight devices with one; run in a separate process, which writes JSON.

    python eight_devices.py FILE

Each entry of the result is `name: number`. The tests read and check these numbers.
"""

import json
import os
import re
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_graphattn import masks
from keras_graphattn.distribution import SequenceParallel, distribute, layout_map
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    GraphFilterAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
)

HEADS, HEAD, LENGTH, FEATURES = 2, 8, 1024, 16
COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(?:-start)?\("
)
LAYERS = {
    "kernel": lambda: MaskedKernelAttention(HEADS, HEAD, filter="first_order"),
    "favor": lambda: MaskedKernelAttention(HEADS, HEAD, feature_map="favor", seed=0),
    "agf": lambda: AttentiveGraphFilter(HEADS, HEAD, order=3, orthogonality_weight=0.1),
    "causal": lambda: MaskedKernelAttention(HEADS, HEAD, mask=masks.Causal()),
    "exponential": lambda: MaskedKernelAttention(HEADS, HEAD, mask=masks.Exponential()),
    "gated": lambda: MaskedKernelAttention(HEADS, HEAD, mask=masks.GatedDecay()),
    "causal_agf": lambda: AttentiveGraphFilter(HEADS, HEAD, order=3, causal=True),
}
TOKENS = 128
numbers = {}


def exchanged(compiled, kinds):
    """Number of entries of the largest tensor that any of these collectives makes."""
    sizes = [0]
    for shapes, kind in COLLECTIVE.findall(compiled.as_text()):
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
            if kind in kinds:
                sizes.append(int(np.prod([int(size) for size in shape.split(",") if size] or [1])))
    return max(sizes)


def difference(actual, expected):
    """Largest difference of any array, relative to that array, or to 1 % of the largest array."""
    pairs = [(np.asarray(a), np.asarray(e)) for a, e in zip(actual, expected, strict=True)]
    floor = 1e-2 * max(np.abs(e).max() for _, e in pairs)
    return float(max(np.abs(a - e).max() / max(np.abs(e).max(), floor) for a, e in pairs))


def tokens_on_a_mesh(name):
    """Runs one layer on a sequence in eight parts: values, gradients, shapes, communication."""
    keras.utils.set_random_seed(0)
    layer = LAYERS[name]()
    layer.build((1, LENGTH, FEATURES))
    generator = np.random.default_rng(0)
    trained = [
        np.asarray(v.value) + 0.2 * generator.standard_normal(v.shape).astype("float32")
        for v in layer.trainable_variables
    ]
    state = [np.asarray(v.value) for v in layer.non_trainable_variables]
    x = generator.standard_normal((1, LENGTH, FEATURES)).astype("float32")
    mask = np.arange(LENGTH)[None] < LENGTH - 100

    def loss(trained, x, mask):
        outputs, _ = layer.stateless_call(trained, state, x, query_mask=mask, value_mask=mask)
        return jnp.mean(jnp.sin(3.0 * outputs)), outputs

    function = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (_, outputs), (gradients, to_input) = jax.jit(function)(trained, x, mask)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("sequence",))
    parts = NamedSharding(mesh, PartitionSpec(None, "sequence"))
    whole = NamedSharding(mesh, PartitionSpec())
    placed = jax.device_put(trained, whole), jax.device_put(x, parts), jax.device_put(mask, parts)
    compiled = jax.jit(function).lower(*placed).compile()
    (_, shared), (shared_gradients, shared_to_input) = compiled(*placed)
    results = {
        "value": difference([shared], [outputs]),
        "gradient": difference([*shared_gradients, shared_to_input], [*gradients, to_input]),
        "part": shared.addressable_shards[0].data.size / outputs.size,
        "gradient_part": shared_to_input.addressable_shards[0].data.size / x.size,
        "gathered": exchanged(compiled, ("all-gather", "all-to-all", "collective-permute")),
        "summed": exchanged(compiled, ("all-reduce", "reduce-scatter")),
    }
    numbers.update({f"{name}_{key}": value for key, value in results.items()})


def model():
    """One block for each layer, with automatic names, weights of masks, norms, embeddings."""
    keras.utils.set_random_seed(0)
    width, heads = 32, 4
    tokens = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(64, width)(tokens)
    x += GraphFilterAttention(heads, 8, order=3, name="filter")(
        keras.layers.LayerNormalization()(x)
    )
    x += AttentiveGraphFilter(heads, 8, order=2, orthogonality_weight=0.01)(x)
    x += MaskedKernelAttention(heads, 8, mask=masks.Exponential())(x)
    x += PLaplacianAttention(heads, 8)(x)
    x += keras.layers.MultiHeadAttention(heads, 8)(x, x)
    hidden = keras.layers.Dense(4 * width, activation="gelu")(x)
    x += keras.layers.Dense(width)(hidden)
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, keras.layers.Dense(2, name="scores")(pooled))


def trained(model):
    """Returns the losses of ten steps and the weights after them."""
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 64, (80, TOKENS)), generator.integers(0, 2, 80)
    model.compile(
        keras.optimizers.Adam(1e-3, epsilon=1e-5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses = []
    step = keras.callbacks.LambdaCallback(on_batch_end=lambda _, logs: losses.append(logs["loss"]))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[step])
    assert len(losses) == 10
    return [np.array(losses), *(np.asarray(v.value) for v in model.trainable_variables)]


def fit_on_meshes():
    plain = model()
    rules = layout_map(plain, keras.distribution.DeviceMesh((2, 4), ("batch", "model")), large=1)
    expected = trained(plain)
    distributions = {
        "model": keras.distribution.ModelParallel(layout_map=rules, batch_dim_name="batch"),
        "data": keras.distribution.DataParallel(),
    }
    for name, distribution in distributions.items():
        with distribution.scope():
            built = model()
            numbers[f"{name}_fit"] = difference(trained(built), expected)
        kernel = built.get_layer("filter").query_dense.kernel.value
        numbers[f"{name}_part"] = kernel.addressable_shards[0].data.size / kernel.size
    built = model()
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "sequence"))
    with SequenceParallel(mesh, batch_axis="batch").scope():
        numbers["sequence_fit"] = difference(trained(distribute(built)), expected)
    slots = [v.value.sharding for v in built.optimizer.variables]
    numbers["sequence_slots"] = sum(not isinstance(s, NamedSharding) for s in slots)


if __name__ == "__main__":
    fit_on_meshes()
    for name in LAYERS:
        tokens_on_a_mesh(name)
    with open(sys.argv[1], "w") as file:
        json.dump(numbers, file)
