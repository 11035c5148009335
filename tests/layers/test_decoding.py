"""Decoding step by step equals the causal full pass."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import GraphFilterAttention, PLaplacianAttention
from tests.compiling import jit
from tests.numerics import BACKEND, randomise, to_numpy

FEATURES = 12


def built(kind, **options):
    options.setdefault("dtype", "float32")
    layer = kind(4, 3, **options)
    layer.build((None, None, FEATURES))
    randomise(layer)
    return layer


def tokens(length, batch=2, seed=0):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def full_pass(layer, x, padding_mask=None):
    return to_numpy(
        layer(x, query_mask=padding_mask, value_mask=padding_mask, use_causal_mask=True)
    )


def decoded(layer, x, sizes, padding_mask=None, max_length=None, compiled=False):
    """The outputs of decoding `sizes` tokens at a time."""
    step = jit(layer.decode) if compiled else layer.decode
    cache = layer.get_initial_cache(len(x), max_length or x.shape[1])
    outputs, index = [], 0
    for size in sizes:
        part = ops.convert_to_tensor(x[:, index : index + size])
        mask = None if padding_mask is None else padding_mask[:, index : index + size]
        mask = None if mask is None else ops.convert_to_tensor(mask)
        at = ops.convert_to_tensor(index, dtype="int32") if compiled else index
        output, cache = step(part, cache, at, mask)
        outputs.append(to_numpy(output))
        index += size
    assert index == x.shape[1]
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("graph_filter", ["first_order", "chebyshev"])
def test_64_tokens_equal_the_causal_full_pass(graph_filter, order):
    layer, x = built(GraphFilterAttention, filter=graph_filter, order=order), tokens(64)
    outputs = decoded(layer, x, [1] * 64, max_length=70, compiled=True)
    np.testing.assert_allclose(outputs, full_pass(layer, x), atol=1e-5)


@pytest.mark.parametrize("diagonal", ["smooth", "drop"])
def test_64_tokens_of_p_laplacian_attention(diagonal):
    layer, x = built(PLaplacianAttention, diagonal=diagonal), tokens(64)
    outputs = decoded(layer, x, [1] * 64, max_length=70, compiled=True)
    np.testing.assert_allclose(outputs, full_pass(layer, x), atol=1e-5)


@pytest.mark.slow_on("jax")
@given(
    kind=st.sampled_from([GraphFilterAttention, PLaplacianAttention]),
    sizes=st.sampled_from([(8,), (1, 5, 1, 1), (5, 3)]),
    window=st.sampled_from([None, 1, 3]),
    groups=st.sampled_from([None, 1, 2]),
    use_gate=st.booleans(),
    padding=st.sampled_from(["none", "left", "right", "any"]),
    seed=st.integers(0, 9),
)
def test_prompts_windows_groups_and_padding(kind, sizes, window, groups, use_gate, padding, seed):
    options = {"sliding_window": window, "num_key_value_heads": groups, "use_gate": use_gate}
    layer, length = built(kind, **options), 8
    generator = np.random.default_rng(seed)
    kept = generator.integers(0, length + 1, (2, 1))
    mask = {
        "none": None,
        "left": np.arange(length)[None] >= kept,
        "right": np.arange(length)[None] < kept,
        "any": generator.random((2, length)) < 0.6,
    }[padding]
    x = tokens(length, seed=seed)
    outputs = decoded(layer, x, sizes, mask, max_length=length + 3)
    np.testing.assert_allclose(outputs, full_pass(layer, x, mask), atol=1e-5)


@pytest.mark.parametrize("kind", [GraphFilterAttention, PLaplacianAttention])
def test_right_padded_prompts_are_written_over(kind):
    """Prompts of different lengths in one batch: the shorter one goes on where it ends."""
    layer, x, lengths = built(kind), tokens(6), np.array([3, 5])
    prompt = np.where(np.arange(6)[None, :, None] < lengths[:, None, None], x, 9.0)
    cache = layer.get_initial_cache(2, 6)
    mask = np.arange(6)[None] < lengths[:, None]
    _, cache = layer.decode(prompt, cache, 0, mask)
    outputs = []
    for index in range(3, 6):
        output, cache = layer.decode(x[:, index : index + 1], cache, index)
        outputs.append(to_numpy(output))
    expected = full_pass(layer, x)[:, 3:]
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("kind", [GraphFilterAttention, PLaplacianAttention])
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(kind, dtype):
    layer, x = built(kind, dtype=dtype), tokens(9)
    cache = layer.get_initial_cache(2, 9)
    assert keras.backend.standardize_dtype(cache["signals"].dtype) == layer.compute_dtype
    outputs, expected = decoded(layer, x, [4, 1, 4]), full_pass(layer, x)
    tolerance = {"mixed_bfloat16": 0.05, "mixed_float16": 0.01}[dtype]
    np.testing.assert_allclose(outputs, expected, atol=tolerance * np.abs(expected).max())


def test_the_cache_holds_one_signal_for_each_application():
    for options, signals in (
        ({"order": 1}, 1),
        ({"order": 5}, 2),
        ({"order": 5, "filter": "legendre"}, 5),
    ):
        cache = built(GraphFilterAttention, **options).get_initial_cache(2, 7)
        assert tuple(cache["signals"].shape) == (2, signals, 7, 4, 3)
    cache = built(GraphFilterAttention, num_key_value_heads=2).get_initial_cache(2, 7)
    assert tuple(cache["key"].shape) == (2, 7, 2, 3)


def test_refuses_tokens_that_do_not_fit():
    layer = built(GraphFilterAttention)
    cache = layer.get_initial_cache(2, 4)
    for count, index in ((5, 0), (1, 4), (3, 2)):
        with pytest.raises(ValueError, match=r"cache holds 4 tokens.*Received"):
            layer.decode(tokens(count), cache, index)
    with pytest.raises(ValueError, match=r"`index`.*at least 0"):
        layer.decode(tokens(1), cache, -1)
    with pytest.raises(ValueError, match=r"`tokens` must have shape \(B, t, d\)"):
        layer.decode(tokens(3)[:, 0], cache, 0)


@pytest.mark.parametrize("kind", [GraphFilterAttention, PLaplacianAttention])
def test_a_tensor_as_index_has_the_same_limits(kind):
    layer, x = built(kind), tokens(2)
    _, cache = layer.decode(x, layer.get_initial_cache(2, 4), 0)
    right = to_numpy(layer.decode(x, cache, 2)[0])
    step = jit(layer.decode)
    for index in (-1, 2, 3, 9):
        for make in (np.array, ops.convert_to_tensor):
            if index == 2:
                found = to_numpy(layer.decode(x, cache, make(index))[0])
                np.testing.assert_array_equal(found, right)
                continue
            with pytest.raises(ValueError, match=rf"Received: .*index={index}"):
                layer.decode(x, cache, make(index))
        if BACKEND == "torch":
            continue  # it compiles too slowly for a test
        found = to_numpy(step(x, cache, ops.convert_to_tensor(index, "int32"))[0])
        if index == 2:
            np.testing.assert_allclose(found, right, atol=1e-6)
        else:
            assert np.isnan(found).all()
