"""PLaplacianAttention beyond its twins: equal tokens, and dropout."""

import numpy as np
import pytest

from keras_graphattn.layers import PLaplacianAttention
from tests.layers.twins import HEADS, SIZE, built, tokens
from tests.numerics import assert_close, layer_value_and_gradients, to_numpy


def layer_of(**options):
    return built(lambda: PLaplacianAttention(HEADS, SIZE, **options))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_duplicate_tokens_have_finite_gradients(dtype, path):
    layer, x = layer_of(dtype=dtype, attention_path=path, block_size=4, epsilon=1e-3), tokens(7)
    x[:, 3] = x[:, 1]
    x[1] = x[1, 0]
    value, gradients = layer_value_and_gradients(layer, x)
    assert np.isfinite(value).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_dropout_takes_the_dense_path_and_drops_entries():
    layer, plain, x = layer_of(dropout=0.5, seed=1), layer_of(), tokens(7)
    assert layer.attention_path is None
    kept = to_numpy(layer(x))
    assert np.abs(to_numpy(layer(x, training=True)) - kept).max() > 1e-2
    for target, source in zip(plain.trainable_weights, layer.trainable_weights, strict=True):
        target.assign(source)
    assert_close(kept, to_numpy(plain(x)), 1e-6)
