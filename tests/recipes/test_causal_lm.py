"""Causal language models: their texts and tokens, and the whole recipe with a tiny model."""

from types import SimpleNamespace

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from recipes.causal_lm.__main__ import RECIPE
from recipes.causal_lm.data import Bytes, Pieces, Words, count_words, read, split
from recipes.causal_lm.model import _from_scratch, of_layers
from recipes.common.command.parsing import UsageError
from tests.compiling import compiled_once
from tests.numerics import randomise, to_numpy
from tests.recipes.command_line import history_of, results_of, run

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

CATS = "the cat sat\n the dog , the cat \n\n sat"


def test_a_text_is_split_nine_tenths_and_two_halves_without_overlap():
    text = "".join(chr(97 + index % 26) for index in range(199))
    parts = split(text)
    assert "".join(parts) == text
    assert [len(part) for part in parts] == [179, 10, 10]


@pytest.mark.parametrize(
    ("dataset", "folder", "names"),
    [
        ("ptb", "", "ptb.train.txt ptb.valid.txt ptb.test.txt"),
        ("wikitext-2", "wikitext-2", "wiki.train.tokens wiki.valid.tokens wiki.test.tokens"),
        ("wikitext-103", "wikitext-103-raw", "wiki.train.raw wiki.valid.raw wiki.test.raw"),
    ],
)
def test_files_are_found_under_their_usual_names(dataset, folder, names, tmp_path):
    (tmp_path / folder).mkdir(exist_ok=True)
    for number, name in enumerate(names.split()):
        (tmp_path / folder / name).write_text(f"text {number}\r\n", newline="")
    assert read(dataset, tmp_path) == ("text 0\n", "text 1\n", "text 2\n")


def test_raw_files_are_for_a_presets_tokenizer(tmp_path):
    for ending in ("tokens", "raw"):
        for part in ("train", "valid", "test"):
            (tmp_path / f"wiki.{part}.{ending}").write_text(f"{part} {ending}")
    assert read("wikitext-2", tmp_path).train == "train tokens"
    assert read("wikitext-2", tmp_path, raw=True).train == "train raw"


def test_what_cannot_be_read_is_refused(tmp_path):
    def refused(words, dataset="text", place=tmp_path):
        with pytest.raises(UsageError, match=words):
            read(dataset, place)

    refused(r"has no ptb\.train\.txt", "ptb")
    refused(r"needs --data-dir with wiki\.train\.tokens", "wikitext-2", None)
    refused(r"folder has 0 of them")
    (tmp_path / "one.txt").write_bytes(b"\xff\xfe\x00")
    refused("not UTF-8")
    (tmp_path / "two.txt").write_text(" \n")
    refused(r"has 2 of them")
    refused("holds no text", place=tmp_path / "two.txt")


def test_bytes_and_words_come_back():
    assert Bytes().decode(Bytes().encode("naïve\n")) == "naïve\n"
    words = Words(CATS)
    assert words.words == ["<eos>", "the", "cat", "sat", ",", "<unk>", "dog"]
    numbers = words.encode(CATS)
    assert len(numbers) == count_words(CATS) == 12
    assert [words.words[number] for number in numbers[:4]] == ["the", "cat", "sat", "<eos>"]
    assert words.decode(numbers[:5]) == "the cat sat \n the"
    assert words.decode(words.encode("the bird")) == "the <unk>"
    assert len(words.encode("a\n")) == count_words("a\n") == 2


TEXT = "".join(
    f"{number % 7} and {number % 5} make {number % 7 + number % 5}\n" for number in range(210)
)
TEST = TEXT[len(TEXT) * 19 // 20 :]
SIZES = "--layers 1 --d-model 8 --heads 2 --feed-forward 8 --context 16 --stride 8 --batch-size 16"
TRAINING = "--epochs 2 --warm-up 4 --learning-rate 0.02 --sample-tokens 6 --verbose 0"


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with compiled_once(tmp_path_factory.mktemp("xla")):
        yield


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "made.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def output(text_file, tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    own = f"--data-dir {text_file} --attention gfsa --dropout 0.2 --skip-saved-model"
    run(RECIPE, output, own, SIZES, TRAINING)
    return output


def test_perplexities_are_exponentials_and_the_test_is_taken_once(output):
    results = results_of(output)
    (run,) = results["runs"]
    for row in history_of(output, run):
        assert not any(name.startswith("test_") for name in row)
        expected = np.exp(row["val_cross_entropy"])
        assert row["val_perplexity"] == pytest.approx(expected, rel=1e-4)
    assert run["sample"].startswith(TEST[:8])
    assert len(run["sample"]) > 8
    assert run["test_perplexity"] < 40  # of 256 bytes, 20 are in the text
    names = ["test_perplexity_mean", "test_perplexity_per_word_mean"]
    assert [name for name in results["table"][0] if name.endswith("_mean")] == names


def test_the_best_model_reloads_and_has_the_test_perplexity(output):
    """Against the logits of the whole text, window by window, in NumPy."""
    results = results_of(output)
    (run,) = results["runs"]
    model = keras.saving.load_model(output / "model.keras", compile=False)
    rows = keras_graphattn.inspect(model)
    assert [row.path for row in rows] == ["transformer_layer_0/self_attention"]
    tokens = np.frombuffer(f"\n{TEST}".encode(), "uint8").astype("int32")
    seen, lost = 0, []
    for end in [*range(16, len(tokens) - 1, 8), len(tokens) - 1]:
        window = tokens[end - 16 : end][None]
        inputs = {"token_ids": window, "padding_mask": np.ones_like(window)}
        logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")[0]
        scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        lost += [-scores[t - (end - 15), tokens[t]] for t in range(seen + 1, end + 1)]
        seen = end
    assert len(lost) == len(tokens) - 1 == results["tokens"]["test"]
    assert run["test_cross_entropy"] == pytest.approx(np.mean(lost), rel=1e-4)
    words = results["words"]["test"]
    expected = np.exp(np.sum(lost) / words)
    assert run["test_perplexity_per_word"] == pytest.approx(expected, rel=1e-3)


def test_some_layers_of_a_model_get_the_attention(text_file, tmp_path):
    own = f"--data-dir {text_file} --attention gfsa --skip-saved-model --sample-tokens 0"
    run(RECIPE, tmp_path, own, SIZES, TRAINING, "--layers 3 --where even")
    model = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    added = [bool(row.parameters_added) for row in keras_graphattn.inspect(model)]
    assert added == [True, False, True]


def test_a_model_of_layers_is_gpt_2():
    sizes = {"layers": 2, "d_model": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0}
    options = SimpleNamespace(**sizes, context=7)

    def attention(index, name):
        return keras.layers.MultiHeadAttention(2, 4, name=name)

    ours, theirs = of_layers(11, options, 0, attention), _from_scratch(11, options)
    randomise(theirs)
    place = {"attention_norm": "self_attention_layer_norm", "attention": "self_attention"}
    place |= {"hidden": "feedforward_intermediate_dense", "output": "feedforward_output_dense"}
    place |= {"norm": "feedforward_layer_norm"}
    values = {weight.path: weight for weight in theirs.weights}
    for weight in ours.weights:
        path = weight.path.replace("last_norm", "layer_norm")
        if path.startswith("block_"):
            block, part = path.split("/")[0].removeprefix("block_").split("_", 1)
            path = path.replace(f"block_{block}_{part}", place[part], 1)
            path = f"transformer_layer_{int(block) - 1}/{path}"
        weight.assign(values.pop(path))
    assert not values
    tokens = np.arange(7)[None] % np.array([[11], [3]])
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    np.testing.assert_allclose(to_numpy(ours(inputs)), to_numpy(theirs(inputs)), atol=1e-5)


def test_a_model_of_layers_trains_is_kept_and_continues_a_prompt(text_file, tmp_path):
    own = f"--data-dir {text_file} --attention differential --skip-saved-model"
    (found,) = run(RECIPE, tmp_path, own, SIZES, TRAINING)["runs"]
    assert found["test_perplexity"] < 40
    assert len(found["sample"]) == len(TEST[:8]) + 6
    layer = keras.saving.load_model(tmp_path / "model.keras").get_layer("block_1_attention")
    assert (layer.num_heads, layer.value_dim, layer.layer_index) == (1, 8, 0)


def tokenizer():
    """Pieces of bytes: all single ones, and a few pairs."""
    from keras_hub.src.tokenizers.byte_pair_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode()[1])
    merges = ["a n", "an d", "m a", "ma k"]
    pieces = ["<|endoftext|>", *letters, *(merge.replace(" ", "") for merge in merges)]
    return keras_hub.models.GPT2Tokenizer({p: n for n, p in enumerate(pieces)}, merges)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    keras.utils.set_random_seed(0)
    kind = tokenizer()
    backbone = keras_hub.models.GPT2Backbone(kind.vocabulary_size(), 1, 2, 8, 8, 0.0, 32)
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(kind, sequence_length=16)
    folder = tmp_path_factory.mktemp("preset") / "gpt2"
    keras_hub.models.GPT2CausalLM(backbone, preprocessor).save_to_preset(str(folder))
    return folder


def test_a_preset_is_converted_and_starts_as_it_was(preset, text_file, tmp_path):
    sizes = f"--preset {preset} --data-dir {text_file} --context 16 --batch-size 8 --epochs 1"
    more = "--learning-rate 1e-9 --sample-tokens 0 --verbose 0 --prompt 3 --skip-saved-model"
    results = run(RECIPE, tmp_path, sizes, more)
    plain, filtered = results["runs"]
    assert (plain["attention"], filtered["attention"]) == ("softmax", "gfsa")
    assert filtered["parameters"] > plain["parameters"]
    assert filtered["test_perplexity"] == pytest.approx(plain["test_perplexity"], rel=1e-5)
    assert filtered["test_perplexity"] < filtered["test_perplexity_per_word"]
    assert plain["sample"] == "3"
    assert results["vocabulary"] == 261


def test_a_presets_tokens_come_back_line_by_line():
    pieces = Pieces(tokenizer())
    pieces.lines_at_a_time = 2
    numbers = pieces.encode("1 and 2 make\n\n 3\nü")
    assert len(numbers) < len("1 and 2 make\n\n 3\nü".encode())
    assert pieces.decode(numbers) == "1 and 2 make\n\n 3\nü"
    assert pieces.start == 0
