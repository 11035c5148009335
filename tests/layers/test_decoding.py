"""Decoding step by step, with a cache or with a state of fixed size, equals the full pass."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_graphattn.layers import (
    AttentiveGraphFilter,
    DifferentialAttention,
    GatedDeltaRule,
    GraphFilterAttention,
    MaskedKernelAttention,
    PLaplacianAttention,
)
from keras_graphattn.masks import Causal, Exponential, GatedDecay, LowRank, Segments
from tests.compiling import jit
from tests.layers.decoding import decoded, initial_state
from tests.layers.twins import CHANNELS, built, tokens, with_a_mask
from tests.numerics import BACKEND, to_numpy, value_and_gradients

GFA, P_LAPLACIAN, AGF = GraphFilterAttention, PLaplacianAttention, AttentiveGraphFilter
KERNEL, DIFFERENTIAL, DELTA = MaskedKernelAttention, DifferentialAttention, GatedDeltaRule
CACHED = (GFA, P_LAPLACIAN, DIFFERENTIAL)
FORMS = {  # the class, its options, and tokens of the prompt
    **{f"order {order}": (GFA, {"order": order}, 1) for order in (1, 3, 5)},
    **{f"Chebyshev {k}": (GFA, {"filter": "chebyshev", "order": k}, 7) for k in (1, 4)},
    "differential": (DIFFERENTIAL, {}, 1),
    "differential 2": (DIFFERENTIAL, {"version": 2, "filter": "chebyshev", "order": 2}, 7),
    "p-Laplacian": (P_LAPLACIAN, {}, 1),
    "p-Laplacian, drop": (P_LAPLACIAN, {"diagonal": "drop"}, 1),
    "AGF": (AGF, {"causal": True}, 1),
    "AGF, long prompt": (AGF, {"causal": True}, 63),
    "AGF, ones": (AGF, {"causal": True, "filter": "ones"}, 7),
    "AGF, constant": (AGF, {"causal": True, "learned_constant": True, "use_gate": True}, 7),
    "delta rule": (DELTA, {}, 1),
    "delta rule, filter": (DELTA, {"filter": "chebyshev", "order": 2, "convolution": None}, 7),
    "kernel": (KERNEL, {}, 1),
    "kernel, FAVOR+": (KERNEL, {"mask": Causal, "feature_map": "favor"}, 1),
    "kernel, filter": (
        KERNEL,
        {"mask": lambda: Exponential(2, causal=True), "filter": "first_order"},
        1,
    ),
    "kernel, gated decay": (KERNEL, {"mask": GatedDecay, "filter": "first_order"}, 1),
    "kernel, gate": (KERNEL, {"mask": Exponential, "filter": "chebyshev", "use_gate": True}, 7),
}


def layer_of(kind, **options):
    return built(lambda: kind(4, 3, **with_a_mask(options)))


def full_pass(layer, x, mask=None, inputs=None):
    call = {} if inputs is None else {"mask_inputs": inputs}
    return to_numpy(layer(x, query_mask=mask, value_mask=mask, use_causal_mask=True, **call))


@pytest.mark.parametrize("name", FORMS)
def test_64_tokens_equal_the_full_pass(name):
    kind, options, prompt = FORMS[name]
    layer, x = layer_of(kind, **options), tokens(64)
    sizes = [prompt] + [1] * (64 - prompt)
    state = initial_state(layer, 2, 70)
    outputs, _ = decoded(layer, x, sizes, state=state, compiled=True)
    np.testing.assert_allclose(to_numpy(outputs), full_pass(layer, x), atol=1e-5)


@pytest.mark.slow_on("jax")
@given(
    kind=st.sampled_from(CACHED),
    sizes=st.sampled_from([(8,), (1, 5, 1, 1), (5, 3)]),
    window=st.sampled_from([None, 1, 3]),
    groups=st.sampled_from([None, 1, 2]),
    use_gate=st.booleans(),
    padding=st.sampled_from(["none", "left", "right", "any"]),
    seed=st.integers(0, 9),
)
def test_prompts_windows_groups_and_padding(kind, sizes, window, groups, use_gate, padding, seed):
    layer = layer_of(kind, sliding_window=window, num_key_value_heads=groups, use_gate=use_gate)
    generator = np.random.default_rng(seed)
    kept = generator.integers(0, 9, (2, 1))
    mask = {
        "none": None,
        "left": np.arange(8)[None] >= kept,
        "right": np.arange(8)[None] < kept,
        "any": generator.random((2, 8)) < 0.6,
    }[padding]
    x = tokens(8, seed=seed)
    outputs, _ = decoded(layer, x, sizes, mask, state=initial_state(layer, 2, 11))
    np.testing.assert_allclose(to_numpy(outputs), full_pass(layer, x, mask), atol=1e-5)


@pytest.mark.slow_on("jax")
@settings(max_examples=5)
@pytest.mark.parametrize(
    "name", ["AGF", "kernel", "kernel, gated decay", "packed", "delta rule", "delta rule, packed"]
)
@given(sizes=st.lists(st.sampled_from([1, 6, 49]), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_parts_of_any_length_with_padding_and_segments(name, sizes, seed):
    kind, options, _ = FORMS.get(name.removesuffix(", packed"), (KERNEL, {"mask": Segments}, 1))
    layer, x, generator = layer_of(kind, **options), tokens(sum(sizes)), np.random.default_rng(seed)
    mask = generator.random(x.shape[:2]) < 0.7
    ids = np.sort(generator.integers(0, 4, x.shape[:2])).astype("int32")
    inputs = {"segment_ids": ids} if name.endswith("packed") else None
    outputs, _ = decoded(layer, x, sizes, mask, inputs)
    np.testing.assert_allclose(to_numpy(outputs), full_pass(layer, x, mask, inputs), atol=1e-5)


@pytest.mark.parametrize("kind", CACHED)
@pytest.mark.slow_on("jax")
def test_right_padded_prompts_are_written_over(kind):
    """Prompts of different lengths in one batch: the shorter one goes on where it ends."""
    layer, x, lengths = layer_of(kind), tokens(6), np.array([3, 5])
    prompt = np.where(np.arange(6)[None, :, None] < lengths[:, None, None], x, 9.0)
    mask = np.arange(6)[None] < lengths[:, None]
    _, cache = layer.decode(prompt, layer.get_initial_cache(2, 6), 0, mask)
    outputs = []
    for index in range(3, 6):
        output, cache = layer.decode(x[:, index : index + 1], cache, index)
        outputs.append(to_numpy(output))
    expected = full_pass(layer, x)[:, 3:]
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("kind", "held"), [(GFA, 0.0), (P_LAPLACIAN, np.nan), (DIFFERENTIAL, 0.0)])
def test_prompts_see_neither_padding_nor_what_the_cache_held(kind, held, window):
    layer, x = layer_of(kind, sliding_window=window), tokens(7)
    mask = np.arange(7)[None] >= np.array([[3], [1]])
    rows = ops.convert_to_tensor(mask[:, :, None])

    def outputs(x):
        cache = layer.get_initial_cache(2, 9)
        cache["signals"] = ops.full_like(cache["signals"], held)
        return ops.where(rows, layer.decode(x, cache, 0, mask)[0], 0.0)

    found = []
    for value in (1.0, 1e15, np.nan):
        changed = np.where(mask[:, :, None], x, np.float32(value))
        if BACKEND == "tensorflow":  # which has no gradient of `slice_update`
            found.append((to_numpy(outputs(ops.convert_to_tensor(changed))),))
        else:
            outcome, gradients = value_and_gradients(outputs, changed)
            found.append((outcome, gradients[0]))
            assert (gradients[0][~mask] == 0).all()
    for other in found[1:]:
        for one, right in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(one, right)
    assert np.abs(found[0][0]).max() > 0


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(
    "name", ["order 3", "p-Laplacian", "AGF", "delta rule", "kernel", "kernel, gated decay"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision(name, dtype, tolerance):
    kind, options, _ = FORMS[name]
    layer, x = layer_of(kind, dtype=f"mixed_{dtype}", **options), tokens(64)
    (outputs, state), expected = decoded(layer, x, [32] + [4] * 8), full_pass(layer, x)
    close = {"atol": tolerance * np.abs(expected).max()}
    np.testing.assert_allclose(to_numpy(outputs), expected, **close)
    parts = [state["signals"]] if kind in CACHED else keras.tree.flatten(state)
    dtypes = {keras.backend.standardize_dtype(part.dtype) for part in parts}
    assert dtypes - {"int32"} == {dtype if kind in CACHED else "float32"}


def test_the_cache_holds_one_signal_for_each_application():
    for options, signals in (
        ({"order": 1}, 1),
        ({"order": 5}, 2),
        ({"order": 5, "filter": "legendre"}, 5),
    ):
        cache = layer_of(GFA, **options).get_initial_cache(2, 7)
        assert tuple(cache["signals"].shape) == (2, signals, 7, 4, 3)
    cache = layer_of(GFA, num_key_value_heads=2).get_initial_cache(2, 7)
    assert tuple(cache["key"].shape) == (2, 7, 2, 3)


def test_refuses_tokens_that_do_not_fit():
    layer = layer_of(GFA)
    cache = layer.get_initial_cache(2, 4)
    for count, index in ((5, 0), (1, 4), (3, 2)):
        with pytest.raises(ValueError, match=r"cache holds 4 tokens.*Received"):
            layer.decode(tokens(count), cache, index)
    with pytest.raises(ValueError, match=r"`index`.*at least 0"):
        layer.decode(tokens(1), cache, -1)
    causal = layer_of(AGF, causal=True)
    for one, state in ((layer, (cache, 0)), (causal, (causal.get_initial_state(2),))):
        with pytest.raises(ValueError, match=r"`tokens` must have shape \(B, t, d\)"):
            one.decode(np.ones((2, CHANNELS), "float32"), *state)


def test_refuses_a_state_of_another_layer():
    layer = layer_of(DELTA)
    for state in (None, layer_of(DELTA, value_dim=2).get_initial_state(2)):
        with pytest.raises(ValueError, match=r"`state.*Received"):
            layer.decode(tokens(1), state)


def test_refuses_layers_without_a_state():
    with pytest.raises(ValueError, match=r"`get_initial_state` needs the causal form"):
        AGF(2, 4).get_initial_state(1)
    with pytest.raises(ValueError, match=r"`decode` needs the causal form"):
        AGF(2, 4).decode(tokens(1), None)
    with pytest.raises(ValueError, match=r"state of fixed size[^.]*\. Received: the mask Product"):
        layer_of(KERNEL, mask=lambda: LowRank(2, 20)).get_initial_state(1)


@pytest.mark.parametrize("kind", CACHED)
def test_a_tensor_as_index_has_the_same_limits(kind):
    layer, x = layer_of(kind), tokens(2)
    _, cache = layer.decode(x, layer.get_initial_cache(2, 4), 0)
    right = to_numpy(layer.decode(x, cache, 2)[0])
    step = jit(layer.decode)
    for index in (-1, 2, 3, 9):
        for make in (np.array, ops.convert_to_tensor):
            if index == 2:
                outputs = to_numpy(layer.decode(x, cache, make(index))[0])
                np.testing.assert_array_equal(outputs, right)
                continue
            with pytest.raises(ValueError, match=rf"Received: .*index={index}"):
                layer.decode(x, cache, make(index))
        if BACKEND == "torch":
            continue  # it compiles too slowly for a test
        outputs = to_numpy(step(x, cache, ops.convert_to_tensor(index, "int32"))[0])
        if index == 2:
            np.testing.assert_allclose(outputs, right, atol=1e-6)
        else:
            assert np.isnan(outputs).all()
