"""Models of two towers, such as T5, Moonshine and MetaCLIP 2: what a converted layer keeps."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.adapters import adapter_of, holder_config
from keras_graphattn.hub.sites import attention_sites
from tests.hub.decoder_twins import NORMS, Twin, twin_attention, visible
from tests.hub.models import assert_equal_outputs, outputs
from tests.hub.sequence_to_sequence import (
    BEYOND,
    CLASSES,
    EACH,
    MODELS,
    SITES,
    attentions_of,
    converted,
    fast_for,
    inputs_of,
    random_model,
    reached,
)
from tests.hub.t5_bias import bucket, t5_bias
from tests.hub.test_biased_decoders import EXPONENTS, OPTIONS
from tests.hub.twins import assert_is_twin
from tests.numerics import BACKEND, to_numpy

START = {"graph_filter": {"order": 4}, "p_laplacian": {"p": 2}}
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


@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", EACH)
def test_starts_with_the_outputs_of_the_original(name, attention):
    backbone = random_model(name)
    inputs = inputs_of(backbone)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention, reached(name), **START[attention])
    assert len(keras_graphattn.inspect(backbone)) == SITES.get(name, 4)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=1e-5)
    keras_graphattn.revert(backbone)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0)


@pytest.mark.parametrize("name", EACH)
def test_only_coefficients_are_added_and_taken_away(name):
    backbone = MODELS[name]()
    layers = attentions_of(backbone)
    classes, before = [type(layer) for layer in layers], variables(backbone)
    held = [set(vars(layer)) for layer in layers]
    plain = type(backbone)
    keras_graphattn.convert(backbone, where=reached(name))
    after = variables(backbone)
    assert attentions_of(backbone) == layers
    assert all(after[path] is variable for path, variable in before.items())
    added = after.keys() - before.keys()
    assert len(added) == 3 * len(layers)
    assert all(path.endswith("_coefficient") for path in added)
    assert not any("cross" in path for path in added)
    keras_graphattn.revert(backbone)
    assert [type(layer) for layer in layers] == classes
    assert type(backbone) is plain
    assert variables(backbone) == before
    if name in CLASSES:
        assert [set(vars(layer)) for layer in layers] == held


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


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", EACH)
def test_a_training_step_moves_every_coefficient(name):
    backbone = keras_graphattn.convert(random_model(name), where=reached(name), order=4)
    before = {path: to_numpy(v) for path, v in variables(backbone).items() if "coeff" in path}
    step(backbone, inputs_of(backbone))
    for path, old in before.items():
        assert (np.abs(to_numpy(variables(backbone)[path]) - old) > 1e-6).all(), path


def step(backbone, inputs):
    """One step of `fit` towards two numbers, from the outputs of both towers."""
    found = [x for x in keras.tree.flatten(backbone.output) if "float" in x.dtype]
    score = sum(ops.mean(x[..., :1], axis=tuple(range(1, len(x.shape)))) for x in found)
    model = keras.Model(backbone.input, ops.expand_dims(score, -1))
    model.compile("adam", "mse", run_eagerly=BACKEND != "jax", jit_compile=BACKEND == "jax")
    model.fit(inputs, np.array([[3.0], [-3.0]]), batch_size=2, epochs=1, verbose=0)


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
    return adapter_of(layer).projections(layer)["query"].kernel.shape[0]


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
        for index, site in enumerate(attention_sites(MODELS[name]())):
            adapter = adapter_of(site.layer)
            sizes = adapter.sizes(site.layer)
            assert (sizes.num_heads, sizes.num_key_value_heads) == (4, key_value_heads)
            assert (sizes.key_dim, sizes.value_dim) == (size, size)
            assert sizes.scale == pytest.approx(scale)
            assert sizes.beyond_softmax == BEYOND[name]
            assert adapter.is_causal(site.parent, site.layer) is (index > 1)


@pytest.mark.parametrize("name", CLASSES)
def test_a_block_is_made_again_from_its_configuration(name):
    for site in attention_sites(MODELS[name]())[::2]:
        block = site.parent
        config = holder_config(type(block), block)
        again = type(block).from_config(config)
        assert holder_config(type(again), again) == config
