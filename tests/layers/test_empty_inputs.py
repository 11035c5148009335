"""No examples, or no tokens, give outputs of that shape, or an error in words."""

import numpy as np
import pytest

from tests.biases import registry
from tests.layers.decoding import decoded
from tests.layers.unseen_cases import (
    BATCH,
    CASES,
    CHANNELS,
    LENGTH,
    PER_EXAMPLE,
    inputs_of,
    mask_of,
)
from tests.numerics import randomise

pytestmark = pytest.mark.slow_on("jax")

FREE = ("Causal", "Segments", "Entries", "Exponential", "GatedDecay", "Toeplitz", "LowRank")
FREE += ("Stochastic",)


def called(name, batch, length):
    layer = CASES[name].make()
    bias = getattr(layer, "bias", None)
    of_bias = () if bias is None else bias.given_inputs
    call = {}
    for argument, names in (
        ("mask_inputs", inputs_of(name, mask_of(layer))),
        ("bias_inputs", of_bias),
    ):
        given = {key: PER_EXAMPLE[key][:batch, :length] for key in names}
        for key in {"entries", *registry.INPUTS} & set(given):  # of pairs of tokens
            given[key] = given[key][:, :, :length]
        if given:
            call[argument] = given
    return layer, np.ones((batch, length, CHANNELS), "float32"), call


@pytest.mark.parametrize("name", CASES)
def test_no_examples_give_no_outputs(name):
    layer, x, call = called(name, BATCH, LENGTH)
    layer(x, **call)
    randomise(layer)
    call = {key: {k: value[:0] for k, value in given.items()} for key, given in call.items()}
    assert tuple(layer(x[:0], **call).shape) == shape_of_outputs(name, x[:0])


@pytest.mark.parametrize("name", CASES)
def test_no_tokens_give_no_outputs_or_an_error_in_words(name):
    layer, x, call = called(name, BATCH, LENGTH)
    layer(x, **call)
    _, x, call = called(name, BATCH, 0)
    mask = mask_of(layer)
    found = outcome(layer, x, call)
    if hasattr(layer, "num_heads") and found == x.shape:
        call["attention_mask"] = np.ones((BATCH, 1, 0), bool)
        assert outcome(layer, x, call) == found
    if mask is None or type(mask).__name__.startswith(FREE):
        assert found == shape_of_outputs(name, x)
    else:  # its matrix may have a size of its own
        assert found == x.shape or "Received" in found


def shape_of_outputs(name, x):
    """A pooling layer gives one row for each example."""
    return x.shape[::2] if name.startswith("pooling") else x.shape


def outcome(layer, x, call):
    """The shape of the outputs, or the error's message."""
    try:
        return tuple(layer(x, **call).shape)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("delta", "AGF, causal"))])
def test_no_examples_of_many_tokens(name, length):
    layer = CASES[name].make()
    layer.build((None, None, CHANNELS))
    names = inputs_of(name, mask_of(layer))
    call = {"mask_inputs": {key: np.zeros((0, length), "int32") for key in names}} if names else {}
    x = np.zeros((0, length, CHANNELS), "float32")
    assert tuple(layer(x, **call).shape) == x.shape


@pytest.mark.parametrize("name", ["graph filter", "p-Laplacian, dense", "AGF, causal"])
def test_decoding_without_examples(name):
    layer, x = CASES[name].make(), np.zeros((0, 4, CHANNELS), "float32")
    outputs, _ = decoded(layer, x, [1] * 4)
    assert tuple(outputs.shape) == x.shape
