"""The operators that are read in each kind of layer, against those that the layers form."""

import keras
import numpy as np
import pytest
import torch

import keras_graphattn
from keras_graphattn.analysis import inspect_smoothing
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
    ScaledHighFrequencyAttention,
)
from keras_graphattn.masks import Causal, Exponential, RandomWalk
from tests.analysis.smoothing.models import stack
from tests.filters import reference
from tests.hub.families import FAMILIES
from tests.hub.models import as_given, random_backbone, random_inputs
from tests.numerics import randomise, to_numpy

random = np.random.default_rng(3)
LENGTH = 7  # more than the size of a head: several probes make one matrix
TOKENS = random.normal(size=(2, LENGTH, 8)).astype("float32")
RING = [[n, (n + 1) % LENGTH] for n in range(LENGTH)]
# Layers that return their operator: all but the filters of A, whose twin is `filter_matrix`.
LAYERS = {
    "stock": lambda: keras.layers.MultiHeadAttention(2, 4),
    "gated": lambda: keras.layers.MultiHeadAttention(2, 4, use_gate=True),
    "p_laplacian": lambda: PLaplacianAttention(2, 4),
    "agf": lambda: AttentiveGraphFilter(2, 4),
    "agf_ones": lambda: AttentiveGraphFilter(2, 4, filter="ones"),
    "agf_causal": lambda: AttentiveGraphFilter(2, 4, causal=True, orthogonality_weight=0.1),
    "kernel": lambda: MaskedKernelAttention(2, 4, value_dim=3),
    "kernel_masked": lambda: MaskedKernelAttention(2, 4, mask=Exponential()),
    "kernel_causal": lambda: MaskedKernelAttention(2, 4, mask=Causal(), feature_map="favor"),
    "graph": lambda: GraphKernelAttention(2, 4, mask=RandomWalk(RING)),
    "graph_factored": lambda: GraphKernelAttention(
        2, 4, mask=RandomWalk(RING, exact=True), feature_map="favor"
    ),
}


def report_of(layer, length=LENGTH, **options):
    model = stack(layer, length=length)
    randomise(layer)
    return inspect_smoothing(model, TOKENS[:, :length], **options).layers[0]


CALLS = {
    "one tensor": lambda layer, x, mask: layer(x),
    "two tensors": lambda layer, x, mask: layer(x, x),
    "given": lambda layer, x, mask: layer(x + 0.0, x + 0.0, query_mask=mask, value_mask=mask),
}


def model_of(layer, call):
    """A model whose tokens of zeros are padding."""
    inputs = keras.Input((LENGTH, 8))
    mask = keras.ops.any(inputs != 0.0, axis=-1)
    return keras.Model(inputs, call(layer, keras.layers.Masking()(inputs), mask))


@pytest.mark.parametrize("name", sorted(LAYERS))
@pytest.mark.parametrize("count", [LENGTH, LENGTH - 2])
def test_the_operator_is_that_of_the_tokens_in_every_form_of_call(name, count):
    tokens = TOKENS.copy()
    tokens[:, count:] = 0.0
    layer, mask = LAYERS[name](), np.any(tokens != 0.0, axis=-1)
    layer.build(tokens.shape, tokens.shape)
    randomise(layer)
    masks = {"query_mask": mask, "value_mask": mask}
    _, matrix = layer(tokens, tokens, return_attention_scores=True, **masks)
    expected = to_numpy(matrix)[0][:, :count, :count]
    for form, call in CALLS.items():
        if form == "one tensor" and name in ("stock", "gated"):
            continue  # Keras' own layer needs the value
        layer_report = inspect_smoothing(model_of(layer, call), tokens).layers[0]
        assert layer_report.reason is None, form
        heads = layer_report.heads
        np.testing.assert_allclose(heads.operator_map, expected, atol=1e-5, err_msg=form)
        if name.startswith("agf"):
            assert heads.attention_map is heads.attention_fourier is None
        elif name != "p_laplacian":
            np.testing.assert_allclose(heads.attention_map, heads.operator_map, atol=1e-5)


def test_an_operator_with_padding_is_not_reported():
    layer = GraphFilterAttention(2, 4)
    model = model_of(layer, lambda layer, x, mask: layer(x, x + 0.0, query_mask=mask))
    tokens = TOKENS.copy()
    tokens[:, 4:] = 0.0
    layer_report = inspect_smoothing(model, tokens).layers[0]
    assert layer_report.heads is None
    assert layer_report.reason == "its tokens see padding"


def test_a_mask_that_is_given_counts_in_place_of_the_one_found():
    layer, tokens = GraphFilterAttention(2, 4), TOKENS.copy()
    tokens[:, 4:] = 0.0
    masks = dict.fromkeys(("query_mask", "value_mask"), np.ones((2, LENGTH), bool))
    model = model_of(layer, lambda layer, x, mask: layer(x, x, **masks))
    layer_report = inspect_smoothing(model, tokens).layers[0].heads
    _, matrix = layer(tokens, tokens, return_filter_matrix=True)
    np.testing.assert_allclose(layer_report.operator_map, to_numpy(matrix)[0], atol=1e-5)


FILTERED = {
    "dense": lambda: GraphFilterAttention(2, 4),
    "blockwise": lambda: GraphFilterAttention(2, 4, attention_path="blockwise", block_size=3),
    "fused": lambda: GraphFilterAttention(2, 4, attention_path="fused", filter="chebyshev"),
    "groups": lambda: GraphFilterAttention(4, 4, num_key_value_heads=2, filter="inverted"),
    "kernel": lambda: MaskedKernelAttention(2, 4, filter="first_order", mask=Exponential()),
}


@pytest.mark.parametrize("name", sorted(FILTERED))
def test_attention_and_its_filter_are_told_apart_on_every_path(name):
    layer = FILTERED[name]()
    layer_report = report_of(layer)
    assert layer_report.reason is None
    heads = layer_report.heads
    np.testing.assert_allclose(heads.attention_map.sum(axis=-1), 1.0, atol=1e-5)
    weights = {key: torch.tensor(value) for key, value in layer_report.coefficients.items()}
    matrix = torch.tensor(heads.attention_map[None], dtype=torch.float64)
    expected = reference.matrix(layer.filter, matrix, weights)[0].numpy()
    np.testing.assert_allclose(heads.operator_map, expected, atol=1e-4)
    outputs = np.einsum("nts,snd->tnd", heads.operator_map, _values(layer))
    product = np.einsum("tnd,ndf->tf", outputs, to_numpy(layer.output_dense.kernel))
    expected = to_numpy(layer(TOKENS))[0] - to_numpy(layer.output_dense.bias)
    np.testing.assert_allclose(product, expected, atol=1e-4)


def _values(layer):
    """The values of the first sequence in all heads, (T, N, D)."""
    values = to_numpy(layer.value_dense(TOKENS))[0]
    return np.repeat(values, layer.num_heads // values.shape[1], axis=1)


def test_attn_scale_and_p_laplacian_have_the_attention_before():
    scaled = ScaledHighFrequencyAttention(2, 4)
    layer_report = report_of(scaled)
    _, attention = scaled(TOKENS, TOKENS, return_attention_scores=True)
    attention = to_numpy(attention)[0]
    np.testing.assert_allclose(layer_report.heads.attention_map, attention, atol=1e-6)
    scale = layer_report.coefficients["high_frequency_scale"][:, None, None]
    expected = 1 / LENGTH + (1 + scale) * (attention - 1 / LENGTH)
    np.testing.assert_allclose(layer_report.heads.operator_map, expected, atol=1e-5)
    layer, plain = PLaplacianAttention(2, 4), keras.layers.MultiHeadAttention(2, 4)
    layer_report = report_of(layer)
    plain.build(TOKENS.shape, TOKENS.shape)
    plain.set_weights(layer.get_weights())
    _, attention = plain(TOKENS, TOKENS, return_attention_scores=True)
    np.testing.assert_allclose(layer_report.heads.attention_map, to_numpy(attention)[0], atol=1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", ["gemma2", "vit_det", "t5_gemma"])
def test_other_attention_of_kerashub(name):
    make, inputs = FAMILIES[name]
    model = make()
    inputs = as_given(model, inputs(model))
    plain = inspect_smoothing(model, inputs)
    keras_graphattn.convert(model, "graph_filter")
    report = inspect_smoothing(model, inputs)
    if name == "vit_det":  # its tokens are maps (B, h, w, d), of windows
        assert len(report.not_measured) == len(plain.not_measured) > 0
        return
    read = [layer.heads is not None for layer in report.layers]
    assert [layer.heads is not None for layer in plain.layers] == read
    assert any(read)
    for layer, other in zip(report.layers, plain.layers, strict=True):
        if layer.heads is not None:  # before training, a filter is plain attention
            pair = layer.heads.operator_fourier, other.heads.operator_fourier
            np.testing.assert_allclose(*pair, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_converted_family_of_kerashub(name):
    make, inputs = FAMILIES[name]
    model = make()
    try:
        keras_graphattn.convert(model, "graph_filter")
    except ValueError:
        pytest.skip("some of its layers cannot be converted")
    report = inspect_smoothing(model, as_given(model, inputs(model)))
    for layer in report.layers:
        assert (layer.heads is None) == (layer.reason is not None)
        assert "product of one matrix" not in (layer.reason or "")
    assert any(layer.coefficients and layer.heads for layer in report.layers) or report.not_measured


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
def test_decoders_that_are_converted_in_place(attention):
    backbone = random_backbone("llama")
    inputs = random_inputs(backbone)
    plain = inspect_smoothing(backbone, inputs)
    keras_graphattn.convert(backbone, attention)
    report = inspect_smoothing(backbone, inputs)
    assert [layer.reason for layer in (*plain.layers, *report.layers)] == [None] * 4
    heads, plain_heads = report.layers[0].heads, plain.layers[0].heads
    np.testing.assert_allclose(heads.attention_map, plain_heads.attention_map, atol=1e-5)
    assert np.triu(heads.operator_map, 1) == pytest.approx(0.0, abs=1e-6)
    is_plain = attention == "graph_filter"  # before training, a filter is plain attention
    assert np.allclose(heads.operator_map, plain_heads.operator_map, atol=1e-5) == is_plain


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["stock", "dense", "kernel"])
def test_half_precision(name, policy):
    keras.config.set_dtype_policy(policy)
    layer = {**LAYERS, **FILTERED}[name]()
    layer_report = report_of(layer)
    assert layer_report.reason is None
    np.testing.assert_allclose(layer_report.heads.attention_map.sum(axis=-1), 1.0, atol=2e-2)
