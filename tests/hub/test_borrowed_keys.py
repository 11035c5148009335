"""Gemma 3n and Gemma 4 as published: some layers borrow keys and values of earlier ones."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import view
from tests.hub.biased_decoders import (
    WHERE,
    attentions_of,
    models,
    moved,
    prompts,
    random_decoder,
    seeded_cache,
    task_of,
)
from tests.hub.decoder_twins import applied, normalised
from tests.hub.models import assert_equal_outputs, outputs, random_inputs
from tests.hub.twins import assert_is_twin
from tests.numerics import to_numpy

BORROWING = ("gemma4", "gemma3n")


def borrowing(name):
    return random_decoder(f"{name}_borrowing")


def converted(model, name, **options):
    where = WHERE.get(f"{name}_borrowing", "all")
    return moved(keras_graphattn.convert(model, where=where, **(options or {"order": 4})))


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
    layer = attentions_of(converted(borrowing(name), name, order=3, filter="chebyshev"))[0]
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
