"""Swin, DINOv3, ViTDet, MiT and D-FINE: what a converted layer keeps."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import parent_config, view
from keras_graphattn.hub.slots import attention_slots
from tests.hub import vision_twins as twins
from tests.hub.models import assert_equal_outputs
from tests.hub.test_refusals import state_of
from tests.hub.twins import assert_is_twin
from tests.hub.vision_models import (
    VISION,
    answers,
    attentions_of,
    convert,
    converted,
    images,
    mit,
    random_vision,
    randomised,
    vit_det,
)
from tests.numerics import to_numpy

EXPONENTS = [1.5, 2.5]
OPTIONS = {
    "graph_filter": {"order": 4},
    "p_laplacian": {"p": EXPONENTS},
    "p_laplacian in blocks": {"p": EXPONENTS, "block_size": 4},
}


# A layer of each kind: which one, the shape of its input, and what it must be equal to.


def swin_call(backbone, layer, x):
    mask = twins.shift_bias(6, 3, 1).numpy().astype("float32")
    return layer(x, mask=ops.convert_to_tensor(mask))


def swin_twin(weights, x, exponents):
    mask = twins.shift_bias(6, 3, 1).repeat(2, 1, 1)  # for two images

    def bias(head, query):
        return twins.window_bias(weights["relative_position_bias_table"], 3, head) + mask

    return twins.attention(weights, x, 2, exponents, bias)


def dinov3_call(backbone, layer, x):
    angles = backbone.rope_embedding(np.zeros((1, 8, 12, 3), "float32"))
    return layer(x, position_embeddings=angles, num_prefix_tokens=3)


def dinov3_twin(weights, x, exponents):
    return twins.attention(
        weights, x, 2, exponents, turned=lambda y: twins.turned_in_two_dimensions(y, 2, 3, 3)
    )


def vit_det_twin(weights, x, exponents):
    height, width = x.shape[1:3]

    def bias(head, query):
        return twins.decomposed_bias(
            query, weights["rel_pos_h"], weights["rel_pos_w"], height, width
        )

    found = twins.attention(weights, x.flatten(1, 2), 2, exponents, bias)
    return found.reshape(x.shape)


PLACES = np.random.default_rng(8).standard_normal((1, 6, 8)).astype("float32")
HIDDEN = np.triu(np.ones((6, 6), "float32"))


def d_fine_call(backbone, layer, x):
    return layer(x, position_embeddings=PLACES, attention_mask=HIDDEN)


def d_fine_twin(weights, x, exponents):
    placed = x + torch.tensor(PLACES, dtype=x.dtype)
    mask = torch.tensor(HIDDEN, dtype=x.dtype)
    tokens = {"query": placed, "key": placed, "value": x}
    return twins.attention(weights, tokens, 2, exponents, lambda head, query: mask)


def plain_call(backbone, layer, x):
    return layer(x)


LAYERS = {
    "swin": (1, (8, 9, 8), swin_call, swin_twin),
    "dinov3": (0, (2, 9, 16), dinov3_call, dinov3_twin),
    "vit_det": (0, (2, 3, 3, 8), plain_call, vit_det_twin),
    "vit_det in full": (1, (1, 5, 5, 8), plain_call, vit_det_twin),
    "mit": (0, (2, 9, 12), plain_call, lambda w, x, p: twins.attention(w, x, 2, p)),
    "d_fine": (0, (2, 6, 8), d_fine_call, d_fine_twin),
}


@pytest.mark.parametrize("attention", OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_those_of_the_formulas(name, attention):
    which, shape, call, twin = LAYERS[name]
    kind, options = attention.partition(" ")[0], OPTIONS[attention]
    backbone = converted(name.partition(" ")[0], kind, **options)
    layer = attentions_of(backbone)[which]
    x = np.random.default_rng(5).standard_normal(shape).astype("float32")
    exponents = None if kind == "graph_filter" else EXPONENTS
    assert_is_twin(
        layer,
        lambda x: call(backbone, layer, x),
        lambda weights, x: twin(weights, x, exponents),
        twins.names_of_weights(layer),
        input=x,
    )


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("side", [6, 7])
def test_the_shift_bias_of_the_twin_is_that_of_a_block(side):
    """What KerasHub's block hands to the layer, on maps that windows fill and do not fill."""
    backbone = VISION["swin" if side == 6 else "swin_padded"]()
    block = attention_slots(backbone)[1].parent
    seen = []
    block.attn.call = lambda x, mask=None: (seen.append(to_numpy(mask)), x)[1]
    block(np.zeros((1, side * side, 8), "float32"))
    np.testing.assert_array_equal(seen[0], twins.shift_bias(side, 3, 1))


@pytest.mark.slow_on("jax", "tensorflow")
def test_vit_det_without_its_bias_has_every_path():
    def backbone(**options):
        return keras_graphattn.convert(randomised(vit_det(use_rel_pos=False)), order=4, **options)

    inputs = images(backbone())
    expected = answers(backbone(), inputs)
    assert_equal_outputs(answers(backbone(attention_path="fused"), inputs), expected, 1e-5)


def test_what_is_not_square_is_refused_by_name():
    backbone = mit()
    before = state_of(backbone)
    for attention in ("graph_filter", "p_laplacian"):
        with pytest.raises(ValueError, match=r"'all'\. Select others: where=\[1, 2\]") as error:
            keras_graphattn.convert(backbone, attention)
        assert "hierarchical_encoder_0_0/" in str(error.value)
        assert "sr_ratio=2 looks from n tokens at n / 4 others" in str(error.value)
        assert "hierarchical_encoder_1" not in str(error.value)
    assert state_of(backbone) == before
    keras_graphattn.convert(backbone, where=[1, 2])
    assert [row.parameters_added for row in keras_graphattn.inspect(backbone)] == [0, 6, 6]
    backbone = mit((4, 2))
    with pytest.raises(ValueError, match=r"0  hierarchical_encoder_0_0/.*(?s:.)*2  hierarchical_"):
        keras_graphattn.convert(backbone)
    with pytest.raises(ValueError, match="no other attention"):
        keras_graphattn.convert(backbone, where=0)


@pytest.mark.parametrize("name", VISION)
def test_sizes(name):
    for site in attention_slots(VISION[name]()):
        shown = view(site.layer)
        sizes = shown.head_sizes()
        width = shown.projection_layers()["attention_output"].kernel.shape[0]
        assert (sizes.num_heads, sizes.groups) == (2, 1)
        assert sizes.key_dim == sizes.value_dim == width // 2
        assert sizes.scale == pytest.approx(sizes.key_dim**-0.5)
        assert not shown.sees_past_only(site.parent)


def test_what_only_the_original_returns():
    layer = attentions_of(converted("swin"))[0]
    with pytest.raises(ValueError, match=r"return_attns=True.*revert"):
        layer(np.zeros((4, 9, 8), "float32"), return_attns=True)


@pytest.mark.slow_on("jax")
def test_d_fine_returns_the_matrix_that_the_filter_is_of():
    layer = attentions_of(random_vision("d_fine"))[0]
    x = np.random.default_rng(5).standard_normal((2, 6, 8)).astype("float32")
    arguments = {"position_embeddings": PLACES, "attention_mask": HIDDEN}
    before = layer(x, output_attentions=True, **arguments)[1]
    backbone = random_vision("d_fine")
    convert(backbone, "d_fine")
    after = attentions_of(backbone)[0](x, output_attentions=True, **arguments)[1]
    np.testing.assert_allclose(to_numpy(after), to_numpy(before), atol=1e-6)


@pytest.mark.slow_on("jax")
def test_dinov3_takes_a_mask():
    """Its backbone gives none. Rows that see nothing become 0."""
    backbone = random_vision("dinov3")
    layer = attentions_of(backbone)[0]
    x = np.random.default_rng(5).standard_normal((2, 9, 16)).astype("float32")
    mask = np.tril(np.ones((1, 1, 9, 9), bool))
    before = layer(x, attention_mask=mask)
    keras_graphattn.convert(backbone)
    np.testing.assert_allclose(to_numpy(layer(x, attention_mask=mask)), to_numpy(before), atol=1e-5)
    blind = layer(x, attention_mask=np.zeros((2, 9, 9), bool))
    bias = to_numpy(layer.output_dense.bias)
    np.testing.assert_allclose(to_numpy(blind), np.broadcast_to(bias, (2, 9, 16)), atol=1e-6)


def test_a_block_of_mit_is_made_again_from_its_configuration():
    block = attention_slots(VISION["mit"]())[1].parent
    config = parent_config(type(block), block)
    again = type(block).from_config(config)
    assert parent_config(type(again), again) == config
    again(np.zeros((1, 9, 12), "float32"))
    assert [v.shape for v in again.weights] == [v.shape for v in block.weights]


DROPOUTS = {
    "swin": "attention_dropout_layer",
    "mit_square": "dropout",
    "d_fine": "dropout",
}


def with_dropout(name):
    """A model, or a block, whose first attention layer drops half of A, and nothing else."""
    if name == "swin":
        return random_vision(name, attention_dropout=0.5)
    backbone = random_vision(name)
    block = attention_slots(backbone)[0].parent
    if name == "mit_square":  # KerasHub's constructor does not set its rates
        block.attn.dropout.rate, block.attn.proj_drop.rate = 0.5, 0.0
        return backbone
    block = type(block).from_config({**block.get_config(), "dropout": 0.5})
    block.build((None, None, 8))
    return block


class InTraining(keras.layers.Layer):
    """Passes `training` on to a layer whose `call` does not take it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x, training=None):
        return self.layer(x)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", DROPOUTS)
def test_keeps_the_dropout_of_the_attention_matrix(name, attention):
    """With the same random numbers, the same entries of A are dropped as in the original."""
    model = with_dropout(name)
    layer = attentions_of(model)[0]
    assert "dropout of the attention matrix" in view(layer).beyond_softmax()
    width = view(layer).projection_layers()["query"].kernel.shape[0]
    x = np.random.default_rng(5).standard_normal((2, 9, width)).astype("float32")
    state = getattr(layer, DROPOUTS[name]).seed_generator.state
    start = ops.convert_to_numpy(state).copy()
    found = []
    for step in ("plain", "converted"):
        if step == "converted":
            keras_graphattn.convert(model, attention, **({"p": 2} if "p_" in attention else {}))
        state.assign(start)
        keras.utils.set_random_seed(0)  # torch may draw from its global generator
        found.append(to_numpy(InTraining(layer)(x, training=True)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5 * np.abs(found[0]).max())
    assert np.abs(found[1] - to_numpy(layer(x))).max() > 0.1 * np.abs(found[1]).max()
