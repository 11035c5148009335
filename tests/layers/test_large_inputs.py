"""Large tokens: every layer, mask and bias has outputs and gradients that are numbers."""

import keras
import numpy as np
import pytest

from tests.devices.steps import layer_step
from tests.layers.unseen_cases import CASES
from tests.numerics import called_with, to_numpy, value_and_gradients


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite(name):
    keras.utils.set_random_seed(0)
    layer, tokens, call, _ = layer_step(name)
    weights = [to_numpy(variable) for variable in layer.trainable_variables]
    for scale in (1e2, 1e3, 1e5):
        value, gradients = value_and_gradients(
            lambda x, *weights: called_with(layer, weights, x, **call), scale * tokens, *weights
        )
        assert np.isfinite(value).all(), scale
        for place, gradient in gradients.items():
            assert np.isfinite(gradient).all(), (scale, place)
