"""GraphFilterAttention beyond its defaults: exact filters, paths, groups, coefficients, dropout."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keras_graphattn.filters import FILTERS, FirstOrder, Monomial
from keras_graphattn.layers import GraphFilterAttention
from tests import reference_dense
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_weights,
    short_name,
    to_numpy,
)
from tests.random_masks import draw_masks, joined_mask, visible_keys

HEADS, KEY, FEATURES = 4, 3, 10
EXACT = ["monomial", "chebyshev", "legendre", "jacobi"]
JACOBI = {"alpha": 0.5, "beta": -0.25}


def named(name, order=3, **options):
    """A filter; that of Jacobi with parameters."""
    return FILTERS[name](order, **(JACOBI if name == "jacobi" else {}), **options)


def built(*, length=7, random=True, **options):
    options.setdefault("dtype", "float32")
    layer = GraphFilterAttention(HEADS, KEY, name="layer", **options)
    layer.build((None, length, FEATURES))
    if random:
        randomise(layer)
    return layer


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def twin(layer, mask=None, keys=None):
    basis = type(layer.filter).__name__.lower()
    basis = None if basis == "firstorder" else basis
    alpha, beta = (getattr(layer.filter, name, 0.0) for name in ("alpha", "beta"))
    mask = None if mask is None else torch.tensor(mask, dtype=torch.float64)

    def function(x, weights):
        return reference_dense.graph_filter_layer(
            x, weights, layer.order, basis, mask, alpha, beta, keys
        )

    return function


def check(layer, x, mask=None, **call_arguments):
    value, gradients = layer_value_and_gradients(layer, x, **call_arguments)
    keys = visible_keys(call_arguments)
    expected, expected_gradients = layer_reference(
        layer, lambda *a: twin(layer, mask, keys)(*a)[0], x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("graph_filter", EXACT)
def test_exact_filters_agree_with_naive_twin(graph_filter, length):
    layer = built(filter=named(graph_filter), length=length)
    assert tuple(layer.filter_coefficients.shape) == (4, HEADS)
    check(layer, tokens(length))


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("graph_filter", ["first_order", "legendre"])
def test_lean_paths_agree_with_naive_twin(path, graph_filter, length):
    layer = built(filter=graph_filter, attention_path=path, block_size=50, length=length)
    mask = np.broadcast_to(np.tri(length), (2, HEADS, length, length))
    check(layer, tokens(length), mask, use_causal_mask=True)


@pytest.mark.slow_on("jax")
@given(
    data=st.data(),
    length=st.sampled_from([1, 7]),
    path=st.sampled_from(["dense", "blockwise", "fused"]),
    graph_filter=st.sampled_from(["first_order", "monomial", "chebyshev"]),
    window=st.sampled_from([None, 2]),
    groups=st.sampled_from([None, 1, 2, 4]),
)
def test_all_options_agree_under_masks(data, length, path, graph_filter, window, groups):
    sizes = {"batch": 2, "length": length, "heads": HEADS}
    masks = draw_masks(data, **sizes)
    mask = joined_mask(masks, **sizes)
    if window is not None:
        mask &= np.abs(np.subtract.outer(np.arange(length), np.arange(length))) < window
    layer = built(
        filter=graph_filter,
        attention_path=path,
        sliding_window=window,
        num_key_value_heads=groups,
        block_size=3,
        length=length,
    )
    check(layer, tokens(length), mask, **masks)


@pytest.mark.parametrize("graph_filter", EXACT)
def test_exact_filters_start_as_plain_attention(graph_filter):
    softmax = keras.layers.MultiHeadAttention(HEADS, KEY, name="layer")
    softmax.build((None, 7, FEATURES), (None, 7, FEATURES))
    randomise(softmax)
    layer = built(filter=named(graph_filter, 4), random=False)
    copy_weights(softmax, layer)
    x = tokens()
    assert_close(to_numpy(layer(x)), to_numpy(softmax(x, x)), 1e-6)


def copy_weights(source, target):
    by_name = {short_name(source, v): v for v in source.weights}
    for variable in target.weights:
        name = short_name(target, variable)
        if name in by_name:
            variable.assign(to_numpy(by_name.pop(name)).reshape(tuple(variable.shape)))
    assert not by_name


@pytest.mark.parametrize("use_gate", [False, True])
def test_groups_start_as_grouped_query_attention(use_gate):
    grouped = keras.layers.GroupQueryAttention(KEY, HEADS, 2, use_gate=use_gate, name="layer")
    grouped.build((None, 7, FEATURES), (None, 7, FEATURES))
    randomise(grouped)
    layer = built(num_key_value_heads=2, use_gate=use_gate, random=False)
    copy_weights(grouped, layer)
    x, mask = tokens(), np.arange(7)[None] < np.array([[5], [7]])
    expected = grouped(x, x, value_mask=mask, use_causal_mask=True)
    assert_close(
        to_numpy(layer(x, value_mask=mask, use_causal_mask=True)), to_numpy(expected), 1e-6
    )
    assert len(layer.weights) == len(grouped.weights) + 3


def test_one_group_for_each_head_is_the_layer_without_groups():
    x = tokens()
    plain, grouped = built(), built(num_key_value_heads=HEADS, random=False)
    for target, source in zip(grouped.weights, plain.weights, strict=True):
        assert short_name(grouped, target) == short_name(plain, source)
        target.assign(source)
    np.testing.assert_array_equal(to_numpy(grouped(x)), to_numpy(plain(x)))


@pytest.mark.parametrize("path", ["blockwise", "fused"])
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_close_on_lean_paths(path, dtype):
    tolerance = {"mixed_bfloat16": 1e-2, "mixed_float16": 2e-3}[dtype]
    for options in ({"order": 2}, {"filter": "chebyshev", "order": 3}):
        layer, x = built(attention_path=path, dtype=dtype, block_size=32, **options), tokens(63)
        outputs = layer(x)
        expected, _ = twin(layer)(torch.tensor(x).double(), reference_weights(layer))
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype.removeprefix("mixed_")
        assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.parametrize("options", [{"order": 4}, {"filter": named("jacobi", 4)}])
def test_filter_matrix_is_returned_on_request(options):
    layer, x = built(**options), tokens()
    mask = np.broadcast_to(np.tri(7), (2, HEADS, 7, 7))
    _, expected = twin(layer, mask)(torch.tensor(x).double(), reference_weights(layer))
    arguments = {"use_causal_mask": True, "return_filter_matrix": True}
    outputs, matrix = layer(x, **arguments)
    assert_close(to_numpy(matrix), expected.numpy(), 2e-6)
    np.testing.assert_array_equal(to_numpy(outputs), to_numpy(layer(x, use_causal_mask=True)))
    outputs, scores, again = layer(x, return_attention_scores=True, **arguments)
    np.testing.assert_array_equal(to_numpy(again), to_numpy(matrix))
    np.testing.assert_array_equal(to_numpy(layer.filter_matrix(scores)), to_numpy(matrix))

    symbolic = keras.Input((7, FEATURES))
    specs = layer(symbolic, return_attention_scores=True, return_filter_matrix=True)
    assert [spec.shape for spec in specs] == [(None, 7, FEATURES)] + [(None, HEADS, 7, 7)] * 2
    assert len(layer(symbolic, return_filter_matrix=True)) == 2


def test_some_coefficients_are_trained_and_start_where_told():
    initial = {"identity": -0.05, "power": [0.1, 0.2, 0.3, 0.4]}
    layer = built(
        filter=FirstOrder(trainable_coefficients=["power"], initial_coefficients=initial),
        random=False,
    )
    np.testing.assert_allclose(to_numpy(layer.identity_coefficient), -0.05)
    np.testing.assert_allclose(to_numpy(layer.linear_coefficient), 1.0)
    np.testing.assert_allclose(to_numpy(layer.power_coefficient), initial["power"])
    trained = [short_name(layer, v) for v in layer.trainable_variables]
    assert [name for name in trained if "coefficient" in name] == ["power_coefficient"]
    assert len(layer.weights) == 11

    start = [0.5, np.arange(4.0), 0.25]
    layer = built(
        filter=Monomial(2, trainable_coefficients=False, initial_coefficients=start),
        random=False,
    )
    np.testing.assert_allclose(
        to_numpy(layer.filter_coefficients), [[0.5] * 4, [0, 1, 2, 3], [0.25] * 4]
    )
    assert len(layer.trainable_variables) == 8
    assert GraphFilterAttention.from_config(layer.get_config()).get_config() == layer.get_config()


def identity_layer(dropout_on, filter):
    """One head over values that are the identity and A = 1/n: the outputs show the matrix."""
    length = 6
    layer = GraphFilterAttention(
        1,
        length,
        dropout=0.5,
        seed=3,
        use_bias=False,
        dropout_on=dropout_on,
        filter=filter,
    )
    layer.build((None, length, length))
    for dense in (layer.value_dense, layer.output_dense):
        dense.kernel.assign(np.eye(length).reshape(tuple(dense.kernel.shape)))
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(np.zeros(tuple(dense.kernel.shape)))
    return layer, np.eye(length, dtype="float32")[None]


@pytest.mark.parametrize(
    "filter",
    [
        FirstOrder(initial_coefficients={"identity": 0.5, "power": 1.5}),
        Monomial(2, initial_coefficients=[0.5, 1.0, 2.0]),
    ],
    ids=["first_order", "monomial"],
)
def test_dropout_on_the_filter_drops_entries_of_its_matrix(filter):
    layer, x = identity_layer("filter", filter)
    matrix = to_numpy(layer(x, return_filter_matrix=True)[1])[0, 0]
    dropped = to_numpy(layer(x, training=True))[0]
    ratios = np.unique((dropped / matrix).round(4))
    assert set(ratios) == {0.0, 2.0}
    assert_close(to_numpy(layer(x, training=False))[0], matrix, 1e-6)

    layer, x = identity_layer("attention", filter)
    on_attention = to_numpy(layer(x, training=True))[0]
    assert len(np.unique((on_attention / matrix).round(4))) > 2


@pytest.mark.parametrize("path", ["dense", "blockwise", "fused"])
def test_learns_through_fit(path):
    inputs = keras.Input((None, FEATURES))
    layer = GraphFilterAttention(
        HEADS, KEY, filter="chebyshev", attention_path=path, block_size=4, num_key_value_heads=2
    )
    masked = keras.layers.Masking()(inputs)
    model = keras.Model(inputs, layer(masked, use_causal_mask=True))
    model.compile("adam", "mse")
    x = tokens(6, batch=4)
    x[:, 5:] = 0.0
    start = [to_numpy(v) for v in layer.trainable_variables]
    model.fit(x, x, epochs=1, batch_size=2, verbose=0)
    moved = {
        short_name(layer, v): np.abs(to_numpy(v) - s).max()
        for v, s in zip(layer.trainable_variables, start, strict=True)
    }
    assert min(value for name, value in moved.items() if name != "key/bias") > 1e-5


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a graph of unknown length is TensorFlow's")
@pytest.mark.parametrize("path", ["dense", "blockwise", "fused"])
def test_lengths_may_be_unknown_in_a_graph(path):
    import tensorflow as tf

    layer = built(attention_path=path, block_size=4)
    mask = np.arange(11)[None] < np.array([[5], [11]])
    specs = [tf.TensorSpec((None, None, FEATURES)), tf.TensorSpec((None, None), tf.bool)]

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


@pytest.mark.parametrize(
    "options",
    [
        {"filter": named("jacobi", 2, trainable_coefficients=False)},
        {
            "filter": FirstOrder(
                initial_coefficients={"power": 0.2}, trainable_coefficients=["power"]
            )
        },
        {"attention_path": "blockwise", "block_size": 2, "num_key_value_heads": 2},
        {"attention_path": "fused", "flash_attention": False},
        {"dropout": 0.1, "dropout_on": "filter"},
    ],
)
def test_config_and_saved_model_file_come_back_equal(options, tmp_path):
    layer, x = built(**options), tokens()
    clone = GraphFilterAttention.from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in options.items():
        assert getattr(again.layers[-1], name) == value
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))


@pytest.mark.skipif(BACKEND == "tensorflow", reason="Keras has no flash kernel for TensorFlow")
def test_flash_attention_is_handed_to_the_kernel(monkeypatch):
    asked = []
    kernel = keras.ops.dot_product_attention

    def spy(*args, flash_attention=None, **kwargs):
        asked.append(flash_attention)
        return kernel(*args, flash_attention=False, **kwargs)

    monkeypatch.setattr("keras.ops.dot_product_attention", spy)
    for flash_attention in (True, False, None):
        built(flash_attention=flash_attention, attention_path="fused")(tokens())
    assert asked == [True, True, False, False, None, None]
    assert built(flash_attention=True).attention_path == "fused"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "fourier"}, r"`filter` must be one of.*'fourier'"),
        ({"filter": 3}, "`filter` must be one of"),
        ({"filter": Monomial, "order": 2}, "`filter` must be one of"),
        ({"filter": Monomial(2), "order": 2}, "`order` may only be given if `filter` is a name"),
        ({"order": 0}, "`order` must be an integer of at least 1"),
        (
            {"filter": FirstOrder(initial_coefficients={"power": [1.0, 2.0]})},
            "one for each of the 4 heads",
        ),
        ({"dropout_on": "values"}, '`dropout_on` must be "attention" or "filter"'),
        ({"attention_path": "sparse"}, "`attention_path` must be one of"),
        ({"attention_path": "blockwise", "dropout": 0.1}, "only attention_path=.dense. forms"),
        ({"attention_path": "fused", "dropout": 0.1}, "only attention_path=.dense. forms"),
        ({"flash_attention": True, "dropout": 0.1}, "Dropout is not supported when flash"),
        ({"flash_attention": True, "attention_path": "dense"}, "flash kernel runs on the fused"),
        ({"block_size": 0}, "`block_size`.*at least 1"),
        ({"block_size": 2.0}, "`block_size`.*at least 1"),
        ({"num_key_value_heads": 3}, "divides `num_heads`"),
        ({"num_key_value_heads": 0}, "divides `num_heads`"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is outside:UserWarning")
def test_refuses_wrong_arguments_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        GraphFilterAttention(HEADS, KEY, **options)


@pytest.mark.parametrize("path", ["blockwise", "fused"])
def test_refuses_to_return_what_a_path_never_forms(path):
    layer, x = built(attention_path=path), tokens()
    for name in ("return_attention_scores", "return_filter_matrix"):
        with pytest.raises(ValueError, match=r"never forms the attention matrix.*Received"):
            layer(x, **{name: True})
        with pytest.raises(ValueError, match="never forms the attention matrix"):
            layer(keras.Input((7, FEATURES)), **{name: True})


@pytest.mark.slow_on("jax")
def test_refuses_more_than_one_axis_where_a_path_has_one():
    x = np.zeros((1, 2, 3, FEATURES), "float32")
    for options in ({"attention_path": "fused"}, {"num_key_value_heads": 2}):
        with pytest.raises(ValueError, match=r"\(batch, length, features\)"):
            GraphFilterAttention(HEADS, KEY, **options)(x)
    with pytest.raises(ValueError, match=r"over one axis.*\(1, 2\)"):
        GraphFilterAttention(HEADS, KEY)(x, return_filter_matrix=True)
    dropping = GraphFilterAttention(HEADS, KEY, dropout=0.5, dropout_on="filter")
    assert tuple(dropping(x).shape) == x.shape
    with pytest.raises(ValueError, match="over one axis"):
        dropping(x, training=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["dense", "blockwise", "fused"])
@pytest.mark.parametrize(
    ("graph_filter", "length"),
    [*((name, 500) for name in ("first_order", *EXACT)), ("first_order", 1000), ("jacobi", 1000)],
)
def test_agrees_with_naive_twin_at_length(graph_filter, path, length):
    layer = built(
        filter=named(graph_filter),
        attention_path=path,
        sliding_window=300,
        num_key_value_heads=2,
        block_size=128,
        length=length,
    )
    seen = np.random.default_rng(1).random((1, length)) > 0.2
    mask = seen[:, None, None, :] & np.tri(length, dtype=bool)
    mask = mask & (np.subtract.outer(np.arange(length), np.arange(length)) < 300)
    mask = np.broadcast_to(mask, (1, HEADS, length, length))
    check(layer, tokens(length, batch=1), mask, key_mask=seen, use_causal_mask=True)
