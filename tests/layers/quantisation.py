"""How far quantised layers are from their float32: `KERAS_BACKEND=torch python -m
tests.layers.quantisation` prints it as JSON.

Each layer of `capabilities.LAYERS` follows a dense layer, with coefficients that are not those of
its start. Keras' own attention has the same place, sizes and tokens. With only the dense layer
quantised, the error is what the layer makes of an error in its inputs.
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
HEADS, SIZE, CHANNELS, SEEDS = 4, 16, 64, 4
FIRST = "first"  # the name of the dense layer
LIMIT = 1.2  # of the error of Keras' own attention
# They enlarge errors of their inputs: queries and keys are divided by their length, outputs by
# theirs, and no softmax averages. Their error is held to the limit after division by `before`.
SENSITIVE = ("`GatedDeltaRule`",)
ROWS = {STOCK: lambda: keras.layers.MultiHeadAttention(HEADS, SIZE)}
ROWS |= {name: row.make for name, row in LAYERS.items()}


def quantised(model, inputs, mode, filters=None):
    """Quantises a model in place. Three calls with data give float8 its scales."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of each layer that has nothing to quantise
        model.quantize(mode, filters=filters)
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
    first = keras.layers.Dense(channels, name=FIRST)
    if name == STOCK:
        start = keras.Input(shape[1:], name="tokens")
        hidden = first(start)
        return keras.Model({"tokens": start}, layer(hidden, hidden)), {"tokens": tokens}
    call = scene("", "example", layer).call
    given = {key: x for inputs in given_inputs(call).values() for key, x in inputs.items()}
    return chain([first, layer], given, shape), {"tokens": tokens, **given}


def error(name, mode, filters=None):
    """The root mean square over seeds of the relative errors of the outputs."""
    errors = []
    for seed in range(SEEDS):
        model, inputs = model_of(name, seed)
        exact = to_numpy(model(inputs))
        outputs = quantised(model, inputs, mode, filters)(inputs)
        errors.append(relative_rms(to_numpy(outputs), exact))
    return float(np.sqrt(np.mean(np.square(errors))))


def before(name, mode):
    """The error with only the dense layer before the layer quantised."""
    return error(name, mode, lambda layer: layer.name == FIRST)


def ratios(errors, before):
    """Of each name, the error over that of Keras' own attention: as it is, and over `before`."""
    own = {name: error / errors[STOCK] for name, error in errors.items()}
    return {name: (own[name], own[name] * before[STOCK] / before[name]) for name in errors}


def assert_within_limits(errors, before):
    """Errors by name, and those `before` the layer: each is near that of Keras' own attention."""
    for name, (own, relative) in ratios(errors, before).items():
        assert 0 < relative <= LIMIT, (name, relative)
        assert name in SENSITIVE or own <= LIMIT, (name, own)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # Keras collects garbage for each layer that it quantises
    measured = {
        mode: {
            "errors": {name: error(name, mode) for name in ROWS},
            "before": {name: before(name, mode) for name in ROWS},
        }
        for mode in MODES
    }
    print(json.dumps(measured))
