"""Converted causal language models decode with a cache as they do without."""

import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from keras_graphattn.filters import FirstOrder
from tests.hub.models import VOCABULARY, outputs, random_backbone
from tests.numerics import BACKEND

LENGTH = 12
CASES = {
    "graph_filter": ("graph_filter", "all", {"order": 4}),
    "even": ("graph_filter", "even", {"order": 4}),
    "chebyshev": ("graph_filter", "all", {"order": 3, "filter": "chebyshev"}),
    "page_rank": ("graph_filter", "all", {"order": 4, "filter": "page_rank"}),
    "p_laplacian": ("p_laplacian", "all", {}),
    "attentive_graph_filter": ("attentive_graph_filter", "all", {"order": 3}),
    "masked_kernel": ("masked_kernel", "all", {"filter": "first_order"}),
}


KINDS = {
    "gpt2": keras_hub.models.GPT2CausalLM,
    "opt": keras_hub.models.OPTCausalLM,
    "llama": keras_hub.models.LlamaCausalLM,
    "llama3": keras_hub.models.Llama3CausalLM,
}
LLAMA = ("graph_filter", "even", "chebyshev", "page_rank", "p_laplacian")


def causal_lm(name, case, randomise=True):
    attention, where, options = CASES[case]
    model = KINDS[name](random_backbone(name))
    keras_graphattn.convert(model, attention, where, **options)
    generator = np.random.default_rng(3)
    for variable in model.backbone.weights:
        if "coefficient" in variable.path or "theta" in variable.path:
            noise = 0.5 * generator.standard_normal(tuple(variable.shape))
            variable.assign(variable + noise.astype("float32"))
    return model


def prompt(length=LENGTH, given=(3, 5), seed=0):
    generator = np.random.default_rng(seed)
    mask = np.arange(length)[None] < np.array(given)[:, None]
    ids = np.where(mask, generator.integers(2, VOCABULARY, mask.shape), 0)
    return {"token_ids": ids.astype("int32"), "padding_mask": mask}


def greedy_without_cache(model, inputs):
    """The next token is the argmax of the logits of a full pass, token by token."""
    ids, mask = inputs["token_ids"].copy(), inputs["padding_mask"]
    whole = np.ones(ids.shape, "int32")
    for index in range(int(mask.sum(axis=1).min()), ids.shape[1]):
        (logits,) = outputs(model, {"token_ids": ids, "padding_mask": whole})
        chosen = np.argmax(logits[:, index - 1], axis=-1)
        ids[:, index] = np.where(mask[:, index], ids[:, index], chosen)
    return ids


def decoded(model, inputs):
    """Logits of every position, from a cache that is filled one token at a time."""
    ids = ops.convert_to_tensor(inputs["token_ids"])
    _, cache = model._build_cache(ops.zeros_like(ids))
    found = []
    for index in range(ids.shape[1]):
        place = ops.convert_to_tensor(index, "int32")  # SmolLM3 takes no number
        logits, _, cache = model.call_with_cache(ids[:, index : index + 1], cache, place)
        found.append(np.asarray(ops.convert_to_numpy(logits)))
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize(
    ("name", "case"), [*(("gpt2", case) for case in CASES), *(("llama", case) for case in LLAMA)]
)
def test_cached_decoding_equals_the_uncached_forward(name, case):
    model, inputs = causal_lm(name, case), prompt(6, (6, 6))
    (expected,) = outputs(model, inputs)
    np.testing.assert_allclose(
        decoded(model, inputs), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.slow_on("jax")
# A V is per query head: in Llama, with 4 query heads for 2 heads of keys, it takes two slots.
@pytest.mark.parametrize(("name", "slots"), [("gpt2", 3), ("llama", 4)])
def test_layers_left_as_they_were_pass_on_the_further_slots(name, slots):
    backbone, ids = random_backbone(name), ops.convert_to_tensor(prompt()["token_ids"])
    plain = [type(layer._self_attention_layer) for layer in backbone.transformer_layers]
    model = keras_graphattn.convert(KINDS[name](backbone), "graph_filter", "even", order=4)
    _, cache = model._build_cache(ids)
    assert tuple(cache.shape) == (2, 2, slots, LENGTH, 2, 4)
    keras_graphattn.revert(model)
    _, cache = model._build_cache(ids)
    assert tuple(cache.shape) == (2, 2, 2, LENGTH, 2, 4)
    now = [type(layer._self_attention_layer) for layer in backbone.transformer_layers]
    assert now == plain


@pytest.mark.slow_on("jax")
def test_p_laplacian_attention_leaves_the_cache_of_llama_as_it_is():
    model, ids = causal_lm("llama", "p_laplacian"), ops.convert_to_tensor(prompt()["token_ids"])
    _, cache = model._build_cache(ids)
    assert tuple(cache.shape) == (2, 2, 2, LENGTH, 2, 4)


GREEDY = [
    *(("gpt2", "graph_filter"), ("gpt2", "even"), ("opt", "graph_filter")),
    *(("llama", "graph_filter"), ("llama", "even"), ("llama", "p_laplacian")),
    pytest.param("llama3", "graph_filter", marks=pytest.mark.slow_on("jax", "tensorflow")),
]


@pytest.mark.parametrize(("name", "case"), GREEDY)
def test_greedy_generation_gives_the_tokens_of_the_uncached_forward(name, case):
    model, inputs = causal_lm(name, case), prompt()
    model.compile(sampler="greedy", run_eagerly=BACKEND == "tensorflow" and case == "even")
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], greedy_without_cache(model, inputs))


def test_64_greedy_tokens_with_and_without_cache():
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=72,
    )
    generator = np.random.default_rng(0)
    model = keras_hub.models.GPT2CausalLM(backbone)
    keras_graphattn.convert(model, "graph_filter", order=4)
    for variable in backbone.weights:
        noise = 0.3 * generator.standard_normal(tuple(variable.shape))
        variable.assign(variable + noise.astype("float32"))
    model.compile(sampler="greedy")
    inputs = prompt(68, (4, 4))
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    expected = greedy_without_cache(model, inputs)
    np.testing.assert_array_equal(found["token_ids"], expected)
    assert len(np.unique(expected[:, 4:])) > 2


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
    model, inputs = causal_lm(name, "graph_filter"), prompt(8, (3, 3))
    model.compile(sampler=SAMPLERS[sampler](), run_eagerly=BACKEND == "tensorflow")
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], greedy_without_cache(model, inputs))


@pytest.mark.slow_on("jax")
def test_beams_of_several_run():
    model, inputs = causal_lm("gpt2", "graph_filter"), prompt(8, (3, 3))
    model.compile(
        sampler=keras_hub.samplers.BeamSampler(num_beams=3), run_eagerly=BACKEND == "tensorflow"
    )
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"][:, :3], inputs["token_ids"][:, :3])


def test_a_generate_function_from_before_is_dropped():
    model, inputs = keras_hub.models.GPT2CausalLM(random_backbone("gpt2")), prompt(8, (3, 3))
    model.compile(sampler="greedy")
    model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    assert model.generate_function is not None
    keras_graphattn.convert(
        model, "graph_filter", filter=FirstOrder(initial_coefficients={"linear": -1.0})
    )
    assert model.generate_function is None
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    np.testing.assert_array_equal(found["token_ids"], greedy_without_cache(model, inputs))


@pytest.mark.slow_on("jax")
def test_a_bart_decoder_decodes_with_its_two_caches():
    model = keras_hub.models.BartSeq2SeqLM(random_backbone("bart"))
    keras_graphattn.convert(
        model, "graph_filter", filter=FirstOrder(4, initial_coefficients={"power": 0.5})
    )
    ids = prompt(8, (3, 3))
    inputs = {
        "encoder_token_ids": prompt(5, (5, 4), seed=1)["token_ids"],
        "encoder_padding_mask": prompt(5, (5, 4))["padding_mask"],
        "decoder_token_ids": ids["token_ids"],
        "decoder_padding_mask": ids["padding_mask"],
    }
    model.compile(sampler="greedy", run_eagerly=BACKEND == "tensorflow")
    found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
    found = np.asarray(ops.convert_to_numpy(found["decoder_token_ids"]))
    whole = {**inputs, "decoder_token_ids": found, "decoder_padding_mask": np.ones((2, 8), bool)}
    (logits,) = outputs(model, whole)
    np.testing.assert_array_equal(found[:, 3:], np.argmax(logits[:, 2:-1], axis=-1))


def test_refuses_what_cached_attention_cannot_do():
    model = causal_lm("gpt2", "graph_filter")
    layer = model.backbone.transformer_layers[0]._self_attention_layer
    x, cache = ops.ones((1, 1, 8)), ops.zeros((1, 3, 4, 2, 4))
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, x, cache=cache)
    with pytest.raises(ValueError, match="no attention scores"):
        layer(x, x, cache=cache, cache_update_index=0, return_attention_scores=True)
