"""On TensorFlow, a gradient may be taken more than once, as in training steps of two losses."""

import keras
import numpy as np
import pytest

from tests.layers.capabilities import ROWS, TOKENS
from tests.numerics import BACKEND, cotangent, to_numpy

pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow only")


# Layers that compute something only where numbers need it, or again for the gradient
NAMES = ["`AttentiveGraphFilter`, causal", "`PLaplacianAttention`", "`GatedDeltaRule`", "`Tree`"]


@pytest.mark.all_cases
@pytest.mark.parametrize("name", NAMES)
def test_a_persistent_tape_in_a_compiled_step(name):
    import tensorflow as tf

    layer, call = ROWS[name].built()

    def gradients(tokens):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tokens)
            outputs = layer(tokens, **call)
            total = keras.ops.sum(outputs * cotangent(outputs.shape))
        return [tape.gradient(total, tokens) for _ in range(2)]

    expected = to_numpy(gradients(tf.constant(TOKENS))[0])
    for found in tf.function(gradients)(tf.constant(TOKENS)):
        np.testing.assert_allclose(to_numpy(found), expected, atol=1e-5 * np.abs(expected).max())
