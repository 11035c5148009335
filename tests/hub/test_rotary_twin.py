"""Converted attention with rotary embedding against its naive twin, in values and gradients."""

import functools
import math

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.filters import Chebyshev, FirstOrder
from tests.hub import rotary_decoders, rotary_twin
from tests.hub.models import outputs, random_inputs
from tests.hub.rotary_decoders import BACKBONES, HEAD_SIZES, WINDOW, attention_of, tiny, window_of
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

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


def twin(name, index, attention, options, names, padding, x, *values):
    """The outputs of a converted layer, by its formulas."""
    weights = dict(zip(names, values, strict=True))
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


def compared(name, index, case, padding):
    """Values and gradients of a converted layer and of its twin."""
    attention, options = ATTENTIONS[case]
    backbone = rotary_decoders.converted(name, attention, **options)
    decoder, layer = backbone.transformer_layers[index], attention_of(backbone, index)
    x, trained = tokens(padding), layer.trainable_variables
    mask = decoder._compute_self_attention_mask(
        ops.convert_to_tensor(x), ops.convert_to_tensor(padding), None, None, None
    )
    mask = ops.convert_to_numpy(mask)

    def function(x, *values):
        kept = [(v, v.value) for v in layer.non_trainable_variables]
        with keras.StatelessScope(state_mapping=[*zip(trained, values, strict=True), *kept]):
            return layer(x, attention_mask=ops.convert_to_tensor(mask))

    names = [v.path.removeprefix(f"{layer.path}/") for v in trained]
    inputs = (x, *(to_numpy(v) for v in trained))
    found = value_and_gradients(function, *inputs)
    by_formulas = functools.partial(twin, name, index, attention, options, names, padding)
    expected = reference_value_and_gradients(by_formulas, *inputs)
    labels = dict(enumerate(["input", *names]))
    return [(y, {labels[i]: g for i, g in gradients.items()}) for y, gradients in (found, expected)]


@pytest.mark.parametrize("case", ATTENTIONS)
@pytest.mark.parametrize("name", BACKBONES)
def test_agrees_with_its_naive_twin(name, case):
    (value, gradients), (expected, expected_gradients) = compared(name, 0, case, PADDING)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_a_layer_without_rotation_agrees_with_its_naive_twin():
    (value, gradients), (expected, expected_gradients) = compared(
        "smollm3", 1, "first_order", PADDING
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_more_tokens_than_in_pretraining_take_the_long_factors():
    padding = np.ones((1, rotary_decoders.PRETRAINED + 1), bool)
    (value, _), (expected, _) = compared("phi3", 0, "first_order", padding)
    assert_close(value, expected, 1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["qwen", "qwen_moe", "qwen3", "qwen3_moe"])
def test_the_window_is_applied_where_kerashub_applies_it(name):
    """A failure means that KerasHub has changed, and that `QwenAdapter` has to follow."""
    near = tiny(name)
    far = tiny(name, sliding_window_size=LENGTH)  # QwenMoeAttention fails on TensorFlow with more
    inputs = random_inputs(near)
    (found,), (without,) = outputs(near, inputs), outputs(far, inputs)
    assert (np.abs(found - without).max() > 1e-3) == (window_of(name) == WINDOW)
    for backbone in (near, far):
        keras_graphattn.convert(backbone, order=4)
    assert np.abs(outputs(near, inputs)[0] - found).max() < 1e-5 * np.abs(found).max()
    assert np.abs(outputs(far, inputs)[0] - without).max() < 1e-5 * np.abs(without).max()
