"""Converted decoders with rotary embedding generate with a cache what they do without."""

import itertools

import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.hub.slots import attention_slots
from tests.hub.containers import moved
from tests.hub.models import outputs
from tests.hub.rotary_decoders import PRETRAINED, REPRESENTATIVE, START, TASKS, tiny
from tests.hub.test_generate import decoded, greedy_without_cache, prompt
from tests.numerics import BACKEND

CASES = {
    "graph_filter": ("graph_filter", "all", {"order": 4}),
    "even": ("graph_filter", "even", {"order": 4}),
    "chebyshev": ("graph_filter", "all", {"order": 3, "filter": "chebyshev"}),
    "p_laplacian": ("p_laplacian", "all", {}),
}


def pairs(names, cases, first):
    """All pairs; the fast tests have the first case of each family, and all of one family."""
    for name, case in itertools.product(names, cases):
        is_fast = case == first or name == REPRESENTATIVE
        yield pytest.param(name, case, marks=[] if is_fast else [pytest.mark.slow])


def task(name, case=None, **options):
    model = TASKS[name](tiny(name, **options))
    if case is not None:
        attention, where, given = CASES[case]
        moved(keras_graphattn.convert(model, attention, where, **given))
    model.compile(sampler="greedy", run_eagerly=BACKEND == "tensorflow")
    return model


def generated(model, inputs):
    is_plain = not all(site.is_converted for site in attention_slots(model.backbone))
    if BACKEND == "jax" and is_plain and isinstance(model, keras_hub.models.QwenMoeCausalLM):
        pytest.skip("KerasHub 0.32 cannot compile a step with the window of QwenMoeAttention")
    given = {name: value.copy() for name, value in inputs.items()}
    found = model.generate(given, stop_token_ids=None)
    return np.asarray(ops.convert_to_numpy(found["token_ids"]))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "case"), list(pairs(TASKS, CASES, "graph_filter")))
def test_cached_decoding_equals_the_full_pass(name, case):
    model, inputs = task(name, case), prompt(6, (6, 6))
    (expected,) = outputs(model, inputs)
    np.testing.assert_allclose(
        decoded(model, inputs), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize("name", TASKS)
def test_greedy_tokens_are_those_of_the_full_pass(name):
    """Prompts of 3 and of 5 tokens; the window of 3 leaves some of them out of sight."""
    model, inputs = task(name, "graph_filter"), prompt(11)
    np.testing.assert_array_equal(generated(model, inputs), greedy_without_cache(model, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TASKS)
def test_64_greedy_tokens_are_those_of_the_full_pass(name, case):
    model, inputs = task(name, case), prompt(68, (4, 6))
    expected = greedy_without_cache(model, inputs)
    np.testing.assert_array_equal(generated(model, inputs), expected)
    assert len(np.unique(expected[:, 6:])) > 1


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("name", "attention"), list(pairs(TASKS, START, "graph_filter")))
def test_generates_and_scores_at_the_start_what_the_original_does(name, attention):
    model, inputs = task(name), prompt(9)
    before = generated(model, inputs)
    scores = {} if name == "phi3" else {"before": scored(model, before)}  # it has no `score`
    keras_graphattn.convert(model, attention, **START[attention])
    np.testing.assert_array_equal(generated(model, inputs), before)
    if scores:
        found = scored(model, before)
        np.testing.assert_allclose(
            found, scores["before"], rtol=0, atol=1e-5 * np.abs(scores["before"]).max()
        )


def scored(model, ids):
    ids = ops.convert_to_tensor(ids)
    found = model.score(ids, padding_mask=ops.ones_like(ids))
    return np.asarray(ops.convert_to_numpy(found))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [name for name in TASKS if name != "phi3"])
def test_scores_are_the_logits_of_the_full_pass(name):
    model, inputs = task(name, "graph_filter"), prompt(7, (7, 7))
    (expected,) = outputs(model, inputs)
    np.testing.assert_allclose(
        scored(model, inputs["token_ids"]), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.slow_on("jax")
def test_phi3_decodes_beyond_its_pretraining_as_the_original_does():
    """Here the original's steps rotate otherwise than its full pass, and so do the converted."""
    options = {"pretraining_sequence_length": 4, "max_sequence_length": PRETRAINED}
    model, inputs = task("phi3", **options), prompt(6, (6, 6))
    before, (full,) = decoded(model, inputs), outputs(model, inputs)
    keras_graphattn.convert(model, order=4)
    tolerance = 1e-5 * np.abs(before).max()
    np.testing.assert_allclose(decoded(model, inputs), before, rtol=0, atol=tolerance)
    np.testing.assert_allclose(outputs(model, inputs)[0], full, rtol=0, atol=tolerance)
    assert np.abs(before - full).max() > 1e-3


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", TASKS)
def test_the_cache_has_two_slots_for_a_v_and_layers_left_alone_pass_them_on(name):
    """4 query heads for 2 heads of keys and values: A V takes two slots, next to K and V."""
    model, ids = task(name, "even"), ops.convert_to_tensor(prompt()["token_ids"])
    _, cache = model._build_cache(ids)
    assert cache.shape[2] == 4
    keras_graphattn.revert(model)
    _, cache = model._build_cache(ids)
    assert cache.shape[2] == 2
