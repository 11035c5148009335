"""AttentiveGraphFilter beyond its twins: its losses, its weights, and how it starts."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.layers import AttentiveGraphFilter
from tests import reference
from tests.layers.twins import CHANNELS, HEADS, SIZE, built, tokens
from tests.numerics import assert_close, layer_value_and_gradients, reference_weights, to_numpy

LENGTH = 7
PADDED = np.arange(LENGTH)[None] < np.array([[5], [2]])


def layer_of(scale=0.3, **options):
    return built(lambda: AttentiveGraphFilter(HEADS, SIZE, name="layer", **options), scale)


def vectors_of(layer, x):
    """The left and right singular vectors, (B, T, N, H)."""
    weights, x = reference_weights(layer), torch.tensor(x).double()
    left = reference.softmax(reference.project(x, weights, "query"))
    return left, reference.softmax(reference.project(x, weights, "key"), dim=1)


@pytest.mark.slow_on("jax")
def test_the_new_layer_is_efficient_attention():
    layer, x = layer_of(0.0), tokens(LENGTH)
    _, matrix = layer(x, return_attention_scores=True)
    plain = torch.einsum("btnh,bsnh->bnts", *vectors_of(layer, x))
    assert_close(to_numpy(matrix), plain.numpy(), 1e-6)


@pytest.mark.parametrize("weight", [0.1, 2])
@pytest.mark.parametrize("scaling", ["mean", "squared_length"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_orthogonality_loss_leaves_padding_out(scaling, causal, weight):
    options = {"orthogonality_weight": weight, "orthogonality_scaling": scaling}
    layer, x, expected = layer_of(causal=causal, **options), tokens(LENGTH), []
    layer(x, query_mask=PADDED, value_mask=PADDED)
    for example, count in zip(x, PADDED.sum(axis=1), strict=True):
        for vectors in vectors_of(layer, example[None, :count]):
            error = torch.einsum("btnh,btng->bnhg", vectors, vectors) - torch.eye(SIZE)
            norms = torch.linalg.matrix_norm(error) / count**2
            expected.append((error.abs() if scaling == "mean" else norms).mean().item())
    assert len(layer.losses) == 1
    assert_close(to_numpy(layer.losses[0]), weight * np.sum(expected) / 2, 1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("scaling", ["mean", "squared_length"])
def test_examples_without_tokens_have_no_part_in_the_loss(scaling):
    layer = layer_of(orthogonality_weight=1.0, orthogonality_scaling=scaling)
    x, mask = tokens(LENGTH), np.array([[True] * 7, [False] * 7])
    layer(x, query_mask=mask, value_mask=mask)
    both = to_numpy(layer.losses[0])
    layer(x[:1])
    assert_close(both, to_numpy(layer.losses[0]), 1e-6)


@pytest.mark.slow_on("jax")
def test_the_orthogonality_loss_is_part_of_the_loss_of_fit_and_logs_are_finite():
    inputs = keras.Input((None, CHANNELS))
    layer = AttentiveGraphFilter(HEADS, SIZE, orthogonality_weight=0.1, causal=True)
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mse"], jit_compile=False)
    x, logged = tokens(LENGTH, batch=8), []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: logged.append(logs))
    history = model.fit(x, x, validation_data=(x, x), verbose=0, callbacks=[record]).history
    layer(x)
    added = float(to_numpy(layer.losses[0]))
    np.testing.assert_allclose(history["loss"][0] - history["mse"][0], added, rtol=1e-3)
    assert np.isfinite([float(value) for value in keras.tree.flatten([logged, history])]).all()


def test_long_sequences_keep_their_small_weights_in_float16():
    layer = layer_of(dtype="mixed_float16", filter="jacobi", order=3)
    x = tokens(4096, batch=1)
    weights, (left, right) = reference_weights(layer), vectors_of(layer, x)
    inputs = torch.tensor(x).double()
    singular = torch.sigmoid(reference.project(inputs, weights, "singular"))
    coefficients = [1.0, *torch.tanh(weights["theta"])]
    gain = reference.polynomial_value(singular, coefficients, "jacobi")
    values = reference.project(inputs, weights, "value")
    heads = torch.einsum("btnh,bsnh,bsnd->btnd", left * gain, right, values)
    assert_close(to_numpy(layer(x)), reference.project_out(heads, weights).numpy(), 1e-3)


def test_memory_has_no_square_of_the_length():
    """A length whose square (times heads) would need 40 GB per matrix."""
    outputs = AttentiveGraphFilter(1, 4, order=2)(np.ones((1, 100_000, 4), "float32"))
    assert tuple(outputs.shape) == (1, 100_000, 4)


def test_each_form_has_the_weights_it_uses():
    def names(**options):
        return {w.path.removeprefix("layer/") for w in layer_of(use_bias=False, **options).weights}

    shared = {f"{name}/kernel" for name in ("query", "key", "value", "attention_output")}
    assert names(filter="ones") == shared
    assert names(filter="singular_values") == shared | {"singular/kernel"}
    assert names() == shared | {"singular/kernel", "theta"}
    assert names(learned_constant=True) == names() | {"theta_constant"}


def test_learned_constant_starts_at_zero_output_and_learns():
    layer, x = layer_of(0.0, learned_constant=True), tokens(LENGTH)
    assert (to_numpy(layer(x)) == 0).all()
    _, gradients = layer_value_and_gradients(layer, x)
    assert abs(gradients["theta_constant"]) > 1e-4
    assert (np.abs(gradients["theta"]) > 1e-6).all()
