"""Operators of attention against the matrices that they never form: one table, one property each.

Each form is applied twice, as a filter does, but for p-Laplacian attention, whose operator depends
on the values.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.operators import BlockwiseOperator, FusedOperator, Visibility
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of
from keras_graphattn.ops import p_laplacian_attention
from tests import random_masks, reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.tensor_sizes import largest_tensor

BATCH, HEADS, SIZE = 2, 3, 4
P = [1.5, 2.0, 2.5]


class Form(NamedTuple):
    outputs: Callable[..., Any]  # of queries, keys, values, a mask and the size of blocks
    twin: Callable[..., Any]  # of queries, keys, values, the mask's meaning and the tokens seen
    floor: float = 0.0  # values smaller than this are compared with it
    loose: int = 1  # how much more gradients may be off where rows see one or two keys


def softmax(query, key, values, mask, block_size):
    visible = mask.joined(query.shape[1])
    apply = SoftmaxOperator(scores_of(query, key), visible, dtype=query.dtype)
    return apply(apply(values))


def blockwise(query, key, values, mask, block_size):
    apply = BlockwiseOperator(query, key, mask, block_size=block_size)
    return apply(apply(values))


def blockwise_twice(query, key, values, mask, block_size):
    return BlockwiseOperator(query, key, mask, block_size=block_size).twice(values)[1]


def fused(query, key, values, mask, block_size):
    apply = FusedOperator(query, key, mask)
    return apply(apply(values))


def naive_twice(query, key, values, meaning, keys):
    matrix = reference.attention_matrix(query, key, meaning)
    return reference.apply_matrix(matrix, reference.apply_matrix(matrix, values))


def p_laplacian(drop):
    def outputs(query, key, values, mask, block_size):
        options = {"drop_diagonal": drop, "block_size": block_size}
        return p_laplacian_attention(query, key, values, P, mask, epsilon=0.1, **options)

    def twin(query, key, values, meaning, keys):
        options = (P, 0.1, meaning, drop, keys)
        matrix = reference.p_laplacian_matrix(query, key, values, *options)
        return reference.apply_matrix(matrix, values)

    return Form(outputs, twin, 1e-3, 3)


# `twice` and the fused kernel take row sums of the gradient from the outputs: little is left after
# they cancel.
FORMS = {
    "softmax": Form(softmax, naive_twice),
    "blockwise": Form(blockwise, naive_twice),
    "blockwise, twice": Form(blockwise_twice, naive_twice, loose=3),
    "fused": Form(fused, naive_twice, loose=3),
    "p-Laplacian": p_laplacian(False),
    "p-Laplacian, no diagonal": p_laplacian(True),
}
EACH_FORM = pytest.mark.parametrize("form", FORMS)


def arrays(length, seed=0):
    generator = np.random.default_rng(seed)
    shape = (BATCH, length, HEADS, SIZE)
    return [generator.standard_normal(shape).astype("float32") for _ in range(3)]


def bound(form, mask, block_size=32):
    return lambda *inputs: FORMS[form].outputs(*inputs, mask, block_size)


def twin_of(form, meaning=None, keys=None):
    meaning = None if meaning is None else torch.tensor(meaning, dtype=torch.float64)
    return lambda *inputs: FORMS[form].twin(*inputs, meaning, keys)


def triangle(length):
    return np.broadcast_to(np.tri(length, dtype=bool), (BATCH, HEADS, length, length))


def check(form, mask, meaning, length, block_size=32, loose=1):
    keys = None if mask.keys is None else to_numpy(mask.keys)
    inputs = arrays(length)
    value, gradients = value_and_gradients(bound(form, mask, block_size), *inputs)
    expected, slopes = reference_value_and_gradients(twin_of(form, meaning, keys), *inputs)
    assert_close(value, expected, 1e-6, FORMS[form].floor)
    assert_all_close(gradients, slopes, loose * 1e-5)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@EACH_FORM
def test_agrees_with_naive_twin_in_values_and_gradients(form, length):
    check(form, Visibility(), None, length)
    for block_size in (32, 1000):
        check(form, Visibility(causal=True), triangle(length), length, block_size)


@given(
    data=st.data(),
    length=st.sampled_from([1, 2, 7, 12]),
    window=st.sampled_from([None, 1, 3]),
    block_size=st.sampled_from([1, 3, 5, 12]),
)
@EACH_FORM
def test_masks_mean_the_same_to_all_forms(form, data, length, window, block_size):
    sizes = {"batch": BATCH, "length": length, "heads": HEADS}
    drawn = random_masks.draw_masks(data, **sizes)
    meaning = random_masks.joined_mask(drawn, **sizes)
    if window is not None:
        near = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) < window
        meaning = meaning & near
    parts = drawn.get("attention_mask"), drawn.get("query_mask"), random_masks.visible_keys(drawn)
    tensors = (None if part is None else ops.convert_to_tensor(part) for part in parts)
    mask = Visibility(*tensors, causal=drawn["use_causal_mask"], window=window)
    check(form, mask, meaning, length, block_size, FORMS[form].loose)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
@EACH_FORM
def test_half_precision_stays_close(form, dtype, tolerance):
    inputs = [ops.cast(x, dtype) for x in arrays(63)]
    outputs = bound(form, Visibility(causal=True), 16)(*inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    expected = twin_of(form, triangle(63))(*(torch.tensor(to_numpy(x)).double() for x in inputs))
    assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="XLA of TensorFlow is its own compiler")
@EACH_FORM
def test_gradients_under_xla(form):
    function = bound(form, Visibility(causal=True), 16)
    _, gradients = value_and_gradients(function, *arrays(63), way="xla")
    _, expected = reference_value_and_gradients(twin_of(form, triangle(63)), *arrays(63))
    for place, twin in expected.items():
        assert_close(gradients[place], twin, 1e-5)


def test_two_applications_inside_rematerialisation():
    length = 40
    keys = np.random.default_rng(1).random((BATCH, length)) > 0.3

    def function(query, key, values):
        def attend(query, key, values, seen):
            mask = Visibility(keys=ops.cast(seen, "bool"), causal=True)
            return blockwise_twice(query, key, values, mask, 16)

        return keras.remat(attend)(query, key, values, ops.cast(keys, "uint8"))

    twin = twin_of("blockwise", keys[:, None, None, :] & triangle(length))
    value, gradients = value_and_gradients(function, *arrays(length))
    expected, slopes = reference_value_and_gradients(twin, *arrays(length))
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, slopes, 1e-5)


# Blocks of rows


@given(data=st.data())
def test_blind_rows_are_zeroed_block_by_block(data):
    sizes = {"batch": BATCH, "length": 7, "heads": HEADS}
    keys = data.draw(hnp.arrays(bool, (BATCH, 7)))
    causal = data.draw(st.booleans())
    meaning = random_masks.joined_mask({"key_mask": keys, "use_causal_mask": causal}, **sizes)
    mask = Visibility(keys=ops.convert_to_tensor(keys), causal=causal)
    outputs = mask.zero_other_rows(ops.ones((BATCH, 7, HEADS, 2)), block_size=3)
    expected = meaning.any(-1).transpose(0, 2, 1)[..., None] * np.ones(2)
    np.testing.assert_array_equal(to_numpy(outputs), expected)


def test_blocks_see_their_rows_and_all_of_the_rest():
    x = np.arange(2 * 7 * 3, dtype="float32").reshape(2, 7, 3)
    for block_size in (1, 2, 3, 7, 20):
        sums = map_query_blocks(
            lambda rows, t: t["x"] * ops.cast(rows, "float32")[:, None] + ops.sum(t["all"]),
            {"x": ops.convert_to_tensor(x)},
            {"all": ops.convert_to_tensor(x)},
            7,
            block_size,
        )
        np.testing.assert_allclose(to_numpy(sums), x * np.arange(7)[:, None] + x.sum(), rtol=1e-6)


def visible(x):
    """A mask with an entry for each pair, which is formed for a block of rows at a time."""
    places = ops.arange(x.shape[1])
    entries = places[:, None] % 3 >= places[None, :] % 3  # every row sees some
    return Visibility(entries=entries[None, None])


def blind_rows(x):
    mask = visible(x)
    seen = ops.logical_and(mask.entries, x[:, None, :, 0, :1] > 0)
    return mask._replace(entries=seen).zero_other_rows(x, 4)


OF_OPEN_LENGTH = {
    **{
        form: lambda x, form=form: FORMS[form].outputs(x, x, x, visible(x), 4)
        for form in ("blockwise", "blockwise, twice", "p-Laplacian")
    },
    "rows that see nothing": blind_rows,
}


@pytest.mark.skipif(BACKEND != "jax", reason="other backends do not derive lengths")
@pytest.mark.parametrize("name", OF_OPEN_LENGTH)
@pytest.mark.slow_on("jax")
def test_an_open_length_is_known_to_stay(name):
    """As in an export. A residual connection adds inputs and outputs, so it needs equal lengths."""
    import jax

    def function(x):
        return x + OF_OPEN_LENGTH[name](x)

    shape = jax.export.symbolic_shape(f"batch, length, {HEADS}, {SIZE}")
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, "float32"))
    for length in (1, 3, 4, 5, 12):
        x = arrays(length)[0]
        np.testing.assert_allclose(exported.call(x), to_numpy(function(x)), rtol=1e-5, atol=1e-6)


# Memory


@pytest.mark.skipif(BACKEND != "jax", reason="reads the traced program")
def test_blockwise_never_holds_a_square_tensor():
    length, block_size = 256, 16
    mask = Visibility(causal=True, keys=ops.ones((1, length), "bool"))

    def squares(*inputs):
        return bound("blockwise", mask, block_size)(*inputs) ** 2

    largest = largest_tensor(squares, [x[:1, :, :1] for x in arrays(length)])
    assert block_size * length <= largest <= 2 * block_size * length


@pytest.mark.skipif(BACKEND != "torch", reason="the others form scores in their own kernels")
@pytest.mark.parametrize("part", [{"causal": True}, {"window": 7}], ids=["causal", "window"])
def test_fused_never_holds_a_square_mask(part):
    mask = Visibility(keys=ops.ones((1, 1100), "bool"), **part)
    largest = largest_tensor(bound("fused", mask), [x[:1, :, :1] for x in arrays(1100)])
    assert 512 * 1100 <= largest < 1100 * 1100
