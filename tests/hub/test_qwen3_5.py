"""Qwen3.5 as published: most layers are a recurrence, which stays as it is."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.biased_decoders import (
    TASKS,
    attentions_of,
    fast_for,
    greedy,
    moved,
    prompts,
    random_decoder,
    seeded_cache,
    task_of,
)
from tests.hub.models import assert_equal_outputs, fit_one_step, outputs, random_inputs
from tests.numerics import to_numpy

FAMILIES = fast_for(("qwen3_5", "qwen3_5_moe"))
MIXED = {
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
    "num_layers": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}


def mixed(name, **options):
    return random_decoder(name, **MIXED, **options)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", FAMILIES)
def test_converts_the_layers_that_attend_and_no_others(name):
    backbone = mixed(name)
    inputs, kinds = random_inputs(backbone), [type(x) for x in backbone.transformer_layers]
    expected = outputs(backbone, inputs)
    keras_graphattn.convert(backbone, order=4)
    rows = keras_graphattn.inspect(backbone)
    assert [row.class_name for row in rows] == ["Qwen3_5GraphFilterAttention"] * 2
    assert type(backbone.transformer_layers[0]._linear_attn).__name__ == "Qwen3_5GatedDeltaNet"
    assert_equal_outputs(outputs(backbone, inputs), expected, tolerance=1e-5)
    keras_graphattn.revert(backbone)
    assert [type(x) for x in backbone.transformer_layers] == kinds
    assert_equal_outputs(outputs(backbone, inputs), expected, tolerance=0)


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_training_step_moves_every_coefficient(name):
    backbone = keras_graphattn.convert(mixed(name), order=4)
    added = {v.path: to_numpy(v) for v in backbone.weights if "coefficient" in v.path}
    fit_one_step(backbone, random_inputs(backbone))
    assert len(added) == 6
    for variable in backbone.weights:
        if variable.path in added:
            assert (np.abs(to_numpy(variable) - added[variable.path]) > 1e-6).all(), variable.path


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("where", ["all", "even"])
@pytest.mark.parametrize("name", FAMILIES)
def test_generates_at_the_start_what_the_original_does(name, where):
    """Layers of recurrence and layers left alone pass on the slot of A V."""
    model, inputs = task_of(name, mixed(name)), prompts(9)
    expected = greedy(model, inputs)
    keras_graphattn.convert(model, where=where, order=4)
    np.testing.assert_array_equal(greedy(model, inputs), expected)
    caches = seeded_cache(model, ops.convert_to_tensor(inputs["token_ids"]))
    assert caches[0].shape == (2, 3, 4, 9, 2, 4)  # A V of 4 query heads takes two slots of 2
    keras_graphattn.revert(model)
    caches = seeded_cache(model, ops.convert_to_tensor(inputs["token_ids"]))
    assert caches[0].shape == (2, 3, 2, 9, 2, 4)
    np.testing.assert_array_equal(greedy(model, inputs), expected)


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_original_decodes_differently_from_its_full_pass():
    """Once this fails, KerasHub feeds each token once: then the family's docstring can say so."""
    model, ids = task_of("qwen3_5", mixed("qwen3_5")), prompts(4, (4, 4))["token_ids"]
    (full,) = outputs(model, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    step, _, _ = model.call_with_cache(
        ops.convert_to_tensor(ids[:, 3:]), seeded_cache(model, ops.convert_to_tensor(ids)), 3
    )  # as the first step of `generate`
    assert np.abs(to_numpy(step)[:, 0] - full[:, 3]).max() > 1e-2 * np.abs(full).max()


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", FAMILIES)
def test_lasts_in_a_keras_file(name, tmp_path):
    backbone = moved(keras_graphattn.convert(mixed(name), order=4))
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), expected)
    ids = ops.convert_to_tensor(inputs["token_ids"])
    assert seeded_cache(TASKS[name](loaded), ids)[0].shape[2] == 4


@pytest.mark.slow_on("jax")
def test_positions_in_time_and_space_are_kept():
    """Of images and videos; with a cache and without."""
    layer = attentions_of(
        random_decoder("qwen3_5", mrope_section=[1, 1, 1], partial_rotary_factor=1.0)
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
        random_decoder("qwen3_5", mrope_section=[1, 1, 1], partial_rotary_factor=1.0), order=4
    )
    layer = attentions_of(backbone)[0]
    np.testing.assert_allclose(to_numpy(layer(x, **options)), expected, atol=1e-5)
    cache = ops.zeros((2, 4, 5, 2, 4))
    found, _ = layer(x, cache=cache, cache_update_index=0, **options)
    np.testing.assert_allclose(to_numpy(found), expected, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_refuses_a_cache_without_an_index_and_the_reverse(name):
    layer = attentions_of(keras_graphattn.convert(random_decoder(name), order=4))[0]
    x = ops.ones((1, 1, 16))
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, cache=ops.zeros((1, 4, 1, 2, 4)))
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, cache_update_index=0)
