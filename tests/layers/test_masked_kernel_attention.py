"""MaskedKernelAttention beyond its twins: what nothing may change, own features, new draws."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import Causal, Exponential, Product, Segments
from tests import reference_kernel
from tests.layers.capabilities import Row, model_of
from tests.layers.test_made_again import assert_made_again
from tests.layers.twins import FORMS, HEADS, SIZE, built, tokens
from tests.numerics import assert_close, reference_weights, to_numpy


def layer_of(**options):
    return built(lambda: MaskedKernelAttention(HEADS, SIZE, seed=0, **options))


@pytest.mark.parametrize(
    "name", ["kernel, relu", "kernel, causal, relu", "kernel, exponential, None"]
)
def test_rows_that_see_nothing_are_the_bias_and_padding_is_unseen(name):
    layer, x, twin = built(FORMS[name].make), tokens(9), FORMS[name].twin
    kept = np.array([[0, 0, 1, 1, 0, 1, 1, 1, 0], [0] * 9], bool)
    for mask in ("value_mask", "query_mask"):
        outputs = to_numpy(layer(x, x, **{mask: kept}))
        inputs, weights = torch.tensor(x).double(), reference_weights(layer)
        assert_close(outputs, twin(layer, inputs, weights, {mask: kept})[0].numpy(), 1e-5)
        assert (outputs[1] == to_numpy(layer.output_dense.bias).astype("float32")).all()
    garbage = np.where(kept[..., None], x, 1e6).astype("float32")
    before, after = (to_numpy(layer(y, y, value_mask=kept))[0][kept[0]] for y in (x, garbage))
    np.testing.assert_array_equal(before, after)


def test_cross_attention_without_a_mask():
    outputs, scores = layer_of()(tokens(9), tokens(5, seed=1), return_attention_scores=True)
    assert tuple(outputs.shape) == tokens(9).shape
    np.testing.assert_allclose(to_numpy(ops.sum(scores, axis=-1)), 1.0, atol=1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("feature_map", ["relu", "favor"])
def test_causal_never_sees_the_future_and_packing_never_sees_neighbours(feature_map):
    """Bit for bit, whatever the others hold."""
    x, later = tokens(200), tokens(200, seed=1) * 50.0
    y = np.where(np.arange(200)[:, None] < 130, x, later).astype("float32")
    for mask in (Causal(), Exponential(causal=True)):
        layer = layer_of(mask=mask, feature_map=feature_map)
        one, two = to_numpy(layer(x)), to_numpy(layer(y))
        np.testing.assert_array_equal(one[:, :130], two[:, :130])
        assert (one[:, 130:] != two[:, 130:]).all(axis=-1).any()
    ids = np.repeat([[1, 2, 3, 4]], [70, 1, 59, 70], axis=1).repeat(2, axis=0).astype("int32")
    y = np.where((ids == 3)[..., None], x, later).astype("float32")
    for mask in (Segments(), Product([Segments(), Exponential(2)])):
        layer = layer_of(mask=mask, feature_map=feature_map)
        one, two = (to_numpy(layer(z, mask_inputs={"segment_ids": ids})) for z in (x, y))
        np.testing.assert_array_equal(one[ids == 3], two[ids == 3])


@keras.saving.register_keras_serializable(package="tests")
def squares(x):
    """Features of the user's own, more of them than channels."""
    return ops.concatenate([ops.square(x), ops.relu(x)], axis=-1)


def test_features_of_the_users_own(tmp_path):
    layer, x = layer_of(feature_map=squares), tokens(9)
    weights, inputs = reference_weights(layer), torch.tensor(x).double()
    query, key, value = (
        torch.einsum("btd,dnh->btnh", inputs, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]
        for name in ("query", "key", "value")
    )
    phi = (torch.cat([z**2, z.clamp(min=0.0)], dim=-1) for z in (query, key))
    heads = reference_kernel.masked_kernel_attention(*phi, value, torch.ones(()))
    expected = torch.einsum("btnh,nhd->btd", heads, weights["attention_output/kernel"])
    assert_close(to_numpy(layer(x)), (expected + weights["attention_output/bias"]).numpy(), 1e-5)
    make = lambda: MaskedKernelAttention(HEADS, SIZE, feature_map=squares)  # noqa: E731
    assert_made_again(*model_of(Row(make, None)), tmp_path, ("file", "clone"))


def test_redrawing_random_features():
    layer, x = layer_of(feature_map="favor"), tokens(9)
    before = to_numpy(layer(x))
    layer.redraw_features(seed=5)
    assert (to_numpy(layer(x)) != before).any()
    with pytest.raises(ValueError, match="draws weights at random"):
        layer_of().redraw_features()
