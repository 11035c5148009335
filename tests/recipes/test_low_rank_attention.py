"""Linformer and Nyströmformer: padding, files, sizes. `test_layers` has their formulas."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from recipes.common.training.low_rank_attention import LinformerAttention, NystromformerAttention
from tests.numerics import assert_close, differentiated, randomise, to_numpy
from tests.recipes.formulas import in_heads, joined, weights_of

HEADS, SIZE, WIDTH, LENGTH = 2, 3, 6, 7
TOKENS = np.random.default_rng(0).normal(size=(4, LENGTH, WIDTH)).astype("float32")
MASK = np.arange(LENGTH) < np.array([[7], [5], [1], [0]])
LAYERS = {
    "linformer": lambda: LinformerAttention(HEADS, SIZE, 4),
    "nystromformer": lambda: NystromformerAttention(HEADS, SIZE, 3),
}


def built(make):
    layer = make()
    layer(TOKENS, MASK)
    randomise(layer, scale=0.5)
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_what_padding_holds_changes_nothing(name):
    """Not a bit of a row or of a gradient."""
    layer = built(LAYERS[name])
    weights = list(map(to_numpy, layer.trainable_variables))

    def rows(tokens, *weights):
        outputs = layer.stateless_call(weights, layer.non_trainable_variables, tokens, MASK)[0]
        return ops.where(MASK[..., None], outputs, 0.0)

    value_and_gradients = differentiated(rows)
    value, gradients = value_and_gradients(TOKENS, *weights)
    assert np.isfinite(value).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert not gradients[0][~MASK].any()
    for padding in (1.0, 1e15, np.nan):
        filled = np.where(MASK[..., None], TOKENS, np.float32(padding))
        other, other_gradients = value_and_gradients(filled, *weights)
        np.testing.assert_array_equal(other, value)
        for place, gradient in gradients.items():
            np.testing.assert_array_equal(other_gradients[place], gradient)


def test_nystromformer_is_the_same_with_padding_between_tokens():
    """Without the convolution, which sees the places of tokens."""
    layer = built(lambda: NystromformerAttention(HEADS, SIZE, 3, value_convolution=False))
    places = [0, 2, 3, 5, 6]
    tokens, mask = np.ones_like(TOKENS), np.zeros_like(MASK)
    tokens[:, places], mask[:, places] = TOKENS[:, :5], MASK[:, :5]
    spread = to_numpy(layer(tokens, mask))[:, places]
    expected = to_numpy(layer(TOKENS, MASK & (np.arange(LENGTH) < 5)))
    assert_close(spread[MASK[:, :5]], expected[:, :5][MASK[:, :5]], 1e-5)


@pytest.mark.parametrize("length", [LENGTH, 5])
def test_nystromformer_with_a_landmark_for_each_token_is_softmax_attention(length):
    """A A^+ A = A, where 6 iterations find A^+: A is far from singular here."""
    layer = NystromformerAttention(1, LENGTH, 64, value_convolution=False)
    tokens = 3.0 * np.eye(LENGTH, dtype="float32")[None]
    mask = np.arange(LENGTH)[None] < length
    layer(tokens, mask)
    randomise(layer, scale=0.5)
    for dense in (layer.query_dense, layer.key_dense):
        dense.set_weights([np.eye(LENGTH)[:, None], np.zeros((1, LENGTH))])
    scores = torch.tensor(9.0 / LENGTH**0.5 * np.eye(LENGTH)[:, :length])
    weights = {name: torch.tensor(to_numpy(one)) for name, one in weights_of(layer).items()}
    value = in_heads(torch.tensor(tokens).double(), weights, "value")[:, :, :length]
    expected = joined(torch.softmax(scores, dim=-1) @ value, weights, "attention_output")
    outputs = to_numpy(layer(tokens, mask))
    assert_close(outputs[:, :length], expected.numpy()[:, :length], 1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_saved_model_gives_the_same(name, tmp_path):
    tokens = keras.Input((LENGTH, WIDTH))
    mask = keras.Input((LENGTH,), dtype="bool")
    model = keras.Model([tokens, mask], LAYERS[name]()(tokens, mask))
    randomise(model, scale=0.5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    expected, outputs = (to_numpy(one([TOKENS, MASK])) for one in (model, again))
    np.testing.assert_array_equal(outputs, expected)
    assert again.layers[-1].get_config() == model.layers[-1].get_config()


def test_sizes_are_at_most_the_length():
    layer = built(lambda: LinformerAttention(HEADS, SIZE, 256))
    assert tuple(layer.key_sums.shape) == tuple(layer.value_sums.shape) == (LENGTH, LENGTH)
    assert layer.get_config()["landmarks"] == 256


def test_the_convolution_is_an_option():
    layer = built(lambda: NystromformerAttention(HEADS, SIZE, 3))
    without = built(lambda: NystromformerAttention(HEADS, SIZE, 3, value_convolution=False))
    assert set(weights_of(layer)) - set(weights_of(without)) == {"convolution/kernel"}
    assert tuple(layer.convolution.kernel.shape) == (33, 1, HEADS, 1)


@pytest.mark.parametrize("name", LAYERS)
def test_wrong_sizes_are_refused(name):
    make = LAYERS[name]
    kind = type(make())
    for landmarks in (0, 2.5, None):
        with pytest.raises(ValueError, match=f"`landmarks` must be an integer.*{landmarks}"):
            kind(HEADS, SIZE, landmarks)
    with pytest.raises(ValueError, match=r"`padding_mask` must have shape \(B, T\) with .*T=7"):
        built(make)(TOKENS, MASK[:, :1])
    with pytest.raises(ValueError, match=r"`tokens` must have shape \(B, T, d\)"):
        built(make)(TOKENS[0], MASK[0])
    symbols = keras.Input((LENGTH, WIDTH)), keras.Input((LENGTH - 1,), dtype="bool")
    with pytest.raises(ValueError, match=r"`padding_mask` must have shape \(B, T\)"):
        make()(*symbols)


def test_linformer_is_of_one_length():
    with pytest.raises(ValueError, match="the number of tokens must be known"):
        LAYERS["linformer"]()(keras.Input((None, WIDTH)), keras.Input((None,), dtype="bool"))
    with pytest.raises(ValueError, match=r"\(B, T, d\) with T=7 as in `build`"):
        built(LAYERS["linformer"])(TOKENS[:, :5], MASK[:, :5])
