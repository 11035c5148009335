"""MaskedKernelAttention answers to D^-1 [(phi(Q) phi(K)^T) o M] V with everything formed."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.feature_maps import Favor
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import Causal, Exponential, LowRank, Product, Segments
from tests import reference, reference_dense, reference_kernel
from tests.compiling import jit
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    layer_reference,
    layer_value_and_gradients,
    randomise,
    reference_weights,
    to_numpy,
)
from tests.random_masks import draw_masks, joined_mask

HEADS, KEY, FEATURES, LENGTH = 2, 4, 10, 9
IDS = np.array([[3, 3, 3, 5, 5, 5, 5, 3, -1], [0, 1, 1, 1, 1, 1, 2, 2, 2]], "int32")


def built(**options):
    options.setdefault("dtype", "float32")
    layer = MaskedKernelAttention(HEADS, KEY, name="layer", seed=0, **options)
    layer.build((None, None, FEATURES))
    randomise(layer)
    return layer


def tokens(length=LENGTH, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def ones(length=LENGTH):
    return torch.ones((1, 1, length, length), dtype=torch.float64)


def exponential(weights, length=LENGTH):
    return reference_kernel.exponential_matrix(
        length, weights["mask/log_rates"], weights.get("mask/log_weights")
    )


MASKS = {
    "none": (lambda: None, lambda w: ones(), {}),
    "causal": (Causal, lambda w: reference_kernel.causal_matrix(LENGTH), {}),
    "exponential": (lambda: Exponential(2, name="mask"), exponential, {}),
    "packed and causal": (
        lambda: Product([Causal(), Segments()]),
        lambda w: (
            reference_kernel.segment_matrix(torch.tensor(IDS))
            * reference_kernel.causal_matrix(LENGTH)
        ),
        {"mask_inputs": {"segment_ids": IDS}},
    ),
}


@pytest.mark.parametrize("feature_map", ["relu", "squared_relu", "elu", "favor"])
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_naive_twin_in_values_and_gradients(mask, feature_map):
    make, matrix, inputs = MASKS[mask]
    layer, x = built(mask=make(), feature_map=feature_map), tokens()
    frozen = (
        {"directions": torch.tensor(to_numpy(layer.directions))} if "favor" in feature_map else {}
    )
    value, gradients = layer_value_and_gradients(layer, x, **inputs)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference_kernel.layer_outputs(x, {**w, **frozen}, matrix(w), feature_map),
        x,
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 3e-5)


@given(data=st.data(), mask=st.sampled_from(["none", "causal", "exponential"]))
@settings(max_examples=10)
def test_agrees_with_naive_twin_under_masks(data, mask):
    make, matrix, _ = MASKS[mask]
    path = data.draw(st.sampled_from(["auto", "dense"] + ["blockwise"] * (mask != "none")))
    masks = draw_masks(data, batch=2, length=LENGTH, heads=HEADS)
    seen = joined_mask(masks, batch=2, length=LENGTH, heads=HEADS)
    layer, x = built(mask=make(), path=path), tokens()
    full = lambda w: matrix(w) * torch.tensor(seen, dtype=torch.float64)  # noqa: E731
    value, gradients = layer_value_and_gradients(layer, x, **masks)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: reference_kernel.layer_outputs(x, w, full(w)), x
    )
    assert_close(value, expected, 1e-5, floor=1e-3)
    if np.abs(expected).max() > 0:
        # where every row sees one key, the gradients of queries and keys are rounding alone
        assert_all_close(gradients, expected_gradients, 1e-4)


@pytest.mark.parametrize("mask", ["none", "causal", "exponential"])
def test_padding_is_unseen_and_rows_that_see_nothing_are_zero(mask):
    make, matrix, _ = MASKS[mask]
    layer, x = built(mask=make()), tokens()
    kept = np.array([[0, 0, 1, 1, 0, 1, 1, 1, 0], [0] * 9], bool)
    for name in ("value_mask", "query_mask"):
        outputs = to_numpy(layer(x, x, **{name: kept}))
        columns = torch.tensor(kept)[:, None, None, :] if name == "value_mask" else 1.0
        rows = torch.tensor(kept)[:, None, :, None] if name == "query_mask" else 1.0
        weights = reference_weights(layer)
        expected = reference_kernel.layer_outputs(
            torch.tensor(x).double(), weights, matrix(weights) * columns * rows
        )
        assert_close(outputs, expected.numpy(), 1e-5)
        bias = to_numpy(layer.output_dense.bias)
        assert (outputs[1] == bias.astype("float32")).all()
    garbage = np.where(kept[..., None], x, 1e6).astype("float32")
    before, after = (to_numpy(layer(y, y, value_mask=kept))[0][kept[0]] for y in (x, garbage))
    np.testing.assert_array_equal(before, after)


FILTERS = [("first_order", 4), ("chebyshev", 3)]


@pytest.mark.parametrize(("kind", "order"), FILTERS)
@pytest.mark.parametrize("mask", ["none", "exponential", "packed and causal"])
def test_filters_of_the_operator_equal_the_dense_product(mask, kind, order):
    make, matrix, inputs = MASKS[mask]
    layer, x = built(mask=make(), filter=kind, order=order), tokens()

    def filtered(weights):
        if kind == "first_order":
            names = ("identity_coefficient", "linear_coefficient", "power_coefficient")
            coefficients = [weights[name] for name in names]
            return lambda a: reference.first_order_filter(a, *coefficients, order)

        coefficients = weights["filter_coefficients"]
        return lambda a: reference_dense.polynomial_filter(a, coefficients, kind)

    value, gradients = layer_value_and_gradients(layer, x, **inputs)
    expected, expected_gradients = layer_reference(
        layer,
        lambda x, w: reference_kernel.layer_outputs(x, w, matrix(w), filtered=filtered(w)),
        x,
    )
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 3e-5)


@pytest.mark.parametrize("path", ["auto", "dense"])
def test_attention_scores_are_the_matrix(path):
    layer, x = built(mask=Causal(), path=path, dropout=0.3), tokens()
    outputs, scores = layer(x, return_attention_scores=True)
    weights = reference_weights(layer)
    expected = reference_kernel.layer_matrix(
        torch.tensor(x).double(), weights, reference_kernel.causal_matrix(LENGTH)
    )
    assert_close(to_numpy(scores), expected.numpy(), 1e-5)
    symbolic = layer(keras.Input((LENGTH, FEATURES)), return_attention_scores=True)
    assert [tuple(s.shape) for s in symbolic] == [(None, 9, 10), (None, HEADS, 9, 9)]
    assert tuple(outputs.shape) == (2, 9, 10)


def test_cross_attention_without_a_mask():
    layer, x, memory = built(), tokens(), tokens(5, seed=1)
    outputs, scores = layer(x, memory, return_attention_scores=True)
    assert tuple(outputs.shape) == (2, 9, 10)
    np.testing.assert_allclose(to_numpy(ops.sum(scores, axis=-1)), 1.0, atol=1e-6)
    with pytest.raises(ValueError, match=r"same length.*Received"):
        built(mask=Causal())(x, memory)


@pytest.mark.slow_on("jax")
def test_causal_never_sees_the_future_and_packing_never_sees_neighbours():
    """Bit for bit, whatever the others hold, with every feature map."""
    x, later = tokens(200), tokens(200, seed=1) * 50.0
    ids = np.repeat([[1, 2, 3, 4]], [70, 1, 59, 70], axis=1).repeat(2, axis=0).astype("int32")
    for feature_map in ("relu", "favor"):
        for mask in (Causal(), Exponential(causal=True)):
            layer = built(mask=mask, feature_map=feature_map)
            y = np.where(np.arange(200)[:, None] < 130, x, later).astype("float32")
            np.testing.assert_array_equal(to_numpy(layer(x))[:, :130], to_numpy(layer(y))[:, :130])
            assert (to_numpy(layer(x))[:, 130:] != to_numpy(layer(y))[:, 130:]).all(axis=-1).any()
        for mask in (Segments(), Product([Segments(), Exponential(2)])):
            layer = built(mask=mask, feature_map=feature_map)
            inside = (ids == 3)[..., None]
            y = np.where(inside, x, later).astype("float32")
            one, two = (to_numpy(layer(z, mask_inputs={"segment_ids": ids})) for z in (x, y))
            np.testing.assert_array_equal(one[ids == 3], two[ids == 3])


DECODED = [
    (lambda: None, {}),
    (lambda: Causal(), {"feature_map": "favor"}),
    (lambda: Exponential(2, causal=True), {"filter": "first_order"}),
    (lambda: Exponential(), {"filter": "chebyshev", "order": 3, "use_gate": True}),
]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("mask", "options"), DECODED)
def test_256_tokens_one_by_one_equal_the_full_pass(mask, options):
    layer, x = built(mask=mask(), **options), tokens(256, batch=1)
    step, state = jit(layer.decode), layer.get_initial_state(1)
    outputs = []
    for index in range(256):
        output, state = step(ops.convert_to_tensor(x[:, index : index + 1]), state)
        outputs.append(to_numpy(output))
    expected = to_numpy(layer(x, use_causal_mask=True))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["causal", "packed"])
def test_prompts_in_pieces_with_padding_and_segments(name):
    layer, x = built(mask=Segments() if name == "packed" else None), tokens(150)
    ids = np.repeat([[0, 1, 2, 5, 4]], [3, 60, 40, 22, 25], axis=1).repeat(2, axis=0)
    kept = np.random.default_rng(0).random((2, 150)) < 0.7
    inputs = {"segment_ids": ids.astype("int32")} if name == "packed" else {}
    state, outputs, start = layer.get_initial_state(2), [], 0
    for size in (100, 1, 49):
        part = slice(start, start + size)
        output, state = layer.decode(
            ops.convert_to_tensor(x[:, part]),
            state,
            ops.convert_to_tensor(kept[:, part]),
            {k: v[:, part] for k, v in inputs.items()} or None,
        )
        outputs.append(to_numpy(output))
        start += size
    expected = to_numpy(
        layer(x, query_mask=kept, value_mask=kept, use_causal_mask=True, mask_inputs=inputs or None)
    )
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


def test_decoding_needs_a_state():
    with pytest.raises(ValueError, match=r"state of fixed size[^.]*\. Received: the mask Product"):
        built(mask=LowRank(2, 20)).get_initial_state(1)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(dtype):
    layer, x = built(mask=Exponential(), dtype=dtype, feature_map="favor"), tokens(40)
    plain = built(mask=Exponential(), feature_map="favor")
    plain.set_weights(layer.get_weights())
    outputs = layer(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    tolerance = {"mixed_bfloat16": 0.05, "mixed_float16": 0.01}[dtype]
    assert_close(to_numpy(outputs), to_numpy(plain(x)), tolerance)


@keras.saving.register_keras_serializable(package="tests")
def squares(x):
    """Features of the user's own, more of them than channels."""
    return ops.concatenate([ops.square(x), ops.relu(x)], axis=-1)


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (lambda: None, {"feature_map": squares}),
        (lambda: Exponential(3, causal=True), {"feature_map": Favor(7)}),
        (lambda: Product([Causal(), Segments(), Exponential()]), {"filter": "legendre"}),
        (lambda: Product([LowRank(2, 9), Causal()]), {"filter": "first_order", "path": "dense"}),
    ],
)
def test_round_trips(mask, options, tmp_path):
    mask = mask()
    needs_ids = mask is not None and bool(mask.inputs_at_call)
    series, ids = keras.Input((9, FEATURES)), keras.Input((9,), dtype="int32")
    layer = MaskedKernelAttention(HEADS, KEY, mask=mask, **options)
    outputs = layer(series, mask_inputs={"segment_ids": ids} if needs_ids else None)
    model = keras.Model([series, ids] if needs_ids else [series], outputs)
    randomise(model)
    arrays = [tokens(), IDS] if needs_ids else [tokens()]
    expected = model.predict(arrays, verbose=0)
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(restored.predict(arrays, verbose=0), expected, atol=1e-6)
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config


def test_training_learns_the_mask():
    layer = MaskedKernelAttention(HEADS, KEY, mask=Exponential(), filter="first_order")
    model = keras.Sequential([keras.Input((20, FEATURES)), layer])
    before = [to_numpy(v) for v in layer.trainable_variables]
    model.compile("adam", "mse", jit_compile=BACKEND != "torch")
    history = model.fit(tokens(20, 8), tokens(20, 8, seed=1), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for variable, old in zip(layer.trainable_variables, before, strict=True):
        assert "key/bias" in variable.path or (to_numpy(variable) != old).any(), variable.path


def test_redrawing_random_features():
    layer, x = built(feature_map="favor"), tokens()
    before = to_numpy(layer(x))
    layer.redraw_features(seed=5)
    assert (to_numpy(layer(x)) != before).any()
    with pytest.raises(ValueError, match="draws weights at random"):
        built().redraw_features()


BAD = [
    ({"mask": 3}, "`mask` must be one of"),
    ({"feature_map": "cosine"}, "`feature_map` must be one of"),
    ({"feature_map": lambda x: x}, "must be registered"),
    ({"path": "fft"}, "`path` must be one of"),
    ({"mask": Causal(), "path": "linear"}, "`path` must be one of"),
    ({"feature_chunk": 0}, "`feature_chunk`"),
    ({"order": 2}, "is an option of a filter"),
    ({"filter": "cubic"}, "`filter` must be one of"),
    ({"sliding_window": 3}, "does not support `sliding_window`"),
    ({"flash_attention": True}, "flash attention"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_refuses_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedKernelAttention(HEADS, KEY, **options)


def test_refuses_what_a_path_cannot_honour():
    entries = np.ones((9, 9), bool)
    with pytest.raises(ValueError, match=r"forms the pairs.*Received"):
        built(mask=Causal(), path="chunked")(tokens(), attention_mask=entries)
    with pytest.raises(ValueError, match="this layer has no mask"):
        built()(tokens(), mask_inputs={"segment_ids": IDS})
    with pytest.raises(ValueError, match="segment_ids"):
        built(mask=Segments())(tokens())
