"""The data of each task, read, or generated and kept on disk. Does not import Keras."""

import argparse
import csv
import hashlib
import itertools
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data import listops, pathfinder
from recipes.common.data.chance import refuse_one_class
from recipes.common.data.ragged import Problem, Ragged, Split
from recipes.common.data.sources import load_tfds
from recipes.common.storage import atomically, locked

VERSION = 1  # of what is made: another one makes everything anew
GREY = np.array([0.2989, 0.5870, 0.1140])  # ITU-R BT.601
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer")
CIFAR10 += ("dog", "frog", "horse", "ship", "truck")
BYTES = 257  # 256 values and padding


def load(options: argparse.Namespace) -> Problem:
    """The data that the options select.

    Raises:
        UsageError: When data cannot be made, found, read or downloaded, or has one class.
    """
    read = {
        "listops": _listops,
        "pathfinder": _pathfinder,
        "text": _text,
        "image": _image,
        "retrieval": _retrieval,
    }
    problem = read[options.task](options)
    refuse_one_class(problem.train.labels, problem.classes, f"--task {problem.task}")
    return problem


def listops_rules(options: argparse.Namespace) -> listops.Rules:
    """The rules of the published trees; shallower trees for smaller lengths."""
    if options.preset != "smoke":
        return listops.Rules(max_length=options.max_length)
    return listops.Rules(6, 10, options.max_length // 8, options.max_length)


def pathfinder_rules(options: argparse.Namespace) -> pathfinder.Rules:
    """The rules of the published curves; short curves in small images for a smoke run."""
    if options.preset != "smoke":
        return pathfinder.Rules()
    return pathfinder.Rules(size=16, contour_length=5, distractor_length=2, distractors=2)


def _listops(options: argparse.Namespace) -> Problem:
    parts = _made(options, listops_rules(options), listops.generate)
    return Problem("listops", [str(digit) for digit in range(10)], len(listops.TOKENS), *parts)


def _pathfinder(options: argparse.Namespace) -> Problem:
    parts = _made(options, pathfinder_rules(options), pathfinder.generate)
    return Problem("pathfinder", ["apart", "joined"], BYTES, *parts)


def _made(
    options: argparse.Namespace, rules: Any, generate: Callable[[int, Any, int], Split]
) -> list[Split]:
    """Training, validation and test examples that are generated together, all different."""
    counts = [options.train_examples] + 2 * [options.evaluation_examples]
    key = f"{VERSION} {options.task} {rules!r} {counts} {options.data_seed}"
    name = f"{options.task}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    path = options.cache_dir.expanduser() / "long_range_arena" / name
    waiting = "waiting for another process, which makes the same data"
    examples = _cached(path)
    try:
        if examples is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_suffix(".lock"), waiting):
                examples = _cached(path)  # another process may have made it meanwhile
                if examples is None:
                    print(f"making {sum(counts):,} examples of {options.task}", flush=True)
                    examples = generate(sum(counts), rules, options.data_seed)
                    tokens = examples.tokens["tokens"]
                    arrays = {"values": tokens.values, "offsets": tokens.offsets}
                    with atomically(path) as writing:
                        np.savez_compressed(writing, **arrays, labels=examples.labels)
    except OSError as error:
        raise UsageError(f"cannot write to --cache-dir {path.parent}: {error.strerror}") from error
    except ValueError as error:  # there are not so many
        raise UsageError(str(error)) from error
    bounds = np.cumsum([0, *counts])
    return [examples.take(np.arange(low, high)) for low, high in itertools.pairwise(bounds)]


def _cached(path: Path) -> Split | None:
    """The examples in a file, or None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return Split({"tokens": Ragged(file["values"], file["offsets"])}, file["labels"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def _text(options: argparse.Namespace) -> Problem:
    """IMDB reviews as bytes."""

    def tokens(example: dict[str, Any]) -> np.ndarray:
        return _bytes(example["text"], options.max_length)

    return _from_tfds(options, "imdb_reviews", ["negative", "positive"], tokens)


def _image(options: argparse.Namespace) -> Problem:
    """CIFAR-10 in grey, pixel by pixel."""

    def tokens(example: dict[str, Any]) -> np.ndarray:
        return (np.asarray(example["image"]) @ GREY).astype("uint16").ravel() + 1

    return _from_tfds(options, "cifar10", list(CIFAR10), tokens)


def _from_tfds(
    options: argparse.Namespace,
    name: str,
    classes: list[str],
    tokens: Callable[[dict[str, Any]], np.ndarray],
) -> Problem:
    """A data set of TFDS, with a tenth of the training examples for validation."""

    def read(split: str) -> Split:
        examples = load_tfds(name, split, options.data_dir)
        labels = np.array([int(one["label"]) for one in examples], "int32")
        return Split({"tokens": Ragged.of(map(tokens, examples))}, labels)

    train, test = read("train"), read("test")
    order = np.random.default_rng(options.data_seed).permutation(len(train))
    tenth = max(len(train) // 10, 1)
    validation = train.take(order[:tenth][: options.evaluation_examples])
    train = train.take(order[tenth:][: options.train_examples])
    if options.evaluation_examples is not None:
        mixed = np.random.default_rng(0).permutation(len(test))  # the classes
        test = test.take(mixed[: options.evaluation_examples])
    return Problem(options.task, classes, BYTES, train, validation, test)


def _retrieval(options: argparse.Namespace) -> Problem:
    """Pairs of AAN papers as bytes, from `label, id, id, text, text` with tabs between."""

    def read(split: str, limit: int | None) -> Split:
        files = sorted(options.data_dir.glob(f"*{split}.tsv"))
        if len(files) != 1:
            raise UsageError(
                f"--data-dir {options.data_dir} must have one file *{split}.tsv. It has "
                f"{len(files)}"
            )
        return _read_pairs(files[0], options.max_length, limit)

    train = read("train", options.train_examples)
    validation, test = (read(name, options.evaluation_examples) for name in ("eval", "test"))
    return Problem("retrieval", ["unrelated", "related"], BYTES, train, validation, test)


def _read_pairs(path: Path, max_length: int, limit: int | None) -> Split:
    csv.field_size_limit(sys.maxsize)
    first, second, labels = [], [], []
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
            try:
                label, _, _, one, other = row
                labels.append({0.0: 0, 1.0: 1}[float(label)])
            except (ValueError, KeyError) as error:
                raise UsageError(
                    f"{path}, line {number}: expected a label of 0 or 1, two names and two texts, "
                    f"with tabs between; received {len(row)} columns"
                ) from error
            first.append(_bytes(one.encode(), max_length))
            second.append(_bytes(other.encode(), max_length))
            if len(labels) == limit:
                break
    if not labels:
        raise UsageError(f"{path} is empty")
    tokens = {"tokens_1": Ragged.of(first), "tokens_2": Ragged.of(second)}
    return Split(tokens, np.array(labels, "int32"))


def _bytes(text: bytes, max_length: int) -> np.ndarray:
    """The bytes plus 1; an empty text becomes one blank."""
    return np.frombuffer((text or b" ")[:max_length], "uint8").astype("uint16") + 1
