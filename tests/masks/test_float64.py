"""Masks compute in float64 on every path if their weights or signals are float64."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest
from keras import ops

from tests.masks.registry import CASES, EVERY, HEADS
from tests.masks.test_path_equality import check_paths
from tests.numerics import BACKEND, dtype_policy, float64_on_jax

LENGTH = 12
pytestmark = [pytest.mark.slow] if BACKEND == "jax" else []  # JAX compiles every path


@contextmanager
def float64(floatx):
    """Sets the policy float64, `set_floatx` optionally, and float64 on JAX."""
    before = keras.config.floatx()
    with float64_on_jax(), dtype_policy("float64"):
        keras.config.set_floatx(floatx)
        yield
        keras.config.set_floatx(before)


def numpy64(x):
    assert keras.backend.standardize_dtype(x.dtype) == "float64"
    return np.asarray(ops.convert_to_numpy(x))


FLOATX = ["float32"] if BACKEND == "jax" else ["float32", "float64"]  # only torch depends on floatx


@pytest.mark.parametrize("floatx", FLOATX)
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_every_path(name, k, floatx):
    with float64(floatx):
        case = CASES[name][k](np.random.default_rng(1), LENGTH)
        assert all(w.dtype == "float64" for w in case.mask.weights)
        check_paths(name, k, 1, LENGTH, "float64", numpy64)


@pytest.mark.parametrize(("name", "k"), EVERY)
def test_float64_signals_under_float32_masks(name, k):
    """The weights are float32 numbers, but everything computed from them is float64."""
    if BACKEND == "jax":
        pytest.skip("jax has no float64 signals without its 64 bits")
    case = CASES[name][k](np.random.default_rng(1), LENGTH)
    x = np.random.default_rng(2).uniform(0.0, 1.0, (case.batch, case.length, HEADS, 1))
    for path in case.mask.paths:
        found = numpy64(case.mask.apply(x, path, **case.inputs))
        assert np.isfinite(found).all()


def test_steps():
    from keras_graphattn.masks import Causal, Exponential, Product, Segments

    with float64("float32"):
        generator = np.random.default_rng(0)
        query, key = generator.uniform(0.0, 1.0, (2, 1, 5, 2, 3))
        x = generator.standard_normal((1, 5, 2, 2))
        ids = np.array([[1, 1, 1, 2, 2]])
        for mask, inputs in (
            (Causal(), {}),
            (Exponential(2, causal=True), {}),
            (Product([Causal(), Segments()]), {"segment_ids": ids}),
        ):
            mask.build((None, 5, 2, 2))
            right = numpy64(mask.attend(query, key, x, "dense", **inputs))
            state = mask.get_initial_state(1, 2, 3, 2)
            for t in range(5):
                now = (part[:, t : t + 1] for part in (query, key, x))
                given = {name: value[:, t : t + 1] for name, value in inputs.items()}
                found, state = mask.step(state, *now, **given)
                np.testing.assert_allclose(numpy64(found)[:, 0], right[:, t], rtol=1e-12)


@pytest.mark.skipif(BACKEND != "jax", reason="only jax can be without float64")
def test_jax_without_64_bits_computes_in_float32():
    from keras_graphattn.masks import Tree

    mask = Tree([-1, 0, 0], dtype="float64")
    found = mask.apply(np.ones((1, 3, 1, 1)))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert keras.backend.standardize_dtype(mask.dense().dtype) == "float32"
