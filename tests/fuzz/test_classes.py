"""Every public layer, mask and bias: made, called and restored with one wrong thing at a time."""

import os

import keras
import numpy as np
import pytest

from keras_graphattn import biases, layers, masks
from tests.fuzz.attacks import HOW_OFTEN, REFUSALS, answer_or_refusal, leaves, one_wrong, tried
from tests.fuzz.cases_of_classes import (
    AT_CALL,
    BIASES,
    LAYERS,
    MASKS,
    SIGNAL,
    WIDTH,
    B,
    D,
    N,
    T,
    bias,
    call_of,
    layer,
    mask,
)

ROOMS = {layers: (LAYERS, layer), masks: (MASKS, mask), biases: (BIASES, bias)}
TOKENS = np.ones((B, T, WIDTH), "float32")
CLASSES = [(room, name) for room, (names, _) in ROOMS.items() for name in names]
EACH_CLASS = pytest.mark.parametrize(("room", "name"), CLASSES)
EACH_LAYER = pytest.mark.parametrize("name", sorted(LAYERS))


def options_of(room, name):
    return ROOMS[room][0][name]


def made_of(room, name):
    return ROOMS[room][1](name)


def test_every_public_class_has_a_case():
    assert set(layers.__all__) == set(LAYERS)
    assert set(masks.__all__) == {*MASKS, "Mask"}
    assert set(biases.__all__) == {*BIASES, "Bias"}


def run(room, name, made):
    if room is layers:
        return made(**call_of(name), training=False)
    if room is biases:
        attend = layers.GraphFilterAttention(N, D, bias=made)
        return attend(TOKENS, bias_inputs=AT_CALL.get(name))
    return made.apply(SIGNAL, **AT_CALL.get(name, {}))


def attack_option(room, name, data):
    options = options_of(room, name)
    argument, _, wrong = one_wrong(data, options)

    def make_and_run():
        made = getattr(room, name)(**{**options, argument: wrong})
        again = type(made).from_config(made.get_config())
        assert again.get_config() == made.get_config()
        return run(room, name, made)

    answer_or_refusal(make_and_run, options)


def attack_call(name, data):
    arguments = call_of(name)
    argument, kind, wrong = one_wrong(data, arguments)
    made = layer(name)
    names = arguments if kind in ("size", "rank -1", "rank +1") else [argument]
    answer = answer_or_refusal(lambda: made(**{**arguments, argument: wrong}), names)
    if answer is not None:
        expected = leaves(layer(name)(**arguments))[0].shape
        assert answer[0].shape == expected or kind in ("size", "odd")


@pytest.mark.slow_on("jax")
@HOW_OFTEN
@EACH_CLASS
def test_one_wrong_option(room, name, how_often):
    if options_of(room, name):
        tried(how_often, attack_option, room, name)


@pytest.mark.slow_on("jax")
@HOW_OFTEN
@EACH_LAYER
def test_one_wrong_argument_of_the_call(name, how_often):
    tried(how_often, attack_call, name)


@EACH_LAYER
def test_nan_stays_in_its_example(name):
    arguments = call_of(name)
    first = next(iter(arguments))
    arguments[first] = arguments[first].copy()
    arguments[first][0, 1] = np.nan
    outputs = leaves(layer(name)(**arguments, training=False))[0]
    assert np.isfinite(outputs[1]).all()
    assert np.isnan(outputs[0]).any()


@EACH_CLASS
def test_round_trip_in_safe_mode(room, name, tmp_path):
    tokens = SIGNAL if room is masks else TOKENS
    arrays = AT_CALL.get(name, {})
    first, *others = (keras.Input(x.shape[1:], dtype=x.dtype) for x in (tokens, *arrays.values()))
    inputs = dict(zip(arrays, others, strict=True))
    made = made_of(room, name)
    if room is biases:
        attend = layers.GraphFilterAttention(N, D, bias=made)
        outputs = attend(first, bias_inputs=inputs or None)
    else:
        outputs = made(first, **inputs)
    model = keras.Model([first, *others], outputs)
    tokens = [tokens, *arrays.values()]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    for one, other in zip(leaves(model(tokens)), leaves(again(tokens)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


HARMFUL = [
    {"module": "os", "class_name": "function", "config": "system", "registered_name": "system"},
    {"module": "os", "class_name": "system", "config": {"command": "touch harm"}},
    {"module": "subprocess", "class_name": "Popen", "config": {"args": ["touch", "harm"]}},
    {"module": "builtins", "class_name": "function", "config": "eval", "registered_name": "eval"},
    "os.system",
    {"class_name": "__lambda__", "config": {"value": "4wEAAAA="}},
]


@EACH_CLASS
@pytest.mark.parametrize("harm", HARMFUL, ids=str)
def test_no_configuration_runs_code(room, name, harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = made_of(room, name).get_config()
    for entry in config:
        if entry in ("name", "trainable"):
            continue
        try:
            made = getattr(room, name).from_config({**config, entry: harm})
        except REFUSALS:
            continue
        assert getattr(made, entry, None) is not os.system
    assert not list(tmp_path.iterdir())


@EACH_CLASS
def test_corrupted_configurations_name_the_entry(room, name):
    made = made_of(room, name)
    config = made.get_config()
    with pytest.raises(REFUSALS, match="unheard_of"):
        type(made).from_config({**config, "unheard_of": 1})
    for entry in ("num_heads", "mask", "masks", "rank", "max_length", "grid_shape"):
        if entry in options_of(room, name):
            with pytest.raises(REFUSALS, match=entry):
                type(made).from_config({key: x for key, x in config.items() if key != entry})
