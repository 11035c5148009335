"""Texts in three parts, as token numbers: WikiText, PTB, tiny Shakespeare, or any text file.

Tokens are bytes, words, or the pieces of a preset's tokenizer. Each vocabulary has a `start`: the
token before a text, which nothing predicts. Does not import Keras itself.
"""

import argparse
import collections
import hashlib
import itertools
import math
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data.sources import load_tfds, loading_preset

_PENN = ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")
_WORDS = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
_RAW = ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw")
# by data set, the names that its files are found under, the first ones for words
FILES = {"ptb": (_PENN,), "wikitext-2": (_WORDS, _RAW), "wikitext-103": (_WORDS, _RAW)}
DATASETS = (*FILES, "tiny_shakespeare", "text")
WORD_DATASETS = tuple(FILES)
FORM = " as a causal language model with its tokenizer"  # of a preset
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
LEVELS = ("byte", "word", "preset")


class Corpus(NamedTuple):
    """A text in three parts: training, validation and test."""

    train: str
    validation: str
    test: str

    def digest(self) -> str:
        parts = (hashlib.sha256(text.encode()).digest() for text in self)
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def read(dataset: str, place: Path | None, *, raw: bool = False) -> Corpus:
    """Reads a data set from `place`, a file or a folder; of WikiText with `raw` the raw files.

    Raises `UsageError` where files are missing, ambiguous, empty or not UTF-8.
    """
    if dataset == "tiny_shakespeare":
        return _from_tfds(dataset, place)
    if place is None:
        wanted = " or ".join(", ".join(names) for names in FILES.get(dataset, (("a text file",),)))
        raise UsageError(
            f"--dataset {dataset} needs --data-dir with {wanted}. tensorflow-datasets downloads "
            "only --dataset tiny_shakespeare"
        )
    if dataset == "text":
        return split(_read(_text_file(place)))
    return Corpus(*map(_read, _three_files(dataset, place, raw)))


def split(text: str) -> Corpus:
    """Splits a text: nine tenths to train on, half of the rest each to validate and test on."""
    first, second = len(text) * 9 // 10, len(text) * 19 // 20
    return Corpus(text[:first], text[first:second], text[second:])


def count_words(text: str) -> int:
    """Counts words and ends of lines, to which a perplexity per word refers."""
    return len(text.split()) + text.count("\n")


def per_word(cross_entropy: float, predictions: int, words: int) -> float:
    """The perplexity per word, from the mean cross-entropy (nats) of predicted tokens."""
    return math.exp(cross_entropy * predictions / words)


class Bytes:
    """The 256 bytes of UTF-8."""

    size = 256
    start = ord("\n")

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), "uint8").astype("int32")

    def decode(self, numbers: np.ndarray) -> str:
        """The text of token numbers; bytes that are not UTF-8 are replaced."""
        return np.asarray(numbers).astype("uint8").tobytes().decode(errors="replace")


class Words:
    """The words of a training text and the end of a line, by falling frequency.

    Words of other texts that are not in it are `<unk>`, as in PTB and WikiText, whose files have
    that word already.
    """

    def __init__(self, text: str) -> None:
        counts = collections.Counter(word for line in text.split("\n") for word in line.split())
        counts[END_OF_LINE] += text.count("\n")
        counts[UNKNOWN] += 1
        self.words = sorted(counts, key=lambda word: (-counts[word], word))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.start = self.numbers[END_OF_LINE]

    @property
    def size(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> np.ndarray:
        unknown, numbers = self.numbers[UNKNOWN], array("i")
        for index, line in enumerate(text.split("\n")):
            if index:
                numbers.append(self.numbers[END_OF_LINE])
            numbers.extend(self.numbers.get(word, unknown) for word in line.split())
        return np.asarray(numbers, "int32")

    def decode(self, numbers: np.ndarray) -> str:
        """The words with blanks between them, and the ends of lines."""
        words = (self.words[number] for number in numbers)
        return " ".join("\n" if word == END_OF_LINE else word for word in words)


class Pieces:
    """The tokens of a KerasHub tokenizer, line by line, as GPT-2's published runs take them."""

    lines_at_a_time = 1000

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        first = getattr(tokenizer, "start_token_id", None)
        self.start = int(tokenizer.end_token_id if first is None else first)

    @property
    def size(self) -> int:
        return int(self.tokenizer.vocabulary_size())

    def encode(self, text: str) -> np.ndarray:
        numbers = array("i")
        lines = iter(text.splitlines(keepends=True))
        while some := list(itertools.islice(lines, self.lines_at_a_time)):
            for line in self.tokenizer(some):
                numbers.extend(int(number) for number in np.asarray(line))
        return np.asarray(numbers, "int32")

    def decode(self, numbers: np.ndarray) -> str:
        return str(self.tokenizer.detokenize([int(number) for number in numbers]))


Vocabulary = Bytes | Words | Pieces


class Problem(NamedTuple):
    """A corpus as token numbers; each part begins with the start token, which is not predicted."""

    corpus: Corpus
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]

    def digest(self) -> str:
        return self.corpus.digest()

    def words(self, part: str) -> int:
        """Number of words of a part, including the ends of lines."""
        return count_words(getattr(self.corpus, part))


def load(options: argparse.Namespace) -> Problem:
    """The corpus that the options select, as tokens; refuses a text shorter than a window."""
    corpus = read(options.dataset, options.data_dir, raw=options.tokens == "preset")
    vocabulary: Vocabulary
    if options.tokens == "preset":
        import keras_hub

        with loading_preset(options.preset, FORM):
            vocabulary = Pieces(keras_hub.models.Tokenizer.from_preset(options.preset))
    else:
        vocabulary = Words(corpus.train) if options.tokens == "word" else Bytes()
    parts = ("train", "validation", "test")
    tokens = {
        part: np.append(np.int32(vocabulary.start), vocabulary.encode(text))
        for part, text in zip(parts, corpus, strict=True)
    }
    for part, numbers in tokens.items():
        if len(numbers) <= options.context:
            raise UsageError(
                f"the {part} text has {len(numbers) - 1:,} tokens, fewer than --context "
                f"{options.context}"
            )
    windows = -(-(len(tokens["train"]) - 1) // options.context)
    steps = options.epochs * -(-windows // options.batch_size)
    if options.warm_up >= steps:
        raise UsageError(
            f"--warm-up {options.warm_up} is no less than the {steps:,} steps of the whole training"
        )
    return Problem(corpus, vocabulary, tokens)


def _three_files(dataset: str, place: Path, raw: bool) -> list[Path]:
    families = sorted(FILES[dataset], key=lambda names: (names is _RAW) != raw)
    for names in families:
        for folder in (place, place / dataset, place / f"{dataset}-raw"):
            if all((folder / name).is_file() for name in names):
                return [folder / name for name in names]
    wanted = " or ".join(", ".join(names) for names in families)
    raise UsageError(f"--data-dir {place} has no {wanted}, in itself or in a folder {dataset}")


def _text_file(place: Path) -> Path:
    if place.is_file():
        return place
    files = sorted(place.glob("*.txt")) if place.is_dir() else []
    if len(files) != 1:
        raise UsageError(
            f"--data-dir {place} must be a text file, or a folder with one *.txt file. This folder "
            f"has {len(files)} of them"
        )
    return files[0]


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if not text.strip():
        raise UsageError(f"{path} holds no text")
    return text


def _from_tfds(name: str, folder: Path | None) -> Corpus:
    parts = (load_tfds(name, part, folder) for part in ("train", "validation", "test"))
    return Corpus(*(b"".join(one["text"] for one in part).decode() for part in parts))
