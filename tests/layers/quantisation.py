"""How far quantised layers are from their float32: `KERAS_BACKEND=torch python -m
tests.layers.quantisation` prints it as JSON.

Each layer of `capabilities.LAYERS` follows a dense layer, with coefficients that are not those of
its start. Keras' own layer has the same place, sizes and tokens: the attention of Keras, and for
the gated delta rule the layer that KerasHub has of it.
"""

import gc
import json
import warnings

import keras
import numpy as np

from tests.layers.capabilities import LAYERS, chain, given_inputs
from tests.layers.unseen_cases import BATCH, LENGTH, scene
from tests.numerics import randomise, relative_rms, to_numpy

MODES = ("int8", "int4", "float8")
STOCK = "`keras.layers.MultiHeadAttention`"
DELTA_NET = "`Qwen3_5GatedDeltaNet` of KerasHub"
HEADS, SIZE, CHANNELS, SEEDS = 4, 16, 64, 4
LIMIT = 1.2  # of the error of Keras' own layer


def delta_net():
    from keras_hub.src.models.qwen3_5.qwen3_5_gated_delta_net import Qwen3_5GatedDeltaNet

    return Qwen3_5GatedDeltaNet(CHANNELS, HEADS, HEADS, SIZE, SIZE)


STOCK_ROWS = {STOCK: lambda: keras.layers.MultiHeadAttention(HEADS, SIZE), DELTA_NET: delta_net}
ROWS = STOCK_ROWS | {name: row.make for name, row in LAYERS.items()}
OWN = {DELTA_NET: DELTA_NET, "`GatedDeltaRule`": DELTA_NET}  # of all others it is STOCK


def quantised(model, inputs, mode):
    """Quantises a model in place. Three calls with data give float8 its scales."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of each layer that has nothing to quantise
        model.quantize(mode)
    for _ in range(3 if mode == "float8" else 0):
        model(inputs, training=True)
    return model


def model_of(name, seed, channels=CHANNELS):
    """A model of the layer of a row, in the size of a small transformer, and its inputs."""
    keras.utils.set_random_seed(seed)
    layer, shape = ROWS[name](), (BATCH, LENGTH, channels)
    config = layer.get_config()
    if "num_heads" in config:
        size = SIZE * channels // CHANNELS
        config |= {"num_heads": HEADS, "key_dim": size, "value_dim": size}
    layer = type(layer).from_config(config)
    layer.build(shape, shape) if name == STOCK else layer.build(shape)
    randomise(layer, scale=0.03, seed=seed)
    tokens = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    first = keras.layers.Dense(channels)
    if name == STOCK:
        start = keras.Input(shape[1:], name="tokens")
        hidden = first(start)
        return keras.Model({"tokens": start}, layer(hidden, hidden)), {"tokens": tokens}
    call = {} if name == DELTA_NET else scene("", "example", layer).call
    given = {key: x for inputs in given_inputs(call).values() for key, x in inputs.items()}
    return chain([first, layer], given, shape), {"tokens": tokens, **given}


def error(name, mode):
    """The root mean square over seeds of the relative errors of the outputs."""
    errors = []
    for seed in range(SEEDS):
        model, inputs = model_of(name, seed)
        exact = to_numpy(model(inputs))
        outputs = quantised(model, inputs, mode)(inputs)
        errors.append(relative_rms(to_numpy(outputs), exact))
    return float(np.sqrt(np.mean(np.square(errors))))


def ratios(errors):
    """Of each name, the error over that of Keras' own layer."""
    return {name: error / errors[OWN.get(name, STOCK)] for name, error in errors.items()}


def assert_within_limits(errors):
    for name, ratio in ratios(errors).items():
        assert 0 < ratio <= LIMIT, (name, ratio)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # Keras collects garbage for each layer that it quantises
    measured = {mode: {name: error(name, mode) for name in ROWS} for mode in MODES}
    print(json.dumps(measured))
