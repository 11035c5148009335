import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_graphattn.analysis import token_similarity
from keras_graphattn.layers import ContraNorm, ScaledHighFrequencyAttention
from tests import reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.random_masks import draw_masks, joined_mask

HEADS, KEY, FEATURES = 3, 4, 10


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def scaled_attention(x, weights, mask):
    """A' = U + (1 + l) (A - U), U uniform over what each query sees, formed entry by entry."""
    query, key, value = (reference.project(x, weights, name) for name in ("query", "key", "value"))
    matrix = reference.attention_matrix(query, key, mask)
    uniform = mask / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    scale = weights["high_frequency_scale"][:, None, None]
    scaled = uniform + (1 + scale) * (matrix - uniform)
    return reference.project_out(torch.einsum("bnts,bsnh->btnh", scaled, value), weights)


@pytest.mark.slow_on("jax")
@given(data=st.data(), length=st.sampled_from([1, 2, 7]))
def test_scaled_attention_agrees_with_naive_twin_under_masks(data, length):
    masks = draw_masks(data, batch=2, length=length, heads=HEADS)
    joined = joined_mask(masks, batch=2, length=length, heads=HEADS)
    mask = torch.tensor(joined, dtype=torch.float64)
    layer, x = ScaledHighFrequencyAttention(HEADS, KEY, name="layer"), tokens(length)
    layer.build(x.shape)
    randomise(layer)
    value, gradients = layer_value_and_gradients(layer, x, **masks)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: scaled_attention(x, w, mask), x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_new_scaled_attention_is_plain_attention():
    softmax = keras.layers.MultiHeadAttention(HEADS, KEY, name="layer")
    layer, x = ScaledHighFrequencyAttention(HEADS, KEY, name="layer"), tokens()
    softmax.build(x.shape, x.shape)
    layer.build(x.shape)
    for target, source in zip(layer.weights[1:], softmax.weights, strict=True):
        assert target.path == source.path
        target.assign(source)
    assert np.abs(to_numpy(layer(x)) - to_numpy(softmax(x, x))).max() <= 2e-6


def contra_norm(x, scale, mask):
    similarity = torch.einsum("btd,bsd->bts", x, x)
    weights = reference.softmax(similarity, mask[:, None, :])
    return ((1 + scale) * x - scale * weights @ x) * mask[:, :, None]


@given(mask=hnp.arrays(bool, (2, 7)), scale=st.sampled_from([0.0, 0.1, 2.0]))
def test_contra_norm_agrees_with_naive_twin(mask, scale):
    x, layer = tokens(), ContraNorm(scale)
    value, gradients = value_and_gradients(lambda x: layer(x, mask=mask), x)
    expected, expected_gradients = reference_value_and_gradients(
        lambda x: contra_norm(x, scale, torch.tensor(mask).double()), x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_contra_norm_pushes_tokens_apart():
    x = tokens() * 0.3 + 1.0
    before = to_numpy(token_similarity(x))
    after = to_numpy(token_similarity(ContraNorm(2.0)(x)))
    assert (after < before - 0.05).all()


@pytest.mark.parametrize("layer", [ScaledHighFrequencyAttention(2, 3), ContraNorm(0.3)])
def test_round_trips(layer, tmp_path):
    clone = type(layer).from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(tokens())), to_numpy(model(tokens())))


def test_refuses_wrong_arguments():
    for scale in (-0.1, float("nan"), "1"):
        with pytest.raises(ValueError, match=r"`scale`.*at least 0"):
            ContraNorm(scale)
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(B, T, d\)"):
        ContraNorm()(np.ones((2, 3), "float32"))
