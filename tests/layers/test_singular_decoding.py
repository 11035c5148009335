"""Decoding step by step, with a state of fixed size, equals the causal full pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

from keras_graphattn.layers import AttentiveGraphFilter
from tests.compiling import jit
from tests.numerics import randomise, to_numpy

FEATURES = 6


def built(**options):
    options.setdefault("dtype", "float32")
    layer = AttentiveGraphFilter(2, 4, value_dim=3, causal=True, **options)
    layer.build((None, None, FEATURES))
    randomise(layer)
    return layer


def tokens(length, batch=2):
    shape = (batch, length, FEATURES)
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def decoded(layer, x, sizes, mask=None, compiled=False):
    step = jit(layer.decode) if compiled else layer.decode
    state = layer.get_initial_state(len(x))
    shapes = [tuple(part.shape) for part in state]
    outputs, start = [], 0
    for size in sizes:
        part = ops.convert_to_tensor(x[:, start : start + size])
        kept = None if mask is None else ops.convert_to_tensor(mask[:, start : start + size])
        output, state = step(part, state, kept)
        outputs.append(to_numpy(output))
        start += size
    assert [tuple(part.shape) for part in state] == shapes
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (1, {}),
        (63, {}),
        (7, {"filter": "ones"}),
        (7, {"learned_constant": True, "use_gate": True}),
    ],
)
def test_64_tokens_equal_the_full_pass(prompt, options):
    layer, x = built(**options), tokens(64)
    outputs = decoded(layer, x, [prompt] + [1] * (64 - prompt), compiled=True)
    np.testing.assert_allclose(outputs, to_numpy(layer(x)), atol=1e-5)


@pytest.mark.slow_on("jax")
@settings(max_examples=5)
@given(data=st.data(), sizes=st.lists(st.sampled_from([1, 6]), min_size=1, max_size=4))
def test_parts_of_any_length_under_masks_equal_the_full_pass(data, sizes):
    layer, x = built(), tokens(sum(sizes))
    mask = data.draw(hnp.arrays(bool, x.shape[:2]), label="mask")
    expected = to_numpy(layer(x, query_mask=mask, value_mask=mask))
    np.testing.assert_allclose(decoded(layer, x, sizes, mask), expected, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 3e-2), ("float16", 4e-3)])
def test_half_precision_keeps_a_float32_state(dtype, tolerance):
    layer, x = built(dtype=f"mixed_{dtype}"), tokens(64)
    outputs = decoded(layer, x, [32] + [1] * 32)
    np.testing.assert_allclose(outputs, to_numpy(layer(x)), atol=tolerance)


def test_refuses_a_layer_that_is_not_causal():
    layer = AttentiveGraphFilter(2, 4)
    with pytest.raises(ValueError, match=r"`get_initial_state` needs the causal form"):
        layer.get_initial_state(1)
    with pytest.raises(ValueError, match=r"`decode` needs the causal form"):
        layer.decode(tokens(1), None)


def test_refuses_tokens_of_another_rank():
    layer = built()
    with pytest.raises(ValueError, match=r"`tokens` must have shape \(B, t, d\)"):
        layer.decode(np.ones((1, FEATURES), "float32"), layer.get_initial_state(1))
