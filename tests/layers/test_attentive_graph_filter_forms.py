"""The forms of the layer: ablations, learned constant, losses, causal, started from softmax."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention
from tests import reference, reference_singular
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

HEADS, KEY, FEATURES = 2, 4, 6
FORMS = [{"filter": "ones"}, {"filter": "singular_values"}, {"learned_constant": True, "order": 3}]
FORMS = [*FORMS, *({**form, "causal": True} for form in FORMS), {"causal": True, "order": 3}]


def built(length=7, random=True, **options):
    options.setdefault("dtype", "float32")
    layer = AttentiveGraphFilter(HEADS, KEY, name="layer", **options)
    layer.build((None, length, FEATURES))
    if random:
        randomise(layer)
    return layer


def tokens(length=7, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def twin(options):
    known = {name: options[name] for name in ("filter", "causal") if name in options}
    return lambda x, w, **masks: reference_singular.singular_value_layer(x, w, **known, **masks)


@pytest.mark.parametrize("length", [1, 67])
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_forms_agree_with_naive_twin_in_values_and_gradients(options, length):
    layer, x = built(length, **options), tokens(length)
    value, gradients = layer_value_and_gradients(layer, x)
    expected, expected_gradients = layer_reference(layer, twin(options), x)
    assert_close(value, expected, 2e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_forms_agree_with_naive_twin_under_masks(options):
    layer, x = built(9, **options), tokens(9)
    mask = np.array([[1, 1, 0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1, 0]], bool)
    value, gradients = layer_value_and_gradients(layer, x, query_mask=mask, value_mask=mask)
    kept = torch.tensor(mask)
    expected, expected_gradients = layer_reference(
        layer, lambda x, w: twin(options)(x, w, query_mask=kept, mask=kept), x
    )
    assert_close(value, expected, 2e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 1e-2), ("float16", 1.5e-3)])
@pytest.mark.parametrize("options", FORMS[2:], ids=str)
def test_half_precision_stays_close(options, dtype, tolerance):
    layer, x = built(197, dtype=f"mixed_{dtype}", random=False, **options), tokens(197)
    randomise(layer, 0.2)
    expected = twin(options)(*as_seen(layer, x)).numpy()
    outputs = layer(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert_close(to_numpy(outputs), expected, tolerance)


def test_each_form_has_the_weights_it_uses():
    def names(**options):
        return {w.path.removeprefix("layer/") for w in built(use_bias=False, **options).weights}

    shared = {f"{name}/kernel" for name in ("query", "key", "value", "attention_output")}
    assert names(filter="ones") == shared
    assert names(filter="singular_values") == shared | {"singular/kernel"}
    assert names() == shared | {"singular/kernel", "theta"}
    assert names(learned_constant=True) == names() | {"theta_constant"}


def test_learned_constant_starts_at_zero_output_and_learns():
    layer, x = built(learned_constant=True, random=False), tokens()
    assert (to_numpy(layer(x)) == 0).all()
    _, gradients = layer_value_and_gradients(layer, x)
    assert abs(gradients["theta_constant"]) > 1e-4
    assert (np.abs(gradients["theta"]) > 1e-6).all()


@pytest.mark.parametrize("causal", [False, True])
def test_squared_length_loss_is_the_norm_over_the_square_of_the_tokens(causal):
    options = {"orthogonality_weight": 0.5, "orthogonality_scaling": "squared_length"}
    layer, x = built(causal=causal, **options), tokens()
    counts = [5, 2]
    mask = np.arange(7)[None] < np.array(counts)[:, None]
    layer(x, query_mask=mask, value_mask=mask)
    weights, expected = reference_weights(layer), []
    for example, count in zip(torch.tensor(x).double(), counts, strict=True):
        kept = example[None, :count]
        left = reference.softmax(reference.project(kept, weights, "query"))
        right = reference.softmax(reference.project(kept, weights, "key"), dim=1)
        for vectors in (left, right):
            gram = torch.einsum("btnh,btng->bnhg", vectors, vectors)
            norms = torch.linalg.matrix_norm(gram - torch.eye(KEY))
            expected.append(norms.mean().item() / count**2)
    assert_close(to_numpy(layer.losses[0]), 0.5 * np.sum(expected) / 2, 1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("scaling", ["mean", "squared_length"])
def test_examples_without_tokens_have_no_part_in_the_loss(scaling):
    layer = built(orthogonality_weight=1.0, orthogonality_scaling=scaling)
    x, mask = tokens(), np.array([[True] * 7, [False] * 7])
    layer(x, query_mask=mask, value_mask=mask)
    both = to_numpy(layer.losses[0])
    layer(x[:1])
    assert_close(both, to_numpy(layer.losses[0]), 1e-6)


def test_the_orthogonality_loss_is_part_of_the_loss_of_fit_and_logs_are_finite():
    inputs = keras.Input((None, FEATURES))
    layer = AttentiveGraphFilter(HEADS, KEY, orthogonality_weight=0.1, causal=True)
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mse"], jit_compile=False)
    x, logged = tokens(batch=8), []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: logged.append(logs))
    history = model.fit(x, x, validation_data=(x, x), verbose=0, callbacks=[record]).history
    layer(x)
    added = float(to_numpy(layer.losses[0]))
    np.testing.assert_allclose(history["loss"][0] - history["mse"][0], added, rtol=1e-3)
    assert np.isfinite([float(value) for value in keras.tree.flatten([logged, history])]).all()


def test_causal_accepts_the_causal_mask_and_sees_no_later_token():
    layer, x = built(causal=True), tokens()
    outputs = to_numpy(layer(x))
    np.testing.assert_array_equal(outputs, to_numpy(layer(x, use_causal_mask=True)))
    later = x.copy()
    later[:, 4:] += 1.0
    np.testing.assert_allclose(to_numpy(layer(later))[:, :4], outputs[:, :4], atol=1e-6)
    _, matrix = layer(x, return_attention_scores=True)
    matrix = to_numpy(matrix)
    assert matrix.shape == (2, HEADS, 7, 7)
    assert (np.triu(matrix, 1) == 0).all()
    value = reference.project(torch.tensor(x).double(), reference_weights(layer), "value")
    heads = torch.einsum("bnts,bsnh->btnh", torch.tensor(matrix), value)
    expected = reference.project_out(heads, reference_weights(layer))
    assert_close(outputs, expected.numpy(), 1e-6)


@pytest.mark.parametrize("options", [*FORMS, {"orthogonality_scaling": "squared_length"}], ids=str)
def test_config_and_saved_model_file_come_back_equal(options, tmp_path):
    layer, x = built(orthogonality_weight=0.1, **options), tokens()
    clone = AttentiveGraphFilter.from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    inputs = keras.Input((None, FEATURES))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))


@pytest.mark.parametrize("kind", [keras.layers.MultiHeadAttention, GraphFilterAttention])
@pytest.mark.parametrize("build_first", [True, False])
def test_starts_from_softmax_attention(kind, build_first):
    options = {"use_gate": True, "value_dim": 3, "output_shape": 5}
    attention = kind(HEADS, KEY, **options)
    attention.build((None, 7, FEATURES), (None, 7, FEATURES))
    for i, weight in enumerate(attention.weights):
        weight.assign(np.random.default_rng(i).standard_normal(weight.shape))
    layer = AttentiveGraphFilter(HEADS, KEY, name="layer", **options)
    if build_first:
        layer.build((None, 7, FEATURES))
    layer.copy_projections_from(attention)
    names = {w.path.split("/", 1)[1]: w for w in layer.weights}
    copied = 0
    for weight in attention.weights:
        name = weight.path.split("/", 1)[1]
        if "/" in name:
            np.testing.assert_array_equal(to_numpy(names[name]), to_numpy(weight))
            copied += 1
    assert copied == 10
    assert (to_numpy(layer.theta) == 0).all()


def test_refuses_softmax_attention_of_another_shape():
    layer = built()
    before = [to_numpy(w) for w in layer.weights]
    attention = keras.layers.MultiHeadAttention(HEADS, KEY, use_bias=False, value_dim=5)
    with pytest.raises(ValueError, match="is not built"):
        layer.copy_projections_from(attention)
    attention.build((None, 7, FEATURES), (None, 7, FEATURES))
    with pytest.raises(ValueError, match=r"query/bias: \(2, 4\) here, None there.*value/kernel"):
        layer.copy_projections_from(attention)
    with pytest.raises(ValueError, match=r"MultiHeadAttention only. Received: Dense"):
        layer.copy_projections_from(keras.layers.Dense(3))
    for weight, old in zip(layer.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), old)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "none"}, r"`filter` must be one of.*'none'"),
        ({"filter": "ones", "order": 3}, r"has no polynomial. Received: order=3"),
        ({"filter": "singular_values", "learned_constant": True}, "learned_constant=True"),
        ({"filter": "first_order", "learned_constant": True}, "weight of P_0 of a polynomial"),
        ({"learned_constant": 1}, "`learned_constant` must be True or False"),
        ({"causal": "yes"}, "`causal` must be a boolean"),
        ({"orthogonality_scaling": "sum"}, "`orthogonality_scaling` must be one of"),
        ({"orthogonality_weight": True}, "`orthogonality_weight` must be a number"),
    ],
)
def test_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        AttentiveGraphFilter(HEADS, KEY, **options)


def test_refuses_cross_attention_when_causal():
    layer = AttentiveGraphFilter(HEADS, KEY, causal=True)
    with pytest.raises(ValueError, match="must have the same length"):
        layer(tokens(7), tokens(5))
