"""The file of a converted model's weights: converted models read it, the original refuses."""

import numpy as np
import pytest

import keras_graphattn
from tests.hub.families import FAMILIES, family
from tests.hub.models import moved
from tests.numerics import to_numpy

# In the fast suite, one family stands for three: each writes and reads files.
EACH = [pytest.param(n, marks=[pytest.mark.slow] if i % 3 else []) for i, n in enumerate(FAMILIES)]


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", EACH)
def test_the_original_does_not_drop_coefficients(name, tmp_path):
    kind, path = family(name), tmp_path / "model.weights.h5"
    converted, again = (
        keras_graphattn.convert(kind.make(), "graph_filter", kind.where, order=4) for _ in range(2)
    )
    moved(converted).save_weights(path)
    with pytest.raises(ValueError, match="could not be loaded"):
        kind.make().load_weights(path)
    again.load_weights(path)
    for new, old in zip(again.weights, converted.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(new), to_numpy(old))
    if kind.task is None:
        return
    kind.make_task(converted).save_weights(path)
    with pytest.raises(ValueError, match="could not be loaded"):
        kind.make_task(kind.make()).load_weights(path)
    kind.make_task(again).load_weights(path)
