"""How far the approximation of GFSA is from a power of A."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_graphattn.analysis import first_order_error

TOLERANCE = 1e-5  # jax rounds what it is given to float32


def attention(size, scale, seed, batch=()):
    scores = scale * np.random.default_rng(seed).standard_normal((*batch, size, size))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@given(size=st.integers(1, 9), scale=st.sampled_from([0.1, 1.0, 30.0]), order=st.integers(1, 10))
def test_is_the_distance_of_the_filter_from_the_power_and_below_the_bound(size, scale, order):
    matrix = attention(size, scale, seed=size)
    error = first_order_error(matrix, order)
    row_sums = np.zeros(size)
    power = np.eye(size)
    for _ in range(order):
        power = matrix @ power
    approximation = matrix + (order - 1) * (matrix @ matrix - matrix)
    for row in range(size):
        row_sums[row] = sum(abs(power[row, j] - approximation[row, j]) for j in range(size))
    assert error == pytest.approx(row_sums.max(), abs=TOLERANCE)
    assert error <= 2 * order + TOLERANCE
    if order <= 2:
        assert error == pytest.approx(0.0, abs=TOLERANCE)


def test_one_error_for_each_matrix():
    matrices = attention(6, 1.0, 0, batch=(2, 3))
    errors = first_order_error(matrices, 4)
    assert errors.shape == (2, 3)
    assert errors[1, 2] == pytest.approx(first_order_error(matrices[1, 2], 4), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("matrix", "order", "words"), [(np.eye(3), 0, "`order`"), (np.ones((3, 4)), 2, "`matrix`")]
)
def test_wrong_arguments(matrix, order, words):
    with pytest.raises(ValueError, match=words):
        first_order_error(matrix, order)
