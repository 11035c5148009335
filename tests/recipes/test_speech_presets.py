"""`--preset` of the speech recogniser: Whisper and Moonshine of KerasHub, small and made here."""

import importlib

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

import keras_graphattn
from recipes.common.command.parsing import UsageError
from tests.hub.models import BACKBONES, randomised
from tests.numerics import to_numpy
from tests.recipes.command_line import assert_one_error_line, run
from tests.recipes.models import recipe_of

pytest.importorskip("jiwer")
pytest.importorskip("soundfile")

RECIPE = recipe_of("speech_recognition")
SMALL = "--train-examples 12 --buckets 2 --batch-size 4 --epochs 1 --warm-up 2 --beam 2"
KINDS = ("whisper", "moonshine")


def whisper(folder):
    letters = [*"abcdefghijklmnopqrstuvwxyz'", "Ġ", "ou"]
    specials = ("startoftranscript", "endoftext", "notimestamps", "translate", "transcribe")
    ids = {f"<|{name}|>": len(letters) + place for place, name in enumerate(specials)}
    tokenizer = keras_hub.tokenizers.WhisperTokenizer(
        vocabulary={letter: place for place, letter in enumerate(letters)},
        merges=["o u"],
        special_tokens=ids,
        language_tokens={"<|en|>": len(letters) + len(ids)},
    )
    converter = keras_hub.layers.WhisperAudioConverter(num_mels=8, max_audio_length=2)
    backbone = keras_hub.models.WhisperBackbone(
        vocabulary_size=len(letters) + len(ids) + 1,
        **{"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16},
        **{"num_mels": 8, "max_encoder_sequence_length": 200, "max_decoder_sequence_length": 48},
    )
    return save(folder, tokenizer, converter, backbone)


def moonshine(folder):
    import sentencepiece

    texts = ["ai eo iua ou uea ie oa uo", "the quick brown fox's jumps over lazy dogs"]
    prefix = str(folder / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=prefix,
        **{"model_type": "char", "vocab_size": 32, "hard_vocab_limit": False},
        **{"unk_id": 0, "bos_id": 1, "eos_id": 2, "minloglevel": 2},
    )
    tokenizer = keras_hub.tokenizers.MoonshineTokenizer(f"{prefix}.model")
    backbone = keras_hub.models.MoonshineBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        **{"filter_dim": 8, "hidden_dim": 8, "intermediate_dim": 16},
        **{"encoder_num_layers": 2, "decoder_num_layers": 1},
        **{"encoder_num_heads": 2, "decoder_num_heads": 2, "partial_rotary_factor": 1.0},
    )
    return save(folder, tokenizer, keras_hub.layers.MoonshineAudioConverter(), backbone)


def save(folder, tokenizer, converter, backbone):
    backbone = randomised(backbone)
    for part in (backbone, tokenizer, converter):
        part.save_to_preset(str(folder / "preset"))
    return folder / "preset"


@pytest.fixture(scope="module", params=KINDS)
def preset(request, tmp_path_factory):
    return {"whisper": whisper, "moonshine": moonshine}[request.param](
        tmp_path_factory.mktemp(request.param)
    )


def varied(task, seed):
    """The task with weights with which the tokens differ. Positions have to count for that."""
    generator = np.random.default_rng(seed)
    for weight in sorted(task.weights, key=lambda one: one.path):  # as on all backends
        size = 4.0 if "position" in weight.path else 2.0
        weight.assign(size * generator.standard_normal(weight.shape))
    return task


def trial_of(preset, attention="gfsa", more=""):
    options = RECIPE.parse(f"{SMALL} --preset {preset} --attention {attention} {more}".split())
    problem = RECIPE.load(options)
    return RECIPE.trial(problem, attention, RECIPE.complete(problem, options))


def module():
    return importlib.import_module("recipes.speech_recognition.pretrained")


@pytest.mark.slow
def test_a_preset_is_fine_tuned_and_served(preset, tmp_path):
    tf = pytest.importorskip("tensorflow")
    results = run(RECIPE, tmp_path, SMALL, f"--preset {preset} --attention softmax,gfsa")
    softmax, gfsa = results["runs"]
    assert gfsa["parameters"] == softmax["parameters"] + 2 * 2 * 3  # layers, heads, coefficients
    assert gfsa["coefficient_distance"] > 0
    assert all(one["test_word_error_rate_beam"] > 0 for one in (softmax, gfsa))
    trial = trial_of(preset)
    task = keras.saving.load_model(tmp_path / "model.keras")
    task.vocabulary, task.room = trial.problem.vocabulary, module().build(trial).room
    heard = module().first_recording(trial.problem)
    expected = to_numpy(module().served(task)(heard))
    signature = tf.saved_model.load(str(tmp_path / "saved_model" / "1")).signatures
    found = signature["serving_default"](**{name: tf.constant(x) for name, x in heard.items()})
    np.testing.assert_array_equal(*found.values(), expected)


@pytest.mark.slow
def test_the_best_model_is_the_one_that_was_tested(preset, tmp_path):
    """With averages of the weights."""
    options = f"{SMALL} --preset {preset} --attention gfsa --ema 0.5 --skip-saved-model --verbose 0"
    whole = run(RECIPE, tmp_path, options, "--epochs 2")["runs"][0]
    training = module().prepare(trial_of(preset, more="--ema 0.5"))
    task = keras.saving.load_model(tmp_path / "model.keras")
    training.model.set_weights(task.get_weights())
    values = training.model.evaluate(training.test_batches, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(whole["test_loss"], rel=1e-4)
    assert values["word_error_rate"] == pytest.approx(whole["test_word_error_rate"])


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize(("where", "seed"), [("encoder", 9), ("all", 4)])
def test_what_is_served_is_greedy_without_a_cache(preset, where, seed):
    trial = trial_of(preset, more=f"--where {where}")
    task = varied(module().build(trial), seed)
    vocabulary, kind = trial.problem.vocabulary, module().PresetRecordings
    batches = module().batches_of(trial.problem, trial.problem.test, trial.options, kind=kind)
    heard = {name: x for name, x in batches[0][0].items() if name.startswith("encoder")}
    prompt, rows = vocabulary.marks.prompt, len(batches[0][1])
    tokens = np.tile(np.array(prompt, "int32"), (rows, 1))
    while tokens.shape[1] < task.room:
        inputs = {"decoder_token_ids": tokens, "decoder_padding_mask": np.ones_like(tokens, bool)}
        logits = to_numpy(task({**heard, **inputs}))[:, -1]
        tokens = np.column_stack([tokens, np.argmax(logits, axis=-1).astype("int32")])
    said = tokens[:, len(prompt) :]
    assert len({tuple(row) for row in said}) > 2
    later = next(int(one) for one in said[:, 2:].ravel() if one not in prompt)
    for end in (vocabulary.marks.end, later):
        task.vocabulary.marks = vocabulary.marks._replace(end=end)
        served = module().served(task)({k: ops.convert_to_tensor(x) for k, x in heard.items()})
        ended = np.cumsum(said == end, axis=1) > 0
        np.testing.assert_array_equal(to_numpy(served), np.where(ended, -1, said))
        references, hypotheses = module().transcripts(task, batches)
        assert references[:rows] == [vocabulary.decode(row) for row in batches[0][1]]
        assert hypotheses[:rows] == [vocabulary.decode(row) for row in said]


def test_the_tokens_of_a_batch_are_a_prompt_a_transcript_and_its_end(preset):
    problem = trial_of(preset).problem
    vocabulary, split = problem.vocabulary, problem.train
    prompt, end, padding = vocabulary.marks
    assert problem.rate == vocabulary.rate == 16000
    assert split.samples(0).shape == (split.lengths[0],)
    options = RECIPE.parse(f"{SMALL} --preset {preset}".split())
    batches = module().batches_of(problem, split, options, 0, module().PresetRecordings)
    seen = []
    for place in range(batches.num_batches):
        inputs, labels, weights = batches[place]
        for row in np.flatnonzero(weights.any(axis=1)):
            count = int((weights[row] > 0).sum())
            tokens = inputs["decoder_token_ids"][row]
            assert tokens[: len(prompt)].tolist() == list(prompt)
            assert labels[row, : count - 1].tolist() == tokens[1:count].tolist()
            assert labels[row, count - 1] == end
            assert set(labels[row, count:]) <= {padding}
            assert inputs["decoder_padding_mask"][row].sum() == count
            seen.append(vocabulary.decode(labels[row]))
    assert sorted(seen) == sorted(split.texts)


def test_a_recording_that_is_cut_off_is_counted(preset, capsys):
    trial_of(preset, more="--data-seed 1")
    cut = "recordings are longer than the 2 seconds" if "whisper" in str(preset) else ""
    printed = capsys.readouterr().out
    assert cut in printed
    assert bool(cut) == ("cut off" in printed)


def test_transcripts_are_plain_words(preset):
    vocabulary = module().Preset(str(preset))
    ids = vocabulary.encode("The QUICK, brown fox's -- dogs")
    assert set(ids).isdisjoint(vocabulary.special)
    prompt, end, _ = vocabulary.marks
    assert vocabulary.decode([*prompt, *ids, end, *ids]) == "the quick brown fox's dogs"
    assert vocabulary.decode([end]) == vocabulary.decode([]) == ""


ATTENTIONS = {  # that `convert` has for the layers of a preset
    "whisper": RECIPE.attentions,
    "moonshine": ("softmax", "gfsa", "p_laplacian"),
}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("attention", RECIPE.attentions)
def test_an_attention_takes_its_place_in_the_encoder_only(preset, attention):
    kind = next(name for name in KINDS if name in str(preset))
    if attention not in ATTENTIONS[kind]:
        with pytest.raises(UsageError, match=f"--attention {attention}: .*cannot take the place"):
            module().build(trial_of(preset, attention))
        return
    backbone = module().build(trial_of(preset, attention)).backbone
    before = keras_hub.models.Backbone.from_preset(str(preset))
    both = zip(*(keras_graphattn.inspect(one) for one in (backbone, before)), strict=True)
    changed = ["encoder" in new.path for new, old in both if new.class_name != old.class_name]
    assert changed == [True] * (0 if attention == "softmax" else 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--preset nowhere/at/all", ["--preset nowhere/at/all cannot be loaded"]),
        ("--preset {preset} --layers 3", ["--layers", "no use beside --preset"]),
        ("--preset {preset} --ctc-weight 0.2", ["--ctc-weight"]),
        ("--preset {preset} --published", ["--published"]),
        ("--preset {preset} --where first:9", ["first:9", "attention layers"]),
        ("--where encoder", ["--where is an option of --preset"]),
    ],
)
def test_wrong_options_are_one_line(options, words, preset, capsys, tmp_path):
    options = f"{SMALL} --output {tmp_path} --attention gfsa {options.format(preset=preset)}"
    assert_one_error_line(RECIPE.main, options.split(), words, capsys)


def test_other_presets_are_one_line(tmp_path, capsys):
    BACKBONES["bert"]().save_to_preset(str(tmp_path / "bert"))
    options = f"{SMALL} --output {tmp_path / 'out'} --preset {tmp_path / 'bert'}"
    assert_one_error_line(RECIPE.main, options.split(), ["bert", "Whisper or Moonshine"], capsys)
