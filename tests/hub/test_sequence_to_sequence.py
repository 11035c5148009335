"""Models of two towers, such as T5, Moonshine and MetaCLIP 2: what a converted layer keeps."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import parent_config, view
from keras_graphattn.hub.slots import attention_slots
from tests.hub.decoder_twins import NORMS, Twin, twin_attention, visible
from tests.hub.models import assert_equal_outputs, outputs
from tests.hub.sequence_to_sequence import (
    BEYOND,
    CLASSES,
    EACH,
    MODELS,
    attentions_of,
    converted,
    fast_for,
    inputs_of,
    random_model,
    reached,
)
from tests.hub.t5_bias import bucket, t5_bias
from tests.hub.test_biased_decoders import EXPONENTS, OPTIONS
from tests.hub.test_conversion import START
from tests.hub.twins import assert_is_twin
from tests.numerics import to_numpy

DENSE = ("query_projector", "key_projector", "value_projector", "output_projector")
TWINS = {
    "t5": Twin(names=DENSE, scale=1.0, causal=False),
    "t5 decoder": Twin(names=DENSE, scale=1.0),
    "t5 later": Twin(names=DENSE, scale=1.0),
    "t5_gemma": Twin(key_value_heads=2, rotated=4, soft_cap=2.0, scale=1 / 3, causal=False),
    "t5_gemma decoder": Twin(key_value_heads=2, rotated=4, soft_cap=2.0, scale=1 / 3),
    "t5_gemma_2": Twin(
        key_value_heads=2,
        rotated=4,
        wavelength=1e6,
        norms=NORMS,
        soft_cap=2.0,
        scale=1 / 3,
        causal=False,
    ),
    "moonshine": Twin(rotated=4, interleaved=True, causal=False),
    "moonshine decoder": Twin(rotated=4, interleaved=True),
}
EACH_TWIN = fast_for(TWINS, ("t5", "t5 decoder", "moonshine decoder"))
PLACES = {"": 0, "decoder": 2, "later": 3}  # in the encoder; in the decoder: first, later


def variables(model):
    return {v.path: v for v in model.weights}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", EACH)
def test_where_selects_layers_of_either_tower(name):
    backbone = random_model(name)
    inputs = inputs_of(backbone)
    before = outputs(backbone, inputs)
    chosen = attentions_of(backbone)[-1].path
    keras_graphattn.convert(backbone, where=f"^{chosen}$", order=4)
    added = [row.path for row in keras_graphattn.inspect(backbone) if row.parameters_added]
    assert added == [chosen]
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)


def call_of(layer, name, x, mask, position_bias=None):
    """The output of an attention layer for tokens (B, T, d) and a mask (B, T, T)."""
    if name.startswith("t5_gemma"):
        added = (1.0 - np.asarray(mask, "float32")[:, None]) * -1e9
        return layer(x, attention_mask=added)[0]
    if name.startswith("t5"):
        return layer(x, mask=mask, position_bias=position_bias)[0]
    inverse = 10000.0 ** (-np.arange(2) / 2)
    angles = np.arange(x.shape[1])[:, None] * np.repeat(inverse, 2)
    angles = angles.astype("float32")
    return layer(x, x, x, rotary_embedding=angles, attention_mask=mask)


class InTraining(keras.layers.Layer):
    """Passes `training` on to the dropout of a layer that is called without it."""

    def __init__(self, layer, family):
        super().__init__()
        self.layer, self.family = layer, family

    def call(self, x, mask, training=None):
        return call_of(self.layer, self.family, x, mask)


def width_of(layer):
    return view(layer).projection_layers()["query"].kernel.shape[0]


def with_heads(weights, layer):
    """The kernels of T5's projections, (d, N * H), as (d, N, H)."""
    shape = (-1, layer.num_heads, layer.key_value_dim)
    flat = {f"{name}/kernel": weights[f"{name}/kernel"].reshape(shape) for name in DENSE[:3]}
    return {**weights, **flat}


@pytest.mark.parametrize("attention", OPTIONS)
@pytest.mark.parametrize("name", EACH_TWIN)
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    family, _, place = name.partition(" ")
    backbone = converted(family, attention.partition(" ")[0], **OPTIONS[attention])
    layer, twin = attentions_of(backbone)[PLACES[place]], TWINS[name]
    length = 19 if family == "t5" else 7  # several distances share a bucket
    generator = np.random.default_rng(5)
    x = generator.standard_normal((3, length, width_of(layer))).astype("float32")
    real = np.arange(length)[None] < np.array([length, length - 2, length])[:, None]
    real[2, :2] = False  # padding on the left: rows that see nothing
    mask = visible(twin, torch.tensor(real)).numpy()
    added = generator.standard_normal((1, 4, length, length)).astype("float32")
    exponents = None if attention == "graph_filter" else EXPONENTS
    given = added + np.where(mask, 0, -1e9).astype("float32")[:, None]

    def call(x):
        return call_of(layer, name, x, mask, given if place == "later" else None)

    def formulas(weights, x):
        bias = None
        if family == "t5":
            weights, bias = with_heads(weights, layer), torch.tensor(added[0], dtype=torch.float64)
            if place != "later":
                bias = t5_bias(weights["embeddings"], length, twin.causal)
        return twin_attention(twin, x, weights, torch.tensor(real), exponents, bias)

    assert_is_twin(layer, call, formulas, input=x)


@pytest.mark.slow_on("tensorflow")
def test_buckets_of_t5_cover_all_distances():
    for name, place in (("encoder", 0), ("decoder", 2)):
        layer = attentions_of(MODELS["t5"]())[place]
        ahead = ops.arange(-200, 201)
        found = layer._relative_position_bucket(ahead, bidirectional=name == "encoder")
        expected = [bucket(int(i), name == "decoder") for i in range(-200, 201)]
        np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", EACH_TWIN)
def test_what_is_hidden_changes_nothing(name, attention):
    """Not even large values, nor a longer input."""
    family, _, place = name.partition(" ")
    layer = attentions_of(converted(family, attention))[PLACES[place]]
    x = np.random.default_rng(5).standard_normal((2, 9, width_of(layer))).astype("float32")
    real = np.arange(9)[None] < np.array([[5], [7]])
    mask = visible(TWINS[name], torch.tensor(real)).numpy()
    bias = np.where(mask, 0, -1e9).astype("float32")[:, None].repeat(4, 1)
    given = [bias, bias[:, :, :7, :7]] if place == "later" else [None, None]
    x[~real] = 1e4
    found = to_numpy(call_of(layer, name, x, mask, given[0]))
    x[~real] = 0.0
    short = to_numpy(call_of(layer, name, x[:, :7], mask[:, :7, :7], given[1]))
    for row, count in enumerate(real.sum(axis=1)):
        np.testing.assert_allclose(
            found[row, :count], short[row, :count], atol=1e-5 * np.abs(short).max()
        )


DROPOUTS = {
    "t5": ("dropout", "dropout_layer"),
    "t5_gemma": ("attention_dropout", "dropout_layer"),
    "t5_gemma_2": ("attention_dropout", "dropout_layer"),
    "moonshine": ("attention_dropout", "_dropout_layer"),
}


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", DROPOUTS)
def test_keeps_the_dropout_of_the_attention_matrix(name, attention):
    """With the same random numbers, the same entries of A are dropped as in the original."""
    option, attribute = DROPOUTS[name]
    backbone = random_model(name, **{option: 0.5})
    layer = attentions_of(backbone)[-2]
    x = np.random.default_rng(5).standard_normal((2, 7, width_of(layer))).astype("float32")
    mask = np.tril(np.ones((2, 7, 7), bool))
    state = getattr(layer, attribute).seed_generator.state
    start = ops.convert_to_numpy(state).copy()
    found = []
    for kind in ("plain", "converted"):
        if kind == "converted":
            keras_graphattn.convert(backbone, attention, reached(name), **START[attention])
        state.assign(start)
        keras.utils.set_random_seed(0)  # torch may draw from its global generator
        found.append(to_numpy(InTraining(layer, name)(x, mask, training=True)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5 * np.abs(found[0]).max())
    assert np.abs(found[1] - to_numpy(call_of(layer, name, x, mask))).max() > 1e-3
    backbone = random_model(name, **{option: 0.5})
    with pytest.raises(ValueError, match="dropout of the attention matrix, which only the dense"):
        keras_graphattn.convert(backbone, where=reached(name), attention_path="fused")


def test_sizes():
    expected = {"t5": (4, 6, 1.0), "moonshine": (4, 8, 8**-0.5)}
    expected |= dict.fromkeys(("t5_gemma", "t5_gemma_2"), (2, 4, 1 / 3))
    for name, (key_value_heads, size, scale) in expected.items():
        for index, site in enumerate(attention_slots(MODELS[name]())):
            shown = view(site.layer)
            sizes = shown.head_sizes()
            assert (sizes.num_heads, sizes.num_key_value_heads) == (4, key_value_heads)
            assert (sizes.key_dim, sizes.value_dim) == (size, size)
            assert sizes.scale == pytest.approx(scale)
            assert shown.beyond_softmax() == BEYOND[name]
            assert shown.sees_past_only(site.parent) is (index > 1)


@pytest.mark.parametrize("name", CLASSES)
def test_a_block_is_made_again_from_its_configuration(name):
    for site in attention_slots(MODELS[name]())[::2]:
        block = site.parent
        config = parent_config(type(block), block)
        again = type(block).from_config(config)
        assert parent_config(type(again), again) == config
