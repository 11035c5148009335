"""Texts, tokens and windows of the causal language models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.causal_lm.data import Bytes, Words, count_words, per_word, read, split
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Windows

TEXT = "the cat sat\n the dog , the cat \n\n sat"


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


def test_what_cannot_be_read_is_told(tmp_path):
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
    words = Words(TEXT)
    assert words.words == ["<eos>", "the", "cat", "sat", ",", "<unk>", "dog"]
    numbers = words.encode(TEXT)
    assert len(numbers) == count_words(TEXT) == 12
    assert [words.words[number] for number in numbers[:4]] == ["the", "cat", "sat", "<eos>"]
    assert words.decode(numbers[:5]) == "the cat sat \n the"
    assert words.decode(words.encode("the bird")) == "the <unk>"
    assert len(words.encode("a\n")) == count_words("a\n") == 2


def test_a_perplexity_per_word_is_the_whole_texts_probability_by_the_word():
    rng = np.random.default_rng(0)
    log_probabilities = np.log(rng.uniform(0.1, 1.0, 12))
    expected = np.exp(-log_probabilities.sum() / 3)
    assert per_word(-log_probabilities.mean(), 12, 3) == pytest.approx(expected)


@given(
    length=st.integers(3, 40),
    context=st.integers(2, 12),
    stride=st.integers(1, 12),
    batch_size=st.integers(1, 5),
)
def test_every_token_but_the_first_is_counted_once(length, context, stride, batch_size):
    tokens = np.arange(100, 100 + length)
    stride = min(stride, context)
    if length <= context:
        with pytest.raises(UsageError, match=f"has {length} tokens"):
            Windows(tokens, context, batch_size, stride)
        return
    windows = Windows(tokens, context, batch_size, stride)
    seen = []
    for index in range(windows.num_batches):
        inputs, targets, weights = windows[index]
        assert targets.shape == weights.shape == (batch_size, context)
        np.testing.assert_array_equal(inputs["token_ids"] + 1, targets)
        for row in range(batch_size):
            counted = np.flatnonzero(weights[row])
            seen += targets[row, counted].tolist()
            if len(counted) and inputs["token_ids"][row, 0] != 100:  # not the first window
                assert counted[0] >= context - stride
    assert seen == tokens[1:].tolist()
    assert len(seen) == windows.num_predictions


def test_windows_are_shuffled_by_seed_and_epoch():
    windows = Windows(np.arange(101), 5, 4, seed=3)

    def starts(epoch):
        windows.start_epoch(epoch)
        taken = [windows[index] for index in range(windows.num_batches)]
        return np.concatenate([batch[0]["token_ids"][:, 0] for batch in taken])

    first, second = starts(0), starts(1)
    assert sorted(first) == list(range(0, 100, 5)) == sorted(second)
    assert first.tolist() != second.tolist()
    np.testing.assert_array_equal(starts(0), first)
