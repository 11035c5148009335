"""Feature maps: positive, streaming-safe, and FAVOR+ an estimate of softmax attention."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_graphattn.feature_maps import FEATURE_MAPS, Elu, FunctionMap, Relu
from keras_graphattn.feature_maps.favor import Favor, orthogonal_features
from keras_graphattn.operators.kernel import KernelOperator
from tests import reference, reference_kernel
from tests.numerics import (
    assert_all_close,
    assert_close,
    differentiated,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, SIZE = 2, 8


@keras.saving.register_keras_serializable(package="tests")
def exponential(x):
    return ops.exp(x)


def heads(length, scale=1.0, seed=0):
    generator = np.random.default_rng(seed)
    return (scale * generator.standard_normal((1, length, HEADS, SIZE))).astype("float32")


@pytest.mark.parametrize("name", [name for name in FEATURE_MAPS if name != "favor"])
def test_maps_by_name(name):
    x = heads(5)
    value, gradients = value_and_gradients(FEATURE_MAPS[name](), x)
    expected, expected_gradients = reference_value_and_gradients(
        lambda x: reference_kernel.features(x, name), x
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-6)
    assert (value > 0).all()
    half = FEATURE_MAPS[name]().key_features(ops.cast(x, "bfloat16"), {}, None, False)
    assert keras.backend.standardize_dtype(half.dtype) == "float32"


@pytest.mark.parametrize("feature_map", [Relu(), Elu(), FunctionMap(exponential)])
def test_large_and_small_features_without_a_mask(feature_map):
    """Products of three large numbers overflow, those of two small features underflow."""
    of_function = isinstance(feature_map, FunctionMap)
    size, shift = (1.0, -42.0) if of_function else (1e14, 0.0)
    query, key, values = (heads(5, size, seed) + np.float32(shift) for seed in range(3))
    phi_query = feature_map.query_features(query, {})
    operator = KernelOperator(phi_query, feature_map.key_features(key, {}, None, False))
    phi_query, phi_key = (to_numpy(feature_map(x)).astype("float64") for x in (query, key))
    matrix = np.einsum("btnm,bsnm->bnts", phi_query, phi_key)
    matrix /= matrix.sum(-1, keepdims=True)
    right = np.einsum("bnts,bsnd->btnd", matrix, values.astype("float64"))
    assert_close(to_numpy(operator(ops.convert_to_tensor(values))), right, 1e-5)


def test_directions_are_orthogonal_gaussians():
    directions = orthogonal_features(3, 8, 20, seed=1)
    assert directions.shape == (3, 8, 20)
    for start in (0, 8, 16):
        block = directions[:, :, start : start + 8]
        gram = np.einsum("nhf,nhg->nfg", block, block)
        lengths = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
        np.testing.assert_allclose(
            gram / (lengths[:, :, None] * lengths[:, None]),
            np.broadcast_to(np.eye(gram.shape[-1]), gram.shape),
            atol=1e-5,
        )
    many = orthogonal_features(1, 8, 40000, seed=2)
    np.testing.assert_allclose(np.einsum("nhf,ngf->hg", many, many) / 40000, np.eye(8), atol=0.05)
    np.testing.assert_allclose(many.mean(axis=2), np.zeros((1, 8)), atol=0.02)
    assert (orthogonal_features(1, 4, 4, seed=1) == orthogonal_features(1, 4, 4, seed=1)).all()
    assert (orthogonal_features(1, 4, 4) != orthogonal_features(1, 4, 4)).any()


@pytest.mark.parametrize("fixed_scale", [False, True])
def test_favor_estimates_softmax_attention(fixed_scale):
    query, key, values = heads(6, 0.5), heads(6, 0.5, seed=1), heads(6, seed=2)
    directions = orthogonal_features(HEADS, SIZE, 20000, seed=0)
    features = (
        Favor().query_features(query, {"directions": directions}),
        Favor().key_features(key, {"directions": directions}, None, fixed_scale),
    )
    operator = KernelOperator(*features)
    outputs = to_numpy(operator(ops.convert_to_tensor(values)))
    exact = reference.attention_matrix(*(torch.tensor(t).double() for t in (query, key)))
    expected = torch.einsum("bnts,bsnh->btnh", exact, torch.tensor(values).double())
    assert np.abs(outputs - expected.numpy()).max() < 0.02


def test_a_fixed_scale_depends_on_no_other_key():
    directions = orthogonal_features(HEADS, SIZE, 16, seed=0)
    key = heads(9)
    other = np.where(np.arange(9)[:, None, None] < 5, key, 20.0).astype("float32")
    one, two = (
        to_numpy(Favor().key_features(k, {"directions": directions}, None, True))
        for k in (key, other)
    )
    np.testing.assert_array_equal(one[:, :5], two[:, :5])
    # and with a mask, padding counts for nothing
    kept = np.arange(9)[None] < 5
    one, two = (
        to_numpy(Favor().key_features(k, {"directions": directions}, kept, False))
        for k in (key, other)
    )
    np.testing.assert_array_equal(one[:, :5], two[:, :5])


@pytest.mark.parametrize("way", ["graph", "xla"])
def test_small_weights_do_not_underflow_when_compiled(way):
    """Weights of 1e-26 give the same rows as weights of 1: XLA must not multiply two of them."""
    arrays = [np.abs(heads(5, seed=i)) for i in range(2)] + [heads(5, seed=2)]

    def function(query, key, x):
        return KernelOperator(query, key)(x)

    differentiate = differentiated(function, way=way)
    expected, gradients = differentiate(*arrays)
    small = (np.float32(1e-13) * arrays[0], np.float32(1e-13) * arrays[1], arrays[2])
    found, of_small = differentiate(*small)
    assert_close(found, expected, 1e-5)
    for index, factor in enumerate((1e-13, 1e-13, 1.0)):
        assert_close(factor * of_small[index], gradients[index], 1e-4)


@pytest.mark.parametrize("size", [1e-12, 1e-18, 1e-30, 0.0])
def test_the_matrix_is_that_of_the_outputs_where_weights_are_small(size):
    """A row counts in both, or is 0 in both."""
    query, key, x = (np.abs(heads(5, seed=i)) for i in range(3))
    query[:, 1] *= np.float32(size)
    for keys in (key, np.float32(size) * key):
        operator = KernelOperator(*map(ops.convert_to_tensor, (query, keys)))
        outputs = to_numpy(operator(ops.convert_to_tensor(x)))
        product = np.einsum("bnts,bsnh->btnh", to_numpy(operator.matrix()), x)
        np.testing.assert_allclose(outputs, product, rtol=1e-5, atol=1e-6)
    assert (outputs[:, 1] == 0.0).all() == (size < 1e-15)
