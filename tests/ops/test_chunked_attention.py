"""Chunks, groups of chunks and states answer to the matrix; compiled too, at open lengths too."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.masks import chunked
from keras_graphattn.masks.chunked import (
    ChunkedState,
    Decay,
    Form,
    advanced_state,
    attention_by_form,
    chunked_attention,
)
from tests import reference_kernel as reference
from tests.masks.sequence_cases import random_ids, signals
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

HEADS = 2
RATES = np.array([[0.02, 1.5], [0.3, 4.0]])
WEIGHTS = np.array([[0.5, 2.0], [1.0, 0.1]])


def matrix(length, causal, decays, ids, rates=RATES, weights=WEIGHTS):
    """M of shape (B or 1, N or 1, T, T) in float64."""
    full = reference.causal_matrix(length) if causal else torch.ones((1, 1, 1, 1)).double()
    if ids is not None:
        full = full * reference.segment_matrix(torch.tensor(ids))
    if decays:
        rates, weights = (torch.as_tensor(x)[:, :decays] for x in (rates, weights))
        full = full * reference.exponential_matrix(length, torch.log(rates), torch.log(weights))
    return full.expand(-1, HEADS, length, length)


def decay(decays, rates=RATES, weights=WEIGHTS):
    if not decays:
        return None
    rates, weights = (ops.convert_to_tensor(x, dtype="float32") for x in (rates, weights))
    return Decay(rates[:, :decays], weights[:, :decays])


@pytest.mark.slow_on("jax")
@given(
    length=st.sampled_from([1, 2, 33, 50]),
    chunk=st.sampled_from([1, 2, 8]),
    group=st.sampled_from([1, 2, 3]),
    causal=st.booleans(),
    decays=st.sampled_from([0, 1, 2]),
    segments=st.booleans(),
    seed=st.integers(0, 20),
)
def test_any_number_of_chunks_and_groups(length, chunk, group, causal, decays, segments, seed):
    query, key, x = signals(length, seed=seed)
    ids = random_ids(length, seed=seed) if segments else None
    before, chunked.GROUP = chunked.GROUP, max(group, 2)
    try:
        outputs = chunked_attention(
            *(ops.convert_to_tensor(t) for t in (query, key, x)),
            causal=causal,
            decay=decay(decays),
            segment_ids=ids,
            chunk_size=chunk,
        )
    finally:
        chunked.GROUP = before
    full = matrix(length, causal, decays, ids)
    expected = reference.unnormalised(*(torch.tensor(t).double() for t in (query, key, x)), full)
    assert_close(to_numpy(outputs), expected.numpy(), 1e-5, floor=1e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_through_groups(causal):
    length = 2 * (2 * chunked.GROUP) + 5
    ids = random_ids(length)

    def fast(query, key, x, *decay):
        options = {"causal": causal, "decay": Decay(*decay), "segment_ids": ids, "chunk_size": 2}
        return chunked_attention(query, key, x, **options)

    def naive(query, key, x, rates, weights):
        full = matrix(length, causal, 2, ids, rates, weights)
        return reference.unnormalised(query, key, x, full)

    arrays = (*signals(length), RATES, WEIGHTS)
    value, gradients = value_and_gradients(fast, *arrays)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, 1e-5)
    assert_all_close(gradients, expected_gradients, 2e-5)


@pytest.mark.slow_on("jax")
@given(sizes=st.sampled_from([(7,), (1, 5, 1), (3, 4)]), seed=st.integers(0, 9))
def test_pieces_with_a_state_equal_the_whole(sizes, seed):
    query, key, x = (ops.convert_to_tensor(t) for t in signals(7, seed=seed))
    ids = np.random.default_rng(seed).integers(-1, 2, (2, 7)).astype("int32")
    whole = chunked_attention(
        query, key, x, causal=True, decay=decay(2), segment_ids=ids, chunk_size=2
    )
    state, start = ChunkedState(ops.zeros((2, HEADS, 2 * 3, 4)), ops.full((2,), -1, "int32")), 0
    for size in sizes:
        part = slice(start, start + size)
        piece = [t[:, part] for t in (query, key, x)]
        form = Form(True, decay(2), ops.convert_to_tensor(ids[:, part]))
        outputs = attention_by_form(*piece, form, state, chunk_size=2)
        np.testing.assert_allclose(to_numpy(outputs), to_numpy(whole)[:, part], atol=1e-5)
        state = advanced_state(state, *piece[1:], form)
        start += size


def test_fast_decays_and_long_sequences_stay_finite():
    query, key, x = (ops.convert_to_tensor(t) for t in signals(3000))
    fast = Decay(ops.convert_to_tensor([[1e4], [1e-6]], dtype="float32"))
    outputs = to_numpy(chunked_attention(query, key, x, causal=False, decay=fast))
    own = np.einsum("btnm,btnm,btnd->btnd", *(to_numpy(t) for t in (query, key, x)))
    np.testing.assert_allclose(outputs[:, :, 0], own[:, :, 0], atol=1e-5)
    assert np.isfinite(outputs).all()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="compilers of TensorFlow")
@pytest.mark.parametrize("way", ["graph", "xla"])
def test_tensorflow_compiled_with_gradients(way):
    ids = random_ids(150)

    def attended(query, key, x, rates):
        options = {"causal": False, "decay": Decay(rates), "segment_ids": ids, "chunk_size": 2}
        return chunked_attention(query, key, x, **options)

    arrays = (*signals(150), RATES)
    value, gradients = value_and_gradients(attended, *arrays)
    found, found_gradients = value_and_gradients(attended, *arrays, way=way)
    assert_close(found, value, 2e-5)
    assert_all_close(found_gradients, gradients, 2e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the length is open in TensorFlow's graphs")
@pytest.mark.parametrize("causal", [True, False])
def test_open_length(causal):
    import tensorflow as tf

    options = {"causal": causal, "decay": decay(2), "chunk_size": 2}
    shapes = [tf.TensorSpec((None, None, HEADS, size), "float32") for size in (3, 3, 4)]
    ids_spec = tf.TensorSpec((None, None), "int32")

    @tf.function(input_signature=[*shapes, ids_spec])
    def function(query, key, x, ids):
        return chunked_attention(query, key, x, segment_ids=ids, **options)

    for length in (1, 8, 201):
        arrays, ids = signals(length), random_ids(length)
        expected = chunked_attention(
            *map(ops.convert_to_tensor, arrays), segment_ids=ids, **options
        )
        assert_close(to_numpy(function(*arrays, ids)), to_numpy(expected), 1e-5, floor=1e-3)
