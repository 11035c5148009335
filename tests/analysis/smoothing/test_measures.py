import numpy as np
import pytest

from keras_graphattn.analysis.smoothing import measures
from tests.analysis.smoothing import twins

random = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["dc_share", "effective_rank"])
def test_constant_share_and_ranks(name):
    tokens, measure = random.normal(size=(6, 4)) + 0.5, getattr(measures, name)
    assert measure(tokens) == pytest.approx(getattr(twins, name)(tokens))
    assert measure(np.ones((3, 2))) == pytest.approx(1.0)
    assert np.isnan(measure(np.zeros((3, 2))))


@pytest.mark.parametrize("count", [2, 5, 8])
def test_fourier_response_is_that_of_each_wave(count):
    matrix = random.normal(size=(3, count, count))
    gains = measures.fourier_response(matrix)
    assert gains.shape == (3, count // 2 + 1)
    expected = [twins.fourier(one) for one in matrix]
    np.testing.assert_allclose(gains, expected, atol=1e-12)


def test_fourier_response_of_a_circular_filter_is_its_transfer_function():
    count, first = 8, random.normal(size=8)
    circular = np.stack([np.roll(first, shift) for shift in range(count)])
    expected = np.abs(np.fft.fft(first))[: count // 2 + 1]
    np.testing.assert_allclose(measures.fourier_response(circular), expected, atol=1e-12)
