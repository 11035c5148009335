import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.ops import first_order_filter
from tests import reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS = 3


def stochastic(length, seed=0):
    scores = np.random.default_rng(seed).standard_normal((2, HEADS, length, length)) * 2
    return (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype("float32")


def dense(matrix):
    return lambda x: ops.einsum("bnts,bsnh->btnh", matrix, x)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("order", [1, 2, 7])
def test_first_order_filter_agrees_with_naive_twin(length, order):
    generator = np.random.default_rng(1)
    values = generator.standard_normal((2, length, HEADS, 4)).astype("float32")
    coefficients = generator.standard_normal((3, HEADS)).astype("float32")

    def fast(matrix, values, *coefficients):
        columns = [c[:, None] for c in coefficients]
        return first_order_filter(dense(matrix), values, *columns, order)

    def naive(matrix, values, *coefficients):
        filtered = reference.first_order_filter(matrix, *coefficients, order)
        return torch.einsum("bnts,bsnh->btnh", filtered, values)

    arguments = (stochastic(length), values, *coefficients)
    value, gradients = value_and_gradients(fast, *arguments)
    expected, expected_gradients = reference_value_and_gradients(naive, *arguments)
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


def test_the_operator_is_applied_twice_and_never_to_itself():
    shapes = []

    def apply(x):
        shapes.append(tuple(x.shape))
        return 0.5 * x

    values = np.ones((1, 6, HEADS, 4), "float32")
    first_order_filter(apply, values, 0.0, 1.0, 1.0, order=5)
    assert shapes == [values.shape] * 2
    shapes.clear()
    first_order_filter(apply, values, 0.0, 1.0, 1.0, order=1)
    assert shapes == [values.shape]


@given(length=st.integers(2, 20), order=st.integers(2, 6), seed=st.integers(0, 99))
def test_approximate_power_stays_within_the_bound_of_theorem_3_1(length, order, seed):
    matrix = stochastic(length, seed)
    identity = np.broadcast_to(np.eye(length, dtype="float32")[:, None], (length, HEADS, length))
    identity = np.broadcast_to(identity, (2, length, HEADS, length)).copy()
    power = to_numpy(first_order_filter(dense(matrix), identity, 0.0, 0.0, 1.0, order))
    exact = np.linalg.matrix_power(matrix.astype("float64"), order).transpose(0, 2, 1, 3)
    assert np.abs(power - exact).sum(-1).max() <= 2 * order
    assert_close(power.sum(-1), np.ones(power.shape[:-1]), 1e-5)  # row sums of H are w0 + w1 + wK


def test_gread_reaction_diffusion_is_a_special_case():
    """A + beta (A - A^2) is w_0 = 0, w_1 = 1 + beta, w_K = -beta at K = 2."""
    beta, matrix = 0.4, stochastic(9)
    values = np.random.default_rng(2).standard_normal((2, 9, HEADS, 4)).astype("float32")
    outputs = to_numpy(first_order_filter(dense(matrix), values, 0.0, 1 + beta, -beta, order=2))
    expected = np.einsum("bnts,bsnh->btnh", matrix + beta * (matrix - matrix @ matrix), values)
    assert_close(outputs, expected, 1e-6)


def test_gradient_is_the_finite_difference():
    matrix = stochastic(5).astype("float64")
    values = np.random.default_rng(2).standard_normal((2, 5, HEADS, 4))
    _, gradients = value_and_gradients(
        lambda w: first_order_filter(
            dense(matrix.astype("float32")), values.astype("float32"), w[0], w[1], w[2], 4
        ),
        np.array([0.2, 0.9, 0.4], "float32"),
    )
    weights = np.random.default_rng(7).standard_normal((2, 5, HEADS, 4))

    def loss(w):
        filtered = w[0] * np.eye(5) + w[1] * matrix
        filtered = filtered + w[2] * (matrix + 3 * (matrix @ matrix - matrix))
        return (np.einsum("bnts,bsnh->btnh", filtered, values) * weights).sum()

    start = np.array([0.2, 0.9, 0.4])
    expected = [(loss(start + d) - loss(start - d)) / 2e-4 for d in 1e-4 * np.eye(3)]
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-4)
