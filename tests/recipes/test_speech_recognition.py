"""Speech recognition: data and their faults, features, encoders, the joint loss, sizes."""

import csv
import itertools
import math
import subprocess
import sys

import keras
import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.training.optimizers import Noam
from recipes.speech_recognition import data, encoders, features
from recipes.speech_recognition.batches import Recordings, lengths_of
from recipes.speech_recognition.search import greedy_ctc
from tests.numerics import BACKEND, randomise, to_numpy
from tests.recipes.command_line import results_of
from tests.recipes.models import recipe_of

pytest.importorskip("jiwer")
soundfile = pytest.importorskip("soundfile")

RECIPE = recipe_of("speech_recognition")
TINY = "--layers 1 --d-model 8 --heads 2 --feed-forward 8 --decoder-feed-forward 8 --mel-bins 12"
TINY += " --warm-up 2 --beam 2 --buckets 1 --batch-size 8"
CHANNELS = {"transformer": "--channels 4,4,4", "branchformer": "--channels 2,2"}


def options_of(more="", model="transformer"):
    is_read = "folder" in more.split() or "librispeech" in more.split()
    count = "" if is_read else "--train-examples 16"
    return RECIPE.parse(f"--model {model} {TINY} {CHANNELS[model]} {count} {more}".split())


def model_of(attention, model, problem=None):
    options = options_of(f"--attention {attention}", model)
    problem = problem or RECIPE.load(options)
    built = RECIPE.model.build(RECIPE.trial(problem, attention, options))
    randomise(built, scale=0.2)
    return built, problem


def inputs_of(problem, indices, longer=0):
    split = problem.test
    length = int(split.lengths[indices].max()) + longer
    width = max(len(split.tokens[one]) for one in indices) + 1
    samples = np.zeros((len(indices), length), "float32")
    tokens = np.zeros((len(indices), width), "int32")
    for row, one in enumerate(indices):
        samples[row, : split.lengths[one]] = split.samples(one)
        tokens[row, : len(split.tokens[one]) + 1] = [data.START, *split.tokens[one]]
    counts = split.lengths[indices].astype("int32")
    return {"samples": samples, "num_samples": counts, "tokens": tokens}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("model", ["transformer", "branchformer"])
@pytest.mark.parametrize("attention", RECIPE.attentions)
def test_padding_and_the_order_of_a_batch_change_no_probability(attention, model):
    built, problem = model_of(attention, model)
    indices = [0, 1, 2]

    def probabilities(order, longer):
        outputs = built(inputs_of(problem, order, longer))
        return {name: to_numpy(keras.ops.softmax(one)) for name, one in outputs.items()}

    expected = probabilities(indices, 0)
    frames = data.encoder_frames(problem.test.lengths[indices], problem.rate)
    counts = problem.test.labels[indices] + 1
    sizes = {"ctc": frames, "attention": counts}
    for order, longer in (([2, 0, 1], 0), ([0, 1, 2], 137), ([1], 1)):
        outputs = probabilities(order, longer)
        for name, size in sizes.items():
            found = outputs[name]
            for row, one in enumerate(order):
                ours, theirs = found[row, : size[one]], expected[name][one, : size[one]]
                np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.slow_on("jax")
def test_a_served_recogniser_hears_what_greedy_ctc_hears():
    built, problem = model_of("gfsa", "transformer")
    seconds = 4  # on jax, a served model has one length
    longer = seconds * problem.rate - int(problem.test.lengths[:3].max())
    inputs = inputs_of(problem, [0, 1, 2], longer)
    del inputs["tokens"]
    scores, mask = RECIPE.model.listener(built)(inputs)
    expected = greedy_ctc(to_numpy(scores), to_numpy(mask))
    served = RECIPE.model.served(built, options_of(f"--served-seconds {seconds}"))
    found = to_numpy(served(inputs))
    assert [row[row >= 0].tolist() for row in found] == expected
    assert any(expected)


def test_a_frame_is_a_hop_and_the_encoder_has_a_quarter_of_them():
    samples = np.random.default_rng(0).standard_normal((1, 1601)).astype("float32")
    mel = to_numpy(features.log_mel(samples, 8000, 12))
    assert mel.shape == (1, data.frames(1601, 8000), 12) == (1, 21, 12)
    assert data.encoder_frames(np.array([80, 320, 321]), 8000).tolist() == [1, 1, 2]


def test_features_of_a_tone_are_loudest_in_its_band():
    time = np.arange(8000) / 8000
    mel = to_numpy(
        features.log_mel(np.sin(2 * np.pi * 1000 * time)[None].astype("float32"), 8000, 40)
    )
    bands = 700 * (
        np.exp(np.linspace(*(1127 * np.log1p(np.array([20, 4000]) / 700)), 42) / 1127) - 1
    )
    assert abs(bands[1:-1][mel[0, 50].argmax()] - 1000) < 60


def test_bins_have_mean_0_and_an_utterance_has_variance_1_without_its_padding():
    x = np.random.default_rng(0).normal(3.0, [1.0, 2.0, 5.0, 9.0], (2, 30, 4)).astype("float32")
    mask = np.arange(30) < np.array([[30], [11]])
    found = to_numpy(features.UtteranceNorm()(x, mask))
    for row, count in enumerate((30, 11)):
        np.testing.assert_allclose(found[row, :count].mean(axis=0), 0.0, atol=1e-5)
        np.testing.assert_allclose(found[row, :count].std(), 1.0, atol=2e-3)
        deviations = x[row, :count].std(axis=0)  # between bins, their ratios stay
        ratios = found[row, :count].std(axis=0) / deviations
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-4)
        assert (found[row, count:] == 0).all()


def test_masks_of_spec_augment_are_no_wider_than_asked_and_only_in_training():
    x = np.ones((64, 50, 20), "float32")
    mask = np.arange(50) < np.full((64, 1), 40)
    layer = features.SpecAugment(0, 1, 5, 1, 10, seed=1)
    np.testing.assert_array_equal(to_numpy(layer(x, mask)), x)
    hidden = to_numpy(layer(x, mask, training=True)) == 0
    times, bands = hidden.all(axis=2).sum(axis=1), hidden.all(axis=1).sum(axis=1)
    assert (times.min(), times.max()) == (0, 10)
    assert (bands.min(), bands.max()) == (0, 5)
    assert not hidden.all(axis=2)[:, 40:].any()  # padding needs no mask
    half = features.SpecAugment(0, 0, 0, 1, 30, time_share=0.5, seed=1)
    assert (to_numpy(half(x, mask, training=True)) == 0).all(axis=2).sum(axis=1).max() == 20
    for row in hidden:  # one stretch each
        assert (np.diff(np.flatnonzero(row.all(axis=1))) == 1).all()


def test_a_time_warp_moves_one_point_and_keeps_both_ends():
    ramp = np.broadcast_to(np.arange(50, dtype="float32")[None, :, None], (32, 50, 1)) * 1.0
    mask = np.arange(50) < np.full((32, 1), 40)
    layer = features.SpecAugment(5, 0, 0, 0, 0, seed=1)
    warped = to_numpy(layer(ramp, mask, training=True))[..., 0]
    np.testing.assert_allclose(warped[:, [0, 39]], [[0, 39]] * 32, atol=1e-4)
    np.testing.assert_allclose(warped[:, 40:], ramp[:, 40:, 0])
    assert (np.diff(warped[:, :40]) > 0).all()
    moved = np.abs(warped[:, :40] - np.arange(40)).max(axis=1)
    assert 2 < moved.max() <= 4 + 1e-3
    steps = np.diff(warped[:, :40])
    assert (np.abs(np.diff(steps)) > 1e-3).sum(axis=1).max() <= 2  # two straight lines


@pytest.mark.parametrize("attention", ["softmax", "p_laplacian"])
def test_relative_positions_are_those_of_transformer_xl(attention):
    layer = encoders.RELATIVE["softmax"](num_heads=2, key_dim=3)
    x = np.random.default_rng(0).standard_normal((1, 5, 6)).astype("float32")
    layer(x, x)
    randomise(layer, scale=0.5)
    _, found = layer(x, x, return_attention_scores=True)
    if attention == "p_laplacian":  # the same positions are added to other scores
        other = encoders.RELATIVE[attention](num_heads=2, key_dim=3)
        other(x, x)
        assert {v.name for v in layer.weights} == {v.name for v in other.weights}
        return
    query = to_numpy(layer.query_dense(x))[0].astype("float64")
    key = to_numpy(layer.key_dense(x))[0].astype("float64")
    kernel, u, v = (
        to_numpy(one).astype("float64")
        for one in (layer.position_kernel, layer.content_vector, layer.position_vector)
    )
    scores = np.zeros((2, 5, 5))
    rates = 10000.0 ** (-np.arange(3) / 3)
    for n, i, j in itertools.product(range(2), range(5), range(5)):
        sinusoid = np.concatenate([np.sin((i - j) * rates), np.cos((i - j) * rates)])
        place = sinusoid @ kernel[:, n]
        content = (query[i, n] + u[n]) @ key[j, n]
        scores[n, i, j] = (content + (query[i, n] + v[n]) @ place) / math.sqrt(3)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(to_numpy(found)[0], expected, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_the_loss_joins_all_alignments_and_smoothed_tokens():
    problem = RECIPE.load(options_of())
    model = RECIPE.model.trained(model_of("softmax", "transformer", problem)[0], problem)
    random = np.random.default_rng(0)
    ctc, attention = random.standard_normal((2, 3, 6)), random.standard_normal((2, 3, 6))
    labels = np.array([[4, 4, data.END], [5, data.END, 0]], "int32")
    samples = np.array([3 * 320, 2 * 320 - 5], "int32")  # 3 and 2 frames
    found = model.compute_loss(
        {"num_samples": samples},
        keras.ops.convert_to_tensor(labels),
        {"ctc": ctc.astype("float32"), "attention": attention.astype("float32")},
        np.array([1.0, 1.0], "float32"),
    )
    log_ctc, log_next = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (ctc, attention))
    total = 0.0
    for row, (said, frames) in enumerate((([4, 4], 3), ([5], 2))):
        ways = 0.0
        for path in itertools.product(range(6), repeat=frames):
            heard = [one for one, _ in itertools.groupby(path) if one != 0]
            if heard == said:
                ways += math.exp(sum(log_ctc[row, t, one] for t, one in enumerate(path)))
        total -= 0.3 * math.log(ways)
        for place, token in enumerate([*said, data.END]):
            scores = log_next[row, place]
            total -= 0.7 * (0.9 * scores[token] + 0.1 * scores.mean())
    assert float(found) == pytest.approx(total / 5, rel=1e-5)


def test_words_are_counted_with_the_averages_of_the_weights(monkeypatch):
    options = options_of("--attention softmax --ema 0.9")
    problem = RECIPE.load(options)
    training = RECIPE.model.prepare(RECIPE.trial(problem, "softmax", options))
    model, batches = training.model, training.validation_batches
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    for average in optimizer._model_variables_moving_average:
        average.assign(np.full(average.shape, 0.25))
    before, seen = model.get_weights(), []

    def heard(batches):
        seen.extend(map(to_numpy, model.trainable_variables))
        return ["a"], ["a"]

    monkeypatch.setattr(model, "heard", heard)
    for callbacks in (None, [keras.callbacks.SwapEMAWeights()]):
        seen.clear()
        values = model.evaluate(batches, verbose=0, return_dict=True, callbacks=callbacks)
        assert values["word_error_rate"] == 0
        assert seen
        assert all((one == 0.25).all() for one in seen)
        for one, other in zip(model.get_weights(), before, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-7)  # TensorFlow swaps by sums


def test_the_rate_rises_to_its_peak_and_falls_as_one_over_the_root():
    rate = Noam(2.0, 4)
    found = [float(rate(step)) for step in (0, 1, 3, 15)]
    assert found == pytest.approx([0.5, 1.0, 2.0, 1.0])


def write_digits(folder, random, speakers=("ann", "bob", "cy")):
    for speaker, digit, take in itertools.product(speakers, range(10), range(2)):
        samples = random.uniform(-0.3, 0.3, 3000)
        soundfile.write(folder / f"{digit}_{speaker}_{take}.wav", samples, 8000)


def test_digits_of_three_speakers_are_never_mixed(tmp_path):
    write_digits(tmp_path, np.random.default_rng(0))
    options = options_of(f"--dataset digits --data-dir {tmp_path}")
    problem, again = RECIPE.load(options), RECIPE.load(options)
    assert problem.digest() == again.digest()
    other = options_of(f"--dataset digits --data-dir {tmp_path} --data-seed 1")
    assert RECIPE.load(other).digest() != problem.digest()
    assert [len(split) for split in problem.splits.values()] == [16, 8, 8]
    for split in problem.splits.values():
        for text in split.texts:
            assert 3 <= len(text.split()) <= 7
            assert set(text.split()) <= set(data.DIGITS)
    (tmp_path / "few").mkdir()
    with pytest.raises(UsageError, match="three speakers"):
        RECIPE.load(options_of(f"--dataset digits --data-dir {tmp_path / 'few'}"))


def test_librispeech_of_tensorflow_datasets(tmp_path):
    """Its data, in the form of its builder: six utterances in each part."""
    tfds = pytest.importorskip("tensorflow_datasets")
    asked = options_of("--dataset librispeech --tokens character")

    def examples(builder, *_, **__):
        import tensorflow as tf

        sizes = tf.range(1600, 2200, 100)
        numbers = tf.data.Dataset.from_tensor_slices(sizes)
        return numbers.map(
            lambda size: {
                "speech": tf.cast(tf.range(size) % 1000, builder.info.features["speech"].dtype),
                "text": "A B",
                "id": tf.strings.as_string(size),
                "speaker_id": tf.constant(1, tf.int64),
                "chapter_id": tf.constant(1, tf.int64),
            }
        )

    with tfds.testing.mock_data(as_dataset_fn=examples, data_dir=str(tmp_path)):
        problem = data.load(asked)
    assert list(problem.splits) == ["train", "validation", "test-clean", "test-other"]
    assert [len(split) for split in problem.splits.values()] == [6] * 4
    assert problem.train.lengths.tolist() == [*range(1600, 2200, 100)]
    np.testing.assert_allclose(
        problem.train.samples(1), (np.arange(1700) % 1000 / 32768).astype("float32")
    )
    assert problem.train.recordings[0].name == "1600"
    assert problem.test.texts == ["A B"] * 6


def write_folder(folder, change=None):
    """A folder of six recordings, of which the first one is changed."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(6):
        samples = random.uniform(-0.3, 0.3, 8000)
        row = {"file": f"{number}.flac", "text": "one two", "split": "train"}
        row["split"] = ("train", "train", "validation", "validation", "test", "test")[number]
        rate = 16000
        if number == 0 and change:
            samples, rate = change(row, samples)
        soundfile.write(folder / row["file"], samples, rate)
        rows.append(row)
    with (folder / "transcripts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return options_of(f"--dataset folder --data-dir {folder}")


def set_text(text):
    def change(row, samples):
        row["text"] = text
        return samples, 16000

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_text(" "), "0.flac has an empty transcript"),
        (
            set_text("one " * 60),
            "0.flac: its transcript of 239 tokens is too long for the 12 frames",
        ),
    ],
)
def test_a_transcript_that_cannot_be_learned_is_one_line(change, words, tmp_path):
    options = write_folder(tmp_path, change)
    with pytest.raises(UsageError, match=words):
        RECIPE.load(options)


def test_a_truncated_file_is_one_line(tmp_path):
    options = write_folder(tmp_path)
    path = tmp_path / "0.flac"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(UsageError, match=r"0\.flac .*truncated"):
        RECIPE.load(options)
    path.write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"0\.flac cannot be read"):
        RECIPE.load(options)


def test_stereo_and_other_rates_are_resampled_with_a_note(tmp_path, capsys):
    def change(row, samples):
        return np.stack([samples, samples], axis=1), 8000

    problem = RECIPE.load(write_folder(tmp_path, change))
    assert problem.train.lengths.tolist() == [16000, 8000]
    printed = capsys.readouterr().out
    assert "1 of 6 recordings: resampled from 8000 to 16000" in printed
    assert "1 of 6 recordings: 2 channels" in printed


def test_a_table_needs_its_columns_and_its_files(tmp_path):
    options = write_folder(tmp_path)
    (tmp_path / "0.flac").unlink()
    with pytest.raises(UsageError, match=r"0\.flac, which does not exist"):
        RECIPE.load(options)
    (tmp_path / "transcripts.csv").write_text("name,words\na,b\n")
    with pytest.raises(UsageError, match="columns file and text"):
        RECIPE.load(options)
    (tmp_path / "transcripts.csv").unlink()
    with pytest.raises(UsageError, match=r"transcripts\.csv"):
        RECIPE.load(options)


def write_librispeech(root):
    random = np.random.default_rng(0)
    for part in ("train-clean-100", "dev-clean", "test-clean", "test-other"):
        folder = root / "LibriSpeech" / part / "19" / "198"
        folder.mkdir(parents=True)
        lines = []
        for number in range(3):
            name = f"19-198-{number:04d}"
            soundfile.write(folder / f"{name}.flac", random.uniform(-0.3, 0.3, 8000), 16000)
            lines.append(f"{name} TWO WORDS")
        (folder / "19-198.trans.txt").write_text("\n".join(lines))


def test_folders_of_librispeech_are_read_when_a_batch_needs_them(tmp_path):
    write_librispeech(tmp_path)
    asked = f"--dataset librispeech --data-dir {tmp_path} --tokens character"
    problem = RECIPE.load(options_of(asked))
    assert list(problem.splits) == ["train", "validation", "test-clean", "test-other"]
    assert problem.train.texts == ["TWO WORDS"] * 3
    assert problem.train.samples(0).shape == (8000,)
    path = problem.train.recordings[1].samples
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UsageError, match="truncated"):
        problem.train.samples(1)


def test_pieces_have_the_ids_of_the_recipe(tmp_path):
    pytest.importorskip("sentencepiece")
    write_librispeech(tmp_path)
    problem = RECIPE.load(options_of(f"--dataset librispeech --data-dir {tmp_path} --pieces 13"))
    ids = problem.train.tokens[0]
    assert problem.vocabulary.size == 13
    assert ids.min() >= data.SPECIAL
    assert problem.vocabulary.decode([data.START, *ids, data.END]) == "TWO WORDS"
    problem.vocabulary.write(tmp_path)
    assert (tmp_path / "pieces.model").stat().st_size > 100
    with pytest.raises(UsageError, match="--pieces 999"):
        RECIPE.load(options_of(f"--dataset librispeech --data-dir {tmp_path} --pieces 999"))


@pytest.mark.parametrize("unit", ["word", "character"])
def test_a_transcript_comes_back_from_its_ids(unit):
    vocabulary = data.Vocabulary(unit, ["one two", "two ten"], 0)
    ids = vocabulary.encode("ten one")
    assert ids.min() >= data.SPECIAL
    assert vocabulary.decode([data.START, *ids, data.END, 0]) == "ten one"
    assert data.UNKNOWN in vocabulary.encode("zoo two")


def test_batches_by_seconds_hold_all_recordings_once_at_three_speeds():
    problem = RECIPE.load(options_of("--train-examples 40"))
    split = problem.train
    speeds = [0.8, 1.0, 1.1]
    lengths = lengths_of(split, [problem.test], speeds, 3)
    batches = Recordings(split, lengths, 99, seed=3, speeds=speeds, batch_samples=60000)
    seen = []
    for place in range(batches.num_batches):
        inputs, labels, weights = batches[place]
        rows, length = inputs["samples"].shape
        assert rows == max(60000 // length, 1)
        assert labels.shape == inputs["tokens"].shape
        for row in np.flatnonzero(weights):
            said = labels[row][labels[row] > data.END]
            seen.append(problem.vocabulary.decode(said))
            assert inputs["num_samples"][row] <= length
    assert sorted(seen) == sorted(split.texts)
    assert set(batches.drawn) == {0, 1, 2}
    first, count = batches[0][0]["samples"], batches.num_batches
    for epoch in (2, 1):  # Keras asks for the number of batches once
        batches.start_epoch(epoch)
        assert batches.num_batches == count
    batches.start_epoch(0)
    np.testing.assert_array_equal(batches[0][0]["samples"], first)


def test_noise_has_the_drawn_ratio_and_is_that_of_its_epoch():
    split = RECIPE.load(options_of("--train-examples 16")).train
    lengths = [int(split.lengths.max())]
    plain = Recordings(split, lengths, 16)
    noisy = Recordings(split, lengths, 16, seed=3, noise=[5.0, 20.0])
    ratios, smoothness = [], []
    for which in range(len(split)):
        added = noisy._samples(which) - split.samples(which)
        powers = [np.mean(np.square(one)) for one in (split.samples(which), added)]
        ratios.append(10 * np.log10(powers[0] / powers[1]))
        smoothness.append(np.mean(added[1:] * added[:-1]) / powers[1])
    assert 5 <= min(ratios) < 10
    assert 15 < max(ratios) <= 20.01
    assert min(smoothness) < 0.3
    assert max(smoothness) > 0.6
    first = noisy._samples(2)
    noisy.start_epoch(1)
    assert (noisy._samples(2) != first).any()
    noisy.start_epoch(0)
    np.testing.assert_array_equal(noisy._samples(2), first)
    quiet = Recordings(split, lengths, 16, noise=[5.0, 20.0])  # no seed: to validate or test
    np.testing.assert_array_equal(quiet[0][0]["samples"], plain[0][0]["samples"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["transformer", "branchformer"])
def test_two_steps_with_gradients_of_two_batches_in_half_precision(model, tmp_path):
    asked = "--epochs 1 --accumulate 2 --batch-seconds 5 --precision mixed_bfloat16 --verbose 0"
    asked += f" --attention gfsa --tokens word --output {tmp_path} --skip-saved-model"
    asked += f" --train-examples 16 {TINY.replace('--batch-size 8', '')}"
    arguments = f"--model {model} {CHANNELS[model]} {asked}".split()
    assert RECIPE.main(arguments) == 0
    results = results_of(tmp_path)
    assert np.isfinite(results["runs"][0]["validation_loss"])
    with (tmp_path / "transcripts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["said", "gfsa"]
    assert (tmp_path / "vocabulary.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "jax", reason="one backend counts for all")
@pytest.mark.parametrize(("model", "millions"), [("transformer", 71.5), ("branchformer", 109.8)])
def test_published_sizes_have_the_published_numbers_of_parameters(model, millions):
    options = RECIPE.parse(f"--published --model {model} --data-dir x".split())
    problem = RECIPE.load(options_of())
    problem.rate = 16000
    problem.vocabulary.size = 5000
    built = RECIPE.model.build(RECIPE.trial(problem, "softmax", options))
    assert built.count_params() / 1e6 == pytest.approx(millions, rel=0.02)


PUBLISHED_STEP = """
import numpy as np
from tests.recipes.models import recipe_of
recipe = recipe_of("speech_recognition")
problem = recipe.load(recipe.parse(["--train-examples", "16"]))
problem.rate, problem.vocabulary.size = 16000, 5000
options = recipe.parse(["--published", "--data-dir", "x", "--batch-size", "4"])
model = recipe.model.prepare(recipe.trial(problem, "gfsa", options)).model
generator = np.random.default_rng(0)
tokens = generator.integers(3, 5000, (4, 41)).astype("int32")
samples = generator.standard_normal((4, 10 * 16000)).astype("float32")
inputs = {"samples": samples, "num_samples": np.full(4, 160000, "int32"), "tokens": tokens[:, :-1]}
assert np.isfinite(model.train_on_batch(inputs, tokens[:, 1:]))
peak, = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="its memory is read off /proc")
def test_a_step_of_the_published_transformer_fits_in_8_gib():
    """A batch of 4 recordings of 10 seconds, with GFSA and Adam."""
    command = [sys.executable, "-c", PUBLISHED_STEP]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert float(output.split()[-1]) < 8.0


def test_published_error_rates_stand_beside_models_from_scratch_only():
    row = {"attention": "softmax", "seed": 0}
    results = {"table": [row], "runs": [row], "dataset": "librispeech"}
    scratch = RECIPE.parse(["--dataset", "librispeech"])
    assert any("test-clean 11.02 -> 10.30" in note for note in RECIPE.notes(results, scratch))
    pytest.importorskip("keras_hub")
    preset = RECIPE.parse(["--dataset", "librispeech", "--preset", "moonshine_tiny_en"])
    assert not any("test-clean" in note for note in RECIPE.notes(results, preset))


def test_the_gates_of_a_branchformer_are_half_of_its_width():
    with pytest.raises(UsageError, match="--feed-forward must be even for --model branchformer"):
        RECIPE.parse(["--model", "branchformer", "--feed-forward", "5"])
