"""Compares every path of every mask with its matrix in float64, by row and by entry."""

import inspect

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn import masks
from tests.compiling import jit
from tests.masks.registry import CASES, EVERY, HEADS, RELATIVE_TO_LARGEST
from tests.numerics import (
    BACKEND,
    assert_all_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

FLOOR = 1e-36  # the smallest float32 numbers with full precision, with a margin


def made(name, k, seed, length):
    return CASES[name][k](np.random.default_rng(seed), length)


def expected(case, numbers=to_numpy):
    weights = [torch.tensor(numbers(w)) for w in case.mask.trainable_variables]
    return case.matrix(*weights).detach().numpy()


def assert_rows(found, right, bound, what, largest=False):
    """Checks errors of entries relative to their row's largest entry, and of rows to their norm."""
    found, right = np.broadcast_arrays(found, right)
    assert np.isfinite(found).all(), what
    axes = (-2, -1) if largest else -1
    scale = np.maximum(np.abs(right).max(axis=axes, keepdims=True), FLOOR)
    entry = (np.abs(found - right) / scale).max(initial=0.0)
    assert entry <= bound, f"{what}: an entry is wrong by {entry:.1e} of its row, bound {bound:.0e}"
    if largest:
        return
    lengths = np.maximum(np.linalg.norm(right / scale, axis=-1), 1e-3)
    row = (np.linalg.norm((found - right) / scale, axis=-1) / lengths).max(initial=0.0)
    assert row <= 2 * bound, f"{what}: a row is wrong by {row:.1e}, bound {2 * bound:.0e}"
    assert not found[(right == 0.0) & (scale > FLOOR)].any(), f"{what}: not 0 where M is"


def check_paths(name, k, seed, length, dtype="float32", numbers=to_numpy):
    """Checks the columns of M on each path, `dense`, `rows`, and attention on each path."""
    case = made(name, k, seed, length)
    mask, count, bound = case.mask, case.length, case.bound
    if dtype == "float64":  # its rounding times exponents up to 60, with a margin
        bound = 1e-12 + 1e-8 * bound
    right = expected(case, numbers)
    assert_rows(numbers(mask.dense(count, **case.inputs)), right, bound, f"{name}, dense")
    some = [0, count - 1, count // 2]
    rows = numbers(mask.rows(some, count, **case.inputs))
    assert_rows(rows, right[:, :, some], bound, f"{name}, rows")
    identity = np.broadcast_to(
        np.eye(count, dtype=dtype)[:, None], (case.batch, count, HEADS, count)
    )
    generator = np.random.default_rng(seed)
    query, key = generator.uniform(0.0, 1.0, (2, case.batch, count, HEADS, 2)).astype(dtype)
    kernel = np.einsum("btnm,bsnm->bnts", query.astype("float64"), key.astype("float64"))
    for path in mask.paths:
        kind, largest = f"{name}, {path}", (name, path) in RELATIVE_TO_LARGEST
        if name == "Product":
            largest = any((type(m).__name__, path) in RELATIVE_TO_LARGEST for m in mask.masks)
        found = numbers(mask.apply(identity, path, **case.inputs)).transpose((0, 2, 1, 3))
        assert_rows(found, right, bound, kind, largest)
        found = numbers(mask.attend(query, key, identity, path, **case.inputs))
        found = found.transpose((0, 2, 1, 3))
        assert_rows(found, kernel * right, 2 * bound, f"{kind}, attention", largest)


def check_gradients(name, k, seed, length, path):
    """Checks gradients of x by row, and those of each weight as a whole."""
    case = made(name, k, seed, length)
    mask = case.mask
    x = np.random.default_rng(seed).uniform(0.0, 1.0, (case.batch, case.length, HEADS, 1))
    weights = [to_numpy(w) for w in mask.trainable_variables]

    def function(x, *values):
        pairs = zip(mask.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return mask.apply(x, path, **case.inputs)

    def naive(x, *values):
        full = case.matrix(*values).expand(case.batch, HEADS, -1, -1)
        return torch.einsum("bnts,bsnd->btnd", full, x)

    x = x.astype("float32")
    _, found = value_and_gradients(function, x, *weights)
    _, right = reference_value_and_gradients(naive, x, *weights)
    assert_all_close(found, right, 20 * case.bound)


def check_hidden(name, k, seed, length):
    """Checks that a token changes nothing in the rows where its entry of M is 0, at any size."""
    case = made(name, k, seed, length)
    right = np.broadcast_to(expected(case), (case.batch, HEADS, case.length, case.length))
    x = np.random.default_rng(seed).standard_normal((case.batch, case.length, HEADS, 2))
    for token in np.random.default_rng(seed).integers(0, case.length, 3):
        hidden = (right[..., token] == 0.0).all(axis=1)  # (B, T)
        if not hidden.any():
            continue
        for path in case.mask.paths:
            rows = []
            for factor in (1.0, 1e4, 1e15):
                changed = x.astype("float32")
                changed[:, token] *= factor
                rows.append(to_numpy(case.mask.apply(changed, path, **case.inputs))[hidden])
            what = f"{name}, {path}, token {token}"
            np.testing.assert_array_equal(rows[1], rows[0], what)
            np.testing.assert_array_equal(rows[2], rows[0], what)


def test_every_mask_is_here():
    public = {name for name in masks.__all__ if inspect.isclass(getattr(masks, name))}
    assert public - {"Mask"} == set(CASES)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_paths(name, k):
    for seed in range(1 if BACKEND == "jax" else 3):  # JAX compiles every shape
        check_paths(name, k, seed, 24)


@pytest.mark.parametrize(("name", "k"), EVERY)
def test_known_positions_outside_of_the_sequence_are_refused(name, k):
    case = made(name, k, 0, 24)
    count = case.length
    for wrong in (-1, count, count + 7):
        for kind in (list, np.array, lambda given: ops.convert_to_tensor(given, "int32")):
            with pytest.raises(ValueError, match=rf"0 to {count - 1}\. Received: {wrong} at pos"):
                case.mask.rows(kind([0, wrong]), count, **case.inputs)
    with pytest.raises(ValueError, match="Received: 4294967296 at"):
        case.mask.rows(np.array([2**32]), count, **case.inputs)  # 0 as int32


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_compiled_rows_at_positions_outside_of_the_sequence_are_nan(name, k, monkeypatch):
    case = made(name, k, 0, 24)
    count = case.length

    def rows(positions):
        return case.mask.rows(positions, count, **case.inputs)

    if BACKEND == "torch":  # it compiles too slowly for a test: hide the values
        monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
    positions = ops.convert_to_tensor([-1, 0, count, count - 1, count + 7], "int32")
    found = to_numpy(jit(rows)(positions))
    assert np.isnan(found[:, :, [0, 2, 4]]).all()
    right = expected(case)[:, :, [0, count - 1]]
    assert_rows(found[:, :, [1, 3]], right, case.bound, f"{name}, rows")


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_what_is_not_seen_changes_nothing(name, k):
    for seed in range(1 if BACKEND == "jax" else 4):
        check_hidden(name, k, seed, 24)


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(8, 10**6), length=st.integers(1, 90))
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_what_is_not_seen_changes_nothing_at_any_length(name, k, seed, length):
    check_hidden(name, k, seed, length)


@pytest.mark.slow  # fast tests elsewhere check some settings of each mask
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_gradients(name, k):
    for path in made(name, k, 0, 24).mask.paths[-1:]:
        check_gradients(name, k, 0, 24, path)


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(3, 10**6), length=st.integers(1, 90))
@pytest.mark.parametrize(("name", "k"), EVERY)
def test_many_paths(name, k, seed, length):
    check_paths(name, k, seed, length)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), EVERY)
@settings(max_examples=8)
@given(seed=st.integers(3, 10**6), length=st.integers(1, 60))
def test_many_gradients(name, k, seed, length):
    for path in made(name, k, seed, length).mask.paths:
        check_gradients(name, k, seed, length, path)
