"""The decoder of speech recognition, its beam search, and its language model."""

import keras
import numpy as np
import pytest
from keras import ops

from recipes.speech_recognition.decoder import TransformerDecoder
from tests.numerics import to_numpy

VOCABULARY, WIDTH, FRAMES = 7, 8, 6
RANDOM = np.random.default_rng(0)
ENCODED = RANDOM.normal(size=(2, FRAMES, 5)).astype("float32")
FRAME_MASK = np.array([[True] * 6, [True] * 4 + [False] * 2])
TOKENS = RANDOM.integers(0, VOCABULARY, (6, 5)).astype("int32")  # three hypotheses of each


def make_decoder(encoded=ENCODED, **options):
    sizes = {"num_layers": 2, "num_heads": 2, "d_model": WIDTH, "feed_forward": 12}
    decoder = TransformerDecoder(**sizes, vocabulary=VOCABULARY, **options)
    decoder(TOKENS[:2], encoded)
    random = np.random.default_rng(1)
    decoder.set_weights([random.normal(0, 0.5, w.shape) for w in decoder.get_weights()])
    return decoder


def uncached(decoder, tokens, encoded=ENCODED, mask=FRAME_MASK):
    """The logits of hypotheses, each with its own copy of the frames."""
    if encoded is None:
        return to_numpy(decoder(tokens))
    copies = len(tokens) // len(encoded)
    encoded, mask = (np.repeat(x, copies, axis=0) for x in (encoded, mask))
    return to_numpy(decoder(tokens, encoded, encoded_mask=mask))


@pytest.mark.parametrize("encoded", [ENCODED, None], ids=["recogniser", "language model"])
def test_cached_logits_are_those_of_the_call_also_after_reordering(encoded):
    decoder = make_decoder(encoded)
    mask = None if encoded is None else FRAME_MASK
    cache = decoder.initial_cache(6, 3, encoded, mask)
    tokens = TOKENS[:, :2]
    logits, cache = decoder.decode(tokens, cache, 0)  # two at a time
    np.testing.assert_allclose(to_numpy(logits), uncached(decoder, tokens, encoded), atol=1e-5)
    for index, parents in ((2, [2, 0, 0, 3, 5, 4]), (3, [1, 1, 1, 4, 3, 3]), (4, range(6))):
        parents = np.array(parents, "int32")
        cache = decoder.reordered(cache, parents)
        if index == 3:
            cache = decoder.longer(cache, 2)
        tokens = np.concatenate([tokens[parents], TOKENS[:, index : index + 1]], axis=1)
        logits, cache = decoder.decode(tokens[:, -1:], cache, index)
        expected = uncached(decoder, tokens, encoded)[:, -1:]
        np.testing.assert_allclose(to_numpy(logits), expected, atol=1e-5)


def test_a_decoder_sees_no_later_token_and_no_padding():
    decoder = make_decoder()
    tokens, encoded = TOKENS[:2].copy(), ENCODED.copy()
    logits = to_numpy(decoder(tokens, encoded, encoded_mask=FRAME_MASK))
    tokens[:, 3:] = (tokens[:, 3:] + 1) % VOCABULARY
    encoded[~FRAME_MASK] = 5.0
    changed = to_numpy(decoder(tokens, encoded, encoded_mask=FRAME_MASK))
    np.testing.assert_allclose(changed[:, :3], logits[:, :3], atol=1e-5)
    assert np.abs(changed[:, 3:] - logits[:, 3:]).min() > 1e-3
    assert np.abs(to_numpy(decoder(tokens, encoded))[1] - changed[1]).max() > 1e-3


def model_of(decoder, has_encoder):
    tokens = keras.Input((None,), dtype="int32")
    if not has_encoder:
        return keras.Model([tokens], decoder(tokens))
    encoded, mask = keras.Input((None, 5)), keras.Input((None,), dtype="bool")
    return keras.Model([tokens, encoded, mask], decoder(tokens, encoded, encoded_mask=mask))


@pytest.mark.parametrize("has_encoder", [True, False])
def test_a_decoder_in_a_model_survives_a_file(has_encoder, tmp_path):
    decoder = make_decoder(ENCODED if has_encoder else None, dropout=0.1, seed=3)
    inputs = [TOKENS[:2], ENCODED, FRAME_MASK] if has_encoder else [TOKENS[:2]]
    model = model_of(decoder, has_encoder)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(model(inputs)), atol=1e-6)
    assert loaded.layers[-1].get_config() == decoder.get_config()


def test_a_decoder_learns_by_fit_and_all_its_weights_move():
    decoder = make_decoder(dropout=0.1)
    model = model_of(decoder, True)
    before = model.get_weights()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    targets = np.roll(TOKENS[:2], -1, axis=1)
    history = model.fit([TOKENS[:2], ENCODED, FRAME_MASK], targets, epochs=3, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]
    for weight, old in zip(model.weights, before, strict=True):
        assert np.abs(to_numpy(weight.value) - old).max() > 0, weight.path


def test_logits_are_float32_in_half_precision():
    decoder = make_decoder(dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(decoder(TOKENS[:2], ENCODED).dtype) == "float32"
    cache = decoder.initial_cache(6, 5, ENCODED)
    logits, _ = decoder.decode(TOKENS, cache, 0)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    exact = make_decoder()
    expected = uncached(exact, TOKENS, mask=np.ones_like(FRAME_MASK))
    assert np.abs(to_numpy(logits) - expected).max() < 0.2 * np.abs(expected).max()


def test_wrong_arguments_of_a_decoder_are_named():
    with pytest.raises(ValueError, match="num_heads=3, d_model=8"):
        TransformerDecoder(1, 3, 8, 8, 5)
    decoder = make_decoder()
    with pytest.raises(ValueError, match="built with encoded frames. Received: a call without"):
        decoder(TOKENS)
    cache = decoder.initial_cache(2, 2, ENCODED)
    with pytest.raises(ValueError, match="The cache holds 2 tokens"):
        decoder.decode(ops.zeros((2, 1), "int32"), cache, 2)
