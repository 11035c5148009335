"""Transcripts as sentences of token ids, for the language model. Does not import Keras."""

import argparse
import dataclasses
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.speech_recognition import data
from recipes.speech_recognition.data import END, START, Vocabulary


@dataclasses.dataclass
class Sentences:
    """Sentences as ids, without start and end."""

    tokens: list[np.ndarray]  # (L,) int32 each

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def labels(self) -> np.ndarray:
        """The numbers of the sentences, (N,)."""
        return np.arange(len(self.tokens))

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each, with the start, (N,)."""
        return np.array([len(one) + 1 for one in self.tokens])

    def inputs(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Some sentences after the start, padded to a length: (n, length) int32."""
        return self._padded(indices, length, [START], [])

    def targets(self, indices: np.ndarray, length: int) -> np.ndarray:
        """The token that follows each of `inputs`: (n, length) int32."""
        return self._padded(indices, length, [], [END])

    def _padded(
        self, indices: np.ndarray, length: int, before: list[int], after: list[int]
    ) -> np.ndarray:
        rows = np.full((len(indices), length), data.BLANK, "int32")
        for row, index in zip(rows, indices, strict=True):
            sentence = [*before, *self.tokens[index], *after]
            row[: len(sentence)] = sentence
        return rows


class Transcripts(NamedTuple):
    """The sentences of each part, in the tokens of the recogniser."""

    name: str
    vocabulary: Vocabulary
    parts: dict[str, Sentences]  # train, validation, test

    def digest(self) -> str:
        digest = hashlib.sha256(vocabulary_digest(self.vocabulary).encode())
        for name, part in self.parts.items():
            digest.update(f"{name} {len(part)}".encode())
            for tokens in part.tokens:
                digest.update(np.append(tokens, END).astype("int32").tobytes())
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> Transcripts:
    """The transcripts of the recogniser's data set; with `--text`, that file to train on.

    Raises:
        UsageError: If the data or the text cannot be read.
    """
    problem = data.load(options)
    splits = {"train": problem.train, "validation": problem.validation, "test": problem.test}
    parts = {name: Sentences(split.tokens) for name, split in splits.items()}
    if options.text is not None:
        sentences = read(Path(options.text))
        parts["train"] = Sentences([problem.vocabulary.encode(one) for one in sentences])
    return Transcripts(problem.name, problem.vocabulary, parts)


def read(path: Path) -> list[str]:
    """The sentences of a text, one a line; empty lines are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--text {path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read --text {path}: {error.strerror}") from error
    sentences = [" ".join(line.split()) for line in lines if line.strip()]
    if not sentences:
        raise UsageError(f"--text {path} holds no sentence")
    return sentences


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """A name for all tokens of a vocabulary in their order."""
    tokens = "\n".join(vocabulary.decode([token]) for token in range(vocabulary.size))
    return hashlib.sha256(f"{vocabulary.unit}\n{tokens}".encode()).hexdigest()[:16]
