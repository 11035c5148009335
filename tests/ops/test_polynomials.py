"""Polynomials of numbers and of operators: the recurrences of their bases, and what is refused.

`tests/filters` has the values and gradients of the filters that are made of them.
"""

import warnings

import numpy as np
import pytest
import scipy.special
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.filters import Jacobi
from keras_graphattn.filters.polynomial import BASES, plain_attention_coefficients, polynomial
from keras_graphattn.operators.softmax import OnIdentity
from keras_graphattn.ops import first_order_filter, polynomial_filter, recurrence
from tests import reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS = 3
PARAMETER = st.floats(-0.9, 3, allow_nan=False).map(lambda a: round(a, 2))


def stochastic(length, seed=0, spread=2.0):
    scores = np.random.default_rng(seed).standard_normal((2, HEADS, length, length)) * spread
    return (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype("float32")


@given(order=st.integers(1, 10), alpha=PARAMETER, beta=PARAMETER)
@example(order=5, alpha=2.0, beta=-1.0)
def test_jacobi_basis_equals_scipy(order, alpha, beta):
    x = np.linspace(-1, 1, 41)
    steps = recurrence("jacobi", order, alpha, beta)
    previous, current = np.zeros_like(x), np.ones_like(x)
    for k, step in enumerate(steps, start=1):
        following = (step.slope * x + step.offset) * current - step.previous * previous
        previous, current = current, following
        expected = scipy.special.eval_jacobi(k, alpha, beta, x)
        np.testing.assert_allclose(current, expected, rtol=1e-6, atol=1e-9)
    coefficients = np.eye(order + 1)[order]  # P_order alone, by Clenshaw, in float32
    arrays = (ops.convert_to_tensor(a.astype("float32")) for a in (x, coefficients))
    value = to_numpy(polynomial(*arrays, steps))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(value / scale, expected / scale, atol=1e-5)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("order", [1, 2, 5, 10])
def test_polynomial_agrees_with_naive_twin_in_values_and_gradients(basis, order):
    parameters = {"alpha": 0.5, "beta": 1.5} if basis == "jacobi" else {}
    generator = np.random.default_rng(order)
    x = generator.random((3, 5)).astype("float32")
    coefficients = generator.standard_normal(order + 1).astype("float32")
    steps = recurrence(basis, order, **parameters)
    value, gradients = value_and_gradients(lambda x, c: polynomial(x, c, steps), x, coefficients)
    expected, expected_gradients = reference_value_and_gradients(
        lambda x, c: reference.polynomial_value(x, c, basis, **parameters), x, coefficients
    )
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, 1e-5)


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_are_float32_in_half_precision(dtype):
    """Many small terms on top of a large one would be lost in a half-precision sum."""
    order = 40
    values = ops.ones((1, 4, 1, 1), dtype)
    weights = np.full((order + 1, 1, 1), 1e-3, "float32")
    weights[0] = 1.0
    outputs = polynomial_filter(lambda x: x, values, weights, recurrence("monomial", order))
    np.testing.assert_allclose(to_numpy(outputs), 1.04, rtol=4e-3)


@pytest.mark.parametrize("alpha", [-2.0, -1.5, -1.0])
def test_parameters_outside_the_orthogonal_range_warn_and_stay_finite(alpha):
    with pytest.warns(UserWarning, match="outside"):
        steps = Jacobi(5, alpha, 1.5).recurrence()
    assert np.isfinite(np.array(steps)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Jacobi(5, -0.99, 1.5)


@pytest.mark.parametrize(("alpha", "beta", "degree"), [(-1, -1, 2), (-2, 0, 2), (-1.5, -1.5, 3)])
def test_refuses_parameters_that_divide_by_zero_and_no_others(alpha, beta, degree):
    with pytest.raises(ValueError, match=f"at degree {degree}.*order={degree - 1}"):
        recurrence("jacobi", 5, alpha, beta)
    assert len(recurrence("jacobi", degree - 1, alpha, beta)) == degree - 1


def test_what_is_refused():
    steps, values = recurrence("monomial", 3), np.ones((2, 3, HEADS, 4), "float32")
    with pytest.raises(ValueError, match=r"degree 3 has 4 coefficients.*\(3, 1, 1\)"):
        polynomial_filter(lambda x: x, values, np.ones((3, 1, 1)), steps)
    with pytest.raises(ValueError, match=r"P_1 of this basis is a constant"):
        plain_attention_coefficients(recurrence("jacobi", 1, -1.0, -1.0))
