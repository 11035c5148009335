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


@pytest.mark.parametrize("length", [12, None])
def test_served_like_predicted(length, tmp_path):
    """All masks in one model: one export per length."""
    series = keras.Input((length, 6), name="series")
    ids = keras.Input((length,), dtype="int32", name="ids")
    x = series
    for name, make in MASKS.items():
        inputs = {"segment_ids": ids} if name == "packed" else None
        kind = {"filter": "first_order"} if name == "causal" else {"feature_map": "favor"}
        x = x + MaskedKernelAttention(2, 4, mask=make(), **kind)(x, mask_inputs=inputs)
    model = keras.Model([series, ids], keras.layers.Dense(3, name="scores")(x))
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
