"""Products with Toeplitz matrices, and the matrices, answer to their entries, gradients and all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.masks.toeplitz import (
    block_toeplitz_rows,
    fast_fourier_length,
    table_shape,
    tiled_toeplitz_product,
    toeplitz_product,
    toeplitz_rows,
)
from tests import reference_toeplitz as reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS, WIDTH = 2, 3
GRIDS = st.one_of(
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
EXAMPLES = settings(max_examples=6)


def drawn(grid_shape, batch=2):
    generator = np.random.default_rng(int(np.prod(grid_shape)))
    table = np.exp(generator.standard_normal((HEADS, *table_shape(grid_shape))))
    x = generator.standard_normal((batch, int(np.prod(grid_shape)), HEADS, WIDTH))
    return table.astype("float32"), x.astype("float32")


def check(product, grid_shape, way=None):
    arrays = drawn(grid_shape)
    value, gradients = value_and_gradients(product, *arrays, way=way)
    expected = reference_value_and_gradients(
        lambda table, x: reference.toeplitz_product(table, x, grid_shape), *arrays
    )
    assert_close(value, expected[0], 1e-5)
    assert_all_close(gradients, expected[1], 1e-5)


@pytest.mark.slow_on("jax")
@EXAMPLES
@given(length=st.integers(1, 1000), grid_shape=GRIDS, size=st.sampled_from([4, 64]))
def test_products(length, grid_shape, size):
    check(toeplitz_product, (length,))
    check(lambda table, x: toeplitz_product(table, x, grid_shape), grid_shape)
    check(lambda table, x: tiled_toeplitz_product(table, x, size), (min(length, 300),))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others compile in every test or eagerly")
@pytest.mark.parametrize("product", [toeplitz_product, tiled_toeplitz_product])
def test_tensorflow_xla(product):
    check(product, (201,), way="xla")


@pytest.mark.parametrize("grid_shape", [(1,), (9,), (5, 4), (1, 6), (2, 3, 4)])
def test_matrix_and_its_rows(grid_shape):
    table, _ = drawn(grid_shape)
    lines, size = int(np.prod(grid_shape[:-1])), grid_shape[-1]
    value, gradients = value_and_gradients(
        lambda table: block_toeplitz_rows(table, 0, lines, grid_shape), table
    )
    expected = reference_value_and_gradients(
        lambda table: reference.toeplitz_matrix(table, grid_shape), table
    )
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    assert_all_close(gradients, expected[1], 1e-6)
    for first, count in ((0, lines), (lines // 2, 1), (lines - 1, 2)):
        rows = to_numpy(block_toeplitz_rows(table, first, count, grid_shape))
        inside = expected[0][:, first * size : (first + count) * size]
        np.testing.assert_allclose(rows[:, : inside.shape[1]], inside, rtol=1e-6)


def test_rows_of_a_shorter_sequence():
    table, _ = drawn((9,))
    matrix = to_numpy(toeplitz_rows(table, 0, 9))
    rows = to_numpy(toeplitz_rows(table, ops.convert_to_tensor(2), 3, length=6))
    np.testing.assert_allclose(rows, matrix[:, 2:5, :6])


def test_fourier_lengths():
    for length in range(1, 400):
        found = fast_fourier_length(length)
        smooth = found
        for prime in (2, 3, 5):
            while smooth % prime == 0:
                smooth //= prime
        assert smooth == 1
        assert found % 2 == 0
        assert length <= found <= max(2, 1.34 * length)


@pytest.mark.parametrize("shape", [(2, 11), (2, 12), (3, 13)])
def test_shapes_that_do_not_fit(shape):
    with pytest.raises(ValueError, match="table"):
        toeplitz_product(np.ones(shape, "float32"), np.ones((1, 7, 2, 3), "float32"))
