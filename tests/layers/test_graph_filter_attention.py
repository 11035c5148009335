"""GraphFilterAttention beyond its twins: groups, axes, the filter's matrix, dropout, refusals."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.filters import FirstOrder, Monomial
from keras_graphattn.layers import GraphFilterAttention
from tests import reference
from tests.layers.twins import CHANNELS, HEADS, SIZE, built, jacobi, tokens
from tests.numerics import BACKEND, assert_close, randomise, reference_weights, short_name, to_numpy


def layer_of(scale=0.3, **options):
    return built(lambda: GraphFilterAttention(HEADS, SIZE, **options), scale)


@pytest.mark.parametrize("use_gate", [False, True])
def test_groups_start_as_grouped_query_attention(use_gate):
    x, mask = tokens(7), np.arange(7)[None] < np.array([[5], [7]])
    grouped = keras.layers.GroupQueryAttention(SIZE, HEADS, 2, use_gate=use_gate)
    grouped.build(x.shape, x.shape)
    randomise(grouped)
    layer = layer_of(0.0, num_key_value_heads=2, use_gate=use_gate)
    weights = {short_name(grouped, w): to_numpy(w) for w in grouped.weights}
    for variable in layer.weights:
        if short_name(layer, variable) in weights:
            variable.assign(weights.pop(short_name(layer, variable)).reshape(variable.shape))
    assert not weights
    expected = grouped(x, x, value_mask=mask, use_causal_mask=True)
    outputs = layer(x, value_mask=mask, use_causal_mask=True)
    assert_close(to_numpy(outputs), to_numpy(expected), 1e-6)
    assert len(layer.weights) == len(grouped.weights) + 3


def test_one_group_for_each_head_is_the_layer_without_groups():
    plain, grouped = layer_of(), layer_of(num_key_value_heads=HEADS)
    for target, source in zip(grouped.weights, plain.weights, strict=True):
        assert short_name(grouped, target) == short_name(plain, source)
        target.assign(source)
    np.testing.assert_array_equal(to_numpy(grouped(tokens())), to_numpy(plain(tokens())))


@pytest.mark.slow_on("jax")
def test_token_masks_belong_to_the_chosen_axis():
    x = np.random.default_rng(0).standard_normal((2, 3, 5, CHANNELS)).astype("float32")
    layer, flat = GraphFilterAttention(HEADS, SIZE, attention_axes=2), layer_of()
    layer.build(x.shape)
    layer.set_weights(flat.get_weights())
    mask = np.random.default_rng(1).random((2, 3, 5)) < 0.7
    rows = mask.reshape(6, 5)
    expected = flat(x.reshape(6, 5, CHANNELS), query_mask=rows, value_mask=rows)
    outputs, scores = layer(x, x, query_mask=mask, value_mask=mask, return_attention_scores=True)
    assert_close(to_numpy(outputs).reshape(6, 5, -1), to_numpy(expected), 1e-6)
    assert tuple(scores.shape) == (2, 3, HEADS, 5, 5)
    both = GraphFilterAttention(HEADS, SIZE)
    with pytest.raises(ValueError, match=r"attention over one axis.*Pass one `attention_mask`"):
        both(x, x, use_causal_mask=True)


@pytest.mark.parametrize("options", [{"order": 4}, {"filter": jacobi("jacobi", 4)}])
def test_matrices_are_returned_on_request(options):
    layer, x = layer_of(**options), tokens(7)
    arguments = {"use_causal_mask": True, "return_filter_matrix": True}
    outputs, matrix = layer(x, **arguments)
    np.testing.assert_array_equal(to_numpy(outputs), to_numpy(layer(x, use_causal_mask=True)))
    outputs, scores, again = layer(x, return_attention_scores=True, **arguments)
    np.testing.assert_array_equal(to_numpy(again), to_numpy(matrix))
    np.testing.assert_array_equal(to_numpy(layer.filter_matrix(scores)), to_numpy(matrix))
    weights, inputs = reference_weights(layer), torch.tensor(x).double()
    query, key, value = (reference.project(inputs, weights, n) for n in ("query", "key", "value"))
    mask = torch.tril(torch.ones(7, 7, dtype=torch.float64))
    assert_close(to_numpy(scores), reference.attention_matrix(query, key, mask).numpy(), 1e-6)
    heads = torch.einsum("bnts,bsnh->btnh", torch.tensor(to_numpy(matrix)), value)
    assert_close(to_numpy(outputs), reference.project_out(heads, weights).numpy(), 2e-6)
    symbolic = keras.Input((7, CHANNELS))
    specs = layer(symbolic, return_attention_scores=True, return_filter_matrix=True)
    assert [spec.shape for spec in specs] == [(None, 7, CHANNELS)] + [(None, HEADS, 7, 7)] * 2
    assert len(layer(symbolic, return_filter_matrix=True)) == 2


def test_some_coefficients_are_trained_and_start_as_given():
    initial = {"identity": -0.05, "power": [0.1, 0.2, 0.3, 0.4]}
    filter = FirstOrder(trainable_coefficients=["power"], initial_coefficients=initial)
    layer = layer_of(0.0, filter=filter)
    np.testing.assert_allclose(to_numpy(layer.identity_coefficient), -0.05)
    np.testing.assert_allclose(to_numpy(layer.linear_coefficient), 1.0)
    np.testing.assert_allclose(to_numpy(layer.power_coefficient), initial["power"])
    trained = [short_name(layer, v) for v in layer.trainable_variables]
    assert [name for name in trained if "coefficient" in name] == ["power_coefficient"]
    start = [0.5, np.arange(4.0), 0.25]
    filter = Monomial(2, trainable_coefficients=False, initial_coefficients=start)
    layer = layer_of(0.0, filter=filter)
    expected = [[0.5] * 4, [0, 1, 2, 3], [0.25] * 4]
    np.testing.assert_allclose(to_numpy(layer.filter_coefficients), expected)
    assert len(layer.trainable_variables) == 8


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a graph of unknown length is TensorFlow's")
@pytest.mark.parametrize("path", ["dense", "blockwise", "fused"])
def test_lengths_may_be_unknown_in_a_graph(path):
    import tensorflow as tf

    layer = layer_of(attention_path=path, block_size=4)
    mask = np.arange(11)[None] < np.array([[5], [11]])
    specs = [tf.TensorSpec((None, None, CHANNELS)), tf.TensorSpec((None, None), tf.bool)]

    @tf.function(input_signature=specs)
    def gradient(x, mask):
        with tf.GradientTape() as tape:
            outputs = layer(x, query_mask=mask, value_mask=mask, use_causal_mask=True)
            loss = tf.reduce_sum(outputs**2)
        return outputs, tape.gradient(loss, layer.query_dense.kernel)

    for length in (3, 11):
        x, padding = tokens(length), mask[:, :length]
        outputs, slope = gradient(x, padding)
        expected = layer(x, query_mask=padding, value_mask=padding, use_causal_mask=True)
        assert_close(to_numpy(outputs), to_numpy(expected), 1e-6)
        assert np.abs(to_numpy(slope)).max() > 0


@pytest.mark.skipif(BACKEND == "tensorflow", reason="Keras has no flash kernel for TensorFlow")
def test_flash_attention_is_handed_to_the_kernel(monkeypatch):
    asked = []
    kernel = keras.ops.dot_product_attention

    def spy(*args, flash_attention=None, **kwargs):
        asked.append(flash_attention)
        return kernel(*args, flash_attention=False, **kwargs)

    monkeypatch.setattr("keras.ops.dot_product_attention", spy)
    for flash_attention in (True, False, None):
        layer_of(flash_attention=flash_attention, attention_path="fused")(tokens())
    assert asked == [True, True, False, False, None, None]
    assert layer_of(flash_attention=True).attention_path == "fused"


@pytest.mark.slow_on("jax")
def test_refuses_the_matrix_of_more_than_one_axis():
    x = np.zeros((1, 2, 3, CHANNELS), "float32")
    with pytest.raises(ValueError, match=r"over one axis.*\(1, 2\)"):
        GraphFilterAttention(HEADS, SIZE)(x, return_filter_matrix=True)
    dropping = GraphFilterAttention(HEADS, SIZE, dropout=0.5, dropout_on="filter")
    assert tuple(dropping(x).shape) == x.shape
    with pytest.raises(ValueError, match="over one axis"):
        dropping(x, training=True)
