"""Named starts of filters: the polynomials that they are said to be, in every basis and layer."""

import numpy as np
import pytest

from keras_graphattn.filters import FILTERS, Chebyshev, Jacobi
from keras_graphattn.filters.filter import STARTS
from keras_graphattn.filters.polynomial import recurrence
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention, MaskedKernelAttention
from tests.numerics import to_numpy

random = np.random.default_rng(0)
TOKENS = random.normal(size=(2, 5, 6)).astype("float32")
FORMULAS = {
    "plain": lambda A, identity: A,
    "high_pass": lambda A, identity: identity - A,
    "high_boost": lambda A, identity: 2.0 * identity - A,
    "band_pass": lambda A, identity: A @ (identity - A),
    "twicing": lambda A, identity: 2.0 * A - A @ A,
}
CASES = [
    *(("first_order", order) for order in (1, 2, 5)),
    *(("monomial", 3), ("chebyshev", 1), ("legendre", 4), ("jacobi", 3), ("inverted", 1)),
]


def named(name, order, start):
    options = {"alpha": 1.5, "beta": -0.5} if name == "jacobi" else {}
    return FILTERS[name](order, start=start, **options)


def test_every_start_has_a_formula():
    assert set(FORMULAS) == set(STARTS)


@pytest.mark.parametrize("start", FORMULAS)
@pytest.mark.parametrize(("name", "order"), CASES)
def test_filters_start_as_named(start, name, order):
    if start not in FILTERS[name].starts or (STARTS[start][2] and order == 1):
        with pytest.raises(ValueError, match=r"order of at least 2|`start` must be one of"):
            named(name, order, start)
        return
    layer = GraphFilterAttention(2, 3, filter=named(name, order, start))
    _, scores, matrix = layer(
        TOKENS, TOKENS, return_attention_scores=True, return_filter_matrix=True
    )
    A = to_numpy(scores)
    expected = FORMULAS[start](A, np.eye(5))
    np.testing.assert_allclose(to_numpy(matrix), expected, atol=1e-5)


@pytest.mark.parametrize("start", ["high_pass", "band_pass", "twicing"])
def test_masked_kernels_start_as_named(start):
    plain = MaskedKernelAttention(2, 3, filter="chebyshev", order=2)
    layer = MaskedKernelAttention(2, 3, filter=Chebyshev(2, start=start))
    _, scores = plain(TOKENS, return_attention_scores=True)
    layer.build_around(plain)
    values = np.moveaxis(to_numpy(layer.value_dense(TOKENS)), 2, 1)  # (B, N, T, H)
    filtered = np.moveaxis(FORMULAS[start](to_numpy(scores), np.eye(5)) @ values, 1, 2)
    expected = to_numpy(layer.output_dense(filtered.astype("float32")))
    np.testing.assert_allclose(to_numpy(layer(TOKENS)), expected, atol=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.5, -1.5), (-1.9, -1.8)])
@pytest.mark.filterwarnings("ignore:.*orthogonal")
def test_agf_starts_with_large_singular_values_damped(alpha, beta):
    layer = AttentiveGraphFilter(2, 3, filter=Jacobi(3, alpha, beta, start="high_pass"))
    layer.build(TOKENS.shape)
    theta = to_numpy(layer.theta)
    slope, offset, _ = recurrence("jacobi", 3, alpha, beta)[0]
    S = np.linspace(0.0, 1.0, 5)
    g = 1.0 + np.tanh(theta[0]) * (slope * S + offset)
    assert np.all(theta[1:] == 0.0)
    np.testing.assert_allclose(np.diff(g), -abs(slope) / 8.0, rtol=1e-5)
