"""Causal, segment and exponential masks in chunks equal their matrices, also in gradients."""

import keras
import numpy as np
import pytest
import torch

from keras_graphattn.masks import Causal, Exponential, Segments
from tests import reference_kernel as reference
from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    value_and_gradients,
)

LENGTHS = [1, 63, 64, 65, 200]
HEADS, FEATURES, WIDTH = 2, 3, 4


def random_ids(length, batch=2, seed=0):
    """Runs of very different lengths, with padding inside and at the end, and repeated ids."""
    generator = np.random.default_rng(seed)
    ids = np.full((batch, length), -1, "int32")
    for row in ids:
        start = 0
        while start < length:
            end = start + int(generator.choice([1, 5, 40, 150]))
            row[start:end] = generator.integers(-1, 4)
            start = end
    return ids


def signals(length, batch=2, seed=0):
    generator = np.random.default_rng(seed)
    shape = (batch, length, HEADS)
    query, key = (generator.random((*shape, FEATURES)).astype("float32") for _ in range(2))
    return query, key, generator.standard_normal((*shape, WIDTH)).astype("float32")


def made(name, length, decays=1, seed=0):
    """Makes a mask with random weights, its inputs, and the reference matrix of its weights."""
    ids = random_ids(length, seed=seed)
    if name == "causal":
        return Causal(), {}, lambda: reference.causal_matrix(length)
    if name == "segments":
        matrix = reference.segment_matrix(torch.tensor(ids))
        return Segments(), {"segment_ids": ids}, lambda: matrix
    causal = name == "one-sided exponential"
    mask = Exponential(decays, causal=causal)
    before = reference.causal_matrix(length) if causal else 1.0
    return mask, {}, lambda *weights: reference.exponential_matrix(length, *weights) * before


NAMES = ["causal", "segments", "exponential", "one-sided exponential"]


def with_weights(mask, function):
    """Makes a function of arrays and of the mask's weights, to differentiate."""

    def of_weights(*arrays):
        variables = mask.trainable_variables
        count = len(arrays) - len(variables)
        pairs = zip(variables, arrays[count:], strict=True)
        with keras.StatelessScope(state_mapping=list(pairs)):
            return function(*arrays[:count])

    return of_weights


def check(mask, inputs, matrix, length, path, what="attend", seed=0):
    query, key, x = signals(length, seed=seed)
    if not mask.built:
        mask.build((None, None, HEADS, WIDTH))
    generator = np.random.default_rng(seed)
    shapes = [tuple(w.shape) for w in mask.trainable_variables]
    weights = [np.log(generator.uniform(0.001, 2.0, shape)) for shape in shapes]

    def full(*weights):
        return matrix(*weights).expand(len(x), HEADS, length, length)

    if what == "attend":
        arrays = (query, key, x, *weights)
        fast = lambda query, key, x: mask.attend(query, key, x, path, **inputs)  # noqa: E731
        naive = lambda q, k, x, *w: reference.unnormalised(q, k, x, full(*w))  # noqa: E731
    else:
        arrays = (x, *weights)
        fast = lambda x: mask.apply(x, path, **inputs)  # noqa: E731
        naive = lambda x, *w: torch.einsum("bnts,bsnd->btnd", full(*w), x)  # noqa: E731
    value, gradients = value_and_gradients(with_weights(mask, fast), *arrays)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 2e-5)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_attention_in_chunks(name, length):
    check(*made(name, length, decays=1 + length % 2), length, "chunked")


@pytest.mark.parametrize("path", ["dense", "blockwise"])
@pytest.mark.parametrize("name", NAMES)
def test_other_paths(name, path):
    mask, inputs, matrix = made(name, 65, decays=2)
    type(mask).block_size, before = 16, type(mask).block_size
    try:
        check(mask, inputs, matrix, 65, path)
        check(mask, inputs, matrix, 65, path, "apply")
    finally:
        type(mask).block_size = before


@pytest.mark.parametrize("name", NAMES)
def test_signals_in_chunks(name):
    check(*made(name, 130, decays=2), 130, "chunked", "apply")
