"""SavedModels of layers under each mask, at a fixed and at an open length."""

import keras
import numpy as np
import pytest

from keras_graphattn.export import export_saved_model
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import (
    Causal,
    Exponential,
    LowRank,
    Product,
    Segments,
    StochasticPositions,
)
from tests.export.c_api import run_in_process

MASKS = {
    "none": lambda: None,
    "causal": Causal,
    "exponential": lambda: Exponential(2),
    "low rank": lambda: LowRank(2, 24),
    "stochastic positions": lambda: StochasticPositions(2, seed=0),
    "packed": lambda: Product([Causal(), Segments()]),
}


# JAX does not know that 64 ceil(T / 64) >= T, nor where a table of positions ends at T
OPEN = ["none", "stochastic positions"] if keras.backend.backend() == "jax" else list(MASKS)


def model_of(names, length):
    """One model with a layer under each mask."""
    series = keras.Input((length, 6), name="series")
    ids = keras.Input((length,), dtype="int32", name="ids")
    x = series + 0.0 * keras.ops.cast(ids, "float32")[..., None]
    for name in names:
        inputs = {"segment_ids": ids} if name == "packed" else None
        kind = {"filter": "first_order"} if name == "causal" else {"feature_map": "favor"}
        x = x + MaskedKernelAttention(2, 4, mask=MASKS[name](), **kind)(x, mask_inputs=inputs)
    return keras.Model([series, ids], keras.layers.Dense(3, name="scores")(x))


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="other backends have open lengths")
@pytest.mark.parametrize("name", ["causal", "low rank"])
def test_open_lengths_that_jax_cannot_export_are_told(name, tmp_path):
    with pytest.raises(ValueError, match=r"open lengths(.|\n)*build it with a fixed length"):
        export_saved_model(model_of([name], None), tmp_path / "served")


@pytest.mark.parametrize("length", [12, None])
def test_served_like_predicted(length, tmp_path):
    model = model_of(OPEN if length is None else MASKS, length)
    path = export_saved_model(model, tmp_path / "served")
    generator = np.random.default_rng(0)
    batches = [
        {
            "series": generator.standard_normal((3, size, 6)).astype("float32"),
            "ids": np.sort(generator.integers(-1, 3, (3, size)), axis=1).astype("int32"),
        }
        for size in ([12, 12] if length else [1, 12, 23])
    ]
    results = run_in_process(path, batches, tmp_path)
    for batch, result in zip(batches, results, strict=True):
        expected = model.predict(list(batch.values()), verbose=0)
        np.testing.assert_allclose(result["scores"], expected, atol=1e-5)
