import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.filters.polynomial import plain_attention_coefficients
from keras_graphattn.operators import MatrixOperator
from keras_graphattn.operators.softmax import OnIdentity
from keras_graphattn.ops import first_order_filter, polynomial_filter, recurrence
from tests import reference, reference_dense
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS = 3
BASES = [
    ("monomial", None, None),
    ("chebyshev", None, None),
    ("legendre", None, None),
    ("jacobi", 0.7, -0.3),
    ("jacobi", 2.0, -1.0),
]


def stochastic(length, seed=0, spread=2.0):
    scores = np.random.default_rng(seed).standard_normal((2, HEADS, length, length)) * spread
    return (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype("float32")


def signal(length, seed=1):
    shape = (2, length, HEADS, 4)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def coefficients(order, seed=2):
    return np.random.default_rng(seed).standard_normal((order + 1, HEADS)).astype("float32")


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize(("basis", "alpha", "beta"), BASES)
def test_agrees_with_naive_twin_in_values_and_gradients(basis, alpha, beta, length):
    order = {1: 1, 2: 2, 63: 5, 197: 3}[length]
    steps = recurrence(basis, order, alpha, beta)

    def fast(matrix, values, weights):
        return polynomial_filter(MatrixOperator(matrix), values, weights[..., None], steps)

    def naive(matrix, values, weights):
        filtered = reference_dense.polynomial_filter(
            matrix, weights, basis, alpha or 0.0, beta or 0.0
        )
        return reference_dense.apply_matrix(filtered, values)

    inputs = (stochastic(length), signal(length), coefficients(order))
    value, gradients = value_and_gradients(fast, *inputs)
    expected, expected_gradients = reference_value_and_gradients(naive, *inputs)
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


@given(
    order=st.integers(1, 8),
    alpha=st.floats(-0.9, 3.0),
    beta=st.floats(-0.9, 3.0),
    seed=st.integers(0, 99),
)
def test_jacobi_parameters_of_all_kinds(order, alpha, beta, seed):
    matrix, values, weights = stochastic(6, seed), signal(6, seed), coefficients(order, seed)
    outputs = polynomial_filter(
        MatrixOperator(matrix),
        values,
        weights[..., None],
        recurrence("jacobi", order, alpha, beta),
    )
    filtered = reference_dense.polynomial_filter(
        torch.tensor(matrix).double(), torch.tensor(weights).double(), "jacobi", alpha, beta
    )
    expected = reference_dense.apply_matrix(filtered, torch.tensor(values).double())
    assert_close(to_numpy(outputs), expected.numpy(), 5e-6)


@pytest.mark.parametrize(("basis", "alpha", "beta"), BASES)
@pytest.mark.parametrize("order", [1, 3])
def test_plain_attention_is_in_every_basis(basis, alpha, beta, order):
    steps = recurrence(basis, order, alpha, beta)
    matrix, values = stochastic(9), signal(9)
    weights = np.array(plain_attention_coefficients(steps), "float32").reshape(-1, 1, 1)
    outputs = polynomial_filter(MatrixOperator(matrix), values, weights, steps)
    assert_close(to_numpy(outputs), np.einsum("bnts,bsnh->btnh", matrix, values), 1e-6)


def test_a_constant_first_polynomial_is_no_attention():
    steps = recurrence("jacobi", 1, -1.0, -1.0)
    with pytest.raises(ValueError, match=r"P_1 of this basis is a constant"):
        plain_attention_coefficients(steps)


def test_the_operator_is_applied_once_for_each_degree():
    calls = []

    def apply(x):
        calls.append(tuple(x.shape))
        return 0.5 * x

    values = np.ones((1, 6, HEADS, 4), "float32")
    polynomial_filter(apply, values, np.ones((6, 1, 1), "float32"), recurrence("legendre", 5))
    assert calls == [values.shape] * 5


@pytest.mark.slow_on("jax")
@given(length=st.integers(2, 20), order=st.integers(2, 6), seed=st.integers(0, 99))
def test_exact_power_is_within_the_bound_of_theorem_3_1(length, order, seed):
    """max_i sum_j |A^K - (A + (K - 1)(A^2 - A))|_ij <= 2 K, both sides by the package."""
    matrix = ops.convert_to_tensor(stochastic(length, seed, spread=4.0))
    power = np.eye(order + 1, dtype="float32")[order].reshape(-1, 1, 1, 1)
    products = OnIdentity(matrix)
    exact = polynomial_filter(products, products.identity, power, recurrence("monomial", order))
    approximate = first_order_filter(products, products.identity, 0.0, 0.0, 1.0, order)
    naive = np.linalg.matrix_power(to_numpy(matrix), order)
    assert_close(to_numpy(exact), naive, 1e-5)
    difference = np.abs(to_numpy(exact) - to_numpy(approximate)).sum(-1)
    assert difference.max() <= 2 * order


def test_filter_matrix_is_the_matrix_that_the_filter_applies():
    matrix, values = stochastic(7), signal(7)
    weights = np.random.default_rng(3).standard_normal((3, HEADS)).astype("float32")

    def graph_filter(axes):
        columns = [w.reshape(HEADS, *[1] * axes) for w in weights]
        return lambda apply, x: first_order_filter(apply, x, *columns, 4)

    products = OnIdentity(ops.convert_to_tensor(matrix))
    dense = to_numpy(graph_filter(2)(products, products.identity))
    expected = reference.first_order_filter(
        torch.tensor(matrix).double(), *torch.tensor(weights).double(), 4
    )
    assert_close(dense, expected.numpy(), 1e-6)
    outputs = graph_filter(1)(MatrixOperator(matrix), values)
    assert_close(np.einsum("bnts,bsnh->btnh", dense, values), to_numpy(outputs), 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_are_float32_in_half_precision(dtype):
    """Many small terms on top of a large one would be lost in a half-precision sum."""
    order = 40
    values = ops.ones((1, 4, 1, 1), dtype)
    weights = np.full((order + 1, 1, 1), 1e-3, "float32")
    weights[0] = 1.0
    outputs = polynomial_filter(lambda x: x, values, weights, recurrence("monomial", order))
    np.testing.assert_allclose(to_numpy(outputs), 1.04, rtol=4e-3)


def test_gradient_is_the_finite_difference():
    matrix, values, order = stochastic(5), signal(5), 4
    steps = recurrence("jacobi", order, 0.5, 1.0)
    start = coefficients(order)

    def loss_of(matrix, weights):
        outputs = reference_dense.polynomial_filter(
            torch.tensor(matrix), torch.tensor(weights), "jacobi", 0.5, 1.0
        )
        outputs = reference_dense.apply_matrix(outputs, torch.tensor(values).double())
        return outputs.numpy()

    _, gradients = value_and_gradients(
        lambda m, w: polynomial_filter(MatrixOperator(m), values, w[..., None], steps),
        matrix,
        start,
    )
    cotangent = np.random.default_rng(7).standard_normal(values.shape).astype("float32")
    generator = np.random.default_rng(5)
    for _ in range(5):
        d_matrix = generator.standard_normal(matrix.shape)
        d_weights = generator.standard_normal(start.shape)
        step = 1e-5
        up, down = (
            loss_of(matrix + s * step * d_matrix, start + s * step * d_weights) for s in (1, -1)
        )
        slope = ((up - down) * cotangent).sum() / (2 * step)
        expected = (gradients[0] * d_matrix).sum() + (gradients[1] * d_weights).sum()
        np.testing.assert_allclose(expected, slope, rtol=1e-4, atol=1e-3)


def test_refuses_a_wrong_number_of_coefficients():
    with pytest.raises(ValueError, match=r"degree 3 has 4 coefficients.*\(3, 1, 1\)"):
        polynomial_filter(lambda x: x, signal(3), np.ones((3, 1, 1)), recurrence("monomial", 3))
