import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keras_graphattn.layers import PLaplacianAttention
from tests import reference_dense
from tests.numerics import (
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_weights,
    to_numpy,
)
from tests.random_masks import draw_masks, joined_mask, visible_keys

HEADS, KEY, FEATURES = 4, 3, 10


def built(*, length=7, random=True, **options):
    options.setdefault("dtype", "float32")
    layer = PLaplacianAttention(HEADS, KEY, name="layer", **options)
    layer.build((None, length, FEATURES))
    if random:
        randomise(layer)
    return layer


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def twin(layer, mask=None, keys=None):
    mask = None if mask is None else torch.tensor(mask, dtype=torch.float64)

    def function(x, weights):
        return reference_dense.p_laplacian_layer(
            x, weights, layer.exponents, layer.epsilon, mask, layer.diagonal == "drop", keys
        )

    return function


def check(layer, x, mask=None, **call_arguments):
    value, gradients = layer_value_and_gradients(layer, x, **call_arguments)
    keys = visible_keys(call_arguments)
    reference = twin(layer, mask, keys)
    expected, expected_gradients = layer_reference(layer, lambda *a: reference(*a)[0], x)
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 2e-5)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_agrees_with_naive_twin_in_values_and_gradients(path, length):
    layer = built(attention_path=path, block_size=50, length=length)
    assert layer.exponents == [1.5, 1.5, 2.5, 2.5]
    check(layer, tokens(length))


@given(
    data=st.data(),
    length=st.sampled_from([1, 7]),
    options=st.fixed_dictionaries(
        {
            "p": st.sampled_from([None, 2, 1.0, [1.2, 2.0, 3.0, 4.0]]),
            "epsilon": st.sampled_from([0.1, 1.0]),
            "diagonal": st.sampled_from(["smooth", "drop"]),
            "attention_path": st.sampled_from([None, "dense", "blockwise"]),
            "num_key_value_heads": st.sampled_from([None, 2]),
            "sliding_window": st.sampled_from([None, 2]),
        }
    ),
)
def test_all_options_agree_under_masks(data, length, options):
    sizes = {"batch": 2, "length": length, "heads": HEADS}
    masks = draw_masks(data, **sizes)
    mask = joined_mask(masks, **sizes)
    if options["sliding_window"] is not None:
        mask &= np.abs(np.subtract.outer(np.arange(length), np.arange(length))) < 2
    check(built(length=length, block_size=3, **options), tokens(length), mask, **masks)


def test_p_two_is_the_multi_head_attention_it_replaces():
    softmax = keras.layers.MultiHeadAttention(HEADS, KEY, name="layer")
    softmax.build((None, 63, FEATURES), (None, 63, FEATURES))
    randomise(softmax)
    for path in ("dense", "blockwise"):
        layer = built(p=2.0, attention_path=path, block_size=20, random=False)
        assert [v.path for v in layer.weights] == [v.path for v in softmax.weights]
        for target, source in zip(layer.weights, softmax.weights, strict=True):
            target.assign(source)
        x = tokens(63)
        expected = softmax(x, x, use_causal_mask=True)
        assert_close(to_numpy(layer(x, use_causal_mask=True)), to_numpy(expected), 1e-6)


def test_scores_are_the_re_weighted_matrix():
    layer, x = built(), tokens()
    outputs, scores = layer(x, return_attention_scores=True, use_causal_mask=True)
    mask = np.broadcast_to(np.tri(7), (2, HEADS, 7, 7))
    _, expected = twin(layer, mask)(torch.tensor(x).double(), reference_weights(layer))
    assert_close(to_numpy(scores), expected.numpy(), 1e-6)
    assert_close(to_numpy(outputs), to_numpy(layer(x, use_causal_mask=True)), 1e-6)
    spec = layer(keras.Input((7, FEATURES)), return_attention_scores=True)[1]
    assert spec.shape == (None, HEADS, 7, 7)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_duplicate_tokens_have_finite_gradients(dtype, path):
    layer, x = built(dtype=dtype, attention_path=path, block_size=4, epsilon=1e-3), tokens()
    x[:, 3] = x[:, 1]
    x[1] = x[1, 0]
    value, gradients = layer_value_and_gradients(layer, x)
    assert np.isfinite(value).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)]
)
@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_half_precision_stays_close(dtype, tolerance, path):
    layer, x = built(dtype=dtype, attention_path=path, block_size=32), tokens(63)
    outputs = layer(x)
    expected, _ = twin(layer)(torch.tensor(x).double(), reference_weights(layer))
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype.removeprefix("mixed_")
    assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_rows_that_see_nothing_are_exactly_zero(path):
    layer, x = built(attention_path=path, block_size=3), tokens()
    layer.output_dense.bias.assign(np.zeros(FEATURES))
    mask = np.ones((2, 7), bool)
    mask[0, 4:], mask[1] = False, False
    for masks in ({"query_mask": mask}, {"query_mask": mask, "value_mask": mask}):
        outputs = to_numpy(layer(x, **masks))
        assert (outputs[~mask] == 0).all()
        assert (outputs[mask] != 0).all()


def test_dropout_takes_the_dense_path_and_drops_entries():
    layer, x = built(dropout=0.5, seed=1), tokens()
    assert layer.attention_path is None
    kept = to_numpy(layer(x))
    assert np.abs(to_numpy(layer(x, training=True)) - kept).max() > 1e-2
    plain = built(random=False)
    for target, source in zip(plain.trainable_weights, layer.trainable_weights, strict=True):
        target.assign(source)
    assert_close(kept, to_numpy(plain(x)), 1e-6)


def test_learns_through_fit_and_comes_back_from_a_file(tmp_path):
    inputs = keras.Input((None, FEATURES))
    options = {"p": [1.5, 2.0, 2.5, 3.0], "epsilon": 0.3, "diagonal": "drop"}
    layer = PLaplacianAttention(HEADS, KEY, block_size=4, sliding_window=5, **options)
    model = keras.Model(inputs, layer(keras.layers.Masking()(inputs), use_causal_mask=True))
    model.compile("adam", "mse")
    x = tokens(6, batch=4)
    start = to_numpy(layer.query_dense.kernel)
    model.fit(x, x, epochs=1, batch_size=2, verbose=0)
    assert np.abs(to_numpy(layer.query_dense.kernel) - start).max() > 1e-5
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[-1].get_config() == layer.get_config()
    assert PLaplacianAttention.from_config(layer.get_config()).get_config() == layer.get_config()
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))


def test_keras_layer_test():
    from keras.src.testing import TestCase

    TestCase().run_layer_test(
        PLaplacianAttention,
        {"num_heads": 3, "key_dim": 3, "value_dim": 2, "output_shape": 5},
        input_shape={"query_shape": (2, 5, 8), "value_shape": (2, 5, 8)},
        expected_output_shape=(2, 5, 5),
        expected_num_seed_generators=0,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0.5}, r"`p` must be a number of at least 1.*Received: p=0.5"),
        ({"p": [1.5, 2.5]}, "for each of the 4"),
        ({"p": "1.5"}, "`p` must be a number"),
        ({"p": [1.5, 2.5, float("inf"), 2.0]}, "`p` must be a number"),
        ({"epsilon": 0.0}, "`epsilon` must be a number greater than 0"),
        ({"epsilon": None}, "`epsilon` must be a number greater than 0"),
        ({"diagonal": "keep"}, '`diagonal` must be "smooth" or "drop"'),
        ({"attention_path": "fused"}, "`attention_path` must be one of"),
        ({"attention_path": "blockwise", "dropout": 0.1}, "only attention_path=.dense. forms"),
        ({"flash_attention": True}, "flash"),
    ],
)
def test_refuses_wrong_arguments_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        PLaplacianAttention(HEADS, KEY, **options)


def test_refuses_what_it_cannot_do():
    layer, x = built(attention_path="blockwise"), tokens()
    with pytest.raises(ValueError, match="never forms the attention matrix"):
        layer(x, return_attention_scores=True)
    with pytest.raises(ValueError, match="same length"):
        layer(x, tokens(5))
    with pytest.raises(ValueError, match="over one axis"):
        PLaplacianAttention(2, 4)(np.zeros((1, 2, 3, 4), "float32"))
