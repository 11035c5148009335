"""Swin as the recipes build it: sizes that are refused, seeds, and a filter that starts plain."""

import keras
import numpy as np
import pytest

from keras_graphattn import convert
from recipes.common.images.sizes import SIZES
from tests.numerics import to_numpy

pytest.importorskip("keras_hub")
from recipes.common.images.swin import classifier

TINY = SIZES["swin-small"]._replace(
    depths=(2, 2), width=8, heads=2, feed_forward=16, patch=1, window=4
)
DATA = {"channels": 2, "classes": 5, "size": TINY}
IMAGES = np.random.default_rng(0).normal(size=(6, 8, 8, 2)).astype("float32")


@pytest.mark.parametrize(
    ("image_size", "told"),
    [(9, "a multiple of 2.*image_size=9"), (6, "3 x 3 patches.*image_size=6.*at least 8 pixels")],
)
def test_sizes_that_windows_do_not_fit_are_refused(image_size, told):
    with pytest.raises(ValueError, match=told):
        classifier(image_size=image_size, **DATA)


@pytest.mark.slow_on("jax", "tensorflow")
def test_keras_seed_decides_what_is_dropped_and_nothing_drops_outside_of_training():
    def outputs(seed, training):
        keras.utils.set_random_seed(seed)
        model = classifier(image_size=8, **DATA, dropout=0.3, drop_path=0.5)
        model.set_weights([np.full(w.shape, 0.1) + np.arange(w.shape[-1]) for w in model.weights])
        return to_numpy(model(IMAGES, training=training))

    expected = outputs(1, training=True)
    np.testing.assert_array_equal(outputs(1, training=True), expected)
    assert np.abs(outputs(2, training=True) - expected).max() > 1e-3
    np.testing.assert_array_equal(outputs(1, training=False), outputs(2, training=False))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
def test_conversion_starts_where_it_should(attention):
    model = classifier(image_size=8, **DATA)
    expected = to_numpy(model(IMAGES))
    convert(model, attention, **({"p": 2.0} if attention == "p_laplacian" else {}))
    np.testing.assert_allclose(to_numpy(model(IMAGES)), expected, atol=1e-5)
