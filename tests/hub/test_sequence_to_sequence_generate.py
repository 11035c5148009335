"""Models of an encoder and a decoder decode with their two caches as they compute without."""

import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from tests.hub.decoding import (
    decoded_with_two_caches,
    decoding,
    generated,
    greedy,
    greedy_without_cache,
    logits,
)
from tests.hub.families import family, fast_for
from tests.hub.models import attentions_of, moved
from tests.hub.sequence_to_sequence import DECODED, REPRESENTATIVE, inputs_of, parseq_task, prompts
from tests.hub.test_decoding import CASES as of_causal_models

EACH = [pytest.param(x) if isinstance(x, str) else x for x in fast_for(DECODED, REPRESENTATIVE)]
CASES = {
    **{name: of_causal_models[name] for name in ("graph_filter", "chebyshev", "p_laplacian")},
    "odd": ("graph_filter", "odd", {"order": 4}),
    "encoder": ("graph_filter", "first:2", {"order": 4}),
}


def original(name):
    """The task, or the backbone where there is none."""
    backbone = family(name).make()
    return backbone if name == "whisper" else family(name).make_task(backbone)


def model_of(name, case="graph_filter"):
    attention, where, options = CASES[case]
    where = family(name).where if name == "t5_gemma_2" else where
    return moved(keras_graphattn.convert(original(name), attention, where, **options))


def tokens_of(model, length=7, seed=2):
    return inputs_of(model, length, (length, length), seed)["decoder_token_ids"]


# Whisper has no task that generates 64 tokens: its decoder is called as the tasks call theirs.
@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(
    ("name", "case", "length"),
    [
        *(pytest.param(*x.values, case, 7, marks=x.marks) for x in EACH for case in CASES),
        pytest.param("whisper", "graph_filter", 68, marks=pytest.mark.slow),
    ],
)
def test_cached_decoding_equals_the_full_pass(name, case, length):
    model = model_of(name, case)
    inputs, ids = inputs_of(model), tokens_of(model, length)
    expected = logits(model, inputs, ids)
    found, *_ = decoded_with_two_caches(model, inputs, ids)
    # EdRec doubles what its norms hand on, and float32's rounding with it.
    tolerance = 5e-5 if name == "edrec" else 1e-5
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", EACH)
def test_the_caches_of_cross_attention_are_those_of_the_original(name):
    """Only self-attention gets further slots. With new coefficients, all else is the same, too."""
    found = []
    for kind in ("plain", "converted"):
        model = original(name)
        if kind == "converted":
            keras_graphattn.convert(model, where=family(name).where, order=4)
        _, first, last = decoded_with_two_caches(model, inputs_of(model), tokens_of(model))
        found.append([np.asarray(ops.convert_to_numpy(x.cross)) for x in (first, last)])
        found[-1].append(np.asarray(ops.convert_to_numpy(last.own)))
    (plain, _, own), (first, last, wider) = found
    assert plain.shape[2] == 2
    np.testing.assert_array_equal(last, first)
    if name == "t5_gemma_2":  # in its window, padding may see nothing: the decoder hides it
        real = inputs_of(model)["encoder_padding_mask"][:, None, None, :, None, None]
        first, plain = first * real, plain * real
    np.testing.assert_allclose(first, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
    # Query heads for one head of keys; the decoder of T5Gemma 2 stays as it is.
    further = {"t5_gemma": 2, "t5_gemma_2": 0}.get(name, 1)
    assert (own.shape[2], wider.shape[2]) == (2, 2 + further)
    np.testing.assert_allclose(wider[:, :, :2], own, rtol=0, atol=1e-5 * np.abs(own).max())


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_position_bias_passes_between_converted_layers_and_others():
    """In T5, the first layer of a stack makes the bias and the mask of all."""
    for where in ([0, 2], [1, 3]):
        model = original("t5")
        inputs = prompts(model)
        expected = greedy(model, inputs)
        keras_graphattn.convert(model, where=where)
        np.testing.assert_array_equal(greedy(model, inputs), expected)
        assert [hasattr(x, "converted_from") for x in attentions_of(model)].count(True) == 2


@pytest.mark.slow_on("jax", "tensorflow")
def test_parseq_reads_with_a_converted_encoder():
    model = parseq_task(family("parseq").make())
    model.compile(sampler="greedy", loss=None, run_eagerly=True)
    inputs = {
        "images": inputs_of(model)["images"],
        "token_ids": np.array([[1] + [0] * 6] * 2, "int32"),
        "padding_mask": np.array([[True] + [False] * 6] * 2),
    }

    def read():
        found = model.generate({k: v.copy() for k, v in inputs.items()}, stop_token_ids=None)
        return np.asarray(ops.convert_to_numpy(found["token_ids"]))

    before = read()
    keras_graphattn.convert(model, order=4)
    np.testing.assert_array_equal(read(), before)
    moved(model)
    assert (read() != before).any()


@pytest.mark.slow_on("jax", "tensorflow")
def test_beams_and_stop_tokens():
    model = model_of("t5")
    inputs = prompts(model, 12, (3, 3))
    expected = greedy_without_cache(model, inputs)
    found = generated(model, inputs, keras_hub.samplers.BeamSampler(num_beams=1))
    np.testing.assert_array_equal(found["decoder_token_ids"], expected)
    stop = int(expected[0, 6])
    mask = generated(model, inputs, stop_token_ids=[stop])["decoder_padding_mask"]
    at = 3 + int(np.flatnonzero(expected[0, 3:] == stop)[0])
    np.testing.assert_array_equal(mask[0], np.arange(12) <= at)
    assert decoding(model).name == "t5"
