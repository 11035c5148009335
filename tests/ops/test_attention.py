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
from tests import random_masks, reference
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)
from tests.reference_dense import apply_matrix

BATCH, HEADS, SIZE = 2, 3, 4
FORMS = ["softmax", "blockwise", "blockwise, twice", "fused"]


def arrays(length, seed=0, names=3):
    generator = np.random.default_rng(seed)
    shape = (BATCH, length, HEADS, SIZE)
    return [generator.standard_normal(shape).astype("float32") for _ in range(names)]


def operator(form, query, key, mask, block_size=32):
    if form == "softmax":
        visible = mask.joined(query.shape[1])
        return SoftmaxOperator(scores_of(query, key), visible, dtype=query.dtype)
    if form == "blockwise":
        return BlockwiseOperator(query, key, mask, block_size=block_size)
    return FusedOperator(query, key, mask)


def twice(form, mask, block_size=32):
    def function(query, key, values):
        if form == "blockwise, twice":
            return BlockwiseOperator(query, key, mask, block_size=block_size).twice(values)[1]
        apply = operator(form, query, key, mask, block_size)
        return apply(apply(values))

    return function


def naive_twice(mask=None):
    mask = None if mask is None else torch.tensor(mask, dtype=torch.float64)

    def function(query, key, values):
        matrix = reference.attention_matrix(query, key, mask)
        return apply_matrix(matrix, apply_matrix(matrix, values))

    return function


def check(form, mask, meaning, length, block_size=32, loose=1):
    inputs = arrays(length)
    value, gradients = value_and_gradients(twice(form, mask, block_size), *inputs)
    expected, expected_gradients = reference_value_and_gradients(naive_twice(meaning), *inputs)
    assert_close(value, expected, 1e-6)
    assert_all_close(gradients, expected_gradients, loose * 1e-5)


@pytest.mark.parametrize("length", [1, 2, 63, 197])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_naive_twin_in_values_and_gradients(form, length):
    causal = np.tri(length, dtype=bool)[None, None]
    check(form, Visibility(), None, length)
    check(form, Visibility(causal=True), np.broadcast_to(causal, (2, 3, length, length)), length)


@given(
    data=st.data(),
    length=st.sampled_from([1, 2, 7, 12]),
    window=st.sampled_from([None, 1, 3]),
    block_size=st.sampled_from([1, 3, 5, 12]),
)
@pytest.mark.parametrize("form", FORMS)
def test_masks_mean_the_same_to_all_forms(form, data, length, window, block_size):
    sizes = {"batch": BATCH, "length": length, "heads": HEADS}
    drawn = random_masks.draw_masks(data, **sizes)
    meaning = random_masks.joined_mask(drawn, **sizes)
    if window is not None:
        near = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) < window
        meaning = meaning & near
    keys = [drawn[name] for name in ("value_mask", "key_mask") if name in drawn]
    mask = Visibility(
        entries=drawn.get("attention_mask"),
        queries=drawn.get("query_mask"),
        keys=np.all(keys, axis=0) if keys else None,
        causal=drawn["use_causal_mask"],
        window=window,
    )
    tensors = {
        name: ops.convert_to_tensor(value)
        for name, value in mask._asdict().items()
        if isinstance(value, np.ndarray)
    }
    # Row sums of the gradient come from the outputs there: where rows see one or two keys, little
    # is left after they cancel.
    loose = 3 if form in ("blockwise, twice", "fused") else 1
    check(form, mask._replace(**tensors), meaning, length, block_size, loose)


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


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_stays_close(form, dtype, tolerance):
    mask = Visibility(causal=True)
    inputs = [ops.cast(x, dtype) for x in arrays(63)]
    outputs = twice(form, mask)(*inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    causal = np.broadcast_to(np.tri(63), (BATCH, HEADS, 63, 63))
    expected = naive_twice(causal)(*(torch.tensor(to_numpy(x)) for x in inputs))
    assert_close(to_numpy(outputs), expected.numpy(), tolerance)


@pytest.mark.skipif(BACKEND != "jax", reason="reads the traced program")
def test_blockwise_never_holds_a_square_tensor():
    import jax

    length, block_size = 256, 16
    query, key, values = (x[:1, :, :1] for x in arrays(length))
    mask = Visibility(causal=True, keys=ops.ones((1, length), "bool"))

    def loss(*inputs):
        return ops.sum(twice("blockwise", mask, block_size)(*inputs) ** 2)

    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(query, key, values)

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (v.aval.size for v in equation.outvars)
            for parameter in equation.params.values():
                inner = getattr(parameter, "jaxpr", parameter)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)

    assert block_size * length <= max(sizes(program.jaxpr)) <= 2 * block_size * length


@pytest.mark.skipif(BACKEND != "tensorflow", reason="XLA of TensorFlow is its own compiler")
@pytest.mark.parametrize("form", FORMS)
def test_gradients_under_xla(form):
    import tensorflow as tf

    inputs = [tf.constant(x) for x in arrays(63)]
    mask = Visibility(causal=True)

    @tf.function(jit_compile=True)
    def gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(twice(form, mask)(*inputs) ** 2)
        return tape.gradient(loss, inputs)

    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays(63)]
    causal = np.broadcast_to(np.tri(63), (BATCH, HEADS, 63, 63))
    expected = torch.autograd.grad((naive_twice(causal)(*tensors) ** 2).sum(), tensors)
    for actual, twin in zip(gradients(*inputs), expected, strict=True):
        assert_close(to_numpy(actual), twin.numpy(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("length", [500, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_agrees_with_naive_twin_at_length(form, length):
    check(form, Visibility(), None, length, block_size=128)


def test_two_applications_inside_rematerialisation():
    length = 40
    keys = np.random.default_rng(1).random((BATCH, length)) > 0.3

    def function(query, key, values):
        def attend(query, key, values, seen):
            mask = Visibility(keys=ops.cast(seen, "bool"), causal=True)
            return BlockwiseOperator(query, key, mask, block_size=16).twice(values)[1]

        return keras.remat(attend)(query, key, values, ops.cast(keys, "uint8"))

    meaning = keys[:, None, None, :] & np.tri(length, dtype=bool)
    meaning = np.broadcast_to(meaning, (BATCH, HEADS, length, length))
    value, gradients = value_and_gradients(function, *arrays(length))
    expected = reference_value_and_gradients(naive_twice(meaning), *arrays(length))
    assert_close(value, expected[0], 1e-6)
    assert_all_close(gradients, expected[1], 1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="the others form scores in their own kernels")
@pytest.mark.parametrize(
    "mask",
    [
        Visibility(causal=True, keys=np.ones((1, 1100), bool)),
        Visibility(window=7, keys=np.ones((1, 1100), bool)),
    ],
    ids=["causal", "window"],
)
def test_fused_never_holds_a_square_mask(mask):
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            nonlocal largest
            found = function(*arguments, **(options or {}))
            for x in found if isinstance(found, (tuple, list)) else [found]:
                largest = max(largest, x.numel() if isinstance(x, torch.Tensor) else 0)
            return found

    mask = mask._replace(keys=ops.convert_to_tensor(mask.keys))
    query, key, values = (ops.convert_to_tensor(x[:1, :, :1]) for x in arrays(1100))
    query.requires_grad_()
    with Sizes():
        torch.autograd.grad(FusedOperator(query, key, mask)(values).sum(), query)
    assert 512 * 1100 <= largest < 1100 * 1100
