import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_graphattn.filters import FILTERS, Jacobi
from keras_graphattn.layers import AttentiveGraphFilter
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

HEADS, KEY, FEATURES = 3, 4, 10
BASES = ["monomial", "legendre", "chebyshev", "jacobi"]


def built(order=3, *, length=7, random=True, dtype="float32", **options):
    layer = AttentiveGraphFilter(HEADS, KEY, order=order, name="layer", dtype=dtype, **options)
    layer.build((None, length, FEATURES))
    if random:
        randomise(layer)
    return layer


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def naive(x, layer, **options):
    outputs = reference.attentive_graph_filter(
        torch.tensor(x).double(), reference_weights(layer), **options
    )
    return [o.numpy() for o in outputs]


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("basis", BASES)
def test_agrees_with_naive_twin_in_values_and_gradients(length, basis):
    jacobi = {"alpha": 1.5, "beta": -0.5} if basis == "jacobi" else {}
    layer, x = built(None, filter=FILTERS[basis](4, **jacobi), length=length), tokens(length)
    value, gradients = layer_value_and_gradients(layer, x)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: reference.attentive_graph_filter(x, w, basis=basis, **jacobi)[0], x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@given(data=st.data(), length=st.sampled_from([1, 2, 7, 12]), order=st.integers(1, 6))
def test_agrees_with_naive_twin_under_masks(data, length, order):
    masks = {
        name: data.draw(st.none() | hnp.arrays(bool, (2, length)), label=name)
        for name in ("query_mask", "value_mask", "key_mask")
    }
    source = np.ones((2, length), bool)
    for name in ("value_mask", "key_mask"):
        source &= True if masks[name] is None else masks[name]
    if data.draw(st.booleans(), label="as attention_mask"):
        masks["attention_mask"], masks["value_mask"] = source[:, None, :], None
    query = np.ones((2, length)) if masks["query_mask"] is None else masks["query_mask"]
    options = {"query_mask": torch.tensor(query), "source_mask": torch.tensor(source)}
    layer, x = built(order, length=length), tokens(length)
    value, gradients = layer_value_and_gradients(layer, x, **masks)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: reference.attentive_graph_filter(x, w, **options)[0], x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_scores_are_the_filtered_matrix_and_the_new_layer_is_efficient_attention():
    layer, x = built(random=False), tokens()
    outputs, matrix = layer(x, return_attention_scores=True)
    expected, expected_matrix, _ = naive(x, layer)
    assert_close(to_numpy(matrix), expected_matrix, 1e-6)
    assert_close(to_numpy(outputs), expected, 1e-6)
    weights = reference_weights(layer)
    left = reference.softmax(reference.project(torch.tensor(x).double(), weights, "query"))
    right = reference.softmax(reference.project(torch.tensor(x).double(), weights, "key"), dim=1)
    plain = torch.einsum("btnh,bsnh->bnts", left, right)
    assert_close(to_numpy(matrix), plain.numpy(), 1e-6)


@pytest.mark.parametrize("weight", [0.1, 2])
def test_orthogonality_loss_leaves_padding_out(weight):
    layer, x = built(orthogonality_weight=weight), tokens()
    mask = np.arange(7)[None] < np.array([[5], [5]])
    layer(x, query_mask=mask, value_mask=mask)
    _, _, penalty = naive(x[:, :5], layer)
    assert len(layer.losses) == 1
    assert_close(to_numpy(layer.losses[0]), weight * penalty, 1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
@pytest.mark.parametrize("length", [1, 63, 197])
def test_half_precision_stays_close(dtype, tolerance, length):
    layer, x = built(4, length=length, random=False, dtype=f"mixed_{dtype}"), tokens(length)
    randomise(layer, 0.1)
    expected = reference.attentive_graph_filter(*as_seen(layer, x))[0].numpy()
    outputs = layer(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert_close(to_numpy(outputs), expected, tolerance)


def test_long_sequences_keep_their_small_weights_in_float16():
    length = 4096
    layer, x = built(length=length, dtype="mixed_float16"), tokens(length, batch=1)
    weights = reference_weights(layer)
    inputs = torch.tensor(x).double()
    u = reference.softmax(reference.project(inputs, weights, "query"))
    v = reference.softmax(reference.project(inputs, weights, "key"), dim=1)
    singular = torch.sigmoid(reference.project(inputs, weights, "singular"))
    coefficients = [1.0, *torch.tanh(weights["theta"])]
    gain = reference.polynomial_value(singular, coefficients, "jacobi")
    context = torch.einsum("bsnh,bsnd->bnhd", v, reference.project(inputs, weights, "value"))
    expected = reference.project_out(torch.einsum("btnh,bnhd->btnd", u * gain, context), weights)
    assert_close(to_numpy(layer(x)), expected.numpy(), 1e-3)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16"]
)
def test_padded_rows_are_exactly_zero(dtype):
    layer, x = built(dtype=dtype), tokens()
    layer.output_dense.bias.assign(np.zeros(FEATURES))
    mask = np.ones((2, 7), bool)
    mask[0, 4:], mask[1] = False, False
    outputs = to_numpy(layer(x, query_mask=mask))
    assert (outputs[~mask] == 0).all()
    assert np.abs(outputs[mask]).min() > 0
    nothing = to_numpy(layer(x, x, value_mask=np.zeros((2, 7), bool)))
    assert (nothing == 0).all()


def test_padding_does_not_change_what_is_kept():
    layer, x = built(), tokens()
    mask = np.arange(7)[None] < np.array([[5], [5]])
    noisy = np.where(mask[:, :, None], x, 1e3).astype("float32")
    padded = to_numpy(layer(noisy, query_mask=mask, value_mask=mask))[:, :5]
    assert_close(padded, to_numpy(layer(x[:, :5])), 1e-6)


def test_without_value_the_query_mask_is_the_value_mask():
    layer, x = built(), tokens()
    mask = np.arange(7)[None] < np.array([[5], [2]])
    np.testing.assert_array_equal(
        to_numpy(layer(x, query_mask=mask)),
        to_numpy(layer(x, x, query_mask=mask, value_mask=mask)),
    )


def test_cross_attention_reads_another_sequence():
    layer, x, source = built(), tokens(7), tokens(5, seed=1)
    outputs, matrix = layer(x, source, return_attention_scores=True)
    assert tuple(matrix.shape) == (2, HEADS, 7, 5)
    value = reference.project(torch.tensor(source).double(), reference_weights(layer), "value")
    heads = np.einsum("bnts,bsnh->btnh", to_numpy(matrix), value.numpy())
    expected = reference.project_out(torch.tensor(heads), reference_weights(layer))
    assert_close(to_numpy(outputs), expected.numpy(), 1e-6)


def test_memory_has_no_square_of_the_length():
    """A length whose square (times heads) would need 40 GB per matrix."""
    length = 100_000
    layer = AttentiveGraphFilter(1, 4, order=2)
    outputs = layer(np.ones((1, length, 4), "float32"))
    assert tuple(outputs.shape) == (1, length, 4)


def test_dropout_acts_in_training_alone():
    layer, x = built(dropout=0.5, seed=1), tokens()
    still = to_numpy(layer(x))
    np.testing.assert_array_equal(still, to_numpy(layer(x, training=False)))
    first, second = (to_numpy(layer(x, training=True)) for _ in range(2))
    assert np.abs(first - still).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.2, "value_dim": 6, "output_shape": 5, "use_bias": False, "seed": 1},
        {"filter": "monomial", "use_gate": True, "orthogonality_weight": 0.1},
    ],
)
def test_keras_layer_test(options):
    from keras.src.testing import TestCase

    TestCase().run_layer_test(
        AttentiveGraphFilter,
        {"num_heads": 2, "key_dim": 3, "order": 4, **options},
        input_shape=(2, 5, 8),
        expected_output_shape=(2, 5, options.get("output_shape", 8)),
        expected_num_seed_generators=1 if options.get("dropout") else 0,
        expected_num_losses=1 if options.get("orthogonality_weight") else 0,
        supports_masking=True,
    )


def test_config_and_saved_model_file_come_back_equal(tmp_path):
    layer, x = built(None, filter=Jacobi(4, 1.0, 0.5), orthogonality_weight=0.1), tokens()
    clone = AttentiveGraphFilter.from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))
    spec = layer(keras.Input((None, FEATURES)), return_attention_scores=True)
    assert [tuple(s.shape) for s in spec] == [(None, None, FEATURES), (None, HEADS, None, None)]


def test_theta_learns_through_fit():
    inputs = keras.Input((6, FEATURES))
    layer = AttentiveGraphFilter(HEADS, KEY, order=3, dropout=0.1, orthogonality_weight=0.1)
    model = keras.Model(inputs, layer(inputs))
    model.compile("adam", "mse")
    x = tokens(6, batch=8)
    model.fit(x, x, epochs=2, batch_size=4, verbose=0)
    assert layer.theta.shape == (3,)
    assert (np.abs(to_numpy(layer.theta)) > 1e-5).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, r"`order`.*at least 1.*order=0"),
        ({"filter": "hermite"}, r"`filter` must be one of.*'hermite'"),
        ({"filter": Jacobi(4), "order": 3}, "`order` may only be given if `filter` is a name"),
        ({"orthogonality_weight": -1}, "`orthogonality_weight`.*at least 0"),
        ({"orthogonality_weight": float("nan")}, "`orthogonality_weight`.*at least 0"),
        ({"attention_axes": 1}, "does not support `attention_axes`"),
        ({"sliding_window": 3}, "does not support `sliding_window`"),
        ({"flash_attention": True}, "flash"),
        ({"num_heads": 0}, "num_heads"),
    ],
)
def test_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        AttentiveGraphFilter(**{"num_heads": 2, "key_dim": 4, **options})


def test_refuses_masks_that_it_cannot_honour():
    layer, x = built(), tokens()
    with pytest.raises(ValueError, match="is not causal"):
        layer(x, use_causal_mask=True)
    for shape in ((7, 7), (2, 7, 7), (2, 1, 7, 7)):
        with pytest.raises(ValueError, match=r"shape \(B, 1, S\).*Received"):
            layer(x, attention_mask=np.ones(shape, bool))
    with pytest.raises(ValueError, match="one axis"):
        layer(x[None])
