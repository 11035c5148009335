"""What a converted layer computes: its formulas in values and gradients, and its own dropout."""

import functools
import itertools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import view
from keras_graphattn.hub.slots import attention_slots
from tests.hub.decoder_twins import DECODER_CASES, decoder_case
from tests.hub.encoder_twins import ENCODER_CASES
from tests.hub.families import family
from tests.hub.models import attentions_of, moved
from tests.hub.twins import assert_is_twin
from tests.hub.vision_twins import VISION_CASES
from tests.numerics import to_numpy

CASES = {**DECODER_CASES, **ENCODER_CASES, **VISION_CASES}
# In the fast suite, others stand for these.
LATER = (
    *("qwen3_5_moe", "esm_absolute", "video_prism"),
    *("t5 later", "t5_gemma", "t5_gemma decoder", "t5_gemma_2", "moonshine"),
)
EXPONENTS = [1.5, 2.5, 1.0, 3.0]
OPTIONS = {
    "graph_filter": {"order": 4},
    "graph_filter of Chebyshev": {"filter": "chebyshev", "order": 3},
    "p_laplacian": {},
    "p_laplacian in blocks": {"block_size": 3},
}


def converted_case(name, attention):
    """A converted layer whose coefficients have moved, and the exponents of p-LaT."""
    kind = family(name.partition(" ")[0])
    backbone, (attention, _, _), options = kind.make(), attention.partition(" "), OPTIONS[attention]
    exponents = None
    if attention == "p_laplacian":
        exponents = EXPONENTS[: view(attentions_of(backbone)[0]).head_sizes().num_heads]
        options = {**options, "p": exponents}
    keras_graphattn.convert(backbone, attention, kind.where, **options)
    return CASES[name](moved(backbone)), exponents


WITH_CHEBYSHEV = ("qwen3", "t5 decoder", "deberta_v3", "swin")  # these stand for all


def cases():
    for name, attention in itertools.product(CASES, OPTIONS):
        is_later = name in LATER or ("Chebyshev" in attention and name not in WITH_CHEBYSHEV)
        yield pytest.param(name, attention, marks=[pytest.mark.slow] if is_later else [])


@pytest.mark.parametrize(("name", "attention"), list(cases()))
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    case, exponents = converted_case(name, attention)
    twin = functools.partial(case.twin, exponents)
    assert_is_twin(case.layer, case.call, twin, case.names, **case.arrays)


class Holder(keras.layers.Layer):
    """A layer of one's own around XLNet's attention: KerasHub's gives it no dropout."""

    def build(self, shape):
        module = keras_hub.src.models.xlnet.relative_attention
        self.attention = module.TwoStreamRelativeAttention(num_heads=2, key_dim=4, dropout=0.5)
        self.attention.build(shape)


def xlnet_with_dropout():
    keras_graphattn.hub.reach(Holder)
    holder = Holder()
    holder.build((None, None, 8))
    return holder


def mit_with_dropout():
    """KerasHub's constructor does not set its rates."""
    backbone = family("mit_square").make()
    attention = attentions_of(backbone)[0]
    attention.dropout.rate, attention.proj_drop.rate = 0.5, 0.0
    return backbone


def d_fine_with_dropout():
    """A block whose attention alone drops."""
    block = attention_slots(family("d_fine").make())[0].parent
    block = type(block).from_config({**block.get_config(), "dropout": 0.5})
    block.build((None, None, 8))
    return block


def made_with(name, option):
    return family(name).make(**{option: 0.5})


def with_option(name, option="dropout"):
    return functools.partial(made_with, name, option)


# What makes a model that drops half of A, and the layers in its attention that drop.
DROPOUTS = {
    "gemma": (with_option("gemma"), ["dropout_layer"]),
    "gpt_neo_x": (with_option("gpt_neo_x"), ["_attn_dropout_layer"]),
    "bloom": (with_option("bloom"), ["_dropout_layer"]),
    "falcon": (with_option("falcon", "attention_dropout_rate"), ["attention_dropout"]),
    "gemma3": (with_option("gemma3"), ["dropout_layer"]),
    "gemma3n": (with_option("gemma3n", "attention_dropout"), ["dropout"]),
    "gemma4": (with_option("gemma4"), ["dropout_layer"]),
    "t5 decoder": (with_option("t5"), ["dropout_layer"]),
    "t5_gemma decoder": (with_option("t5_gemma", "attention_dropout"), ["dropout_layer"]),
    "t5_gemma_2": (with_option("t5_gemma_2", "attention_dropout"), ["dropout_layer"]),
    "moonshine decoder": (with_option("moonshine", "attention_dropout"), ["_dropout_layer"]),
    "deberta_v3": (with_option("deberta_v3"), ["_position_dropout_layer", "_attn_dropout_layer"]),
    "video_prism": (with_option("video_prism", "attention_dropout_rate"), ["dropout_layer"]),
    "xlnet": (xlnet_with_dropout, ["_dropout_layer"]),
    "swin": (with_option("swin", "attention_dropout"), ["attention_dropout_layer"]),
    "mit_square": (mit_with_dropout, ["dropout"]),
    "d_fine": (d_fine_with_dropout, ["dropout"]),
}
START = {"graph_filter": {"order": 4}, "p_laplacian": {"p": 2}}


class InTraining(keras.layers.Layer):
    """Passes `training` on to a layer whose `call` may not take it."""

    def __init__(self, case):
        super().__init__()
        self.layer, self.function = case.layer, case.call

    def call(self, *arrays, training=None):
        return self.function(*arrays)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", DROPOUTS)
def test_keeps_the_dropout_of_the_attention_matrix(name, attention):
    """With the same random numbers, the same entries of A are dropped as in the original."""
    make, attributes = DROPOUTS[name]
    model, where = make(), family(name.partition(" ")[0]).where
    if name in DECODER_CASES:
        case = decoder_case(name, model, is_padded=False)  # the original has rows of padding
    else:
        case = CASES[name](model)
    arrays = [ops.convert_to_tensor(array) for array in case.arrays.values()]
    states = [getattr(case.layer, each).seed_generator.state for each in attributes]
    starts = [ops.convert_to_numpy(state).copy() for state in states]

    def dropped():
        for state, start in zip(states, starts, strict=True):
            state.assign(start)
        keras.utils.set_random_seed(0)  # torch may draw from its global generator
        return to_numpy(InTraining(case)(*arrays, training=True))

    before = dropped()
    keras_graphattn.convert(model, attention, where, **START[attention])
    after = dropped()
    np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max())
    different = np.abs(after - to_numpy(case.call(*arrays))).max()
    assert different > 1e-2 * np.abs(after).max()
    with pytest.raises(ValueError, match="dropout of the attention matrix, which only the dense"):
        keras_graphattn.convert(make(), where=where, attention_path="fused")
