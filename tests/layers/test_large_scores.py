"""Scores that float16 does not hold: every layer and path stays finite, and paths agree."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn.layers
from benchmarks.precision import outputs_and_gradients
from keras_graphattn.filters import FirstOrder
from keras_graphattn.layers import (
    AttentiveGraphFilter,
    GraphFilterAttention,
    GraphKernelAttention,
    MaskedKernelAttention,
)
from keras_graphattn.layers.base import AttentionLayer
from keras_graphattn.masks import Causal, RandomWalk
from tests.numerics import BACKEND, to_numpy

LENGTH, FEATURES, HEADS, SIZE = 12, 16, 2, 16
RING = [[i, (i + 1) % LENGTH] for i in range(LENGTH)]
OTHERS = {  # what a class needs beyond heads and sizes; one list entry for each form
    AttentiveGraphFilter: [{}, {"causal": True}],
    GraphKernelAttention: [
        {"mask": RandomWalk(RING)},
        {"mask": RandomWalk(RING), "score": "additive"},
        {"mask": RandomWalk(RING), "dynamic_walks": True},
        {"mask": RandomWalk(RING), "feature_map": "favor", "seed": 0},
    ],
    MaskedKernelAttention: [{}, {"feature_map": "favor", "mask": Causal(), "seed": 0}],
    GraphFilterAttention: [{}, {"filter": "chebyshev", "order": 2}],
}


def cases():
    """Each layer of the package on each of its paths, with blocks shorter than the sequence."""
    classes = [getattr(keras_graphattn.layers, name) for name in keras_graphattn.layers.__all__]
    for cls in classes:
        if not issubclass(cls, AttentionLayer):
            continue
        for options in OTHERS.get(cls, [{}]):
            for path in getattr(cls, "_paths", (None,)):
                on_path = {} if path is None else {"attention_path": path, "block_size": 5}
                yield cls, {**options, **on_path}


def built(cls, options, score):
    """A float16 layer whose largest score is `score`, and its tokens."""
    keras.utils.set_random_seed(1)
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    layer = cls(HEADS, SIZE, dtype=policy, use_bias=False, **options)
    layer.build((2, LENGTH, FEATURES))
    x = np.random.default_rng(0).standard_normal((2, LENGTH, FEATURES)).astype("float32")
    query, key = (
        np.einsum("btd,dnh->btnh", x, to_numpy(projection.kernel))
        for projection in (layer.query_dense, layer.key_dense)
    )
    largest = np.abs(np.einsum("btnh,bsnh->bnts", query, key)).max() / np.sqrt(SIZE)
    for projection in (layer.query_dense, layer.key_dense):
        kernel = to_numpy(projection.kernel) * np.sqrt(score / largest)
        projection.kernel.assign(kernel.astype("float32"))
    return layer, x


def name_of(case):
    cls, options = case
    shown = [v if isinstance(v, str) else k for k, v in options.items() if k != "block_size"]
    return "-".join([cls.__name__, *shown])


ALL = list(cases())
FAST = "GraphFilterAttention-dense", "GraphFilterAttention-fused", "GraphFilterAttention-blockwise"
PADDED = np.arange(LENGTH)[None] < np.array([[8], [LENGTH]])


@pytest.mark.parametrize("score", [4e4, 1.6e5, 1e6])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=name_of(c), marks=[] if name_of(c) in FAST else [pytest.mark.slow])
        for c in ALL
    ],
)
def test_outputs_and_gradients_are_finite(case, score):
    layer, x = built(*case, score)
    masks = [{}, {"query_mask": PADDED, "value_mask": PADDED}]
    for call in masks[1:] if BACKEND == "jax" else masks:
        outputs, gradients = outputs_and_gradients(layer, x, **call)
        assert np.isfinite(outputs).all()
        assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("score", [1.6e5, pytest.param(1e6, marks=pytest.mark.slow)])
def test_paths_and_decoding_agree(score):
    found = {}
    for path in GraphFilterAttention.paths:
        options = {
            "attention_path": path,
            "block_size": 5,
            "filter": FirstOrder(initial_coefficients={"power": 0.5}),
        }
        layer, x = built(GraphFilterAttention, options, score)
        x = ops.convert_to_tensor(x)
        found[path] = to_numpy(layer(x, use_causal_mask=True, value_mask=PADDED))
        cache = layer.get_initial_cache(2, LENGTH)
        parts = []
        for start, end in ((0, 9), (9, LENGTH)):
            seen = PADDED[:, start:end]
            outputs, cache = layer.decode(x[:, start:end], cache, start, seen)
            parts.append(to_numpy(outputs))
        found[path, "decoding"] = np.concatenate(parts, axis=1)
    real = PADDED[:, :, None] & np.ones_like(found["dense"], bool)
    for outputs in found.values():
        assert np.isfinite(outputs).all()
        np.testing.assert_allclose(outputs[real], found["dense"][real], rtol=0, atol=1e-2)
