import warnings

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from keras_graphattn.filters import Jacobi
from keras_graphattn.filters.polynomial import BASES
from keras_graphattn.ops import polynomial, recurrence
from tests import reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

PARAMETER = st.floats(-0.9, 3, allow_nan=False).map(lambda a: round(a, 2))


@given(order=st.integers(1, 10), alpha=PARAMETER, beta=PARAMETER)
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
    value = to_numpy(polynomial(x.astype("float32"), coefficients.astype("float32"), steps))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(value / scale, expected / scale, atol=1e-5)


def test_named_bases_are_jacobi_polynomials():
    for name, parameter in (("legendre", 0.0), ("chebyshev", -0.5)):
        np.testing.assert_allclose(
            np.array(recurrence(name, 7)), np.array(recurrence("jacobi", 7, parameter, parameter))
        )
    x = np.linspace(-1, 1, 9)
    chebyshev = scipy.special.eval_jacobi(4, -0.5, -0.5, x)
    ratio = chebyshev / scipy.special.eval_chebyt(4, x)
    np.testing.assert_allclose(ratio, ratio[0])


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


def test_gradient_is_the_finite_difference():
    steps = recurrence("jacobi", 4, 1.0, 0.5)
    x = np.array([0.1, 0.4, 0.9], "float32")
    coefficients = np.array([1.0, -0.5, 0.3, 0.2, 0.7], "float32")
    _, gradients = value_and_gradients(lambda x: polynomial(x, coefficients, steps), x)
    weights = np.random.default_rng(7).standard_normal(3)
    width = 1e-6
    high, low = (
        sum(
            c * scipy.special.eval_jacobi(k, 1.0, 0.5, x.astype("float64") + shift)
            for k, c in enumerate(coefficients)
        )
        for shift in (width, -width)
    )
    np.testing.assert_allclose(gradients[0], weights * (high - low) / (2 * width), rtol=1e-4)


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


def test_refuses_the_wrong_number_of_coefficients():
    with pytest.raises(ValueError, match=r"degree 2 has 3 coefficients.*\(2,\)"):
        polynomial(np.ones(3, "float32"), np.ones(2, "float32"), recurrence("monomial", 2))
