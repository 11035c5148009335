"""Numbers that no layer may change on the way: float64 stays float64, NaN and inf stay visible."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_graphattn import layers, masks
from tests.numerics import float64_on_jax, randomise, to_numpy

pytestmark = pytest.mark.slow_on("jax")

HEADS, SIZE, FEATURES, LENGTH = 2, 4, 6, 9
SEGMENTS = np.repeat([[0, 1, 2]], 3, axis=1).repeat(2, axis=0)

MASKS = {
    "none": lambda **options: None,
    "causal": masks.Causal,
    "segments": masks.Segments,
    "exponential": masks.Exponential,
    "causal exponential": lambda **options: masks.Exponential(causal=True, **options),
    "causal segments": lambda **options: masks.Product(
        [masks.Causal(**options), masks.Segments(**options)], **options
    ),
}


def kernel(mask, **options):
    def make(dtype):
        return layers.MaskedKernelAttention(
            HEADS, SIZE, mask=MASKS[mask](dtype=dtype), dtype=dtype, **options
        )

    return make


def of(kind, **options):
    return lambda dtype: kind(HEADS, SIZE, dtype=dtype, **options)


LAYERS = {
    "GFSA dense": of(layers.GraphFilterAttention),
    "GFSA blockwise": of(layers.GraphFilterAttention, attention_path="blockwise", block_size=4),
    "GFSA fused": of(layers.GraphFilterAttention, attention_path="fused"),
    "GFSA chebyshev": of(layers.GraphFilterAttention, filter="chebyshev"),
    "p-LaT dense": of(layers.PLaplacianAttention, p=[1.5, 2.5], attention_path="dense"),
    "p-LaT blockwise": of(layers.PLaplacianAttention, attention_path="blockwise", block_size=4),
    "p-LaT drop": of(layers.PLaplacianAttention, p=1.2, diagonal="drop"),
    "AGF": of(layers.AttentiveGraphFilter, order=2),
    "AGF learned constant": of(layers.AttentiveGraphFilter, learned_constant=True),
    "AGF causal": of(layers.AttentiveGraphFilter, causal=True),
    "GKAT": lambda dtype: layers.GraphKernelAttention(
        HEADS, SIZE, mask=masks.Exponential(dtype=dtype), dtype=dtype
    ),
    "GKAT additive": lambda dtype: layers.GraphKernelAttention(
        HEADS, SIZE, mask=masks.Exponential(dtype=dtype), score="additive", dtype=dtype
    ),
    "GKAT dynamic walks": lambda dtype: layers.GraphKernelAttention(
        HEADS,
        SIZE,
        mask=masks.RandomWalk(np.argwhere(np.tri(LENGTH, k=-1)), learn_decay=True, dtype=dtype),
        dynamic_walks=True,
        dtype=dtype,
    ),
    "GKAT segments": lambda dtype: layers.GraphKernelAttention(
        HEADS, SIZE, mask=masks.Segments(dtype=dtype), feature_map="favor", dtype=dtype
    ),
    "AttnScale": of(layers.ScaledHighFrequencyAttention),
    "ContraNorm": lambda dtype: layers.ContraNorm(dtype=dtype),
    "kernel elu": kernel("none", feature_map="elu"),
    "kernel squared_relu": kernel("none", feature_map="squared_relu"),
    "kernel favor": kernel("none", feature_map="favor"),
    "kernel dense": kernel("none", path="dense"),
    "kernel filtered": kernel("none", filter="first_order"),
    "kernel favor causal": kernel("causal", feature_map="favor"),
    **{
        f"kernel {mask} {path}": kernel(mask, path=path)
        for mask in MASKS
        for path in ("dense", "blockwise", "chunked")
        if mask != "none"
    },
}


def sees(name):
    """Which tokens a row may see."""
    seen = np.ones((LENGTH, LENGTH), bool)
    if "causal" in name:
        seen = np.tril(seen)
    if "segments" in name:
        seen &= SEGMENTS[0][:, None] == SEGMENTS[0][None]
    return seen


def arguments(name):
    return {"mask_inputs": {"segment_ids": SEGMENTS}} if "segments" in name else {}


def tokens(seed=0):
    return np.random.default_rng(seed).standard_normal((2, LENGTH, FEATURES))


def built(name, dtype):
    layer = LAYERS[name](dtype)
    layer(ops.convert_to_tensor(tokens().astype(dtype)), **arguments(name))
    randomise(layer)
    return layer


@pytest.mark.parametrize("way", ["dtype", "floatx"])
@pytest.mark.parametrize("name", LAYERS)
def test_float64_is_float64_throughout(name, way):
    """Steps of 1e-6: with a float32 number within, their slopes would be noise of 10 %."""
    with float64_on_jax(), floatx("float64" if way == "floatx" else "float32"):
        layer = built(name, "float64")
        x, direction, slopes = tokens(), tokens(1), []

        def outputs(x):
            value = layer(ops.convert_to_tensor(x), **arguments(name))
            assert keras.backend.standardize_dtype(value.dtype) == "float64"
            return np.asarray(ops.convert_to_numpy(value))

        for step in (1e-6, 2e-6):
            ends = outputs(x + step * direction), outputs(x - step * direction)
            slopes.append((ends[0] - ends[1]) / (2 * step))
    assert np.abs(slopes[0]).max() > 1e-3
    assert np.abs(slopes[0] - slopes[1]).max() < 1e-6 * np.abs(slopes[0]).max()


DECODED = ["GFSA dense", "GFSA chebyshev", "p-LaT dense", "p-LaT drop", "AGF causal"]
DECODED += ["kernel elu", "kernel favor", "kernel filtered", "kernel causal exponential chunked"]


@pytest.mark.parametrize("name", DECODED)
def test_decoding_in_float64_is_the_full_pass(name):
    with float64_on_jax():
        layer, x = built(name, "float64"), ops.convert_to_tensor(tokens())
        full = layer(x, use_causal_mask=True)
        if hasattr(layer, "get_initial_cache"):
            state, places = layer.get_initial_cache(2, LENGTH), True
        else:
            state, places = layer.get_initial_state(2), False
        found = []
        for t in range(LENGTH):
            now, state = layer.decode(x[:, t : t + 1], state, *([t] if places else []))
            found.append(now)
            for leaf in keras.tree.flatten(state):
                assert keras.backend.standardize_dtype(leaf.dtype) in ("float64", "bool", "int32")
        found = ops.concatenate(found, axis=1)
        assert keras.backend.standardize_dtype(found.dtype) == "float64"
        full, found = (np.asarray(ops.convert_to_numpy(x)) for x in (full, found))
    np.testing.assert_allclose(found, full, atol=1e-12 * np.abs(full).max())


@contextlib.contextmanager
def floatx(dtype):
    keras.config.set_floatx(dtype)
    yield
    keras.config.set_floatx("float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_that_see_nan_or_inf_are_not_finite(name, bad):
    layer, x, place = built(name, "float32"), tokens().astype("float32"), 4
    x[0, place] = bad
    outputs = to_numpy(layer(x, **arguments(name)))
    assert not np.isfinite(outputs[0, sees(name)[:, place]]).any()
    assert np.isfinite(outputs[1]).all()  # another example


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "ContraNorm"])
def test_rows_that_see_nothing_are_zero_beside_nan(name):
    layer, x = built(name, "float32"), tokens().astype("float32")
    layer.output_dense.bias.assign(np.zeros(FEATURES))
    x[:, 4] = np.nan
    mask = np.arange(LENGTH)[None] < np.array([[7], [9]])
    outputs = to_numpy(layer(x, query_mask=mask, **arguments(name)))
    assert (outputs[~mask] == 0.0).all()
