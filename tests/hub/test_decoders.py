"""What is special to one family of decoders: windows, sinks, borrowed keys, a recurrence."""

import keras
import keras_hub
import numpy as np
import pytest
import torch
from keras import ops

import keras_graphattn
from keras_graphattn.hub.families import Logits, view
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.operators.softmax import SoftmaxOperator, scores_of
from tests.hub.biased_decoders import prompts
from tests.hub.decoder_twins import applied, normalised
from tests.hub.decoding import seeded_cache
from tests.hub.families import converted, family
from tests.hub.models import (
    LENGTH,
    assert_equal_outputs,
    attentions_of,
    moved,
    outputs,
    random_inputs,
)
from tests.hub.rotary_decoders import WINDOW, window_of
from tests.hub.test_refusals import state_of
from tests.hub.twins import assert_is_twin, rotated
from tests.numerics import to_numpy

models = keras_hub.models


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", ["qwen", "qwen_moe", "qwen3", "qwen3_moe"])
def test_the_window_is_applied_where_kerashub_applies_it(name):
    """A failure means that KerasHub has changed, and that `QwenDecoder` has to follow."""
    near = family(name).make()
    far = family(name).make(
        sliding_window_size=LENGTH
    )  # QwenMoeAttention fails on TensorFlow with more
    inputs = random_inputs(near)
    (found,), (without,) = outputs(near, inputs), outputs(far, inputs)
    assert (np.abs(found - without).max() > 1e-3) == (window_of(name) == WINDOW)
    for backbone in (near, far):
        keras_graphattn.convert(backbone, order=4)
    assert np.abs(outputs(near, inputs)[0] - found).max() < 1e-5 * np.abs(found).max()
    assert np.abs(outputs(far, inputs)[0] - without).max() < 1e-5 * np.abs(without).max()


def test_gemma_scales_by_its_width():
    layer = attentions_of(family("gemma").make())[0]
    layer.query_head_dim_normalize = False
    layer.hidden_dim = 64
    assert view(layer).head_sizes().scale == pytest.approx(0.25)


def test_rows_of_gpt_oss_sum_to_less_than_one():
    """The larger graph, with the sink as a token of value 0, has the same filter."""
    generator = np.random.default_rng(0)
    arrays = (generator.standard_normal((1, 5, 2, 4)).astype("float32") for _ in range(3))
    query, key, value = arrays
    sink = generator.standard_normal(2).astype("float32")
    mask = np.tril(np.ones((5, 5), bool))[None, None]
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    logits = Logits(sink=ops.convert_to_tensor(sink))
    scores = scores_of(query, key, 0.5)
    matrix = to_numpy(SoftmaxOperator(scores, mask, logits=logits).matrix())
    assert (matrix.sum(-1) < 1).all()
    larger = np.zeros((2, 6, 6))
    larger[:, :5, :5], larger[:, 5, 5] = matrix[0], 1.0
    larger[:, :5, 5] = 1 - matrix[0].sum(-1)
    extended = np.concatenate([value[0].transpose(1, 0, 2), np.zeros((2, 1, 4))], axis=1)
    cubed = np.linalg.matrix_power(matrix[0], 3) @ extended[:, :5]
    found = np.linalg.matrix_power(larger, 3) @ extended
    np.testing.assert_allclose(found[:, :5], cubed, atol=1e-6)


# Gemma 3n and Gemma 4 as published: some layers borrow keys and values of earlier ones.


def test_projections_of_gemma_4():
    """Layers that borrow keys and values have none of their own."""
    layers = attentions_of(family("gemma4_borrowing").make())
    own = {"query", "key", "value", "attention_output"}
    expected = [own, own, {"query", "attention_output"}, {"query", "attention_output"}]
    assert [set(view(layer).projection_layers()) for layer in layers] == expected


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_cache_of_gemma_4_is_as_wide_as_its_widest_layer():
    """A V of 4 query heads takes four slots in layers with one head of keys."""
    kind, ids = family("gemma4_borrowing"), ops.ones((2, 5), "int32")
    model = kind.make_task(converted("gemma4_borrowing"))
    assert seeded_cache(model, ids).shape == (2, 4, 6, 5, 2, 8)
    keras_graphattn.revert(model)
    assert seeded_cache(model, ids).shape == (2, 4, 2, 5, 2, 8)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", ["gemma4_borrowing", "gemma3n_borrowing", "gemma3"])
def test_tokens_that_the_first_pass_wrote_are_kept(name):
    """Where `cache_update_mask` is false, a step reads what is there.

    Image tokens of Gemma 3 see each other in both directions: it must not write over that.
    """
    layer = attentions_of(converted(name, order=3, filter="chebyshev"))[0]
    x = np.random.default_rng(0).standard_normal((2, 6, 16)).astype("float32")
    mask = np.tril(np.ones((6, 6), bool))
    mask[1:4, 1:4] |= name == "gemma3"  # the image
    mask = np.broadcast_to(mask, (2, 6, 6))
    empty = ops.zeros((2, 2, 2, 6, 4) if "gemma3n" in name else (2, 2, 6, 2, 8))
    if name == "gemma3":
        empty = tuple(ops.zeros((2, 6, 2, 4)) for _ in range(2))
    whole, *_, cache = layer(x, attention_mask=mask, cache=empty, cache_update_index=0)
    if name == "gemma3":
        full = layer(x, attention_mask=mask)
        np.testing.assert_allclose(to_numpy(whole), to_numpy(full), atol=1e-5)
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
    backbone = family("gemma3n_borrowing").make()
    before = state_of(backbone)
    message = r"decoder_block_2/.*decoder_block_3/.*no cache of its own.*where=\[0, 1\]"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_graphattn.convert(backbone)
    assert state_of(backbone) == before


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
    model, inputs = family("gemma4").make_task(family("gemma4").make()), prompts(12, (4, 4))
    helper = assistant(family("gemma4").make())

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
    helper = assistant(family("gemma4").make())
    before = state_of(helper)
    with pytest.raises(ValueError, match="belongs to an assistant"):
        keras_graphattn.convert(helper)
    assert state_of(helper) == before
    helper = assistant(keras_graphattn.convert(family("gemma4").make()))
    layer, shared = attention_slots(helper)[0].layer, ops.zeros((1, 2, 3, 2, 4))
    with pytest.raises(ValueError, match=r"is converted, and it belongs to an assistant.*revert"):
        layer(ops.ones((1, 1, 16)), cache=shared, shared_kv=shared)


@pytest.mark.parametrize("index", [2, 3])
def test_a_filter_of_borrowed_values_is_that_of_the_formulas(index):
    backbone = converted("gemma4_borrowing")
    layer = attentions_of(backbone)[index]
    size, heads = (4, 2) if index == 2 else (8, 1)
    generator = np.random.default_rng(5)
    x = generator.standard_normal((2, 7, 16)).astype("float32")
    shared = generator.standard_normal((2, 2, 7, heads, size)).astype("float32")
    mask = np.broadcast_to(np.tril(np.ones((7, 7), bool)), (2, 7, 7))

    def twin(weights, x, shared):
        found = []
        # In layers that see all tokens, two of four pairs of features stay as they are.
        inverse = [1.0, 0.01] if index == 2 else [1.0, 1_000_000.0**-0.25, 0.0, 0.0]
        angles = torch.arange(7, dtype=x.dtype)[:, None] * torch.tensor(inverse, dtype=x.dtype)
        for head in range(4):
            query = normalised(x @ weights["query/kernel"][head], weights["query_norm/scale"])
            query = rotated(query, angles)
            key, value = shared[:, 0, :, head * heads // 4], shared[:, 1, :, head * heads // 4]
            scores = (query @ key.transpose(1, 2)).masked_fill(~torch.tensor(mask), -torch.inf)
            matrix = torch.softmax(scores, dim=-1)
            found.append(applied(matrix, value, weights, head, None))
        return torch.einsum("nbth,nhd->btd", torch.stack(found), weights["attention_output/kernel"])

    def call(x, shared):
        return layer(x, attention_mask=mask, shared_kv=shared)[0]

    assert_is_twin(layer, call, twin, input=x, shared=shared)


# Qwen3.5 as published: most layers are a recurrence, which stays as it is.


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_original_qwen_decodes_differently_from_its_full_pass():
    """Once this fails, KerasHub feeds each token once: then the family's docstring can say so."""
    kind = family("qwen3_5_mixed")
    model = kind.make_task(kind.make())
    ids = prompts(4, (4, 4))["token_ids"]
    (full,) = outputs(model, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    step, _, _ = model.call_with_cache(
        ops.convert_to_tensor(ids[:, 3:]), seeded_cache(model, ops.convert_to_tensor(ids)), 3
    )  # as the first step of `generate`
    assert np.abs(to_numpy(step)[:, 0] - full[:, 3]).max() > 1e-2 * np.abs(full).max()


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_recurrence_stays_and_a_file_keeps_the_slots(tmp_path):
    backbone = converted("qwen3_5_mixed")
    rows = keras_graphattn.inspect(backbone)
    assert [row.class_name for row in rows] == ["Qwen3_5GraphFilterAttention"] * 2
    assert type(backbone.transformer_layers[0]._linear_attn).__name__ == "Qwen3_5GatedDeltaNet"
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), expected)
    ids = ops.convert_to_tensor(inputs["token_ids"])
    assert seeded_cache(family("qwen3_5_mixed").make_task(loaded), ids)[0].shape[2] == 4


@pytest.mark.slow_on("jax")
def test_positions_in_time_and_space_are_kept():
    """Of images and videos; with a cache and without."""
    layer = attentions_of(
        family("qwen3_5").make(mrope_section=[1, 1, 1], partial_rotary_factor=1.0)
    )[0]
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 5, 16)).astype("float32")
    options = {
        "attention_mask": np.tril(np.ones((2, 5, 5), bool)),
        "position_ids": generator.integers(0, 9, (2, 4, 5)).astype("int32"),
    }
    expected = to_numpy(layer(x, **options))
    plain = to_numpy(layer(x, attention_mask=options["attention_mask"]))
    assert np.abs(expected - plain).max() > 1e-3
    backbone = keras_graphattn.convert(
        family("qwen3_5").make(mrope_section=[1, 1, 1], partial_rotary_factor=1.0), order=4
    )
    layer = attentions_of(backbone)[0]
    np.testing.assert_allclose(to_numpy(layer(x, **options)), expected, atol=1e-5)
    cache = ops.zeros((2, 4, 5, 2, 4))
    found, _ = layer(x, cache=cache, cache_update_index=0, **options)
    np.testing.assert_allclose(to_numpy(found), expected, atol=1e-5)
