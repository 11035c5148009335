"""`GatedDeltaRule` computes what the layer of Qwen 3.5 in KerasHub computes."""

import keras
import numpy as np
import pytest
from keras_hub.src.models.qwen3_5.qwen3_5_gated_delta_net import Qwen3_5GatedDeltaNet

from keras_graphattn.layers import GatedDeltaRule
from keras_graphattn.layers.gated_delta_rule import EPSILON
from tests.layers.quantisation import MODES, quantised
from tests.numerics import (
    assert_all_close,
    assert_close,
    called_with,
    randomise,
    relative_rms,
    short_name,
    to_numpy,
    value_and_gradients,
)

HEADS, SIZE, WIDE, CHANNELS, TOKENS = 3, 4, 6, 10, 71  # more than a chunk of 64
# KerasHub has a loop of 64 steps with other shapes each, which compilers take minutes for.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")


@pytest.fixture
def layers():
    """Our layer, and that of KerasHub with the same weights."""
    ours = GatedDeltaRule(HEADS, SIZE, WIDE, use_bias=False)
    theirs = Qwen3_5GatedDeltaNet(CHANNELS, HEADS, HEADS, SIZE, WIDE, layer_norm_epsilon=EPSILON)
    for layer in (ours, theirs):
        layer.build((None, None, CHANNELS))
    randomise(ours)
    weights = as_theirs({short_name(ours, weight): to_numpy(weight) for weight in ours.weights})
    for weight in theirs.weights:
        weight.assign(weights.pop(short_name(theirs, weight)))
    assert not weights
    return ours, theirs


def as_theirs(of_ours):
    """Our weights or their gradients, by the names and in the shapes of KerasHub."""

    def columns(*names):
        return np.concatenate([of_ours[f"{n}/kernel"].reshape(CHANNELS, -1) for n in names], axis=1)

    taps = [of_ours[f"{n}_convolution/kernel"].reshape(4, -1) for n in ("query", "key", "value")]
    return {
        "in_proj_qkv/kernel": columns("query", "key", "value"),
        "in_proj_z/kernel": columns("gate"),
        "in_proj_b/kernel": columns("strength"),
        "in_proj_a/kernel": columns("decay"),
        "out_proj/kernel": of_ours["attention_output/kernel"].reshape(-1, CHANNELS),
        "conv1d_kernel": np.concatenate(taps, axis=1).T,
        "dt_bias": of_ours["rate_bias"],
        "A_log": of_ours["log_rate"],
        "norm/scale": of_ours["norm_scale"],
    }


def tokens_of(length, seed=0):
    return np.random.default_rng(seed).standard_normal((2, length, CHANNELS)).astype("float32")


def differentiated(layer, tokens):
    names = [short_name(layer, weight) for weight in layer.trainable_weights]
    weights = [to_numpy(weight) for weight in layer.trainable_weights]
    outputs, gradients = value_and_gradients(
        lambda x, *weights: called_with(layer, weights, x), tokens, *weights
    )
    found = dict(zip(["tokens", *names], gradients.values(), strict=True))
    return outputs, found.pop("tokens"), found


def test_values_and_all_gradients(layers):
    ours, theirs = (differentiated(layer, tokens_of(TOKENS)) for layer in layers)
    assert_close(ours[0], theirs[0], 1e-5)
    assert_close(ours[1], theirs[1], 1e-5, what="gradient of tokens")
    assert_all_close(as_theirs(ours[2]), theirs[2], 2e-5)


def test_a_prompt_and_the_tokens_after_it(layers):
    ours, theirs = layers
    tokens, prompt = tokens_of(9), 6
    state = ours.get_initial_state(2)
    cache = (
        keras.ops.zeros((2, HEADS * (2 * SIZE + WIDE), 3)),
        keras.ops.zeros((2, HEADS, SIZE, WIDE)),
    )
    for start, stop in ((0, prompt), *((t, t + 1) for t in range(prompt, 9))):
        new = keras.ops.convert_to_tensor(tokens[:, start:stop])
        outputs, state = ours.decode(new, state)
        expected, cache = theirs(new, cache=cache, cache_update_index=start)
        assert_close(to_numpy(outputs), to_numpy(expected), 1e-5)
    assert_close(to_numpy(state.sums), to_numpy(cache[1]), 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_quantised_in_the_same_way_both_have_the_same_error(layers, mode):
    tokens, errors = tokens_of(9), []
    for layer in layers:
        start = keras.Input((9, CHANNELS))
        model = keras.Model(start, layer(start))
        exact = to_numpy(model(tokens))
        outputs = to_numpy(quantised(model, tokens, mode)(tokens))
        errors.append(relative_rms(outputs, exact))
    assert errors[0] > 1e-3
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
