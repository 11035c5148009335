"""The texts and labels of a task, from TSV files or through tensorflow-datasets.

Imports no Keras.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.common.command import UsageError
from recipes.common.tfds import load_tfds
from recipes.text_classification.tasks import COLA_COLUMNS, COLA_FILES, TASKS, Task


class Texts(NamedTuple):
    """Examples of one or two texts each, with their labels."""

    texts: tuple[list[str], ...]  # one list per text of an example
    labels: np.ndarray  # (N,) class numbers, int32, or values, float32


def read_texts(options: argparse.Namespace) -> tuple[Texts, dict[str, Texts]]:
    """The training examples, and the dev sets by name; that of the table has the name "".

    Raises:
        UsageError: When the files or the data set cannot be found, read or downloaded.
    """
    task = TASKS[options.task]
    if options.data_dir is None:
        return _from_tfds(options.task, task)
    folder = options.data_dir
    if options.task == "cola" and (folder / f"{COLA_FILES['train']}.tsv").is_file():
        evaluations = {"": "in_domain_dev"}
        if (folder / f"{COLA_FILES['out_of_domain']}.tsv").is_file():
            evaluations["out_of_domain"] = COLA_FILES["out_of_domain"]
        train = COLA_FILES["train"]
    else:
        train, evaluations = "train", dict(task.evaluations)
    files = {name: folder / f"{file}.tsv" for name, file in evaluations.items()}
    train_file = folder / f"{train}.tsv"
    for file in (train_file, *files.values()):
        if not file.is_file():
            raise UsageError(f"--data-dir {folder} has no {file.name}")
    header = COLA_COLUMNS if options.task == "cola" else None
    read = {name: _read(file, task, header) for name, file in files.items()}
    return _read(train_file, task, header), read


def _read(path: Path, task: Task, header: tuple[str, ...] | None) -> Texts:
    """Examples of a TSV file whose first line names the columns, unless `header` does."""
    csv.field_size_limit(sys.maxsize)
    texts: tuple[list[str], ...] = tuple([] for _ in task.columns)
    labels, broken = [], 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns = header or tuple(next(rows, ()))
        places = [_place(path, columns, name) for name in (*task.columns, task.label)]
        for row in rows:
            if not row:
                continue
            if task.has_broken_lines and len(row) < len(columns):
                broken += 1
                continue
            try:
                *found, label = (row[place] for place in places)
                labels.append(_label(label, task))
            except (IndexError, ValueError) as error:
                allowed = " or ".join(task.classes) or "a number"
                raise UsageError(
                    f"{path}, line {rows.line_num}: expected {len(columns)} columns "
                    f"({', '.join(columns)}) with tabs between and a {task.label} of {allowed}; "
                    f"received {len(row)} columns: {' | '.join(row)[:200]}"
                ) from error
            for one, text in zip(texts, found, strict=True):
                one.append(text)
    if broken:
        print(f"{path}: {broken:,} lines with too few columns left out")
    if not labels:
        raise UsageError(f"{path} has no examples")
    return _texts(texts, labels, task)


def _place(path: Path, columns: tuple[str, ...], name: str) -> int:
    if name not in columns:
        raise UsageError(f"{path} has no column {name!r} in its first line: {', '.join(columns)}")
    return columns.index(name)


def _label(text: str, task: Task) -> float:
    return task.classes.index(text) if task.classes else float(text)


def _texts(texts: tuple[list[str], ...], labels: list[float], task: Task) -> Texts:
    return Texts(texts, np.array(labels, "int32" if task.classes else "float32"))


def _from_tfds(name: str, task: Task) -> tuple[Texts, dict[str, Texts]]:
    def read(split: str) -> Texts:
        examples = load_tfds(f"glue/{name}", split)
        texts = tuple([_string(one[feature]) for one in examples] for feature in task.features)
        return _texts(texts, [one["label"] for one in examples], task)

    splits = {kind: file.replace("dev", "validation") for kind, file in task.evaluations}
    return read("train"), {kind: read(split) for kind, split in splits.items()}


def _string(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
