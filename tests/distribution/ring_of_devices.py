"""Compares a ring of devices with one device; run in a separate process, which writes JSON.

    python ring_of_devices.py FILE

For each case and each ring, the result has the differences of values and gradients, and what is
exchanged. `memory` has the memory of one device of a ring.
"""

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_graphattn.distribution import SequenceParallel
from keras_graphattn.layers import DifferentialAttention, GraphFilterAttention, PLaplacianAttention
from tests.distribution.eight_devices import difference, exchanged

HEADS, HEAD, FEATURES, BATCH, LENGTH = 2, 8, 16, 2, 128
MEMORY_LENGTH = 8192
GATHERS = ("all-gather", "all-to-all")


def layer(kind=GraphFilterAttention, attention_path="blockwise", **options):
    """Makes a layer without biases: the gradient for those of keys is 0, and rounding errors."""
    options |= {"attention_path": attention_path, "block_size": 24, "use_bias": False}
    return lambda: kind(HEADS, HEAD, **options)


def visible_pairs():
    """Pairs drawn by chance; row 3 sees nothing."""
    pairs = np.random.default_rng(1).random((BATCH, LENGTH, LENGTH)) < 0.3
    pairs[:, 3] = False
    return pairs


def some_keys():
    return np.random.default_rng(2).random((BATCH, 1, LENGTH)) < 0.5


CASES = {
    "plain": (layer(filter=None), {}),
    "first_order": (layer(order=3), {}),
    "causal": (layer(order=3), {"use_causal_mask": True}),
    "window": (layer(filter="chebyshev", order=3, sliding_window=20), {"use_causal_mask": True}),
    "pairs": (layer(order=2), {"attention_mask": visible_pairs()}),
    "keys": (layer(order=2, use_gate=True), {"attention_mask": some_keys()}),
    "grouped": (layer(num_key_value_heads=1, value_dim=5), {}),
    "differential": (layer(DifferentialAttention, value_dim=HEAD), {"use_causal_mask": True}),
    "fused": (layer(attention_path="fused"), {}),
    "p_laplacian": (layer(PLaplacianAttention), {}),
    "p_laplacian by default": (layer(PLaplacianAttention, None, p=[1.5, 2.0]), {}),
    "p_laplacian, causal": (layer(PLaplacianAttention, diagonal="drop"), {"use_causal_mask": True}),
    "p_laplacian, pairs": (layer(PLaplacianAttention), {"attention_mask": visible_pairs()}),
}
ON_ALL_RINGS = ("first_order", "causal")
RINGS = ((4, 2), (1, 1), (2, 1), (4, 1), (8, 1))  # devices for tokens, and for examples


def problem(make, options, length=LENGTH, batch=BATCH, masked=True):
    """A loss of a layer with random weights, with its outputs, and the arguments of the loss."""
    keras.utils.set_random_seed(0)
    built = make()
    built.build((batch, length, FEATURES))
    generator = np.random.default_rng(0)
    trained = [
        np.asarray(v.value) + 0.2 * generator.standard_normal(v.shape).astype("float32")
        for v in built.trainable_variables
    ]
    state = [np.asarray(v.value) for v in built.non_trainable_variables]
    x = generator.standard_normal((batch, length, FEATURES)).astype("float32")
    mask = np.arange(length)[None] < length - np.array([[0], [17]])[:batch]
    masks = {"query_mask": mask, "value_mask": mask} if masked else {}

    def loss(trained, x):
        outputs, _ = built.stateless_call(trained, state, x, **masks, **options)
        return jnp.mean(jnp.sin(3.0 * outputs)), outputs

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), trained, x


def on_ring(devices, function, trained, x, batch_devices=1):
    """The function, compiled for a ring, with its results."""
    names = [f"cpu:{n}" for n in range(devices * batch_devices)]
    mesh = keras.distribution.DeviceMesh((batch_devices, devices), ("batch", "sequence"), names)
    parallel = SequenceParallel(mesh, batch_axis="batch")
    with parallel.scope():
        parts = parallel.get_data_layout(x.shape).backend_layout
        whole = keras.distribution.TensorLayout((), mesh).backend_layout
        placed = jax.device_put(trained, whole), jax.device_put(x, parts)
        compiled = jax.jit(function).lower(*placed).compile()
    return compiled, placed


def compare(name):
    make, options = CASES[name]
    function, trained, x = problem(make, options)
    (_, outputs), (gradients, to_input) = jax.jit(function)(trained, x)
    numbers = {}
    for devices, batch_devices in RINGS if name in ON_ALL_RINGS else RINGS[:1]:
        compiled, placed = on_ring(devices, function, trained, x, batch_devices)
        (_, shared), (shared_gradients, shared_to_input) = compiled(*placed)
        numbers[f"{devices}x{batch_devices}"] = {
            "value": difference([shared], [outputs]),
            "gradient": difference([*shared_gradients, shared_to_input], [*gradients, to_input]),
            "part": shared.addressable_shards[0].data.size / outputs.size,
            "gathered": exchanged(compiled, GATHERS),
            "passed_on": exchanged(compiled, ("collective-permute",)),
        }
    return numbers


def memory():
    """Bytes of temporary tensors of one device, for one sequence, forward and backward."""
    make = lambda: GraphFilterAttention(HEADS, HEAD, attention_path="blockwise")  # noqa: E731
    function, trained, x = problem(make, {}, MEMORY_LENGTH, 1, masked=False)
    return {
        devices: on_ring(devices, function, trained, x)[0].memory_analysis().temp_size_in_bytes
        for devices in (1, 4)
    }


if __name__ == "__main__":
    numbers = {name: compare(name) for name in CASES}
    numbers["memory"] = memory()
    with open(sys.argv[1], "w") as written:
        json.dump(numbers, written, indent=1)
