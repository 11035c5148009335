"""A refused first call leaves a layer without weights, ready for the next one."""

import keras
import numpy as np
import pytest

from tests.fuzz.cases_of_classes import (
    AT_CALL,
    LAYERS,
    MASKS,
    SIGNAL,
    TOKEN_LAYERS,
    WIDTH,
    B,
    T,
    layer,
    mask,
)

TOKENS = np.random.default_rng(0).normal(size=(B, T, WIDTH)).astype("float32")
WRONG = {
    "rank": {"query": TOKENS[0]},
    "lengths": {"query": TOKENS, "value": np.pad(TOKENS, [[0, 0], [0, 1], [0, 0]])},
    "mask": {"query": TOKENS, "attention_mask": np.ones((B, T, T + 3), bool)},
    "text": {"query": np.array([["a"]])},
}


def weights(made):
    return [(variable.path, tuple(variable.shape)) for variable in made.weights]


def described(made):
    """What a layer has, by name: weights, sublayers, and torch's parameters."""
    on_torch = getattr(made, "parameters", list)
    inner = [type(child).__name__ for child in made._flatten_layers(include_self=False)]
    return weights(made), inner, len(list(on_torch())), made.built


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_refused_first_call_changes_nothing(name):
    if name in TOKEN_LAYERS:
        pytest.skip("has no weights")
    made = layer(name)
    before = described(made)
    for wrong in WRONG.values():
        try:
            made(**wrong)
        except (ValueError, TypeError):
            assert described(made) == before
        else:  # a layer may take it: then this is another first call
            made = layer(name)
    tokens = keras.Input((T, WIDTH))
    made(tokens)
    fresh = layer(name)
    fresh(tokens)
    assert [w[1] for w in weights(made)] == [w[1] for w in weights(fresh)]
    assert len(made._flatten_layers()) == len(fresh._flatten_layers())
    made.set_weights(fresh.get_weights())


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_refused_build_changes_nothing(name):
    if name in TOKEN_LAYERS:
        pytest.skip("has no weights")
    made = layer(name)
    before = described(made)
    with pytest.raises(ValueError, match=r"quer|dimensions"):
        made.build((B, WIDTH), (B, WIDTH))
    assert described(made) == before
    made(keras.Input((T, WIDTH)))
    assert len(set(weights(made))) == len(made.weights)


@pytest.mark.parametrize("name", sorted(MASKS))
def test_a_mask_that_refused_its_first_signal_has_one_set_of_weights(name):
    made, fresh, inputs = mask(name), mask(name), AT_CALL.get(name, {})
    for wrong in (SIGNAL[0], SIGNAL[..., 0, 0], np.zeros((B, T), "float32")):
        with pytest.raises((ValueError, TypeError)):
            made(wrong, **inputs)
    made(SIGNAL, **inputs)
    fresh(SIGNAL, **inputs)
    assert [w[1] for w in weights(made)] == [w[1] for w in weights(fresh)]
