"""Texts in three parts: WikiText and PTB in their own files, tiny Shakespeare, any text file.

Imports no Keras.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from recipes.common.command import UsageError
from recipes.common.tfds import load_tfds

_PENN = ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")
_WORDS = ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens")
_RAW = ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw")
# by data set, the names that its files are found under, the first ones for words
FILES = {"ptb": (_PENN,), "wikitext-2": (_WORDS, _RAW), "wikitext-103": (_WORDS, _RAW)}
DATASETS = (*FILES, "tiny_shakespeare", "text")


class Corpus(NamedTuple):
    """A text to train on, one to choose by and one to report."""

    train: str
    validation: str
    test: str

    def digest(self) -> str:
        """A fingerprint of the three texts."""
        digest = hashlib.sha256()
        for text in self:
            part = hashlib.sha256(text.encode())
            digest.update(part.digest())
        return digest.hexdigest()[:16]


def load(dataset: str, place: Path | None, *, raw: bool = False) -> Corpus:
    """Reads a data set.

    Args:
        dataset: One of `DATASETS`.
        place: For `"text"` a text file, or a folder with one; for PTB and WikiText the folder of
            their files; for `"tiny_shakespeare"` the folder of tensorflow-datasets, or None.
        raw: Take WikiText's raw files where there are both.

    Raises:
        UsageError: When files are missing, ambiguous, empty or not UTF-8.
    """
    if dataset == "tiny_shakespeare":
        return _from_tfds(dataset, place)
    if place is None:
        wanted = " or ".join(", ".join(names) for names in FILES.get(dataset, (("a text file",),)))
        raise UsageError(
            f"--dataset {dataset} is read from files: give --data-dir with {wanted} "
            "(tensorflow-datasets has tiny_shakespeare alone)"
        )
    if dataset == "text":
        return split(_read(_text_file(place)))
    return Corpus(*(_read(path) for path in _three_files(dataset, place, raw)))


def split(text: str) -> Corpus:
    """The first nine tenths to train on; the rest halved into validation and test."""
    first, second = len(text) * 9 // 10, len(text) * 19 // 20
    return Corpus(text[:first], text[first:second], text[second:])


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
    found = sorted(place.glob("*.txt")) if place.is_dir() else []
    if len(found) != 1:
        raise UsageError(
            f"--data-dir {place} is no text file, and has {len(found) or 'no'} *.txt in it, not 1"
        )
    return found[0]


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
