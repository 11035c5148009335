"""Source code: published files, or functions of Python's own library with faults put in.

Sources: Zhou et al., "Devign", arXiv 1909.03496; Svajlenko et al., "BigCloneBench" (ICSME 2014);
Tufano et al., arXiv 1812.08693 (bugs2fix); the files are those of CodeXGLUE (Lu et al.,
arXiv 2102.04664). Does not import Keras itself.
"""

import argparse
import ast
import dataclasses
import hashlib
import itertools
import json
import sysconfig
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.common.command.parsing import UsageError
from recipes.common.data.chance import Chance, of_accuracy, refuse_one_class
from recipes.common.data.ragged import Ragged

BASELINE_EXAMPLES = 20_000
SPLITS = ("train", "validation", "test")
# The file of each split, as CodeXGLUE names it.
FILES = {"train": "train", "validation": "valid", "test": "test"}
CLASSES = {
    "synthetic": ("as it was", "with a fault"),
    "defect": ("secure", "insecure"),
    "clone": ("different", "clones"),
    "bugs2fix": ("fixed", "buggy"),
}
SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")  # of the tokenizer that is made here
LIBRARY_TEST_SHARE = 0.2  # of the modules
LONGEST = 400  # characters of a function of the library
APART = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3"}


class Labelled(NamedTuple):
    """Examples by the places of their functions among all texts."""

    places: np.ndarray  # (N, 1), or (N, 2) for pairs
    labels: np.ndarray  # (N,) int32


class Code(NamedTuple):
    """The texts of all functions, each with blanks for all white space, and the three splits."""

    texts: list[str]
    splits: dict[str, Labelled]


def read(options: argparse.Namespace) -> Code:
    """The functions and the examples of a task; a limited split is drawn from all its examples.

    Raises:
        UsageError: For files that are missing or broken; the line names file and line.
    """
    code = {"synthetic": synthetic, "defect": _defect, "clone": _clone, "bugs2fix": _bugs2fix}[
        options.task
    ](options)
    splits = {}
    for name, split in code.splits.items():
        limit = options.train_examples if name == "train" else options.evaluation_examples
        if limit is not None and limit < len(split.labels):
            random = np.random.default_rng(options.data_seed)
            kept = np.sort(random.permutation(len(split.labels))[:limit])
            split = Labelled(split.places[kept], split.labels[kept])
        splits[name] = split
    return Code(code.texts, splits)


def _lines(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """The place of each line of a file, for errors, and its text."""
    path = folder / name
    if not path.is_file():
        raise UsageError(f"--data-dir {folder} has no {name}")
    with path.open("rb") as file:
        number = 0
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            try:
                yield place, line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError(f"{place}: expected UTF-8; received {line[:60]!r}") from error
    if not number:
        raise UsageError(f"{path} is empty")


def _function(place: str, text: Any) -> str:
    """The text of a function; blanks stand for all white space, as in CodeXGLUE."""
    if not isinstance(text, str) or not text.split():
        raise UsageError(f"{place}: expected the text of a function; received {text!r:.60}")
    return " ".join(text.split())


def _row(place: str, text: str, *keys: str) -> list[Any]:
    """The values of a line of JSON."""
    try:
        row = json.loads(text)
        return [row[key] for key in keys]
    except (ValueError, TypeError, KeyError) as error:
        names = " and ".join(repr(key) for key in keys)
        raise UsageError(
            f"{place}: expected a JSON object with {names}; received {text[:60]!r}"
        ) from error


def _label(place: str, label: Any) -> int:
    if str(label) not in ("0", "1"):
        raise UsageError(f"{place}: expected a label of 0 or 1; received {label!r:.60}")
    return int(label)


def _defect(options: argparse.Namespace) -> Code:
    """`function.json` with an index file for each split, or a `.jsonl` for each split."""
    folder, texts, labels = options.data_dir, [], []
    whole = next(
        (one for one in ("function.json", "function.jsonl") if (folder / one).is_file()), ""
    )
    names = [whole] if whole else [f"{file}.jsonl" for file in FILES.values()]
    bounds = [0]
    for name in names:
        for place, text in _rows_of_json(folder, name):
            function, target = _row(place, text, "func", "target")
            texts.append(_function(place, function))
            labels.append(_label(place, target))
        bounds.append(len(texts))
    if not whole:
        parts = [np.arange(*pair) for pair in itertools.pairwise(bounds)]
    else:
        parts, seen = [], {}
        for file in FILES.values():
            part = []
            for place, text in _lines(folder, f"{file}.txt"):
                index = int(text) if text.strip().isdecimal() else -1
                if not 0 <= index < len(texts):
                    raise UsageError(
                        f"{place}: expected the number of a function of {whole}, from 0 to "
                        f"{len(texts) - 1}; received {text[:60]!r}"
                    )
                if index in seen:
                    raise UsageError(
                        f"{place}: function {index} is in {seen[index]}.txt already; each function "
                        "may be in one split, once"
                    )
                seen[index] = file
                part.append(index)
            parts.append(np.array(part))
    numbers = np.array(labels, "int32")
    named = zip(SPLITS, parts, strict=True)
    return Code(texts, {name: Labelled(part[:, None], numbers[part]) for name, part in named})


def _rows_of_json(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """The place and the text of each object: a line each, or those of one array on one line."""
    for place, text in _lines(folder, name):
        if not text.startswith("["):
            yield place, text
            continue
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{place}: expected a JSON array; received {text[:60]!r}") from error
        for number, row in enumerate(rows):
            yield f"{place}, object {number}", json.dumps(row)


def _clone(options: argparse.Namespace) -> Code:
    """`data.jsonl` with a function in each line, and lines of two `idx` and a label."""
    folder, place_of, texts = options.data_dir, {}, []
    for place, text in _lines(folder, "data.jsonl"):
        function, name = _row(place, text, "func", "idx")
        if str(name) in place_of:
            raise UsageError(f"{place}: the idx {name} was given to an earlier function already")
        place_of[str(name)] = len(texts)
        texts.append(_function(place, function))

    def pairs(file: str) -> Labelled:
        places, labels = [], []
        for place, text in _lines(folder, f"{file}.txt"):
            columns = text.split()
            if len(columns) != 3:
                raise UsageError(
                    f"{place}: expected two idx and a label, with tabs between; received "
                    f"{text[:60]!r}"
                )
            for name in columns[:2]:
                if name not in place_of:
                    raise UsageError(
                        f"{place}: expected the idx of a function of data.jsonl; received {name!r}"
                    )
            places.append([place_of[name] for name in columns[:2]])
            labels.append(_label(place, columns[2]))
        return Labelled(np.array(places), np.array(labels, "int32"))

    return Code(texts, {name: pairs(file) for name, file in FILES.items()})


def _bugs2fix(options: argparse.Namespace) -> Code:
    """Line i of `.buggy` and line i of `.fixed` are one method, before and after its fix.

    The validation file is to train and to validate, the test file to test. Pairs that have a method
    in common are in one split: those of the test file stay there.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    texts: list[str] = []
    counts = []
    for part in ("valid", "test"):
        fixed, buggy = (
            [_function(place, text) for place, text in _lines(options.data_dir, f"{part}.{kind}")]
            for kind in ("fixed", "buggy")
        )
        if len(fixed) != len(buggy):
            raise UsageError(
                f"--data-dir {options.data_dir}: {part}.fixed has {len(fixed)} lines, {part}.buggy "
                f"has {len(buggy)}; line i of both is one method"
            )
        texts += [text for pair in zip(fixed, buggy, strict=True) for text in pair]
        counts.append(len(fixed))
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    methods = np.array([numbers[text] for text in texts]).reshape(-1, 2)
    edges = coo_array((np.ones(len(methods)), methods.T), shape=(len(numbers),) * 2)
    groups = connected_components(edges, directed=False)[1][methods[:, 0]]
    first = np.arange(counts[0])
    kept = first[~np.isin(groups[: counts[0]], groups[counts[0] :])]
    if len(kept) < len(first):
        print(
            f"{len(first) - len(kept):,} pairs of the validation file left out: they have a method "
            "in common with the test file",
            flush=True,
        )
    train, validation = divided(groups[kept], options.validation_fraction, options.data_seed)
    test = np.arange(counts[0], len(methods))
    parts = zip(SPLITS, (kept[train], kept[validation], test), strict=True)
    return Code(texts, {name: _both(part) for name, part in parts})


def _both(pairs: np.ndarray) -> Labelled:
    """Both functions of each pair; texts 2 i and 2 i + 1 are pair i, without and with a fault."""
    places = (2 * pairs[:, None] + [0, 1]).reshape(-1, 1)
    return Labelled(places, (places[:, 0] % 2).astype("int32"))


def divided(groups: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rest and of a share of the groups (N,): each group is in one of the two."""
    from sklearn.model_selection import GroupShuffleSplit

    splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
    try:
        rest, chosen = next(splitter.split(groups, groups=groups))
    except ValueError as error:
        raise UsageError(
            f"{len(np.unique(groups))} groups of functions cannot be split by a share of "
            f"{share:g}: {error}"
        ) from error
    return rest, chosen


def synthetic(options: argparse.Namespace) -> Code:
    """Functions of Python's library as they are, and with one fault put in, split by module."""
    texts, modules = [], []
    functions = library(Path(sysconfig.get_paths()["stdlib"]))
    originals = {text for _, text in functions}
    for module, text in functions:
        broken = with_fault(text, options.data_seed)
        if broken is not None and broken not in originals:
            texts += [" ".join(one.split()) for one in (text, broken)]
            modules.append(module)
    groups = np.array(modules)
    rest, test = divided(groups, LIBRARY_TEST_SHARE, options.data_seed)
    train, validation = divided(groups[rest], options.validation_fraction, options.data_seed)
    parts = zip(SPLITS, (rest[train], rest[validation], test), strict=True)
    return Code(texts, {name: _both(part) for name, part in parts})


def library(folder: Path) -> list[tuple[str, str]]:
    """The functions of a folder of Python modules: the module of each, and its text.

    A package is one module. Functions and methods have neither comments nor docstrings; a text that
    occurs twice is there once, and one of more than 400 characters is left out.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if APART & set(parts):
            continue
        with tokenize.open(path) as file:  # in the encoding that the file names
            tree = ast.parse(file.read())
        for function in _functions(tree):
            text = ast.unparse(_without_docstrings(function))
            if len(text) <= LONGEST:
                found.setdefault(text, parts[0])
    return [(module, text) for text, module in found.items()]


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that are not inside of another one, in their order."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _functions(node)


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree


Change = Callable[[], None]
_OPPOSITES = (
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.Eq, ast.NotEq), (ast.Lt, ast.Gt)),
    *((ast.LtE, ast.GtE), (ast.And, ast.Or), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
)
OPERATORS = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


def with_fault(text: str, seed: int, kind: str | None = None) -> str | None:
    """A function with one fault, drawn by the seed; `None` where there is nothing to break.

    Each kind of fault that is possible is equally likely, then each of its places.
    """
    tree = ast.parse(text)
    changes = {name: some for name, some in faults(tree).items() if some}
    if kind is not None:
        changes = {kind: changes[kind]} if kind in changes else {}
    if not changes:
        return None
    random = np.random.default_rng([seed, zlib.crc32(text.encode())])
    chosen = list(changes.values())[random.integers(len(changes))]
    chosen[random.integers(len(chosen))]()
    return ast.unparse(tree)


def faults(tree: ast.AST) -> dict[str, list[Change]]:
    """What can be broken in a function, by kind. A call of one of them changes the tree.

    * operator: an operator becomes its opposite, such as + and -, == and !=, `and` and `or`;
    * argument order: two arguments of a call that stand side by side change places;
    * off by one: a whole number grows or shrinks by 1, or < becomes <=, or > becomes >=;
    * wrong name: a variable of the function is read in the place of another one.
    """
    found: dict[str, list[Change]] = {
        name: [] for name in ("operator", "argument order", "off by one", "wrong name")
    }
    nodes = list(ast.walk(tree))
    stored = (n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    names = sorted({*stored, *(n.arg for n in nodes if isinstance(n, ast.arg))})
    for node in nodes:
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
            found["operator"].append(partial(setattr, node, "op", OPERATORS[type(node.op)]()))
        elif isinstance(node, ast.Compare):
            for at, operator in enumerate(node.ops):
                for kind, others in (("operator", OPERATORS), ("off by one", BOUNDS)):
                    if type(operator) in others:
                        new = others[type(operator)]()
                        found[kind].append(partial(node.ops.__setitem__, at, new))
        elif isinstance(node, ast.Call):
            for at, (first, second) in enumerate(itertools.pairwise(node.args)):
                starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
                if not starred and ast.dump(first) != ast.dump(second):
                    pair = slice(at, at + 2)
                    swapped = partial(node.args.__setitem__, pair, [second, first])
                    found["argument order"].append(swapped)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            for number in (node.value - 1, node.value + 1):
                found["off by one"].append(partial(setattr, node, "value", number))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            others = [name for name in names if name != node.id]
            found["wrong name"] += [partial(setattr, node, "id", name) for name in others]
    return found


@dataclasses.dataclass
class Examples:
    """Examples of one or two functions each, by their places among all tokenised functions."""

    functions: Ragged
    places: np.ndarray  # (N, 1), or (N, 2) for pairs
    labels: np.ndarray  # (N,) int32
    padding: int  # the token that is none

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest function of each example, (N,)."""
        return self.functions.lengths[self.places].max(axis=1)

    @property
    def mean_lengths(self) -> np.ndarray:
        """Mean number of tokens of the functions of each example, (N,)."""
        return self.functions.lengths[self.places].mean(axis=1)

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The tokens at `indices`, padded to `length`, by the model's input."""
        columns = zip(input_names(self.places.shape[1]), self.places[indices].T, strict=True)
        return {
            name: self.functions.padded(places, length, self.padding) for name, places in columns
        }


def input_names(functions: int) -> list[str]:
    """The names of the model's inputs, for one function or for two."""
    return ["token_ids"] if functions == 1 else ["token_ids_1", "token_ids_2"]


@dataclasses.dataclass
class Problem:
    """A task's data, tokenised; the test data are not used in training or to choose the epoch."""

    task: str
    preprocessor: Any  # KerasHub's, for functions as text
    train: Examples
    validation: Examples
    test: Examples

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES[self.task]

    @property
    def functions(self) -> int:
        """Functions of an example: 1, or 2 for pairs."""
        return self.train.places.shape[1]

    @property
    def splits(self) -> dict[str, Examples]:
        return {name: getattr(self, name) for name in SPLITS}

    @property
    def length(self) -> int:
        return int(max(split.lengths.max() for split in self.splits.values()))

    def chance(self) -> Chance:
        """The accuracy of the most frequent class; for pairs, the F1 score of always 'clones'."""
        labels = {"validation": self.validation.labels, "training": self.train.labels}
        if self.functions == 1:
            return of_accuracy(**labels)
        return Chance("always clones", {name: f1_of_ones(one) for name, one in labels.items()})

    def digest(self) -> str:
        functions = self.train.functions
        digest = hashlib.sha256(functions.values.astype("int64").tobytes())
        digest.update(functions.offsets.tobytes())
        for split in self.splits.values():
            digest.update(split.places.astype("int64").tobytes())
            digest.update(split.labels.astype("int64").tobytes())
        return digest.hexdigest()[:16]


def f1_of_ones(labels: np.ndarray) -> float:
    """The F1 score of an answer that is always 1."""
    share = float(np.mean(labels))
    return 2.0 * share / (1.0 + share)


def load(options: argparse.Namespace) -> Problem:
    """The task's data, tokenised for the model that the options select.

    Raises:
        UsageError: When data or preset cannot be found or read, and for data that cannot be
            learned from.
    """
    code = read(options)
    classes = CLASSES[options.task]
    refuse_one_class(code.splits["train"].labels, classes, f"--task {options.task}")
    trained_on = np.unique(code.splits["train"].places)
    preprocessor = _preprocessor([code.texts[place] for place in trained_on], options)
    functions = tokenised(preprocessor, code.texts)
    padding = preprocessor.tokenizer.pad_token_id
    examples = {
        name: Examples(functions, split.places, split.labels, padding)
        for name, split in code.splits.items()
    }
    return Problem(options.task, preprocessor, **examples)


def _preprocessor(texts: Sequence[str], options: argparse.Namespace) -> Any:
    """KerasHub's preprocessor of the preset, or one of RoBERTa's kind made of the texts."""
    import keras_hub

    if options.preset is not None:
        from recipes.code_classification.encoder_decoders import preprocessor_of

        return preprocessor_of(options.preset, options.max_length)
    least = len(SPECIAL) + 256 + 1  # bytes, and a merge
    if options.vocabulary < least:
        raise UsageError(f"--vocabulary must be at least {least}. Received: {options.vocabulary}")
    vocabulary, merges = byte_pairs(texts, options.vocabulary)
    tokenizer = keras_hub.models.RobertaTokenizer(vocabulary=vocabulary, merges=merges)
    return keras_hub.models.RobertaTextClassifierPreprocessor(
        tokenizer, sequence_length=options.max_length
    )


def byte_pairs(texts: Sequence[str], size: int) -> tuple[dict[str, int], list[str]]:
    """The vocabulary and the merges of a byte-level byte-pair tokenizer of at most `size` tokens.

    Every text can be written in it: all bytes are tokens, whatever `size` is.
    """
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=size, special_tokens=list(SPECIAL), show_progress=False
    )
    model = json.loads(tokenizer.to_str())["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    return model["vocab"], merges


def tokenised(preprocessor: Any, texts: Sequence[str]) -> Ragged:
    """The tokens of each text between the model's first and last one; longer texts are cut.

    The preprocessor itself takes milliseconds for each text, its tokenizer much less.
    """
    packed = preprocessor(texts[:1])
    mask = np.asarray(packed["padding_mask"])[0].astype(bool)
    first, *_, last = np.asarray(packed["token_ids"])[0][mask]
    room = preprocessor.sequence_length - 2
    rows = (np.asarray(row, "int32")[:room] for row in preprocessor.tokenizer(list(texts)))
    return Ragged.of([np.concatenate([[first], row, [last]]).astype("int32") for row in rows])


def baseline(problem: Problem) -> np.ndarray:
    """The answers for the test data of a logistic regression on how often each token occurs.

    For a pair it is the difference of both functions' logarithms of counts, without its sign. It is
    fitted to the first 20,000 training examples at most, with scikit-learn's own settings.
    """
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression

    functions = problem.train.functions
    values = np.ones(len(functions.values), "float32")
    shape = (len(functions), int(functions.values.max()) + 1)
    rows = (values, functions.values, functions.offsets)
    counts = csr_array(rows, shape=shape, copy=True)  # the next line changes its arrays
    counts.sum_duplicates()
    counts = counts.log1p()

    def features(places: np.ndarray) -> Any:
        first, *second = (counts[column] for column in places.T)
        return abs(first - second[0]) if second else first

    train = problem.train
    order = np.random.default_rng(0).permutation(len(train))[:BASELINE_EXAMPLES]
    model = LogisticRegression(max_iter=1000)
    model.fit(features(train.places[order]), train.labels[order])
    return model.predict(features(problem.test.places))
