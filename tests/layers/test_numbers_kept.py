"""Numbers that no layer may change on the way: float64 stays float64, NaN and inf stay visible."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from tests.layers.decoding import decoded
from tests.layers.unseen_cases import (
    BATCH,
    CASES,
    CHANNELS,
    LENGTH,
    SPLIT,
    kinds_of,
    mask_of,
    scene,
)
from tests.numerics import float64_on_jax, randomise, to_numpy

pytestmark = pytest.mark.slow_on("jax")

DENSE = ("graph filter", "differential", "p-Laplacian", "AGF", "high frequencies", "ContraNorm")
FACTORED = ("no mask", "causal", "Causal", "Segments", "Exponential", "Product, segments")
NAMES = [name for name in CASES if name.startswith(DENSE)]
NAMES += [name for name in CASES if name.startswith(tuple(f"kernel, {x}" for x in FACTORED))]
NAMES += ["GKAT, Exponential", "GKAT, Segments", "GKAT, factored, Segments"]
GRAPHS = ["GKAT, additive, RandomWalk", "GKAT, dynamic walks, RandomWalk"]


def sees(name, place):
    """The rows that may see this one of the tokens before `SPLIT`."""
    layer, rows = CASES[name].make(), np.arange(LENGTH)
    seen = np.ones(LENGTH, bool)
    if getattr(layer, "causal", False) or getattr(mask_of(layer), "is_causal", False):
        seen &= rows >= place
    if getattr(layer, "sliding_window", None):
        seen &= np.abs(rows - place) < layer.sliding_window
    return seen & (rows < SPLIT) if "segment" in kinds_of(name) else seen


def tokens(seed=0):
    return np.random.default_rng(seed).standard_normal((BATCH, LENGTH, CHANNELS))


def in_dtype(config, dtype):
    """A configuration with this dtype, for its masks too."""
    if isinstance(config, dict):
        changed = {key: in_dtype(value, dtype) for key, value in config.items()}
        return {**changed, "dtype": dtype} if "dtype" in config else changed
    return [in_dtype(one, dtype) for one in config] if isinstance(config, list) else config


def built(name, dtype):
    """The layer with random weights, and the arguments that its call needs."""
    layer = CASES[name].make()
    layer = type(layer).from_config(in_dtype(layer.get_config(), dtype))
    call = scene(name, "example", layer).call
    layer(ops.convert_to_tensor(tokens().astype(dtype)), **call)
    randomise(layer)
    return layer, call


@pytest.mark.parametrize("way", ["dtype", "floatx"])
@pytest.mark.parametrize("name", [*NAMES, *GRAPHS])
def test_float64_is_float64_throughout(name, way):
    """Steps of 1e-6: with a float32 number within, their slopes would be noise of 10 %."""
    with float64_on_jax(), floatx("float64" if way == "floatx" else "float32"):
        layer, call = built(name, "float64")
        x, direction, slopes = tokens(), tokens(1), []

        def outputs(x):
            value = layer(ops.convert_to_tensor(x), **call)
            assert keras.backend.standardize_dtype(value.dtype) == "float64"
            return np.asarray(ops.convert_to_numpy(value))

        for step in (1e-6, 2e-6):
            ends = outputs(x + step * direction), outputs(x - step * direction)
            slopes.append((ends[0] - ends[1]) / (2 * step))
    assert np.abs(slopes[0]).max() > 1e-3
    assert np.abs(slopes[0] - slopes[1]).max() < 1e-6 * np.abs(slopes[0]).max()


DECODED = ["graph filter", "graph filter, Jacobi", "p-Laplacian, dense", "AGF, causal"]
DECODED += ["p-Laplacian, diagonal dropped", "kernel, Exponential, causal, chunked"]
DECODED += [f"kernel, no mask, {form}" for form in ("ReLU", "dense", "filter")]


@pytest.mark.parametrize("name", DECODED)
def test_decoding_in_float64_is_the_full_pass(name):
    with float64_on_jax():
        (layer, _), x = built(name, "float64"), ops.convert_to_tensor(tokens())
        full = layer(x, use_causal_mask=True)
        found, state = decoded(layer, x, [1] * LENGTH)
        for leaf in keras.tree.flatten(state):
            assert keras.backend.standardize_dtype(leaf.dtype) in ("float64", "bool", "int32")
        assert keras.backend.standardize_dtype(found.dtype) == "float64"
        full, found = (np.asarray(ops.convert_to_numpy(x)) for x in (full, found))
    np.testing.assert_allclose(found, full, atol=1e-12 * np.abs(full).max())


@contextlib.contextmanager
def floatx(dtype):
    keras.config.set_floatx(dtype)
    yield
    keras.config.set_floatx("float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_see_nan_or_inf_are_not_finite(name, bad):
    (layer, call), x, place = built(name, "float32"), tokens().astype("float32"), 4
    x[0, place] = bad
    outputs = to_numpy(layer(x, **call))
    assert not np.isfinite(outputs[0, sees(name, place)]).any()
    assert np.isfinite(outputs[1]).all()  # another example


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ContraNorm"])
def test_rows_that_see_nothing_are_the_bias(name):
    (layer, call), x = built(name, "float32"), tokens().astype("float32")
    bias = to_numpy(layer.output_dense.bias)
    keys = np.array([[True] * LENGTH, [False] * LENGTH])
    outputs = to_numpy(layer(x, value_mask=keys, **call))
    assert (outputs[1] == bias).all()
    x[:, 4] = np.nan
    rows = np.arange(LENGTH)[None] < np.array([[7], [9]])
    outputs = to_numpy(layer(x, query_mask=rows, **call))
    assert (outputs[~rows] == bias).all()
