"""RoFormer, ESM, DeBERTaV3, VideoPrism, XLNet: what a converted layer keeps."""

import keras
import keras_hub
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import parent_config
from keras_graphattn.hub.slots import attention_slots
from tests.hub.biased_decoders import attentions_of
from tests.hub.encoder_twins import twin_attention
from tests.hub.encoders import (
    ENCODERS,
    NAMES,
    SEES_PADDING,
    Case,
    converted,
    inputs_of,
    random_encoder,
)
from tests.hub.models import outputs
from tests.hub.twins import assert_is_twin
from tests.numerics import to_numpy

EXPONENTS = [1.5, 2.5]
OPTIONS = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": EXPONENTS},
    "p_laplacian in blocks": {"p": EXPONENTS, "block_size": 3},
}


@pytest.mark.parametrize("attention", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    backbone = converted(name, attention.partition(" ")[0], **OPTIONS[attention])
    case = Case(name)
    layer = case.layer(backbone)
    constants = case.arguments()
    exponents = None if attention == "graph_filter" else EXPONENTS

    def call(x, *found):
        return case.call(layer, x, dict(zip(case.given, found, strict=True)))

    def twin(weights, x, *found):
        given = dict(zip(case.given, found, strict=True))
        given |= {k: torch.tensor(v) for k, v in constants.items() if k == "segment_matrix"}
        return twin_attention(case, x, weights, given, exponents)

    assert_is_twin(layer, call, twin, input=case.x, **case.given)


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_what_it_changes_in_the_original(name, attention):
    """Nothing; but tokens of RoFormer and ESM see it on TensorFlow and JAX (KerasHub 0.32)."""
    case, backbone = Case(name), random_encoder(name)
    layer = case.layer(backbone)
    large = np.where(case.real[..., None], case.x, 1e4 * case.x)
    seen = case.real & (case.mask & case.real[:, None]).any(-1)
    difference = {}
    for step in ("plain", "converted"):
        if step == "converted":
            options = {"p": [1.5, 2.5]} if attention == "p_laplacian" else {"order": 4}
            moved = keras_graphattn.convert(backbone, attention, **options)
            assert moved is backbone
        found, other = to_numpy(case.call(layer)), to_numpy(case.call(layer, large))
        difference[step] = np.abs(found - other)[seen].max() / np.abs(found).max()
    changes = {step: bool(size > 1e-5) for step, size in difference.items()}
    assert changes == dict.fromkeys(changes, name in SEES_PADDING), difference


DROPOUTS = {
    "deberta_v3": ({"dropout": 0.5}, ["_position_dropout_layer", "_attn_dropout_layer"]),
    "video_prism": ({"attention_dropout_rate": 0.5}, ["dropout_layer"]),
    "xlnet": ({}, ["_dropout_layer"]),
}


class Holder(keras.layers.Layer):
    """A layer of one's own around XLNet's attention: KerasHub's gives it no dropout."""

    def build(self, shape):
        module = keras_hub.src.models.xlnet.relative_attention
        self.attention = module.TwoStreamRelativeAttention(num_heads=2, key_dim=4, dropout=0.5)
        self.attention.build(shape)


class InTraining(keras.layers.Layer):
    """Passes `training` on to a layer whose `call` may not take it."""

    def __init__(self, layer, case):
        super().__init__()
        self.layer, self.case = layer, case

    def call(self, x, training=None):
        return self.case.call(self.layer, x)


def with_dropout(name):
    if name != "xlnet":
        return random_encoder(name, **DROPOUTS[name][0])
    keras_graphattn.hub.reach(Holder)
    holder = Holder()
    holder.build((None, None, 8))
    return holder


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", DROPOUTS)
def test_keeps_the_dropout_of_the_attention_matrix(name, attention):
    """With the same random numbers, the same entries of A are dropped as in the original."""
    backbone, case = with_dropout(name), Case(name)
    layer = case.layer(backbone)
    states = [getattr(layer, each).seed_generator.state for each in DROPOUTS[name][1]]
    starts = [ops.convert_to_numpy(state).copy() for state in states]

    found = []
    for step in ("plain", "converted"):
        if step == "converted":
            keras_graphattn.convert(backbone, attention, **({"p": 2} if "p_" in attention else {}))
        for state, start in zip(states, starts, strict=True):
            state.assign(start)
        keras.utils.set_random_seed(0)  # torch may draw from its global generator
        found.append(to_numpy(InTraining(layer, case)(case.x, training=True)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5 * np.abs(found[0]).max())
    assert np.abs(found[1] - to_numpy(case.call(layer))).max() > 1e-3
    with pytest.raises(ValueError, match="dropout of the attention matrix, which only the dense"):
        keras_graphattn.convert(with_dropout(name), attention_path="fused")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_block_is_made_again_from_its_configuration(name):
    block = attention_slots(ENCODERS[name]())[0].parent
    config = parent_config(type(block), block)
    again = type(block).from_config(config)
    again.build((None, None, 8))
    assert parent_config(type(again), again) == config
    shapes = [tuple(v.shape) for v in again.weights]
    assert shapes == [tuple(v.shape) for v in block.weights]


def test_deberta_has_no_scores_to_return():
    case = Case("deberta_v3")
    layer = case.layer(converted("deberta_v3"))
    with pytest.raises(ValueError, match=r"no attention scores.*keras_graphattn.revert"):
        case.call(layer, return_attention_scores=True)


def test_video_prism_keeps_its_pooling_and_refuses_other_keys():
    backbone = converted("video_prism_with_texts")
    assert type(backbone.video_pooler.pooling_attention).__name__ == "VideoPrismAttention"
    assert not any("pooling" in row.path for row in keras_graphattn.inspect(backbone))
    layer = attentions_of(backbone)[0]
    with pytest.raises(ValueError, match=r"self-attention.*1 queries, 5 keys and 5 values"):
        layer(ops.ones((1, 1, 8)), ops.ones((1, 5, 8)), ops.ones((1, 5, 8)))


def test_video_prism_has_masks_of_two_dimensions_and_scales_of_features():
    layer = attentions_of(random_encoder("video_prism"))[0]
    kind = type(layer)
    own = kind(num_heads=2, key_dim=4, hidden_dim=8, use_per_dim_scale=True)
    holder = keras_hub.src.models.video_prism.video_prism_layers.VideoPrismEncoderBlock(2, 8, 16)
    holder.mha = own
    holder.build((None, 7, 8))
    own.per_dim_scale_layer.per_dim_scale.assign([0.5, -0.5, 1.0, 2.0])
    case = Case("video_prism")
    before = to_numpy(own(case.x, case.x, attention_mask=case.real))
    keras_graphattn.convert(holder, order=4)
    assert type(own) is not kind
    after = to_numpy(own(case.x, case.x, attention_mask=case.real))
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_xlnet_refuses_the_query_stream_and_a_state():
    case = Case("xlnet")
    layer = case.layer(converted("xlnet"))
    for argument in ("query_stream", "state"):
        with pytest.raises(ValueError, match=rf"content stream.*`{argument}`.*revert"):
            case.call(layer, **{argument: case.x})


@pytest.mark.slow_on("jax")
def test_the_original_xlnet_mixes_the_texts_of_a_batch():
    """Once this fails, KerasHub transposes what it reshapes: then the docstring can say so."""
    backbone = random_encoder("xlnet")
    inputs = inputs_of(backbone)
    twice = {name: np.repeat(array[1:], 2, axis=0) for name, array in inputs.items()}
    (found,) = outputs(backbone, twice)
    assert np.abs(found[0] - found[1]).max() > 1e-2  # the distances are not those of the text
    padding = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    mask, _ = backbone.get_layer("encoder_block_attn_mask_layer")(padding)
    assert not np.array_equal(to_numpy(mask)[:, 0], padding)  # nor is the padding
