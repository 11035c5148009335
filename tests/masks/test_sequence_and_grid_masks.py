"""Masks of sequences and grids: M x against M at random lengths, compiled and not, in a layer.

Other files test the entries of M. Here the paths are compared with `dense`.
"""

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_graphattn.layers import MaskedKernelAttention
from keras_graphattn.masks import (
    BlockToeplitz,
    Causal,
    Exponential,
    LowRank,
    Mask,
    Product,
    Segments,
    StochasticPositions,
    Toeplitz,
)
from tests import reference_kernel
from tests.masks.test_chunked_masks import random_ids, with_weights
from tests.numerics import (
    BACKEND,
    assert_all_close,
    assert_close,
    randomise,
    reference_weights,
    to_numpy,
    value_and_gradients,
)

HEADS, FEATURES, WIDTH, LENGTH = 2, 3, 2, 140
SEQUENCES = {
    "causal": lambda n: Causal(),
    "segments": lambda n: Segments(),
    "exponential": lambda n: Exponential(2),
    "one-sided exponential": lambda n: Exponential(causal=True),
    "toeplitz": Toeplitz,
    "one-sided toeplitz": lambda n: Toeplitz(n, causal=True),
    "alibi": lambda n: Toeplitz.alibi(n, causal=False),
    "low rank": lambda n: LowRank(2, n),
    "stochastic positions": lambda n: StochasticPositions(2, seed=0),
    "packed, causal, exponential": lambda n: Product([Causal(), Segments(), Exponential()]),
    "low rank, causal": lambda n: Product([LowRank(2, n), Causal()]),
    "toeplitz, causal": lambda n: Product([Toeplitz(n), Causal()]),
    "toeplitz, segments": lambda n: Product([Toeplitz(n), Segments()]),
}
GRIDS = {
    "grid": lambda shape: BlockToeplitz(shape, 1),
    "grid by distance": lambda shape: BlockToeplitz(shape, form="distance"),
    "grid of low rank": lambda shape: Product(
        [BlockToeplitz(shape), LowRank(2, int(np.prod(shape)))]
    ),
}
# JAX compiles every shape: the fast tests run only a few of them, the slow tests the others.
FEW = BACKEND == "jax"
LENGTHS = st.sampled_from([1, 63, 1000]) if FEW else st.integers(1, 1000)
SHAPES = st.one_of(
    st.tuples(st.integers(1, 400)),
    st.tuples(st.integers(1, 25), st.integers(1, 25)),
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
)
FEW_SHAPES = st.sampled_from([(9,), (1, 6), (2, 3, 4)])


def built(mask, length):
    mask.build((None, length, HEADS, WIDTH))
    randomise(mask)
    return mask, {"segment_ids": random_ids(length)} if mask.inputs_at_call else {}


def signal(length, width=WIDTH, seed=0):
    shape = (2, length, HEADS, width)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def features(length):
    return [np.abs(signal(length, FEATURES, seed)) + 1e-3 for seed in (1, 2)]


def compiled_value_and_gradients(function, *arrays):
    """`value_and_gradients`, on TensorFlow compiled by XLA."""
    if BACKEND != "tensorflow":
        return value_and_gradients(function, *arrays)
    import tensorflow as tf

    weights = np.random.default_rng(7)

    @tf.function(jit_compile=True)
    def compiled(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
            cotangent = weights.standard_normal(value.shape).astype("float32")
            loss = tf.reduce_sum(value * cotangent)
        return value, tape.gradient(loss, tensors)

    value, gradients = compiled(*(tf.constant(a, "float32") for a in arrays))
    return to_numpy(value), {i: to_numpy(g) for i, g in enumerate(gradients)}


def by_matrix(mask, x, inputs):
    """Returns dense() @ x."""
    matrix = keras.ops.broadcast_to(
        mask.dense(x.shape[1], **inputs), (len(x), HEADS, x.shape[1], x.shape[1])
    )
    return keras.ops.einsum("bnts,bsnd->btnd", matrix, x)


def check_signals(mask, length, path="auto", compiled=False):
    """Compares `apply` with `dense() @ x`: values, and gradients of x and of every weight."""
    mask, inputs = built(mask, length)
    arrays = (signal(length), *(to_numpy(w) for w in mask.trainable_variables))
    expected = value_and_gradients(
        with_weights(mask, lambda x: by_matrix(mask, x, inputs)), *arrays
    )
    fast = with_weights(mask, lambda x: mask.apply(x, path, **inputs))
    found = (compiled_value_and_gradients if compiled else value_and_gradients)(fast, *arrays)
    assert_close(found[0], expected[0], 1e-5, floor=1e-3)
    assert_all_close(found[1], expected[1], 1e-5)


@pytest.mark.parametrize("name", SEQUENCES)
@settings(max_examples=2 if FEW else 4)
@given(data=st.data())
def test_signals_at_any_length(name, data):
    length = data.draw(LENGTHS)
    mask = SEQUENCES[name](length)
    check_signals(mask, length, data.draw(st.sampled_from([mask.paths[-1], "auto"])))


@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=3 if FEW else 6)
@given(data=st.data())
def test_signals_on_any_grid(name, data):
    mask = GRIDS[name](data.draw(FEW_SHAPES if FEW else SHAPES))
    check_signals(mask, mask_length(mask), data.draw(st.sampled_from([mask.paths[-1], "auto"])))


def mask_length(mask):
    return mask._known_length({})


@pytest.mark.parametrize("path", ["dense", "blockwise"])
def test_one_matrix_of_300_rows_for_all_examples(path):
    """In TensorFlow 2.21, XLA's sum over examples after a product is wrong above 256 rows."""
    check_signals(SEQUENCES["exponential"](300), 300, path, compiled=True)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data(), name=st.sampled_from([*SEQUENCES]), compiled=st.booleans())
def test_signals_at_many_lengths(name, compiled, data):
    length = data.draw(st.integers(1, 1000))
    mask = SEQUENCES[name](length)
    check_signals(mask, length, data.draw(st.sampled_from(mask.paths)), compiled)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data(), name=st.sampled_from([*GRIDS]), compiled=st.booleans())
def test_signals_on_many_grids(name, compiled, data):
    mask = GRIDS[name](data.draw(SHAPES))
    check_signals(mask, mask_length(mask), data.draw(st.sampled_from(mask.paths)), compiled)


EVERY = {
    **{name: (lambda make=make: make(LENGTH)) for name, make in SEQUENCES.items()},
    **{name: (lambda make=make: make((7, 10))) for name, make in GRIDS.items()},
}


@pytest.mark.parametrize("name", EVERY)
def test_attention_compiled(name):
    """Every path by XLA on TensorFlow; on JAX, which compiles by default, also eagerly."""
    mask = EVERY[name]()
    length = mask_length(mask) if name in GRIDS else LENGTH
    mask, inputs = built(mask, length)
    arrays = (*features(length), signal(length), *(to_numpy(w) for w in mask.trainable_variables))
    expected = value_and_gradients(attend(mask, "dense", inputs), *arrays)
    mask.block_size = 20
    for path in ("blockwise", *mask.paths[2:]):
        if BACKEND == "jax":
            found = to_numpy(attend(mask, path, inputs)(*map(np.float32, arrays)))
            assert_close(found, expected[0], 1e-5)
            continue
        found = compiled_value_and_gradients(attend(mask, path, inputs), *arrays)
        assert_close(found[0], expected[0], 1e-5)
        assert_all_close(found[1], expected[1], 1e-5)


def attend(mask, path, inputs):
    return with_weights(mask, lambda query, key, x: mask.attend(query, key, x, path, **inputs))


@pytest.mark.parametrize("name", EVERY)
def test_the_layer_is_the_normalised_matrix(name):
    """D^-1 [(phi(Q) phi(K)^T) o M] V, on the default path and on the mask's own path."""
    for path in dict.fromkeys(["auto", EVERY[name]().paths[-1]]):
        mask = EVERY[name]()
        length = mask_length(mask) if name in GRIDS else LENGTH
        layer = MaskedKernelAttention(HEADS, 4, mask=mask, path=path)
        x = np.random.default_rng(0).standard_normal((2, length, 6)).astype("float32")
        layer.build(x.shape)
        randomise(layer)
        inputs = {"segment_ids": random_ids(length)} if mask.inputs_at_call else {}
        matrix = torch.tensor(to_numpy(mask.dense(length, **inputs))).double()
        expected = reference_kernel.layer_outputs(
            torch.tensor(x).double(), reference_weights(layer), matrix
        )
        found = layer(x, mask_inputs=inputs or None)
        assert_close(to_numpy(found), expected.numpy(), 1e-5)


ONE_SIDED = [
    "causal",
    "one-sided exponential",
    "one-sided toeplitz",
    "packed, causal, exponential",
    "low rank, causal",
    "toeplitz, causal",
]


@pytest.mark.parametrize("name", ONE_SIDED)
def test_no_path_sees_the_future(name):
    """Outputs stay equal bit for bit, at a position inside a chunk, a tile and a block."""
    length = 300
    mask, inputs = built(SEQUENCES[name](length), length)
    mask.block_size = 128
    assert mask.is_causal
    query, key, x = *features(length), signal(length)
    later = (np.arange(length) >= 201)[:, None, None]
    changed = [np.where(later, 1e6 * a, a).astype("float32") for a in (query, key, x)]
    for path in mask.paths:
        one, two = (
            to_numpy(mask.attend(*arrays, path, **inputs)) for arrays in ((query, key, x), changed)
        )
        np.testing.assert_array_equal(one[:, :201], two[:, :201], err_msg=path)
        assert (one[:, 201:] != two[:, 201:]).any()


@pytest.mark.parametrize("name", ["segments", "packed, causal, exponential", "toeplitz, segments"])
def test_no_path_sees_a_neighbour(name):
    """Outputs stay equal bit for bit; an id that occurs again begins a new segment."""
    length = 300
    mask, _ = built(SEQUENCES[name](length), length)
    mask.block_size = 128
    ids = np.repeat([[1, 2, -1, 1]], [100, 101, 9, 90], axis=1).repeat(2, axis=0).astype("int32")
    query, key, x = *features(length), signal(length)
    inside = ((np.arange(length) >= 100) & (np.arange(length) < 201))[:, None, None]
    for kept in (inside, (np.arange(length) >= 210)[:, None, None]):
        changed = [np.where(kept, a, -1e6 * a).astype("float32") for a in (query, key, x)]
        rows = kept[:, 0, 0]
        for path in mask.paths:
            one, two = (
                to_numpy(mask.attend(*arrays, path, segment_ids=ids))
                for arrays in ((query, key, x), changed)
            )
            np.testing.assert_array_equal(one[:, rows], two[:, rows], err_msg=path)
            assert (one[:, ~rows] != two[:, ~rows]).any()
            assert (one[:, 201:210] == 0.0).all()


def test_nothing_is_left_out():
    """Every mask class is tested here, or with the topology masks, or in its own file."""
    from keras_graphattn import masks

    made = {type(make()) for make in EVERY.values()}
    elsewhere = {"Entries", "GraphDiffusion", "GraphRandomFeatures", "Hypercube", "Mask"}
    elsewhere |= {"RandomWalk", "Tree"}
    classes = {getattr(masks, name) for name in masks.__all__}
    assert {c.__name__ for c in classes - made} == elsewhere
    assert all(issubclass(c, Mask) for c in classes)
