"""Texts as token numbers: bytes, words, or the pieces of a preset's tokenizer.

Each vocabulary has a `start`: the token before a text, which nothing predicts.
"""

import collections
import itertools
from array import array
from typing import Any

import numpy as np

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
LEVELS = ("byte", "word", "preset")


def count_words(text: str) -> int:
    """Words between blanks, and ends of lines: what a perplexity per word is taken over."""
    return len(text.split()) + text.count("\n")


class Bytes:
    """The 256 bytes of UTF-8."""

    size = 256
    start = ord("\n")

    def encode(self, text: str) -> np.ndarray:
        """The numbers of a text's tokens, of shape (T,), int32."""
        return np.frombuffer(text.encode(), "uint8").astype("int32")

    def decode(self, numbers: np.ndarray) -> str:
        """The text of token numbers; bytes that are no UTF-8 are replaced."""
        return np.asarray(numbers).astype("uint8").tobytes().decode(errors="replace")


class Words:
    """The words of a training text and the end of a line, by falling frequency.

    Args:
        text: The training text. Words of other texts that are not in it are `<unk>`, as in PTB
            and WikiText, whose files have that word already.
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
        """Number of different tokens."""
        return len(self.words)

    def encode(self, text: str) -> np.ndarray:
        """The numbers of a text's tokens, of shape (T,), int32."""
        unknown, numbers = self.numbers[UNKNOWN], array("i")
        for index, line in enumerate(text.split("\n")):
            if index:
                numbers.append(self.numbers[END_OF_LINE])
            numbers.extend(self.numbers.get(word, unknown) for word in line.split())
        return np.asarray(numbers, "int32")

    def decode(self, numbers: np.ndarray) -> str:
        """The words with blanks between them, lines where they ended."""
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
        """Number of different tokens."""
        return int(self.tokenizer.vocabulary_size())

    def encode(self, text: str) -> np.ndarray:
        """The numbers of a text's tokens, of shape (T,), int32."""
        numbers = array("i")
        lines = (line for line in text.splitlines(keepends=True))
        while some := list(itertools.islice(lines, self.lines_at_a_time)):
            for line in self.tokenizer(some):
                numbers.extend(int(number) for number in np.asarray(line))
        return np.asarray(numbers, "int32")

    def decode(self, numbers: np.ndarray) -> str:
        """The text of token numbers."""
        return str(self.tokenizer.detokenize([int(number) for number in numbers]))


Vocabulary = Bytes | Words | Pieces
