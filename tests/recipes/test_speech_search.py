"""The decoder of speech recognition, its beam search, and its language model."""

import doctest
import itertools
import json

import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import log_softmax, logsumexp

from recipes.common.command.parsing import UsageError
from recipes.speech_recognition import decoder, search
from recipes.speech_recognition.data import END, START, SYNTHETIC_WORDS, Vocabulary
from recipes.speech_recognition.decoder import TransformerDecoder
from recipes.speech_recognition.language_model import RECIPE
from recipes.speech_recognition.language_model_training import SentenceBatches, read_language_model
from recipes.speech_recognition.search import (
    BeamSearch,
    PrefixScores,
    error_rates,
    greedy_ctc,
    log_product,
    reported,
)
from recipes.speech_recognition.transcripts import Sentences
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


@pytest.mark.slow_on("jax")  # which compiles each length
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


@pytest.mark.slow_on("jax")
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


@pytest.mark.slow_on("jax", "tensorflow")
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


@pytest.mark.slow_on("jax")
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
    with pytest.raises(ValueError, match=r"built with encoded frames\. Received: a call without"):
        decoder(TOKENS)
    cache = decoder.initial_cache(2, 2, ENCODED)
    with pytest.raises(ValueError, match="The cache holds 2 tokens"):
        decoder.decode(ops.zeros((2, 1), "int32"), cache, 2)


def test_greedy_ctc_leaves_out_repetitions_blanks_and_padding():
    likeliest = [[1, 1, 0, 1, 2, 2], [0, 3, 0, 0, 2, 2], [0, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 2]]
    mask = np.arange(6) < np.array([[6], [4], [6], [0]])
    assert greedy_ctc(np.eye(4)[likeliest], mask) == [[1, 1, 2], [3], [], []]
    assert greedy_ctc(np.eye(4)[likeliest], mask, blank=2) == [[1, 0, 1], [0, 3, 0], [0], []]


def frames_of(seed, count=5, vocabulary=4, sharpness=2.0):
    random = np.random.default_rng(seed)
    return log_softmax(sharpness * random.normal(size=(count, vocabulary)), axis=-1)


def transcript(path, blank=0):
    """What an alignment says."""
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def by_all_alignments(frames, end):
    """Probabilities of all prefixes, and of each with the end: sums over all alignments."""
    sums = {}
    for path in itertools.product(range(frames.shape[1]), repeat=len(frames)):
        probability = np.exp(frames[np.arange(len(frames)), list(path)].sum())
        said = transcript(path)
        for prefix in [said[:length] for length in range(len(said) + 1)] + [(*said, end)]:
            sums[prefix] = sums.get(prefix, 0.0) + probability
    return sums


def prefixes_of(ctc, transcripts):
    """The states of hypotheses of one length, token by token."""
    prefixes = ctc.extended(ctc.start(), np.zeros(len(transcripts), int), transcripts[:, 0])
    for column in transcripts.T[1:]:
        prefixes = ctc.extended(prefixes, np.arange(len(transcripts)), column)
    return prefixes


@pytest.mark.parametrize(("seed", "sharpness"), [(0, 1.0), (1, 3.0), (2, 8.0)])
def test_prefix_scores_are_sums_over_all_alignments(seed, sharpness):
    end, frames = 4, frames_of(seed, sharpness=sharpness)
    expected = by_all_alignments(frames, end)
    # the end is no token of an alignment
    frames = np.pad(frames, ((0, 0), (0, 1)), constant_values=-np.inf)
    ctc = PrefixScores(frames, blank=0, end=end)
    for length in range(5):
        prefixes = ctc.start()
        transcripts = np.array(list(itertools.product((1, 2, 3), repeat=length)), int)
        if length:
            prefixes = prefixes_of(ctc, transcripts)
        found = np.exp(ctc.scores(prefixes))
        assert found.shape == (3**length, 5)
        for row, prefix in zip(found, map(tuple, transcripts.tolist()), strict=True):
            sums = [expected.get((*prefix, token), 0.0) for token in range(5)]
            np.testing.assert_allclose(row, [0.0, *sums[1:]], rtol=1e-6, atol=1e-12)


def test_prefix_scores_of_no_frame():
    ctc = PrefixScores(np.zeros((0, 3)), blank=0, end=2)
    assert ctc.scores(ctc.start()).tolist() == [[-np.inf, -np.inf, 0.0]]


def test_a_product_of_any_size_is_that_of_logarithms():
    random = np.random.default_rng(0)
    a, b = random.normal(0, 900, (5, 8)), random.normal(0, 900, (8, 6))
    a[0], a[1, :4], b[:, 1] = -np.inf, -np.inf, -np.inf
    expected = logsumexp(a[:, :, None] + b, axis=1)
    np.testing.assert_allclose(log_product(a, b), expected, rtol=1e-12)


LETTERS = (3, 4, 5, 6)


class Uncached:
    """A decoder that keeps the tokens of all hypotheses and computes everything anew."""

    def __init__(self, decoder):
        self.decoder, self.vocabulary = decoder, decoder.vocabulary

    def initial_cache(self, hypotheses, max_length, encoded=None, encoded_mask=None):
        return np.zeros((hypotheses, 0), "int32"), encoded, encoded_mask

    def reordered(self, cache, parents):
        return cache[0][parents], *cache[1:]

    def longer(self, cache, more):
        return cache

    def decode(self, tokens, cache, index):
        seen, encoded, mask = np.concatenate([cache[0], tokens], axis=1), *cache[1:]
        return uncached(self.decoder, seen, encoded, mask)[:, -1:], (seen, encoded, mask)


class Setting:
    """An utterance with its networks, and the joint score by its definition."""

    def __init__(self, seed=0, count=4, ctc_weight=0.4, language_model=True, temperature=1.15):
        self.frames = frames_of(seed, FRAMES, VOCABULARY)
        self.mask = np.arange(FRAMES) < count
        self.encoded = np.random.default_rng(seed).normal(size=(1, FRAMES, 5)).astype("float32")
        self.decoder = make_decoder()
        self.language_model = make_decoder(None) if language_model else None
        self.weights = {"ctc_weight": ctc_weight, "temperature": temperature}

    def search(self, beam=66, wrap=lambda decoder: decoder):
        model = None if self.language_model is None else wrap(self.language_model)
        weights = {"language_model": model, **self.weights}
        return BeamSearch(wrap(self.decoder), start=START, end=END, beam=beam, **weights)

    def best(self, **options):
        arrays = (self.encoded, self.mask[None], self.frames[None])
        (found,) = self.search(**options)(*arrays)
        return found

    def scores(self, transcripts, ended=True):
        """The joint score of transcripts of one length."""
        transcripts = np.asarray(transcripts, int).reshape(len(transcripts), -1)
        sizes, length = (len(transcripts), 1), transcripts.shape[1]
        tokens = np.hstack([np.full(sizes, START), transcripts, np.full(sizes, END)])
        if not ended:
            tokens = tokens[:, :-1]
        total = np.zeros(len(tokens))
        parts = [(self.decoder, self.encoded, 1 - self.weights["ctc_weight"])]
        if self.language_model is not None:
            parts.append((self.language_model, None, 0.6))
        for network, encoded, weight in parts:
            logits = uncached(network, tokens[:, :-1], encoded, self.mask[None])
            logits = log_softmax(logits.astype("float64") / self.weights["temperature"], axis=-1)
            own = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
            total += weight * own.sum(axis=1)
        if not self.weights["ctc_weight"]:
            return total
        ctc = PrefixScores(self.frames[self.mask], blank=0, end=END)
        before = ctc.start()
        for column in tokens[:, 1 : 1 + length - (not ended)].T:
            before = ctc.extended(before, np.arange(len(column)) % len(before.last), column)
        following = ctc.scores(before)
        rows = np.arange(len(tokens)) % len(following)
        return total + self.weights["ctc_weight"] * following[rows, tokens[:, -1]]


@pytest.mark.slow_on("jax")  # which compiles each length
def test_a_wide_beam_finds_the_best_of_all_transcripts():
    setting = Setting()
    every = {}
    for length in range(5):
        transcripts = list(itertools.product(LETTERS, repeat=length))
        scores = setting.scores(transcripts)
        every |= dict(zip(transcripts, scores, strict=True))
    best = max(every, key=every.get)
    found = setting.best(beam=400)
    assert found.tokens == list(best)
    np.testing.assert_allclose(found.score, every[best], atol=1e-5)


SETTINGS = [
    {},
    {"seed": 1, "language_model": False},
    {"seed": 2, "ctc_weight": 0.0, "count": 3},
    {"seed": 3, "ctc_weight": 1.0, "count": 6, "temperature": 0.5},
    {"seed": 4, "count": 1},
    {"count": 6, "ctc_weight": 0.8, "language_model": False},  # a beam alone loses the greedy one
]


@pytest.mark.slow_on("jax")  # which compiles each length
@pytest.mark.parametrize("options", SETTINGS)
def test_a_search_with_a_cache_is_the_one_without(options, monkeypatch):
    monkeypatch.setattr(search, "ROOM", 1)  # so that the cache grows
    setting = Setting(**options)
    found = setting.best(beam=3)
    expected = setting.best(beam=3, wrap=Uncached)
    assert found.tokens == expected.tokens
    np.testing.assert_allclose(found.score, expected.score, atol=1e-5)
    np.testing.assert_allclose(found.score, setting.scores([found.tokens])[0], atol=1e-5)
    assert len(found.tokens) <= setting.mask.sum()


def token_by_token(setting):
    """The transcript that takes the best token at each step, until that is the end."""
    tokens = []
    while len(tokens) < setting.mask.sum():
        following = setting.scores([[*tokens, token] for token in LETTERS], ended=False)
        if following.max() < setting.scores([tokens])[0]:
            break
        tokens.append(LETTERS[int(np.argmax(following))])
    return tokens


@pytest.mark.slow_on("jax")  # which compiles each length
@pytest.mark.parametrize("options", SETTINGS)
def test_a_search_is_never_worse_than_greedy_decoding(options):
    setting = Setting(**options)
    found = setting.best(beam=1)
    (by_ctc,) = greedy_ctc(setting.frames[None], setting.mask[None])
    by_ctc = [token for token in by_ctc if token in LETTERS]
    assert found.score >= setting.scores([by_ctc])[0] - 1e-5
    assert found.score >= setting.scores([token_by_token(setting)])[0] - 1e-5


@pytest.mark.slow_on("jax")  # which compiles each length
def test_utterances_of_a_batch_do_not_change_each_other(monkeypatch):
    monkeypatch.setattr(search, "HYPOTHESES", 10)  # those of two utterances
    monkeypatch.setattr(search, "ROOM", 1)
    settings = [Setting(seed, count=count) for seed, count in enumerate((3, 6, 1))]
    padded = [Setting(seed, count=count) for seed, count in enumerate((3, 6, 1))]
    for one in padded:
        one.frames[~one.mask], one.encoded[:, ~one.mask] = 7.0, 7.0
    arrays = (
        np.concatenate([one.encoded for one in padded]),
        np.stack([one.mask for one in padded]),
        np.stack([one.frames for one in padded]),
    )
    found = padded[0].search(beam=3)(*arrays)
    for hypothesis, setting in zip(found, settings, strict=True):
        alone = setting.best(beam=3)
        assert hypothesis.tokens == alone.tokens
        np.testing.assert_allclose(hypothesis.score, alone.score, atol=1e-5)


def test_wrong_settings_of_a_search_are_named():
    ids = {"start": START, "end": END}
    with pytest.raises(ValueError, match="ctc_weight=2"):
        BeamSearch(make_decoder(), **ids, ctc_weight=2)
    other = TransformerDecoder(1, 2, 4, 4, vocabulary=9)
    with pytest.raises(ValueError, match="9 tokens, and 7 of the decoder"):
        BeamSearch(make_decoder(), **ids, language_model=other)


def test_error_rates_are_those_of_jiwer_s_own_examples():
    pytest.importorskip("jiwer")
    words = error_rates(["hello world", "i like monty python"], ["hello duck", "i like python"])
    assert words.words == pytest.approx(2 / 6)
    rates = error_rates(["i can spell", "i hope"], ["i kan cpell", "i hop"])
    assert rates.characters == pytest.approx(3 / 17)
    assert error_rates(["a b"], [""]) == (1.0, 1.0)


def test_what_is_reported_of_two_tests():
    said = ["one two", "three"]
    searched = {"test-clean": (said, ["one two", "tree"]), "test-other": (said, ["one", "three"])}
    values = reported({"test-other": (said, ["", ""])}, searched)
    assert values.pop("test_character_error_rate_beam") == pytest.approx(1 / 12)
    assert values.pop("test_character_error_rate_beam_test_other") == pytest.approx(4 / 12)
    assert values == {
        "test_word_error_rate_beam": pytest.approx(1 / 3),
        "transcripts": [["one two", "one two"], ["three", "tree"]],
        "test_word_error_rate_test_other": 1.0,
        "test_word_error_rate_beam_test_other": pytest.approx(1 / 3),
    }


def test_batches_of_sentences_count_each_token_and_end_once():
    said = [[3, 4], [5], [], [6, 3, 4], [4]]
    sentences = Sentences([np.array(one, "int32") for one in said])
    batches = SentenceBatches(sentences, [2, 4], 2, seed=0)
    found = []
    for index in range(batches.num_batches):
        inputs, targets, weights = batches[index]
        assert inputs.shape == targets.shape == weights.shape
        assert (inputs[:, 0] == START).all()
        for row, target, counted in zip(inputs, targets, weights == 1, strict=True):
            assert row[counted][1:].tolist() == target[counted][:-1].tolist()
            if counted.any():
                assert target[counted][-1] == END
                found.append(target[counted][:-1].tolist())
    assert sorted(found) == sorted(said)


TINY = ["--train-examples", 8, "--layers", 1, "--d-model", 8, "--heads", 2, "--feed-forward", 8]


@pytest.mark.slow
def test_the_command_writes_a_language_model_that_the_search_takes(tmp_path, capsys):
    arguments = [*TINY, "--epochs", 2, "--warm-up", 1, "--verbose", 0]
    (tmp_path / "text.txt").write_text("ai eo\n\nou  ai\n" * 4)
    for name, more in (("transcripts", []), ("text", ["--text", tmp_path / "text.txt"])):
        command = [*arguments, *more, "--output", tmp_path / name]
        assert RECIPE.main([str(one) for one in command]) == 0
        results = json.loads((tmp_path / name / "results.json").read_text())
        (run,) = results["runs"]
        assert run["test_perplexity"] == pytest.approx(np.exp(run["test_cross_entropy"]))
    assert results["sentences"] == {"train": 8, "validation": 8, "test": 8}
    assert results["tokens"]["train"] == 8 * (len("ai eo") + 1)  # with the ends
    vocabulary = Vocabulary("character", [" ".join(SYNTHETIC_WORDS)], 0)
    language_model = read_language_model(str(tmp_path / "text" / "model.keras"), vocabulary)
    sizes = {"vocabulary": vocabulary.size, "num_layers": 1, "num_heads": 2}
    recogniser = TransformerDecoder(**sizes, d_model=8, feed_forward=8)
    found = BeamSearch(recogniser, start=START, end=END, language_model=language_model, beam=2)(
        ENCODED, FRAME_MASK, frames_of(0, 2 * FRAMES, vocabulary.size).reshape(2, FRAMES, -1)
    )
    assert all(np.isfinite(one.score) for one in found)
    other = Vocabulary("character", ["eo", "ia", "ux"], 0)
    with pytest.raises(UsageError, match="other tokens than the recogniser"):
        read_language_model(str(tmp_path / "text" / "model.keras"), other)


def test_wrong_options_of_the_language_model_are_one_line(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n")
    for arguments, words in (
        (["--text", "nowhere.txt"], "--text nowhere.txt is no file"),
        (["--data-dir", "x"], "--data-dir: the data of --dataset synthetic are made"),
        (["--heads", 3], "--d-model 64 cannot be shared out over --heads 3"),
        (["--train-examples", 8, "--text", tmp_path / "empty.txt"], "holds no sentence"),
    ):
        arguments = [str(one) for one in arguments]
        assert RECIPE.main([*arguments, "--output", str(tmp_path / "output")]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    with pytest.raises(UsageError, match=r"nowhere\.keras is no file"):
        read_language_model("nowhere.keras", None)


@pytest.mark.slow_on("jax")  # which compiles each length
@pytest.mark.parametrize("module", [decoder, search], ids=["decoder", "search"])
def test_examples_of_docstrings(module):
    assert doctest.testmod(module, extraglobs={"keras": keras, "np": np}).failed == 0
