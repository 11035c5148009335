"""Qwen3.5 as published: most layers are a recurrence, which stays as it is."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.biased_decoders import (
    TASKS,
    attentions_of,
    moved,
    prompts,
    random_decoder,
    seeded_cache,
    task_of,
)
from tests.hub.models import assert_equal_outputs, outputs, random_inputs
from tests.numerics import to_numpy


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_original_decodes_differently_from_its_full_pass():
    """Once this fails, KerasHub feeds each token once: then the family's docstring can say so."""
    model = task_of("qwen3_5", random_decoder("qwen3_5_mixed"))
    ids = prompts(4, (4, 4))["token_ids"]
    (full,) = outputs(model, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
    step, _, _ = model.call_with_cache(
        ops.convert_to_tensor(ids[:, 3:]), seeded_cache(model, ops.convert_to_tensor(ids)), 3
    )  # as the first step of `generate`
    assert np.abs(to_numpy(step)[:, 0] - full[:, 3]).max() > 1e-2 * np.abs(full).max()


@pytest.mark.slow_on("jax", "tensorflow")
def test_the_recurrence_stays_and_a_file_keeps_the_slots(tmp_path):
    backbone = moved(keras_graphattn.convert(random_decoder("qwen3_5_mixed"), order=4))
    rows = keras_graphattn.inspect(backbone)
    assert [row.class_name for row in rows] == ["Qwen3_5GraphFilterAttention"] * 2
    assert type(backbone.transformer_layers[0]._linear_attn).__name__ == "Qwen3_5GatedDeltaNet"
    inputs = random_inputs(backbone)
    expected = outputs(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), expected)
    ids = ops.convert_to_tensor(inputs["token_ids"])
    assert seeded_cache(TASKS["qwen3_5"](loaded), ids)[0].shape[2] == 4


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
