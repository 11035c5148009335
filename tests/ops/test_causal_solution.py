"""(I + b A) y = x for causal attention: every operator that solves it, against an inverse."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_graphattn.ops import (
    AttentionMask,
    BlockwiseOperator,
    CachedOperator,
    attention_matrix,
    filter_matrix,
    joined_mask,
    matrix_operator,
)
from tests import reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.random_masks import joined_mask as meaning_of

BATCH, HEADS, SIZE = 2, 3, 4
FORMS = ["matrix", "blockwise", "filter matrix", "cached"]
FACTOR = np.array([0.5, -0.9, 0.0], "float32")


def arrays(length):
    generator = np.random.default_rng(length)
    shape = (BATCH, length, HEADS, SIZE)
    return [generator.standard_normal(shape).astype("float32") for _ in range(3)] + [FACTOR]


def solution(form, mask, block_size):
    def function(query, key, x, factor):
        if form == "blockwise":
            return BlockwiseOperator(query, key, mask, None, block_size).solve(factor[:, None], x)
        positions = ops.arange(query.shape[1])
        matrix = attention_matrix(query, key, joined_mask(mask, positions, positions))
        if form == "matrix":
            return matrix_operator(matrix).solve(factor[:, None], x)
        if form == "cached":
            return in_steps(matrix, factor, x, block_size)
        inverse = filter_matrix(lambda apply, one: apply.solve(factor[:, None, None], one), matrix)
        return ops.einsum("bnts,bsnh->btnh", inverse, x)

    return function


def in_steps(matrix, factor, x, count):
    """Decodes `count` rows at a time. The first slot of the cache holds what was solved."""
    signals, rows = ops.zeros((BATCH, 1, *x.shape[1:]), x.dtype), []
    for index in range(0, x.shape[1], count):
        part = x[:, index : index + count]
        apply = CachedOperator(matrix[:, :, index : index + count], signals, index)
        rows.append(apply.solve(factor[:, None], part))
        apply(rows[-1])
        signals = apply.signals
    return ops.concatenate(rows, axis=1)


def naive(meaning):
    def function(query, key, x, factor):
        mask = None if meaning is None else torch.tensor(meaning, dtype=torch.float64)
        matrix = reference.attention_matrix(query, key, mask)
        system = torch.eye(x.shape[1], dtype=torch.float64) + factor[:, None, None] * matrix
        return torch.einsum("bnts,bsnh->btnh", torch.linalg.inv(system), x)

    return function


def check(form, mask, meaning, length, block_size):
    if form == "cached" and BACKEND == "tensorflow":  # a cache is written without a gradient there
        check_values(form, mask, meaning, length, block_size)
        return
    function = solution(form, mask, block_size)
    value, gradients = value_and_gradients(function, *arrays(length))
    expected, slopes = reference_value_and_gradients(naive(meaning), *arrays(length))
    assert_close(value, expected, 2e-6)
    assert_all_close(gradients, slopes, 2e-5)


def check_values(form, mask, meaning, length, block_size):
    found = solution(form, mask, block_size)(*map(ops.convert_to_tensor, arrays(length)))
    expected, _ = reference_value_and_gradients(naive(meaning), *arrays(length))
    assert_close(to_numpy(found), expected, 2e-6)


@pytest.mark.parametrize(("length", "block_size"), [(1, 4), (2, 1), (7, 3), (63, 16), (8, 8)])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_the_inverse_in_values_and_gradients(form, length, block_size):
    meaning = np.broadcast_to(np.tri(length, dtype=bool), (BATCH, HEADS, length, length))
    check(form, AttentionMask(causal=True), meaning, length, block_size)


@pytest.mark.slow_on("jax")
@given(data=st.data(), block_size=st.sampled_from([1, 3, 7]), window=st.sampled_from([None, 3]))
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_the_inverse_under_masks(form, data, block_size, window):
    sizes = {"batch": BATCH, "length": 7, "heads": HEADS}
    keys = data.draw(hnp.arrays(bool, (BATCH, 7)))
    queries = data.draw(hnp.arrays(bool, (BATCH, 7)))
    entries = data.draw(hnp.arrays(bool, (BATCH, 1, 7, 7)))
    meaning = meaning_of(
        {
            "key_mask": keys,
            "query_mask": queries,
            "attention_mask": entries,
            "use_causal_mask": True,
        },
        **sizes,
    )
    if window is not None:
        near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) < window
        meaning = meaning & near
    parts = [ops.convert_to_tensor(part) for part in (entries, queries, keys)]
    check(form, AttentionMask(*parts, causal=True, window=window), meaning, 7, block_size)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the other backends know every shape")
def test_sizes_unknown_until_the_run():
    import tensorflow as tf

    function = solution("blockwise", AttentionMask(causal=True), 3)
    signature = [tf.TensorSpec((None, None, HEADS, SIZE))] * 3 + [tf.TensorSpec((HEADS,))]

    @tf.function(input_signature=signature)
    def compiled(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            solved = function(*tensors)
        return solved, tape.gradient(solved, tensors)

    for length in (2, 7):
        solved, slopes = compiled(*arrays(length))
        meaning = np.broadcast_to(np.tri(length, dtype=bool), (BATCH, HEADS, length, length))
        expected, _ = reference_value_and_gradients(naive(meaning), *arrays(length))
        assert_close(to_numpy(solved), expected, 2e-6)
        assert all(np.isfinite(to_numpy(slope)).all() for slope in slopes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision(form, dtype):
    mask = AttentionMask(causal=True)
    *tensors, factor = arrays(63)
    whole = to_numpy(solution(form, mask, 16)(*map(ops.convert_to_tensor, (*tensors, factor))))
    half = solution(form, mask, 16)(*(ops.convert_to_tensor(x, dtype) for x in tensors), factor)
    assert keras.backend.standardize_dtype(half.dtype) == dtype
    assert_close(to_numpy(half), whole, {"float16": 4e-3, "bfloat16": 3e-2}[dtype])


def test_attention_that_is_not_causal_is_refused():
    query, key, x, factor = map(ops.convert_to_tensor, arrays(7))
    for form in ("matrix", "filter matrix", "blockwise"):
        with pytest.raises(ValueError, match="causal attention only"):
            solution(form, AttentionMask(), 3)(query, key, x, factor)


@pytest.mark.skipif(BACKEND != "jax", reason="one compiler is enough")
def test_compiled_code_marks_the_examples_that_are_not_causal():
    import jax

    query, key, x, factor = map(ops.convert_to_tensor, arrays(7))
    entries = np.stack([np.ones((7, 7), bool), np.tri(7, dtype=bool)])[:, None]
    solved = jax.jit(solution("matrix", AttentionMask(entries), 3))(query, key, x, factor)
    found = np.isnan(np.asarray(solved)).all(axis=(1, 2, 3))
    assert found.tolist() == [True, False]
