"""SavedModels of layers under Toeplitz masks: a fixed length on any path, an open one by rows."""

import keras
import numpy as np
import pytest

from keras_graphattn.export import export_saved_model
from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import BlockToeplitz, Causal, Product, Toeplitz
from tests.export.c_api import run_in_process


def model_of(length, masks):
    series = keras.Input((length, 6), name="series")
    x = series
    for mask, path in masks:  # side by side: one on another, they would make differences larger
        x = x + MaskedKernelAttention(2, 4, mask=mask, path=path)(series)
    return keras.Model(series, keras.layers.Dense(3, name="scores")(x))


def check(model, lengths, folder):
    path = export_saved_model(model, folder / "served")
    generator = np.random.default_rng(0)
    batches = [{"series": generator.standard_normal((3, n, 6)).astype("f")} for n in lengths]
    for batch, result in zip(batches, run_in_process(path, batches, folder), strict=True):
        expected = model.predict(batch["series"], verbose=0)
        np.testing.assert_allclose(result["scores"], expected, atol=1e-5)


def test_fixed_length_on_every_path(tmp_path):
    masks = [(Toeplitz(12), path) for path in ("dense", "blockwise", "fft")]
    masks += [(BlockToeplitz((2, 5), 2), path) for path in ("dense", "blockwise", "fft")]
    masks += [(Toeplitz.alibi(200), "fft"), (Product([Causal(), Toeplitz(12)]), "fft")]
    check(model_of(12, masks), [12], tmp_path)


def test_open_length_by_rows(tmp_path):
    check(model_of(None, [(Toeplitz(40), "dense"), (Toeplitz(40), "auto")]), [1, 23], tmp_path)


def test_open_length_by_fft_is_refused(tmp_path):
    with pytest.raises(Exception, match="fixed length"):
        export_saved_model(model_of(None, [(Toeplitz(40), "fft")]), tmp_path / "served")
