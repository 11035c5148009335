"""Decoders with soft cap, bias, sink, window or a cache of their own decode as they compute."""

import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.biased_decoders import (
    LATER,
    TASKS,
    attentions_of,
    decoded,
    fast_for,
    greedy,
    greedy_without_cache,
    logits,
    moved,
    prompts,
    random_decoder,
    seeded_cache,
    task_of,
)
from tests.hub.models import outputs

CASES = {
    "graph_filter": ("graph_filter", "all", {"order": 4}),
    "even": ("graph_filter", "even", {"order": 4}),
    "chebyshev": ("graph_filter", "all", {"order": 3, "filter": "chebyshev"}),
    "p_laplacian": ("p_laplacian", "all", {}),
}


def causal_lm(name, case="graph_filter"):
    attention, where, options = CASES[case]
    model = task_of(name, random_decoder(name))
    return moved(keras_graphattn.convert(model, attention, where, **options))


def cases():
    # Layers of GPT-NeoX that are left as they were decode as KerasHub made them.
    found = [(n, c) for n in TASKS for c in CASES if (n, c) != ("gpt_neo_x", "even")]
    return [pytest.param(n, c, marks=pytest.mark.slow) if n in LATER else (n, c) for n, c in found]


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "case"), cases())
def test_cached_decoding_equals_the_full_pass(name, case):
    model, ids = causal_lm(name, case), prompts(7, (7, 7))["token_ids"]
    expected = logits(model, ids)
    np.testing.assert_allclose(
        decoded(model, ids), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize("name", fast_for(TASKS))
def test_greedy_generation_gives_the_tokens_of_the_full_pass(name):
    model, inputs = causal_lm(name), prompts()
    expected = greedy_without_cache(model, inputs)
    np.testing.assert_array_equal(greedy(model, inputs), expected)
    assert len(np.unique(expected[:, 5:])) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_64_greedy_tokens_with_and_without_cache(name):
    model, inputs = causal_lm(name), prompts(69, (3, 5))
    np.testing.assert_array_equal(greedy(model, inputs), greedy_without_cache(model, inputs))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", fast_for(TASKS))
def test_a_new_conversion_generates_as_the_original(name, attention):
    model, inputs = task_of(name, random_decoder(name)), prompts()
    if name == "gpt_neo_x":  # the original decodes differently from its own full pass
        expected = greedy_without_cache(model, inputs)
    else:
        expected = greedy(model, inputs)
    keras_graphattn.convert(model, attention, **({"p": 2} if attention == "p_laplacian" else {}))
    np.testing.assert_array_equal(greedy(model, inputs), expected)


@pytest.mark.slow_on("jax")
def test_the_original_gpt_neo_x_decodes_differently_from_its_full_pass():
    """Once this fails, keras-hub#2870 is fixed: then the docstring of the family can say so."""
    model, ids = task_of("gpt_neo_x", random_decoder("gpt_neo_x")), prompts(7, (7, 7))["token_ids"]
    full = logits(model, ids)
    assert np.abs(decoded(model, ids) - full).max() > 1e-2 * np.abs(full).max()
    keras_graphattn.convert(model)
    np.testing.assert_allclose(decoded(model, ids), full, atol=1e-5 * np.abs(full).max())


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_score(name):
    model, inputs = causal_lm(name), prompts(7, (5, 7))
    (expected,) = outputs(model, inputs)
    found = model.score(inputs["token_ids"], inputs["padding_mask"])
    found = np.asarray(ops.convert_to_numpy(found)) * inputs["padding_mask"][..., None]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow_on("jax")
def test_gemma_3_gives_further_slots_to_converted_layers_only():
    model, ids = causal_lm("gemma3", "even"), ops.ones((2, 5), "int32")
    cache = seeded_cache(model, ids)
    assert [len(each) for each in cache] == [4, 2]  # A V of 4 query heads takes two of 2 heads
    assert {tuple(x.shape) for each in cache for x in each} == {(2, 5, 2, 4)}
    keras_graphattn.revert(model)
    assert [len(each) for each in seeded_cache(model, ids)] == [2, 2]


@pytest.mark.slow_on("jax")
def test_gemma_3_keeps_what_the_first_pass_saw():
    """Image tokens see each other in both directions; a later step must not write over that."""
    layer = attentions_of(causal_lm("gemma3", "chebyshev"))[0]
    x = np.random.default_rng(0).standard_normal((2, 6, 16)).astype("float32")
    mask = np.tril(np.ones((6, 6), bool))
    mask[1:4, 1:4] = True  # the image
    mask = np.broadcast_to(mask, (2, 6, 6))
    empty = tuple(ops.zeros((2, 6, 2, 4)) for _ in range(2))
    whole, cache = layer(x, attention_mask=mask, cache=empty, cache_update_index=0)
    for index in range(6):
        step, cache = layer(
            x[:, index : index + 1],
            attention_mask=mask[:, index : index + 1],
            cache=cache,
            cache_update_index=index,
            cache_update_mask=np.zeros((2, 1), bool),
        )
        np.testing.assert_allclose(
            ops.convert_to_numpy(step)[:, 0], ops.convert_to_numpy(whole)[:, index], atol=1e-5
        )
    full = layer(x, attention_mask=mask)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (whole, full)), atol=1e-5)


@pytest.mark.parametrize("name", ["bloom", "falcon", "gpt_neo_x", "gpt_oss"])
def test_refuses_a_cache_without_an_index_and_the_reverse(name):
    layer = attentions_of(causal_lm(name))[0]
    x, mask = ops.ones((1, 1, 16)), ops.ones((1, 1, 1), "bool")
    further = {"alibi": ops.zeros((1, 4, 1, 1))} if name == "falcon" else {}
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, attention_mask=mask, cache=ops.zeros((1, 4, 1, 4, 4)), **further)
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, attention_mask=mask, cache_update_index=0, **further)
