import sys

import numpy as np
import pytest

from keras_graphattn.analysis import plot_mask
from keras_graphattn.masks import Causal, Segments, Toeplitz
from tests.numerics import randomise, to_numpy


def test_draws_the_matrix_of_a_head():
    mask = Toeplitz(8)
    mask.build((None, None, 2, 4))
    randomise(mask)
    matrix, axis = to_numpy(mask.dense(5))[0, 1], plot_mask(mask, 5, head=1)
    (image,) = axis.get_images()
    np.testing.assert_allclose(image.get_array(), matrix, rtol=1e-6)
    picture, bar = axis.figure.axes  # a colour bar tells the factors
    assert picture is axis
    assert bar.get_ylabel() == "factor"
    assert bar.get_ylim() == pytest.approx((0.0, matrix.max()))
    axis.figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in axis.get_xticks())
    (image,) = plot_mask(Segments(), segment_ids=np.array([[0, 0, 1]])).get_images()
    assert image.get_array().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("factors", "limits"), [([[-1.0, 2.0], [0.5, 1.0]], (-1, 2)), ([[0.0, 0.0]] * 2, (0, 1))]
)
def test_negative_factors_and_zeros_have_colours_of_their_own(factors, limits, monkeypatch):
    mask = Causal()
    monkeypatch.setattr(mask, "dense", lambda length: np.array([[factors]]))
    (image,) = plot_mask(mask, 2).get_images()
    assert image.get_clim() == limits


def test_what_cannot_be_drawn(monkeypatch):
    mask = Toeplitz(8)
    mask.build((None, None, 2, 4))
    with pytest.raises(ValueError, match="head"):
        plot_mask(mask, 5, head=2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_mask(Causal(), 5)
