"""Converted attention with rotary embedding against its naive twin, in values and gradients."""

import functools
import math

import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.filters import Chebyshev, FirstOrder
from tests.hub import rotary_decoders, rotary_twin
from tests.hub.models import outputs, random_inputs
from tests.hub.rotary_decoders import BACKBONES, HEAD_SIZES, WINDOW, attention_of, tiny, window_of
from tests.hub.twins import assert_is_twin

LENGTH, WIDTH = 7, 16
PADDING = np.arange(LENGTH)[None] < np.array([LENGTH - 2, LENGTH])[:, None]  # (B, T)
P = [1.5, 2.0, 2.5, 3.0]
ATTENTIONS = {
    "first_order": ("graph_filter", {"filter": FirstOrder(4), "order": None}),
    "chebyshev": ("graph_filter", {"filter": Chebyshev(3), "order": None}),
    "p_laplacian": ("p_laplacian", {"p": P}),
}


def rotation(name, index, length=LENGTH):
    """The frequencies of a layer, and the factor of what is rotated."""
    size = HEAD_SIZES.get(name, 4)
    frequencies = rotary_twin.frequencies_of(size)
    if name == "phi3":
        pretrained = rotary_decoders.PRETRAINED
        factors = rotary_decoders.SHORT if length <= pretrained else rotary_decoders.LONG
        return frequencies / torch.tensor(factors), math.sqrt(1 + math.log(2, pretrained))
    if name == "smollm3" and not rotary_decoders.ROTATES[index]:
        return None, 1.0
    return frequencies, 1.0


def twin(name, index, attention, options, padding, weights, x):
    """The outputs of a converted layer, by its formulas."""
    matrix, value = rotary_twin.matrix_and_values(
        x,
        weights,
        rotary_twin.visible(padding, window_of(name)),
        *rotation(name, index, x.shape[1]),
        {"qwen3": 1e-5, "qwen3_moe": 1e-6}.get(name),
    )
    if attention == "graph_filter":
        found = rotary_twin.filtered(options["filter"], matrix, value, weights)
    else:
        found = rotary_twin.p_laplacian(options["p"], matrix, value)
    return rotary_twin.project_out(found, weights)


def tokens(padding, seed=5):
    shape = (*padding.shape, WIDTH)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def assert_layer_is_twin(name, index, case, padding):
    attention, options = ATTENTIONS[case]
    backbone = rotary_decoders.converted(name, attention, **options)
    decoder, layer = backbone.transformer_layers[index], attention_of(backbone, index)
    x = tokens(padding)
    mask = decoder._compute_self_attention_mask(
        ops.convert_to_tensor(x), ops.convert_to_tensor(padding), None, None, None
    )
    mask = ops.convert_to_numpy(mask)

    def call(x):
        return layer(x, attention_mask=ops.convert_to_tensor(mask))

    formulas = functools.partial(twin, name, index, attention, options, padding)
    assert_is_twin(layer, call, formulas, input=x)


@pytest.mark.parametrize("case", ATTENTIONS)
@pytest.mark.parametrize("name", BACKBONES)
def test_agrees_with_its_naive_twin(name, case):
    assert_layer_is_twin(name, 0, case, PADDING)


def test_a_layer_without_rotation_agrees_with_its_naive_twin():
    assert_layer_is_twin("smollm3", 1, "first_order", PADDING)


def test_more_tokens_than_in_pretraining_take_the_long_factors():
    assert_layer_is_twin(
        "phi3", 0, "first_order", np.ones((1, rotary_decoders.PRETRAINED + 1), bool)
    )


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["qwen", "qwen_moe", "qwen3", "qwen3_moe"])
def test_the_window_is_applied_where_kerashub_applies_it(name):
    """A failure means that KerasHub has changed, and that `QwenDecoder` has to follow."""
    near = tiny(name)
    far = tiny(name, sliding_window_size=LENGTH)  # QwenMoeAttention fails on TensorFlow with more
    inputs = random_inputs(near)
    (found,), (without,) = outputs(near, inputs), outputs(far, inputs)
    assert (np.abs(found - without).max() > 1e-3) == (window_of(name) == WINDOW)
    for backbone in (near, far):
        keras_graphattn.convert(backbone, order=4)
    assert np.abs(outputs(near, inputs)[0] - found).max() < 1e-5 * np.abs(found).max()
    assert np.abs(outputs(far, inputs)[0] - without).max() < 1e-5 * np.abs(without).max()
