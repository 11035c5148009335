"""Gemma, Gemma 2 and 3, GPT-NeoX, Bloom, Falcon, GPT-OSS: what a converted layer keeps."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import Logits, parent_config, view
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of
from tests.hub.biased_decoders import (
    DECODERS,
    attentions_of,
    converted,
    fast_for,
    random_decoder,
)
from tests.hub.decoder_twins import TWINS, twin_attention, visible
from tests.hub.test_conversion import BEYOND
from tests.hub.twins import assert_is_twin
from tests.numerics import to_numpy

EACH = fast_for(DECODERS)
EXPONENTS = [1.5, 2.0, 2.5, 3.0]
WINDOWED = {"gpt_oss": 1}  # which layer has a window: the first, but for GPT-OSS
OPTIONS = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": EXPONENTS},
    "p_laplacian in blocks": {"p": EXPONENTS, "block_size": 3},
}


def call_of(layer, name, x, mask):
    """The output of an attention layer for tokens (B, T, d) and a mask (B, T, T)."""
    arguments = {"attention_mask": mask}
    if name == "falcon":
        slopes = 0.25 ** np.arange(1, 5, dtype="float32")[None, :, None, None]
        arguments["alibi"] = slopes * np.arange(x.shape[1], dtype="float32")  # (1, N, 1, T)
    found = layer(x, **arguments)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("attention", OPTIONS)
@pytest.mark.parametrize("name", EACH)
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    backbone = converted(name, attention.partition(" ")[0], **OPTIONS[attention])
    layer = attentions_of(backbone)[WINDOWED.get(name, 0)]
    x = np.random.default_rng(5).standard_normal((3, 7, 16)).astype("float32")
    real = np.arange(7)[None] < np.array([7, 5, 7])[:, None]
    real[2, :2] = False  # padding on the left: rows that see nothing
    mask = visible(TWINS[name], torch.tensor(real)).numpy()
    exponents = None if attention == "graph_filter" else EXPONENTS
    assert_is_twin(
        layer,
        lambda x: call_of(layer, name, x, mask),
        lambda weights, x: twin_attention(TWINS[name], x, weights, torch.tensor(real), exponents),
        input=x,
    )


def test_sizes():
    for name in DECODERS:
        backbone = DECODERS[name]()
        for site in attention_slots(backbone):
            shown = view(site.layer)
            sizes = shown.head_sizes()
            assert (sizes.num_heads, sizes.key_dim, sizes.value_dim) == (4, 4, 4)
            assert sizes.groups == 4 // TWINS[name].key_value_heads
            assert sizes.scale == pytest.approx(TWINS[name].scale or 0.5)
            assert shown.beyond_softmax() == ((BEYOND[name],) if name in BEYOND else ())
            assert {"query", "attention_output"} <= set(shown.projection_layers())
            assert shown.sees_past_only(site.parent) is (name != "gemma3_embedding")
    layer = attentions_of(DECODERS["gemma"]())[0]
    layer.query_head_dim_normalize = False
    layer.hidden_dim = 64
    assert view(layer).head_sizes().scale == pytest.approx(0.25)


DROPOUTS = {
    "gemma": ({"dropout": 0.5}, "dropout_layer"),
    "gpt_neo_x": ({"dropout": 0.5}, "_attn_dropout_layer"),
    "bloom": ({"dropout": 0.5}, "_dropout_layer"),
    "falcon": ({"attention_dropout_rate": 0.5}, "attention_dropout"),
    "gemma3": ({"dropout": 0.5}, "dropout_layer"),
    "gemma3n": ({"attention_dropout": 0.5}, "dropout"),
    "gemma4": ({"dropout": 0.5}, "dropout_layer"),
}


class InTraining(keras.layers.Layer):
    """Passes `training` on to a layer whose `call` may not take it."""

    def __init__(self, layer, family):
        super().__init__()
        self.layer, self.family = layer, family

    def call(self, x, mask, training=None):
        return call_of(self.layer, self.family, x, mask)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", DROPOUTS)
def test_keeps_the_dropout_of_the_attention_matrix(name, attention):
    """With the same random numbers, the same entries of A are dropped as in the original."""
    options, attribute = DROPOUTS[name]
    backbone = random_decoder(name, **options)
    layer = attentions_of(backbone)[0]
    x = np.random.default_rng(5).standard_normal((2, 7, 16)).astype("float32")
    mask = np.tril(np.ones((2, 7, 7), bool))
    state = getattr(layer, attribute).seed_generator.state
    start = ops.convert_to_numpy(state).copy()

    found = []
    for step in ("plain", "converted"):
        if step == "converted":
            keras_graphattn.convert(backbone, attention, **({"p": 2} if "p_" in attention else {}))
        state.assign(start)
        keras.utils.set_random_seed(0)  # torch may draw from its global generator
        found.append(to_numpy(InTraining(layer, name)(x, mask, training=True)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5 * np.abs(found[0]).max())
    assert np.abs(found[1] - to_numpy(call_of(layer, name, x, mask))).max() > 1e-3
    with pytest.raises(ValueError, match="dropout of the attention matrix, which only the dense"):
        keras_graphattn.convert(random_decoder(name, **options), attention_path="fused")


@pytest.mark.parametrize("name", EACH)
def test_a_block_is_made_again_from_its_configuration(name):
    block = attention_slots(DECODERS[name]())[0].parent
    config = parent_config(type(block), block)
    again = type(block).from_config(config)
    tokens = (None, None, 16)
    again.build(((2, *tokens), (None, None, 4), None) if name == "gemma3n" else tokens)
    assert parent_config(type(again), again) == config
    shapes = [tuple(v.shape) for v in again.weights]
    assert shapes == [tuple(v.shape) for v in block.weights]


def test_rows_of_gpt_oss_sum_to_less_than_one():
    """The larger graph, with the sink as a token of value 0, has the same filter."""
    generator = np.random.default_rng(0)
    arrays = (generator.standard_normal((1, 5, 2, 4)).astype("float32") for _ in range(3))
    query, key, value = arrays
    sink = generator.standard_normal(2).astype("float32")
    mask = np.tril(np.ones((5, 5), bool))[None, None]
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    logits = Logits(sink=ops.convert_to_tensor(sink))
    scores = scores_of(query, key, 0.5)
    matrix = to_numpy(SoftmaxOperator(scores, mask, logits=logits).matrix())
    assert (matrix.sum(-1) < 1).all()
    larger = np.zeros((2, 6, 6))
    larger[:, :5, :5], larger[:, 5, 5] = matrix[0], 1.0
    larger[:, :5, 5] = 1 - matrix[0].sum(-1)
    extended = np.concatenate([value[0].transpose(1, 0, 2), np.zeros((2, 1, 4))], axis=1)
    cubed = np.linalg.matrix_power(matrix[0], 3) @ extended[:, :5]
    found = np.linalg.matrix_power(larger, 3) @ extended
    np.testing.assert_allclose(found[:, :5], cubed, atol=1e-6)
