"""Causal attention by singular vectors, in chunks, against one softmax for each token."""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_graphattn.operators import SingularOperator
from keras_graphattn.operators.singular_causal import empty_running_sum
from keras_graphattn.ops import causal_singular_value_attention
from tests import reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    float64_on_jax,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)

SLOW = pytest.mark.slow


def inputs(length, batch=2, heads=2, features=4, values=3, seed=0):
    generator = np.random.default_rng(seed)
    sizes = (features, features, values)
    return [
        generator.standard_normal((batch, length, heads, size)).astype("float32") for size in sizes
    ]


def attention(*arrays, **options):
    return causal_singular_value_attention(*arrays, **options)[0]


def twin(*arrays):
    """The outputs in float64."""
    tensors = (torch.tensor(to_numpy(a)) for a in arrays)
    return reference.causal_singular_attention(*tensors).numpy()


def assert_agrees(arrays, mask=None, tolerance=1e-5, **options):
    value, gradients = value_and_gradients(lambda *a: attention(*a, mask, **options), *arrays)
    kept = None if mask is None else torch.tensor(mask)
    expected, expected_gradients = reference_value_and_gradients(
        lambda *a: reference.causal_singular_attention(*a, kept), *arrays
    )
    assert_close(value, expected, tolerance / 5)
    assert_all_close(gradients, expected_gradients, tolerance)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
def test_agrees_with_naive_twin_in_values_and_gradients(length):
    assert_agrees(inputs(length))


@pytest.mark.parametrize(("chunk_size", "length"), [(1, 70), (2, 133), (1, 1100)])
def test_groups_of_chunks_add_up(chunk_size, length):
    """More chunks than are summed at once, and more groups, the last ones not full."""
    assert_agrees(inputs(length, 1, 1, 2, 2), chunk_size=chunk_size)


@pytest.mark.slow_on("jax")
@settings(max_examples=8)
@given(data=st.data(), length=st.sampled_from([1, 12]))
def test_agrees_with_naive_twin_under_masks(data, length):
    mask = data.draw(hnp.arrays(bool, (2, length)), label="mask")
    assert_agrees(inputs(length), mask, chunk_size=data.draw(st.sampled_from([4, 64])))


def test_tokens_that_see_nothing_give_exactly_zero_and_padding_is_never_read():
    left, logits, values = inputs(9)
    mask = np.arange(9)[None] >= np.array([[4], [9]])
    values[~mask] = np.nan
    outputs = to_numpy(attention(left, logits, values, mask, chunk_size=2))
    assert (outputs[~mask] == 0).all()
    assert (outputs[mask] != 0).all()


@pytest.mark.parametrize("rise", [1.0, -1.0, 0.6])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_logits_that_rise_or_fall_without_end(rise, offset):
    left, logits, values = inputs(131)
    logits = (logits + rise * np.arange(131)[:, None, None]).astype("float32")
    logits = logits + np.float32(offset)
    assert_close(to_numpy(attention(left, logits, values)), twin(left, logits, values), 1e-5)


def spread(length, scale, kind):
    """Inputs whose logits differ by `scale` within a chunk."""
    left, logits, values = inputs(length)
    if kind == "noise":
        logits *= np.float32(scale)
    elif kind == "spike":
        logits[:, length // 3] += scale
    else:  # each feature rises somewhere else, again and again
        steps = np.random.default_rng(1).random(logits.shape) < 0.1
        logits += (scale * np.cumsum(steps, axis=1)).astype("float32")
    return left, logits, values


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("kind", "scale"), [("noise", 60.0), ("spike", 1e6), ("rises", 1e4)])
@pytest.mark.parametrize(("length", "size"), [(20, 8), pytest.param(100, 64, marks=SLOW)])
def test_exact_at_any_spread_of_the_logits(kind, scale, length, size):
    # most weights are 0 or 1: the gradient of the logits is a difference of much larger numbers
    assert_agrees(spread(length, scale, kind), tolerance=5e-5, chunk_size=size)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [7, pytest.param(100, marks=SLOW)])
def test_later_tokens_change_no_bit(length, dtype):
    """The first half is the same whatever follows, also after a mask and a state of its own."""
    half, generator = length // 2, np.random.default_rng(2)
    left, logits, values = inputs(length)
    mask = generator.random((2, length)) < 0.7
    _, state = causal_singular_value_attention(*inputs(3, seed=3))
    for kept, start in ((None, None), (mask, None), (mask, state)):
        seen = []
        for scale in (1.0, 1e4, 1e15):
            later = [a.copy() for a in (left, logits, values)]
            for array in later:
                array[:, half:] *= np.float32(scale)
            tensors = [ops.cast(ops.convert_to_tensor(a), dtype) for a in later]
            outputs = attention(*tensors, kept, start, chunk_size=8 if length < 64 else 64)
            seen.append(to_numpy(outputs)[:, :half])
        np.testing.assert_array_equal(seen[1], seen[0])
        np.testing.assert_array_equal(seen[2], seen[0])


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_all_rows_that_see_it(bad):
    for place in range(3):
        arrays = inputs(20)
        arrays[place][:, 9, :, 1] = bad
        rows = to_numpy(attention(*arrays))
        seen = slice(9, 10) if place == 0 else slice(9, None)
        assert not np.isfinite(rows[:, seen]).all(axis=-1).any()


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("length", [5, 100])
def test_float64_is_float64_inside(length):
    arrays = spread(length, 100.0, "noise")
    with float64_on_jax():
        tensors = [ops.convert_to_tensor(a.astype("float64")) for a in arrays]
        outputs, state = causal_singular_value_attention(*tensors, chunk_size=8)
        assert {keras.backend.standardize_dtype(x.dtype) for x in (outputs, *state)} == {"float64"}
        outputs = np.asarray(ops.convert_to_numpy(outputs))
    np.testing.assert_allclose(outputs, twin(*arrays), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile")
def test_compiled_by_torch_with_its_gradients():
    arrays = [torch.tensor(a).requires_grad_() for a in spread(40, 200.0, "rises")]
    torch.compiler.reset()
    compiled = torch.compile(attention, backend="aot_eager")
    found = []
    for function in (attention, compiled):
        outputs = function(*arrays)
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), arrays)])
    for first, second in zip(*found, strict=True):
        assert_close(to_numpy(second.detach()), to_numpy(first.detach()), 1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-3), ("float16", 5e-4)])
def test_half_precision_is_float32_inside(dtype, tolerance):
    arrays = [ops.cast(ops.convert_to_tensor(a), dtype) for a in inputs(197)]
    outputs, state = causal_singular_value_attention(*arrays)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert {keras.backend.standardize_dtype(s.dtype) for s in state} == {"float32"}
    assert_close(to_numpy(outputs), twin(*arrays), tolerance)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("kind", "scale"), [("noise", 1.0), ("rises", 1.0), ("rises", 1e4)])
@pytest.mark.parametrize(
    "sizes", [[1] * 20, [3, 1, 9, 1], [9, 9, 3]], ids=["ones", "mixed", "long"]
)
def test_parts_in_turn_equal_the_whole(sizes, kind, scale):
    arrays = spread(sum(sizes), scale, kind)
    whole, last = causal_singular_value_attention(*arrays, chunk_size=4)
    state, parts, start = empty_running_sum(2, 2, 4, 3), [], 0
    for size in sizes:
        part = [a[:, start : start + size] for a in arrays]
        outputs, state = causal_singular_value_attention(*part, state=state, chunk_size=4)
        parts.append(to_numpy(outputs))
        start += size
    whole = to_numpy(whole)
    assert np.abs(np.concatenate(parts, axis=1) - whole).max() < 1e-6 * np.abs(whole).max()
    for mine, other in zip(state, last, strict=True):
        assert_close(to_numpy(mine), to_numpy(other), 1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="lengths unknown to the graph, and XLA")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("length", [None, 150])
def test_tensorflow_graphs_and_their_gradients(jit, length):
    import tensorflow as tf

    shapes = [tf.TensorSpec((None, length, 2, size), tf.float32) for size in (4, 4, 3)]

    @tf.function(jit_compile=jit, input_signature=shapes)
    def gradients(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            total = tf.reduce_sum(tf.square(attention(*arrays, chunk_size=2)))
        return tape.gradient(total, arrays)

    for count in (150,) if length else (1, 2, 150):
        arrays = inputs(count)
        tensors = [torch.tensor(a).double().requires_grad_() for a in arrays]
        total = reference.causal_singular_attention(*tensors).square().sum()
        expected = dict(enumerate(g.numpy() for g in torch.autograd.grad(total, tensors)))
        actual = dict(enumerate(to_numpy(g) for g in gradients(*arrays)))
        assert_all_close(actual, expected, 1e-5)


def test_memory_has_no_square_of_the_length():
    """Forward and backward at a length whose square takes 40 GB per matrix."""
    value, gradients = value_and_gradients(attention, *inputs(100_000, 1, 1, 4, 4))
    assert value.shape == (1, 100_000, 1, 4)
    assert all(np.isfinite(g).all() for g in gradients.values())


@pytest.mark.parametrize("chunk_size", [0, -2, 2.0, True])
def test_refuses_chunk_sizes(chunk_size):
    with pytest.raises(ValueError, match="`chunk_size` must be an integer of at least 1"):
        attention(*inputs(3), chunk_size=chunk_size)


@pytest.mark.all_cases
def test_an_operator_gives_the_same_each_time():
    """A call starts from the state that the operator was made with, not from the last call."""
    generator = np.random.default_rng(0)
    left, logits, x = (generator.standard_normal((1, 9, 2, 4)).astype("float32") for _ in range(3))
    operator = SingularOperator(left, logits, causal=True)
    once = to_numpy(operator(x))
    np.testing.assert_array_equal(to_numpy(operator(x)), once)
