"""p-LaT's energy, the homophily of attention, and what is left of high frequencies."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_graphattn.analysis import (
    frequency_parts,
    homophily,
    inspect_smoothing,
    p_laplacian_energy,
    plot_powers,
)
from keras_graphattn.layers import AttentiveGraphFilter, GraphFilterAttention, PLaplacianAttention
from tests.analysis.test_first_order_error import TOLERANCE, attention
from tests.numerics import to_numpy

SIZES = st.integers(1, 7)
EXPONENTS = st.sampled_from([1.0, 1.5, 2.0, 2.5, 4.0])


def tokens(size, seed=0, batch=()):
    return np.random.default_rng(seed).standard_normal((*batch, size, 3))


@given(size=SIZES, p=EXPONENTS, mu=st.sampled_from([0.0, 0.7]), seed=st.integers(0, 9))
def test_the_energy_is_the_sum_over_pairs(size, p, mu, seed):
    weights, values, start = attention(size, 1.0, seed), tokens(size, seed), tokens(size, seed + 1)
    right = 0.0
    for i in range(size):
        right += mu / 2.0 * sum((values[i] - start[i]) ** 2)
        for j in range(size):
            right += weights[i, j] * math.dist(values[i], values[j]) ** p / p
    found = p_laplacian_energy(weights, values, p, start=start if mu else None, mu=mu)
    assert found == pytest.approx(right, rel=TOLERANCE, abs=TOLERANCE)


def test_leading_axes_are_joined_or_refused():
    weights = np.stack([attention(4, 1.0, seed) for seed in range(6)]).reshape((2, 3, 4, 4))
    low, high = frequency_parts(weights, tokens(4, batch=(3,)), steps=2)
    assert low.shape == high.shape == (2, 3, 2)
    for function in (p_laplacian_energy, homophily, frequency_parts):
        with pytest.raises(ValueError, match=r"`\w+` and `\w+` must be the same, or 1"):
            function(weights, tokens(4, batch=(2,)))


@given(p=EXPONENTS, mu=st.sampled_from([0.0, 0.7]), seed=st.integers(0, 9))
def test_the_gradient_of_symmetric_weights_is_the_documented_one(p, mu, seed):
    """By central differences; so a small step along it decreases the energy."""
    size = 5
    weights = attention(size, 1.0, seed)
    weights, values, start = weights + weights.T, tokens(size, seed), tokens(size, seed + 1)
    differences = values[:, None] - values[None]
    distances = np.linalg.norm(differences, axis=-1)
    distances[np.eye(size, dtype=bool)] = 1.0  # the difference is 0 there
    factors = weights * distances ** (p - 2.0)
    gradient = 2.0 * np.einsum("ij,ijd->id", factors, differences) + mu * (values - start)

    def energy(at):
        return p_laplacian_energy(weights, at, p, start=start if mu else None, mu=mu)

    step = 1e-2  # jax rounds what it is given to float32
    for place in np.ndindex(values.shape):
        unit = np.zeros_like(values)
        unit[place] = step
        slope = (energy(values + unit) - energy(values - unit)) / (2.0 * step)
        assert slope == pytest.approx(gradient[place], rel=0.02, abs=0.02)
    assert energy(values - 1e-2 * gradient) < energy(values)


def test_homophily_counts_near_pairs_by_their_weights():
    weights, values = attention(6, 1.0, 0, batch=(2, 3)), 0.5 * tokens(6, batch=(2, 3))
    found = homophily(weights, values)
    assert found.shape == (2, 3)
    for place in np.ndindex(2, 3):
        near = total = 0.0
        for i in range(6):
            for j in range(6):
                if i != j:
                    total += weights[place][i, j]
                    if math.dist(values[place][i], values[place][j]) < 1.0:
                        near += weights[place][i, j]
        assert 0.0 < near < total
        assert found[place] == pytest.approx(near / total, abs=TOLERANCE)
    assert np.isnan(homophily(np.ones((1, 1)), np.ones((1, 2))))


@given(seed=st.integers(0, 9))
def test_a_small_exponent_of_p_lat_raises_homophily_and_a_large_one_lowers_it(seed):
    weights, values = attention(6, 0.5, seed), tokens(6, seed)
    distances = np.linalg.norm(values[:, None] - values[None], axis=-1)
    distances[np.eye(6, dtype=bool)] = 1.0
    shares = [homophily(weights * distances ** (p - 2.0), values) for p in (1.5, 2.0, 2.5)]
    assert shares[0] >= shares[1] >= shares[2]


@given(size=SIZES, steps=st.integers(1, 6), seed=st.integers(0, 9))
def test_the_parts_are_those_of_each_power(size, steps, seed):
    matrix, values = attention(size, 2.0, seed), tokens(size, seed)
    low, high = frequency_parts(matrix, values, steps)
    for step in range(steps):
        result = np.linalg.matrix_power(matrix, step) @ values
        mean = result.mean(axis=0)
        assert low[step] == pytest.approx(np.sqrt(size * np.sum(mean**2)), abs=TOLERANCE)
        right = np.sqrt(np.sum((result - mean) ** 2))
        assert high[step] == pytest.approx(right, abs=TOLERANCE)


def test_attention_is_a_low_pass_filter_and_a_high_pass_is_not():
    matrix, values = attention(6, 1.0, 0, batch=(2,)), tokens(6, batch=(2,))
    low, high = frequency_parts(matrix, values, steps=30)
    assert low.shape == high.shape == (2, 30)
    assert (high[:, -1] / low[:, -1] < 1e-5).all()
    low, high = frequency_parts(np.eye(6) - matrix, values, steps=30)
    assert (high[:, -1] / low[:, -1] > 0.1).all()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: PLaplacianAttention(2, 4),
        lambda: GraphFilterAttention(2, 4, num_key_value_heads=1),
        lambda: AttentiveGraphFilter(2, 4),
    ],
    ids=["p_laplacian", "graph_filter", "no matrix"],
)
def test_a_report_has_the_values_of_the_heads(layer):
    """The operator times the values, projected, is the output of the layer."""
    inputs = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("float32")
    layer = layer()
    model = keras.Sequential([keras.Input((5, 8)), layer])
    report = inspect_smoothing(model, inputs)
    heads = report.layers[0].heads
    assert heads.values.shape == (2, 5, 4)
    joined = np.moveaxis(heads.operator_map @ heads.values, 0, 1)  # (T, N, D)
    found = to_numpy(layer.output_dense(joined[None]))
    np.testing.assert_allclose(found, to_numpy(model(inputs[:1])), atol=1e-5)
    is_filtered = type(layer) is PLaplacianAttention
    assert len(plot_powers(report, 0, steps=4).lines) == (4 if is_filtered else 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: p_laplacian_energy(np.eye(3), np.ones((3, 2)), 0.5), "`p`"),
        (lambda: p_laplacian_energy(np.eye(3), np.ones((4, 2))), "`values`"),
        (lambda: p_laplacian_energy(np.eye(3), np.ones((3, 2)), mu=0.5), "give both"),
        (lambda: p_laplacian_energy(np.eye(3), np.ones((3, 2)), start=np.ones((3, 2))), "both"),
        (lambda: homophily(np.ones((2, 3)), np.ones((3, 2))), "`weights`"),
        (lambda: frequency_parts(np.eye(3), np.ones((3, 2)), steps=0), "`steps`"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
