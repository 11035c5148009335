"""Every recipe's model in half precision: close to float32, and it trains with a scaled loss."""

import keras
import numpy as np
import pytest

from recipes.common.command.checks import keras_configured
from recipes.common.command.parsing import UsageError
from tests.numerics import BACKEND, randomise, relative_rms, to_numpy
from tests.recipes.models import LONGEST, MODELS, batch_for

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

# of outputs after two blocks, embeddings and a head, each with its own rounding
TOLERANCE = {"mixed_bfloat16": 4e-2, "mixed_float16": 5e-3}
FAST = ["arena_agf"]
if BACKEND != "jax":
    FAST += ["time_series_gfsa", "text_p_laplacian", "causal_lm_masked_kernel"]
# of models with Keras' softmax attention, also that of CaiT's class layers
WITH_SOFTMAX = ("time_series_softmax", "arena_softmax", "images_softmax", "images_cait")


def make(name):
    build, *arguments = MODELS[name]
    return build(*arguments)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in MODELS],
)
def test_outputs_are_close_to_float32_and_training_moves_every_weight(name, precision):
    is_refused = precision == "mixed_float16" and name.startswith(WITH_SOFTMAX)
    if BACKEND == "jax" and is_refused:
        with keras_configured(precision), pytest.raises(UsageError, match="only on accelerators"):
            make(name)
        return
    reference = make(name)
    randomise(reference, scale=0.1)
    with keras_configured(precision):
        model = make(name)
        model.set_weights(reference.get_weights())
        batch = batch_for(reference, 4, LONGEST)
        halves = {layer.compute_dtype for layer in model._flatten_layers()}
        assert precision.removeprefix("mixed_") in halves
        found, expected = to_numpy(model(batch)), to_numpy(reference(batch))
        assert relative_rms(found, expected, floor=0.1) < TOLERANCE[precision]
        model.compile("adam", "mse")
        is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert is_scaled == (precision == "mixed_float16")
        before = [to_numpy(v) for v in model.trainable_variables]
        history = model.fit(batch, np.zeros(found.shape), epochs=3, batch_size=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert variable.dtype == "float32"
        assert np.isfinite(to_numpy(variable)).all()
        if not variable.path.endswith("mix_before/bias"):  # the softmax does not see it
            assert (to_numpy(variable) != old).any(), variable.path
