"""Converted tasks decode with a cache as they compute without."""

import itertools

import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.filters import FirstOrder
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.keras_internals import walk
from tests.hub import biased_decoders, rotary_decoders, sequence_to_sequence
from tests.hub.biased_decoders import prompts
from tests.hub.decoding import (
    decoded,
    generated,
    greedy,
    greedy_without_cache,
    logits,
    prompts_of,
    seeded_cache,
)
from tests.hub.families import all_but, family
from tests.hub.models import attentions_of, moved, outputs
from tests.hub.test_conversion import START
from tests.numerics import BACKEND, to_numpy

CASES = {
    "graph_filter": ("graph_filter", "all", {"order": 4}),
    "even": ("graph_filter", "even", {"order": 4}),
    "chebyshev": ("graph_filter", "all", {"order": 3, "filter": "chebyshev"}),
    "p_laplacian": ("p_laplacian", "all", {}),
    "page_rank": ("graph_filter", "all", {"order": 4, "filter": "page_rank"}),
    "bias": ("graph_filter", "all", {"order": 4, "bias": "relative_positions"}),
    "p_laplacian, bias": ("p_laplacian", "all", {"bias": "relative_positions"}),
    "attentive_graph_filter": ("attentive_graph_filter", "all", {"order": 3}),
    "masked_kernel": ("masked_kernel", "all", {"filter": "first_order"}),
}
OF_ALL = ("graph_filter", "even", "chebyshev", "p_laplacian")
STOCK = ("gpt2", "opt")
NAMES = (
    *(*STOCK, "llama", "llama3"),
    *(*rotary_decoders.BACKBONES, *biased_decoders.GENERATING, *biased_decoders.VARIANTS),
)
PAIRS = (*sequence_to_sequence.TASKS, "pali_gemma", "pali_gemma2")  # decode after something else
# In the fast suite, others stand for these.
LATER = (
    *("opt", "llama3", "mixtral", "qwen_moe", "qwen3_moe", "phi3", "qwen3_5_moe"),
    *("edrec", "bart", "t5_gemma", "t5_gemma_2", "pali_gemma2"),
)
EACH = all_but([*NAMES, *PAIRS], LATER)
ROUNDING = dict.fromkeys(biased_decoders.VARIANTS, 2e-5)  # of four layers
# Layers that are left as they were decode as KerasHub made them: GPT-NeoX otherwise than its full
# pass, and recurrence as well.
WITHOUT_EVEN = ("gpt_neo_x", "gemma3n_borrowing")
ON_ITS_OWN = ("gpt_neo_x", "qwen3_5_mixed")


def plain(name, **options):
    """A task of the original."""
    return family(name).make_task(family(name).make(**options))


def converted_task(name, case="graph_filter", **options):
    """A converted task whose coefficients have moved."""
    attention, where, given = CASES[case]
    where = family(name).where if where == "all" else where
    return moved(keras_graphattn.convert(plain(name, **options), attention, where, **given))


def is_eager_only(model):
    """Whether a step of the model cannot be compiled: KerasHub 0.32, with QwenMoeAttention."""
    is_plain = not all(slot.is_converted for slot in attention_slots(model.backbone))
    return BACKEND == "jax" and is_plain and isinstance(model, keras_hub.models.QwenMoeCausalLM)


def cases():
    for name, case in itertools.product(NAMES, CASES):
        of_llama = name == "llama" and case == "page_rank"
        with_bias = "bias" in case and name in ("llama", "gemma2", "bloom", "t5")
        is_reached = case in OF_ALL or name == "gpt2" or of_llama or with_bias
        if not is_reached or (case == "even" and name in WITHOUT_EVEN) or name in ON_ITS_OWN[1:]:
            continue
        is_rotary = name in rotary_decoders.BACKBONES and name != rotary_decoders.REPRESENTATIVE
        is_slow = name in LATER or (is_rotary and case != "graph_filter")
        yield pytest.param(name, case, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_cached_decoding_equals_the_full_pass(name, case):
    model, inputs = converted_task(name, case), prompts(7, (7, 7))
    ids = inputs["token_ids"]
    expected = logits(model, inputs, ids)
    tolerance = ROUNDING.get(name, 1e-5) * np.abs(expected).max()
    np.testing.assert_allclose(decoded(model, ids), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("length", [12, pytest.param(69, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [x for x in EACH if x != "qwen3_5_mixed"])
def test_greedy_tokens_are_those_of_the_full_pass(name, length):
    """Prompts of 3 and of 5 tokens; windows of 3 leave some of them out of sight."""
    if length == 69 and name in STOCK:
        pytest.skip("their tiny models have 24 positions")
    model = converted_task(name)
    inputs = prompts_of(name, model, length)
    expected = greedy_without_cache(model, inputs)
    np.testing.assert_array_equal(greedy(model, inputs), expected)
    assert len(np.unique(expected[:, 5:])) > 1


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", START)
@pytest.mark.parametrize("name", EACH)
def test_a_new_conversion_generates_as_the_original(name, attention):
    model = plain(name)
    inputs = prompts_of(name, model)
    if is_eager_only(model):
        pytest.skip("KerasHub 0.32 cannot compile a step with the window of QwenMoeAttention")
    tokens = greedy_without_cache if name == "gpt_neo_x" else greedy
    expected = tokens(model, inputs)
    keras_graphattn.convert(model, attention, family(name).where, **START[attention])
    np.testing.assert_array_equal(greedy(model, inputs), expected)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss", "smollm3"])
def test_scores_are_the_logits_of_the_full_pass(name):
    model, inputs = converted_task(name), prompts(7, (5, 7))
    (expected,) = outputs(model, inputs)
    scores = to_numpy(model.score(inputs["token_ids"], inputs["padding_mask"]))
    scores = scores * inputs["padding_mask"][..., None]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


# A V is per query head: with 4 query heads for 2 heads of keys and values, it takes two slots.
SLOTS = {"gpt2": 3, **dict.fromkeys(("llama", *rotary_decoders.BACKBONES), 4), "qwen3_5_mixed": 4}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", SLOTS)
def test_layers_left_as_they_were_pass_on_the_further_slots(name):
    """In Qwen3.5, layers of recurrence do, too."""
    model, ids = plain(name), ops.convert_to_tensor(prompts()["token_ids"])
    layers = walk(model)
    kinds = list(map(type, layers))
    keras_graphattn.convert(model, where="even", order=4)

    def slots():
        cache = seeded_cache(model, ids)
        return (cache[0] if isinstance(cache, (tuple, list)) else cache).shape[2]

    assert slots() == SLOTS[name]
    keras_graphattn.convert(keras_graphattn.revert(model), "p_laplacian")
    assert slots() == 2
    keras_graphattn.revert(model)
    assert slots() == 2
    assert list(map(type, layers)) == kinds


@pytest.mark.slow_on("jax")
def test_the_original_gpt_neo_x_decodes_differently_from_its_full_pass():
    """Once this fails, keras-hub#2870 is fixed: then the docstring of the family can say so."""
    model, inputs = plain("gpt_neo_x"), prompts(7, (7, 7))
    ids = inputs["token_ids"]
    full = logits(model, inputs, ids)
    assert np.abs(decoded(model, ids) - full).max() > 1e-2 * np.abs(full).max()
    keras_graphattn.convert(model)
    np.testing.assert_allclose(decoded(model, ids), full, atol=1e-5 * np.abs(full).max())


@pytest.mark.slow_on("jax")
def test_phi3_decodes_beyond_its_pretraining_as_the_original_does():
    """Here the original's steps rotate otherwise than its full pass, and so do the converted."""
    longest = rotary_decoders.PRETRAINED
    model = plain("phi3", pretraining_sequence_length=4, max_sequence_length=longest)
    inputs = prompts(6, (6, 6))
    ids = inputs["token_ids"]
    before, full = decoded(model, ids), logits(model, inputs, ids)
    keras_graphattn.convert(model, order=4)
    tolerance = 1e-5 * np.abs(before).max()
    np.testing.assert_allclose(decoded(model, ids), before, rtol=0, atol=tolerance)
    np.testing.assert_allclose(logits(model, inputs, ids), full, rtol=0, atol=tolerance)
    assert np.abs(before - full).max() > 1e-3


@pytest.mark.slow_on("jax")
def test_gemma_3_gives_further_slots_to_converted_layers_only():
    model, ids = converted_task("gemma3", "even"), ops.ones((2, 5), "int32")
    cache = seeded_cache(model, ids)
    assert [len(each) for each in cache] == [4, 2]  # A V of 4 query heads takes two of 2 heads
    assert {tuple(x.shape) for each in cache for x in each} == {(2, 5, 2, 4)}
    keras_graphattn.revert(model)
    assert [len(each) for each in seeded_cache(model, ids)] == [2, 2]


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", [*STOCK, pytest.param("bart", marks=pytest.mark.slow)])
def test_a_window_holds_in_decoding_too(name, attention):
    model = moved(keras_graphattn.convert(plain(name), attention, sliding_window=3))
    inputs = prompts_of(name, model)
    np.testing.assert_array_equal(greedy(model, inputs), greedy_without_cache(model, inputs))
    if name != "bart":
        inputs = prompts(7, (7, 7))
        expected = logits(model, inputs, inputs["token_ids"])
        found = decoded(model, inputs["token_ids"])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow_on("jax")
def test_decodes_without_a_mask_as_with_the_causal_one():
    layer, x = attentions_of(converted_task("qwen_moe"))[0], ops.ones((1, 2, 16))
    causal = np.arange(5)[None] <= np.array([1, 2])[:, None]
    options = {"cache": ops.zeros((1, 4, 5, 2, 4)), "cache_update_index": 1}
    rows, _ = layer(x, **options)
    expected, _ = layer(x, attention_mask=ops.convert_to_tensor(causal[None]), **options)
    np.testing.assert_allclose(to_numpy(rows), to_numpy(expected), atol=1e-6)


# They refuse an index alone.
UNCACHED = ("bloom", "falcon", "gpt_neo_x", "gpt_oss", "qwen3_5", "t5", "t5_gemma", "moonshine")


@pytest.mark.parametrize("name", ["llama", *rotary_decoders.BACKBONES, *UNCACHED])
def test_refuses_a_cache_without_its_index_and_the_reverse(name):
    layer = attentions_of(converted_task(name))[-1]
    sizes, of = layer.head_sizes(), "self_attention_cache" if name == "smollm3" else "cache"
    x = ops.ones((1, 1, 24 if name == "moonshine" else 16))
    tokens = (x,) * 3 if name == "moonshine" else (x,)
    cache = ops.zeros((1, 4, 1, sizes.num_key_value_heads, sizes.key_dim))
    further = {"alibi": ops.zeros((1, 4, 1, 1))} if name == "falcon" else {}
    with pytest.raises(ValueError, match=f"{of}_update_index"):
        layer(*tokens, **{of: cache}, **further)
    if name in UNCACHED:
        mask = "mask" if name == "t5" else "attention_mask"
        further[mask] = ops.ones((1, 1, 1), "bool")
        with pytest.raises(ValueError, match="cache_update_index"):
            layer(*tokens, cache_update_index=0, **further)


def test_refuses_what_cached_attention_cannot_do():
    layer = attentions_of(converted_task("gpt2"))[0]
    x, cache = ops.ones((1, 1, 8)), ops.zeros((1, 3, 4, 2, 4))
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, x, cache=cache)
    with pytest.raises(ValueError, match="no attention scores"):
        layer(x, x, cache=cache, cache_update_index=0, return_attention_scores=True)


SAMPLERS = {
    "top_k": lambda: keras_hub.samplers.TopKSampler(k=1),
    "top_p": lambda: keras_hub.samplers.TopPSampler(p=1e-6),
    "random": lambda: keras_hub.samplers.RandomSampler(temperature=1e-4),
    "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=1),
    "contrastive": lambda: keras_hub.samplers.ContrastiveSampler(k=2, alpha=0.0),
}


@pytest.mark.parametrize(
    ("name", "sampler"), [*(("gpt2", sampler) for sampler in SAMPLERS), ("llama", "beam")]
)
@pytest.mark.slow_on("jax")
def test_samplers_that_leave_no_choice_are_greedy(name, sampler):
    """Each sampler runs on further slots; with a single candidate it finds the greedy tokens."""
    model, inputs = converted_task(name), prompts(8, (3, 3))
    tokens = generated(model, inputs, SAMPLERS[sampler]())["token_ids"]
    np.testing.assert_array_equal(tokens, greedy_without_cache(model, inputs))


@pytest.mark.slow_on("jax")
def test_beams_of_several_run():
    model, inputs = converted_task("gpt2"), prompts(8, (3, 3))
    tokens = generated(model, inputs, keras_hub.samplers.BeamSampler(num_beams=3))["token_ids"]
    np.testing.assert_array_equal(tokens[:, :3], inputs["token_ids"][:, :3])


@pytest.mark.slow_on("jax")
def test_a_generate_function_from_before_is_dropped():
    model, inputs = plain("gpt2"), prompts(8, (3, 3))
    greedy(model, inputs)
    assert model.generate_function is not None
    filter = FirstOrder(initial_coefficients={"linear": -1.0})
    keras_graphattn.convert(model, "graph_filter", filter=filter)
    assert model.generate_function is None
    tokens = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    np.testing.assert_array_equal(tokens["token_ids"], greedy_without_cache(model, inputs))
