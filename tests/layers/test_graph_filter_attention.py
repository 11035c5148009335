import warnings

import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import GraphFilterAttention
from tests import reference
from tests.numerics import (
    as_seen,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_weights,
    to_numpy,
)
from tests.random_masks import draw_masks, joined_mask, visible_keys

HEADS, KEY, FEATURES = 3, 4, 10


def built(order=3, *, length=7, random=True, dtype="float32", **options):
    layer = GraphFilterAttention(HEADS, KEY, order=order, name="layer", dtype=dtype, **options)
    layer.build((None, length, FEATURES))
    if random:
        randomise(layer)
    return layer


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_agrees_with_naive_twin_in_values_and_gradients(length, order):
    layer, x = built(order, length=length), tokens(length)
    value, gradients = layer_value_and_gradients(layer, x)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: reference.graph_filter_attention(x, w, order)[0], x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@given(data=st.data(), length=st.sampled_from([1, 2, 7, 12]), order=st.integers(1, 6))
def test_agrees_with_naive_twin_under_masks(data, length, order):
    masks = draw_masks(data, batch=2, length=length, heads=HEADS)
    layer, x = built(order, length=length), tokens(length)
    mask = torch.tensor(
        joined_mask(masks, batch=2, length=length, heads=HEADS), dtype=torch.float64
    )
    value, gradients = layer_value_and_gradients(layer, x, **masks)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference.graph_filter_attention(x, w, order, mask, visible_keys(masks))[0],
        x,
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_attention_scores_are_the_unfiltered_matrix():
    layer, x = built(), tokens()
    _, scores = layer(x, x, return_attention_scores=True, use_causal_mask=True)
    mask = torch.tril(torch.ones(7, 7, dtype=torch.float64))
    weights = reference_weights(layer)
    _, expected = reference.graph_filter_attention(torch.tensor(x).double(), weights, 3, mask)
    assert_close(to_numpy(scores), expected.numpy(), 1e-6)


@pytest.mark.parametrize(
    ("options", "call_arguments"),
    [
        ({}, {}),
        ({}, {"use_causal_mask": True}),
        ({}, {"attention_mask": np.tri(7, 7, 2, dtype=bool)[None]}),
        ({"value_dim": 6, "output_shape": 8}, {}),
        ({"use_bias": False}, {}),
        ({"sliding_window": 3}, {"use_causal_mask": True}),
        ({"use_gate": True}, {}),
    ],
)
def test_starts_as_the_multi_head_attention_it_replaces(options, call_arguments):
    softmax = keras.layers.MultiHeadAttention(HEADS, KEY, name="layer", **options)
    softmax.build((None, 7, FEATURES), (None, 7, FEATURES))
    randomise(softmax, 0.1)
    layer = built(random=False, **options)
    by_name = {v.path: v for v in softmax.weights}
    for variable in layer.weights:
        if variable.path in by_name:
            variable.assign(by_name.pop(variable.path))
    assert not by_name
    x = tokens()
    # with the scores asked for, Keras runs its own dense path: on jax the other one cannot
    # take a `value_dim` that differs from `key_dim`
    expected, _ = softmax(x, x, return_attention_scores=True, **call_arguments)
    difference = to_numpy(layer(x, x, **call_arguments)) - to_numpy(expected)
    assert np.abs(difference).max() <= 2e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
@pytest.mark.parametrize("length", [1, 63, 197])
def test_half_precision_stays_close(dtype, tolerance, length):
    layer, x = built(2, length=length, random=False, dtype=f"mixed_{dtype}"), tokens(length)
    randomise(layer, 0.1)
    expected, _ = reference.graph_filter_attention(*as_seen(layer, x), 2)
    outputs = layer(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16"]
)
def test_rows_that_see_nothing_are_exactly_zero(dtype):
    layer, x = built(dtype=dtype), tokens()
    layer.output_dense.bias.assign(np.zeros(FEATURES))
    mask = np.ones((2, 7), bool)
    mask[0, 4:], mask[1] = False, False
    for masks in (
        {"query_mask": mask},
        {"value_mask": mask[::-1], "query_mask": mask},
        {"attention_mask": np.repeat(mask[:, :, None], 7, axis=2)},
    ):
        outputs = to_numpy(layer(x, x, **masks))
        assert (outputs[~mask] == 0).all()
    assert np.abs(to_numpy(layer(x, x, query_mask=mask))[mask]).min() > 0


def test_padding_does_not_change_what_is_kept():
    layer, x = built(), tokens()
    mask = np.arange(7)[None] < np.array([[5], [5]])
    noisy = np.where(mask[:, :, None], x, 1e3).astype("float32")
    padded = to_numpy(layer(noisy, noisy, query_mask=mask, value_mask=mask))[:, :5]
    assert_close(padded, to_numpy(layer(x[:, :5], x[:, :5])), 1e-6)


def test_keras_masks_are_used_and_passed_on():
    layer, x = built(), tokens()
    x[0, 4:], x[1, 2:] = 0.0, 0.0
    masked = keras.layers.Masking()(x)
    mask = np.any(x != 0, axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        outputs = layer(masked, masked)
    assert (np.asarray(ops.convert_to_numpy(outputs._keras_mask)) == mask).all()
    assert (np.asarray(ops.convert_to_numpy(masked._keras_mask)) == mask).all()
    explicit = layer(x, x, query_mask=mask, value_mask=mask)
    np.testing.assert_array_equal(to_numpy(outputs), to_numpy(explicit))


def test_dropout_drops_the_same_matrix_in_both_applications():
    """Values that are the identity show the matrix; the filter's matrix follows from it."""
    length = 5

    def filtered(identity, linear, power):
        layer = GraphFilterAttention(1, length, order=3, dropout=0.5, seed=3, use_bias=False)
        layer.build((None, length, length))
        for dense in (layer.value_dense, layer.output_dense):
            dense.kernel.assign(np.eye(length).reshape(tuple(dense.kernel.shape)))
        coefficients = (layer.identity_coefficient, layer.linear_coefficient)
        for variable, value in zip(
            (*coefficients, layer.power_coefficient), (identity, linear, power), strict=True
        ):
            variable.assign([value])
        for dense in (layer.query_dense, layer.key_dense):
            dense.kernel.assign(np.zeros(tuple(dense.kernel.shape)))
        return to_numpy(layer(np.eye(length, dtype="float32")[None], training=True))[0]

    dropped = filtered(0.0, 1.0, 0.0)
    assert set(np.unique(dropped.round(5))) == {0.0, 0.4}  # 1 / 5, kept and scaled by 2
    expected = reference.first_order_filter(
        torch.tensor(dropped)[None, None], *torch.tensor([[0.3], [0.5], [0.7]]).double(), 3
    )
    assert_close(filtered(0.3, 0.5, 0.7), expected[0, 0].numpy(), 1e-6)


def test_order_one_and_power_two():
    x = tokens()
    matrix = None
    for order in (1, 2):
        layer = built(order)
        layer.identity_coefficient.assign(np.zeros(HEADS))
        layer.linear_coefficient.assign(np.zeros(HEADS))
        layer.power_coefficient.assign(np.ones(HEADS))
        outputs, scores = layer(x, x, return_attention_scores=True)
        matrix = np.linalg.matrix_power(to_numpy(scores), order)
        weights = {k: v.numpy() for k, v in reference_weights(layer).items()}
        values = np.einsum("btd,dnh->btnh", x, weights["value/kernel"]) + weights["value/bias"]
        heads = np.einsum("bnts,bsnh->btnh", matrix, values)
        expected = np.einsum("btnh,nhd->btd", heads, weights["attention_output/kernel"])
        assert_close(to_numpy(outputs), expected + weights["attention_output/bias"], 1e-6)


def test_attention_over_chosen_axes_equals_flattened_attention():
    x = np.random.default_rng(0).standard_normal((2, 3, 5, FEATURES)).astype("float32")
    layer = GraphFilterAttention(HEADS, KEY, attention_axes=2, name="layer")
    layer.build(x.shape)
    randomise(layer)
    flat = built(length=5, random=False)
    for target, source in zip(flat.weights, layer.weights, strict=True):
        target.assign(source)
    mask = np.random.default_rng(1).random((2, 3, 5)) < 0.7
    rows = mask.reshape(6, 5)
    expected = flat(x.reshape(6, 5, FEATURES), query_mask=rows, value_mask=rows)
    outputs, scores = layer(x, x, query_mask=mask, value_mask=mask, return_attention_scores=True)
    assert_close(to_numpy(outputs).reshape(6, 5, -1), to_numpy(expected), 1e-6)
    assert tuple(scores.shape) == (2, 3, HEADS, 5, 5)

    both = GraphFilterAttention(HEADS, KEY, name="layer")
    both.build(x.shape)
    for target, source in zip(both.weights, layer.weights, strict=True):
        target.assign(source)
    outputs, scores = both(x, x, return_attention_scores=True)
    assert tuple(scores.shape) == (2, HEADS, 3, 5, 3, 5)
    expected = flat(x.reshape(2, 15, FEATURES))
    assert_close(to_numpy(outputs).reshape(2, 15, -1), to_numpy(expected), 1e-6)
    with pytest.raises(ValueError, match="attention over one axis"):
        both(x, x, use_causal_mask=True)


def test_symbolic_call_describes_the_eager_one():
    layer, x = built(), tokens()
    outputs = layer(x)
    for length in (7, None):
        symbolic = keras.Input((length, FEATURES))
        spec, scores_spec = layer(symbolic, return_attention_scores=True)
        assert spec.shape == (None, length, FEATURES)
        assert scores_spec.shape == (None, HEADS, length, length)
        assert spec.dtype == keras.backend.standardize_dtype(outputs.dtype)
        model = keras.Model(symbolic, layer(symbolic, use_causal_mask=True))
        np.testing.assert_allclose(
            model.predict(x, verbose=0), to_numpy(layer(x, use_causal_mask=True)), atol=1e-6
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.2, "value_dim": 6, "output_shape": 5, "use_bias": False, "seed": 1},
        {"sliding_window": 2, "use_gate": True, "kernel_initializer": "he_normal"},
    ],
)
def test_keras_layer_test(options):
    from keras.src.testing import TestCase

    case = TestCase()
    case.run_layer_test(
        GraphFilterAttention,
        {"num_heads": 2, "key_dim": 3, "order": 4, **options},
        input_shape={"query_shape": (2, 5, 8), "value_shape": (2, 5, 8)},
        expected_output_shape=(2, 5, options.get("output_shape", 8)),
        expected_num_seed_generators=1 if options.get("dropout") else 0,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
    )


def test_config_and_saved_model_file_come_back_equal(tmp_path):
    layer, x = built(4, dropout=0.1, sliding_window=5), tokens()
    clone = GraphFilterAttention.from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, layer(inputs, inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[-1].order == 4
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))


def test_coefficients_learn_through_fit():
    inputs = keras.Input((6, FEATURES))
    layer = GraphFilterAttention(HEADS, KEY, dropout=0.1)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    model.compile("adam", "mse")
    x = tokens(6, batch=8)
    model.fit(x, x, epochs=2, batch_size=4, verbose=0)
    starts = {"identity_coefficient": 0.0, "linear_coefficient": 1.0, "power_coefficient": 0.0}
    for name, start in starts.items():
        assert (np.abs(to_numpy(getattr(layer, name)) - start) > 1e-5).all(), name


@pytest.mark.parametrize("order", [0, -1, 2.5, "3", True])
def test_refuses_a_wrong_order(order):
    with pytest.raises(ValueError, match=r"`order`.*at least 1.*Received"):
        GraphFilterAttention(2, 4, order=order)


def test_refuses_what_it_cannot_do():
    layer, x = built(), tokens()
    with pytest.raises(ValueError, match=r"same length.*cross-attention"):
        layer(x, tokens(5))
    with pytest.raises(ValueError, match="same length"):
        layer(keras.Input((7, FEATURES)), keras.Input((5, FEATURES)))
    with pytest.raises(ValueError, match="three dimensions"):
        GraphFilterAttention(2, 4)(x[0])
    with pytest.raises(ValueError, match=r"attention_mask.*\(7,\)"):
        layer(x, attention_mask=np.ones(7, bool))
    with pytest.raises(ValueError, match="dropout"):
        GraphFilterAttention(2, 4, dropout=1.5)
