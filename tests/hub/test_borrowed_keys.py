"""Gemma 3n and Gemma 4 as published: some layers borrow keys and values of earlier ones."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import view
from tests.hub.biased_decoders import (
    attentions_of,
    decoded,
    greedy,
    greedy_without_cache,
    logits,
    models,
    moved,
    prompts,
    random_decoder,
    seeded_cache,
    task_of,
)
from tests.hub.decoder_twins import applied, normalised
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs, random_inputs
from tests.hub.twins import assert_is_twin
from tests.numerics import to_numpy

KINDS = ["sliding_attention", "full_attention"] * 2  # the last two borrow from the first two
BORROWING = {
    "gemma4": {
        "num_layers": 4,
        "layer_types": KINDS,
        "num_kv_shared_layers": 2,
        "global_head_dim": 8,
        "num_global_key_value_heads": 1,  # these take their keys as values
        "global_rope_partial_rotary_factor": 0.5,
        "hidden_size_per_layer_input": 4,
        "use_double_wide_mlp": True,
    },
    "gemma3n": {"num_hidden_layers": 4, "layer_types": KINDS, "num_kv_shared_layers": 2},
}
# An ulp of Gemma 4's weights changes outputs by 5e-5, as its scores are not scaled.
TOLERANCES = {"gemma4": 5e-5, "gemma3n": 1e-5}
WHERE = {"gemma4": "all", "gemma3n": "first:2"}  # the others of Gemma 3n are refused
CASES = {
    "graph_filter": ("graph_filter", None, {"order": 4}),
    "odd": ("graph_filter", [1, 3], {"order": 4}),
    "chebyshev": ("graph_filter", None, {"order": 3, "filter": "chebyshev"}),
    "p_laplacian": ("p_laplacian", None, {}),
}


def borrowing(name, **options):
    return random_decoder(name, **BORROWING[name], **options)


def converted(model, name, case="graph_filter"):
    attention, where, options = CASES[case]
    where = [1] if case == "odd" and name == "gemma3n" else where
    return moved(keras_graphattn.convert(model, attention, where or WHERE[name], **options))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", BORROWING)
def test_starts_with_the_outputs_of_the_original(name, attention):
    options = {"p": 2} if attention == "p_laplacian" else {"order": 4}
    backbone = borrowing(name)
    inputs = random_inputs(backbone)
    before = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, attention, WHERE[name], **options)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=TOLERANCES[name])
    keras_graphattn.revert(backbone)
    assert_equal_outputs(outputs(backbone, inputs), before, tolerance=0)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", BORROWING)
def test_a_training_step_moves_every_coefficient(name):
    backbone = keras_graphattn.convert(borrowing(name), where=WHERE[name], order=4)
    before = {v.path: to_numpy(v) for v in backbone.weights if "coefficient" in v.path}
    fit_one_step(backbone, random_inputs(backbone))
    now = {v.path: to_numpy(v) for v in backbone.weights}
    assert len(before) == {"gemma4": 12, "gemma3n": 6}[name]
    for path, old in before.items():
        assert (np.abs(now[path] - old) > 1e-6).all(), path


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", BORROWING)
def test_cached_decoding_equals_the_full_pass(name, case):
    model, ids = task_of(name, borrowing(name)), prompts(7, (7, 7))["token_ids"]
    converted(model, name, case)
    expected = logits(model, ids)
    tolerance = 2e-5 * np.abs(expected).max()  # rounding of four layers
    np.testing.assert_allclose(decoded(model, ids), expected, rtol=0, atol=tolerance)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", BORROWING)
def test_greedy_generation_gives_the_tokens_of_the_full_pass(name):
    model, inputs = converted(task_of(name, borrowing(name)), name), prompts()
    np.testing.assert_array_equal(greedy(model, inputs), greedy_without_cache(model, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", BORROWING)
def test_64_greedy_tokens_with_and_without_cache(name):
    model, inputs = converted(task_of(name, borrowing(name)), name), prompts(69, (3, 5))
    np.testing.assert_array_equal(greedy(model, inputs), greedy_without_cache(model, inputs))


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", BORROWING)
def test_a_new_conversion_generates_as_the_original(name):
    model, inputs = task_of(name, borrowing(name)), prompts(9)
    expected = greedy(model, inputs)
    keras_graphattn.convert(model, where=WHERE[name], order=4)
    np.testing.assert_array_equal(greedy(model, inputs), expected)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", BORROWING)
def test_lasts_in_a_keras_file(name, tmp_path):
    backbone = converted(borrowing(name), name)
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), expected)


def test_sizes_of_gemma_4():
    """Heads of keys and values of the layers that see all tokens are fewer and larger."""
    layers = attentions_of(borrowing("gemma4"))
    found = [view(layer).head_sizes() for layer in layers]
    assert [(s.num_heads, s.num_key_value_heads, s.key_dim) for s in found] == [
        (4, 2, 4),
        (4, 1, 8),
    ] * 2
    names = [set(view(layer).projection_layers()) for layer in layers]
    own = {"query", "key", "value", "attention_output"}
    assert names == [own, own, {"query", "attention_output"}, {"query", "attention_output"}]


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_cache_of_gemma_4_is_as_wide_as_its_widest_layer():
    """A V of 4 query heads takes four slots in layers with one head of keys."""
    model, ids = task_of("gemma4", borrowing("gemma4")), ops.ones((2, 5), "int32")
    converted(model, "gemma4")
    assert seeded_cache(model, ids).shape == (2, 4, 6, 5, 2, 8)
    keras_graphattn.revert(model)
    assert seeded_cache(model, ids).shape == (2, 4, 2, 5, 2, 8)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", BORROWING)
def test_tokens_that_the_first_pass_wrote_are_kept(name):
    """Where `cache_update_mask` is false, a step reads what is there."""
    layer = attentions_of(converted(borrowing(name), name, "chebyshev"))[0]
    x = np.random.default_rng(0).standard_normal((2, 6, 16)).astype("float32")
    mask = np.broadcast_to(np.tril(np.ones((6, 6), bool)), (2, 6, 6))
    empty = ops.zeros((2, 2, 2, 6, 4) if name == "gemma3n" else (2, 2, 6, 2, 8))
    whole, *_, cache = layer(x, attention_mask=mask, cache=empty, cache_update_index=0)
    for index in range(6):
        step, *_, cache = layer(
            x[:, index : index + 1] + 1.0 * (index < 2),  # of these, only queries change
            attention_mask=mask[:, index : index + 1],
            cache=cache,
            cache_update_index=index,
            cache_update_mask=np.zeros((2, 1), bool),
        )
        if index > 1:
            np.testing.assert_allclose(to_numpy(step)[:, 0], to_numpy(whole)[:, index], atol=1e-5)


def test_layers_of_gemma_3n_that_borrow_are_refused_by_name():
    backbone = borrowing("gemma3n")
    kinds = [type(layer) for layer in attentions_of(backbone)]
    message = r"decoder_block_2/.*decoder_block_3/.*no cache of its own.*where=\[0, 1\]"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_graphattn.convert(backbone)
    assert [type(layer) for layer in attentions_of(backbone)] == kinds


def assistant(backbone):
    return models.Gemma4AssistantCausalLM(
        backbone=backbone,
        backbone_hidden_size=16,
        num_centroids=5,
        centroid_intermediate_top_k=2,
        use_ordered_embeddings=False,
        num_speculative_tokens=3,
    )


@pytest.mark.slow_on("jax", "tensorflow")
def test_an_assistant_proposes_tokens_to_a_converted_model():
    """What was compiled with the assistant before is not used after."""
    model, inputs = task_of("gemma4", random_decoder("gemma4")), prompts(12, (4, 4))
    helper = assistant(random_decoder("gemma4"))

    def generated(**options):
        given = {name: value.copy() for name, value in inputs.items()}
        return to_numpy(model.generate(given, stop_token_ids=None, **options)["token_ids"])

    model.compile(sampler="greedy", run_eagerly=False)
    before = generated(assistant_model=helper)
    np.testing.assert_array_equal(before, generated())
    moved(keras_graphattn.convert(model, order=4))
    after = generated(assistant_model=helper)
    np.testing.assert_array_equal(after, generated())
    assert (after != before).any()


def test_an_assistant_is_refused():
    helper = assistant(random_decoder("gemma4"))
    kinds = [type(layer) for layer in attentions_of(helper)]
    with pytest.raises(ValueError, match="belongs to an assistant"):
        keras_graphattn.convert(helper)
    assert [type(layer) for layer in attentions_of(helper)] == kinds
    helper = assistant(keras_graphattn.convert(random_decoder("gemma4")))
    layer, shared = attentions_of(helper)[0], ops.zeros((1, 2, 3, 2, 4))
    with pytest.raises(ValueError, match=r"is converted, and it belongs to an assistant.*revert"):
        layer(ops.ones((1, 1, 16)), cache=shared, shared_kv=shared)


@pytest.mark.parametrize("index", [2, 3])
def test_a_filter_of_borrowed_values_is_that_of_the_formulas(index):
    backbone = converted(borrowing("gemma4"), "gemma4")
    layer = attentions_of(backbone)[index]
    size, heads = (4, 2) if index == 2 else (8, 1)
    generator = np.random.default_rng(5)
    x = generator.standard_normal((2, 7, 16)).astype("float32")
    shared = generator.standard_normal((2, 2, 7, heads, size)).astype("float32")
    mask = np.broadcast_to(np.tril(np.ones((7, 7), bool)), (2, 7, 7))

    def twin(weights, x, shared):
        found = []
        wavelength = 10_000.0 if index == 2 else 1_000_000.0
        for head in range(4):
            query = normalised(x @ weights["query/kernel"][head], weights["query_norm/scale"])
            query = turned_in_part(query, 4, wavelength)
            key, value = shared[:, 0, :, head * heads // 4], shared[:, 1, :, head * heads // 4]
            scores = (query @ key.transpose(1, 2)).masked_fill(~torch.tensor(mask), -torch.inf)
            matrix = torch.softmax(scores, dim=-1)
            found.append(applied(matrix, value, weights, head, None))
        return torch.einsum("nbth,nhd->btd", torch.stack(found), weights["attention_output/kernel"])

    def call(x, shared):
        return layer(x, attention_mask=mask, shared_kv=shared)[0]

    assert_is_twin(layer, call, twin, input=x, shared=shared)


def turned_in_part(x, size, wavelength):
    """Heads (B, T, H): the first `size` / 2 features of either half are rotated."""
    half, turned = x.shape[-1] // 2, size // 2
    inverse = wavelength ** (-2 * torch.arange(turned, dtype=x.dtype) / x.shape[-1])
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * inverse
    first, second = x[..., :turned], x[..., half : half + turned]
    return torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            x[..., turned:half],
            second * angles.cos() + first * angles.sin(),
            x[..., half + turned :],
        ],
        dim=-1,
    )
