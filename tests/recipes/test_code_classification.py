import argparse
import ast
import json

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

import keras_hub
from sklearn.metrics import f1_score

import keras_graphattn
from recipes.code_classification import data
from recipes.code_classification.__main__ import RECIPE
from recipes.code_classification.data import (
    APART,
    Examples,
    byte_pairs,
    divided,
    faults,
    library,
    load,
    read,
    tokenised,
    with_fault,
)
from recipes.code_classification.model import build, measures
from recipes.common.command.parsing import UsageError
from recipes.common.data.ragged import Ragged
from tests.numerics import to_numpy
from tests.recipes.command_line import best_run, results_of

# What trains here is slow, and runs on every backend.
TINY = (
    "--vocabulary 280 --layers 1 --d-model 8 --heads 2 --feed-forward 8 --batch-size 8 --epochs 1 "
    "--learning-rate 0.02 --max-length 24 --warm-up 2 --verbose 0"
)


def options(task, folder=None, *more):
    place = ["--data-dir", str(folder)] if folder else []
    return RECIPE.parse(["--task", task, *place, *map(str, more)])


def write(folder, name, *lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def function(n, label=0, key="target"):
    return json.dumps({"func": f"int f{n}(int x)\n{{\n  return x + {n};\n}}", key: label})


def write_defect(folder, count=24):
    rows = [function(n, n % 2) for n in range(count)]
    (folder / "function.json").write_text(f"[{', '.join(rows)}]")
    bounds = [0, count // 2, 3 * count // 4, count]
    for number, name in enumerate(("train", "valid", "test")):
        write(folder, f"{name}.txt", *range(bounds[number], bounds[number + 1]))


def write_clone(folder, count=8, pairs=16):
    write(folder, "data.jsonl", *(function(n, str(100 + n), "idx") for n in range(count)))
    random = np.random.default_rng(0)
    for name in ("train", "valid", "test"):
        rows = random.integers(0, count, (pairs, 2)) + 100
        write(folder, f"{name}.txt", *(f"{a}\t{b}\t{(a + b) % 2}" for a, b in rows))


def write_bugs2fix(folder, count=20):
    for part, start in (("valid", 0), ("test", 1000)):
        for kind, sign in (("buggy", "-"), ("fixed", "+")):
            lines = (f"int METHOD_{n} ( ) {{ return {sign} {n} ; }} " for n in range(count))
            numbered = (line.replace("METHOD_", f"METHOD_{start}") for line in lines)
            write(folder, f"{part}.{kind}", *numbered)


WRITERS = {"defect": write_defect, "clone": write_clone, "bugs2fix": write_bugs2fix}


def test_devigns_array_with_index_files_and_its_jsonl_are_the_same(tmp_path):
    write_defect(tmp_path)
    whole = read(options("defect", tmp_path))
    assert whole.texts[3] == "int f3(int x) { return x + 3; }"
    assert {name: len(one.labels) for name, one in whole.splits.items()} == {
        **{"train": 12, "validation": 6, "test": 6}
    }
    rows = json.loads((tmp_path / "function.json").read_text())
    lines = tmp_path / "lines"
    lines.mkdir()
    for name in ("train", "valid", "test"):
        numbers = [int(line) for line in (tmp_path / f"{name}.txt").read_text().split()]
        write(lines, f"{name}.jsonl", *(json.dumps(rows[number]) for number in numbers))
    for name, split in read(options("defect", lines)).splits.items():
        np.testing.assert_array_equal(split.places, whole.splits[name].places)
        np.testing.assert_array_equal(split.labels, whole.splits[name].labels)
        assert split.labels.dtype == "int32"


def test_clones_are_pairs_of_functions_by_their_idx(tmp_path):
    write(tmp_path, "data.jsonl", function(0, "7", "idx"), function(1, 42, "idx"))
    for name in ("train", "valid", "test"):
        write(tmp_path, f"{name}.txt", "42\t7\t1", "7\t7\t0")
    code = read(options("clone", tmp_path))
    assert code.splits["test"].places.tolist() == [[1, 0], [0, 0]]
    assert code.splits["test"].labels.tolist() == [1, 0]


def texts_of(code, name):
    return {code.texts[place] for place in code.splits[name].places[:, 0]}


def test_no_method_of_bugs2fix_is_in_two_splits(tmp_path, capsys):
    write_bugs2fix(tmp_path)
    shared = ["void A ( ) { }", "void B ( ) { }", "void C ( ) { }"]
    for number, kind in enumerate(("buggy", "fixed")):
        with (tmp_path / f"valid.{kind}").open("a") as file:  # two pairs with B in common
            file.write("".join(f"{shared[n + number]}\n" for n in (0, 1)))
    for kind in ("buggy", "fixed"):  # a pair of both files
        with (tmp_path / f"valid.{kind}").open("a") as file:
            file.write((tmp_path / f"test.{kind}").read_text().splitlines()[0] + "\n")
    for seed in range(6):
        more = ("--validation-fraction", 0.3, "--data-seed", seed)
        code = read(options("bugs2fix", tmp_path, *more))
        parts = [texts_of(code, name) for name in code.splits]
        assert sum(map(len, parts)) == len(set().union(*parts))
        assert sum(set(shared) <= part for part in parts) == 1
        for split in code.splits.values():
            assert split.labels.mean() == 0.5
            for place, label in zip(split.places[:, 0], split.labels, strict=True):
                assert ("- " in code.texts[place]) == label or code.texts[place] in shared
    assert "1 pairs of the validation file left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "file", "line", "words"),
    [
        ("defect", "function.json", "[{}, 3]", ["function.json, line 1, object 0", "'func'"]),
        ("defect", "function.json", "[1", ["function.json, line 1", "JSON array", "[1"]),
        ("defect", "function.json", function(0, 2), ["line 1", "0 or 1", "received 2"]),
        ("defect", "function.json", '{"func": " ", "target": 1}', ["line 1", "text of a function"]),
        ("defect", "function.json", "", ["line 1", "JSON object"]),
        ("defect", "train.txt", "24", ["train.txt, line 1", "from 0 to 23", "'24'"]),
        ("defect", "test.txt", "-1", ["test.txt, line 1", "from 0 to 23"]),
        ("defect", "valid.txt", "one", ["valid.txt, line 1", "'one'"]),
        ("defect", "test.txt", "0", ["test.txt, line 1", "function 0 is in train.txt already"]),
        ("defect", "valid.txt", None, ["has no valid.txt"]),
        ("clone", "data.jsonl", '{"func": "f"}', ["data.jsonl, line 1", "'idx'"]),
        ("clone", "data.jsonl", '{"func": "", "idx": 1}', ["data.jsonl, line 1", "received ''"]),
        ("clone", "train.txt", "100 101", ["train.txt, line 1", "two idx and a label"]),
        ("clone", "train.txt", "100\t99\t1", ["train.txt, line 1", "idx", "'99'"]),
        ("clone", "valid.txt", "100\t101\t7", ["valid.txt, line 1", "0 or 1", "'7'"]),
        ("bugs2fix", "valid.buggy", "one\n\nthree", ["valid.buggy, line 2", "text of a function"]),
        ("bugs2fix", "test.fixed", "one", ["test.fixed has 1 lines", "test.buggy has 20"]),
    ],
)
def test_broken_files_are_one_line_with_file_and_line(task, file, line, words, tmp_path):
    WRITERS[task](tmp_path)
    if line is None:
        (tmp_path / file).unlink()
    else:
        write(tmp_path, file, line)
    with pytest.raises(UsageError) as raised:
        read(options(task, tmp_path))
    assert [word for word in words if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    write_clone(tmp_path)
    (tmp_path / "data.jsonl").write_bytes(function(0, 1, "idx").encode() + b"\n\xff\xfe\n")
    with pytest.raises(UsageError, match=r"data\.jsonl, line 2: expected UTF-8"):
        read(options("clone", tmp_path))


SOURCE = """def f(a, b):
    c = a + g(a, b)
    if c < 3 and a is not b:
        return a
    return 1"""
CHANGED = {  # all that one fault of a kind can make of SOURCE, by the line that changes
    "operator": {
        *("c = a - g(a, b)", "if c > 3 and a is not b:", "if c < 3 or a is not b:"),
        "if c < 3 and a is b:",
    },
    "argument order": {"c = a + g(b, a)"},
    "off by one": {
        *("if c <= 3 and a is not b:", "if c < 2 and a is not b:", "if c < 4 and a is not b:"),
        *("return 0", "return 2"),
    },
}


@pytest.mark.parametrize("kind", [*CHANGED, "wrong name"])
def test_a_fault_is_one_change_of_its_kind(kind):
    found = set()
    for seed in range(200):
        broken = with_fault(SOURCE, seed, kind)
        before, after = SOURCE.splitlines(), broken.splitlines()
        (line,) = (new.strip() for old, new in zip(before, after, strict=True) if old != new)
        found.add(line)
        assert broken == with_fault(SOURCE, seed, kind)
    if kind == "wrong name":
        changes = faults(ast.parse(SOURCE))[kind]
        assert len(found) == len(changes) == 2 * 7  # seven reads of a, b or c: two other names
        assert all(set("abc") >= {n for n in line if n in "abcd"} - {"d"} for line in found)
    else:
        assert found == CHANGED[kind]


def test_what_cannot_be_broken_is_left_as_it_is():
    assert with_fault("def f():\n    pass", 0) is None
    assert with_fault("def f(a):\n    return a", 0) is None
    assert with_fault("def f(a):\n    return g(a, a, *a)", 0, "argument order") is None


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder in the place of Python's library: ten modules, of which one is a package."""
    for number in range(10):
        path = tmp_path / (f"module_{number}.py" if number else "package/inside.py")
        path.parent.mkdir(exist_ok=True)
        functions = [
            f'def f_{number}_{n}(a, b):\n    """Text."""\n    return a + b * {n}  # comment\n\n'
            for n in range(4)
        ]
        same = "def same(a, b):\n    return a - b\n"
        path.write_text("".join(functions) + same)
    (tmp_path / "package" / "other.py").write_text(
        "class C:\n    def m(self, a):\n        def inside(): return a + 1\n        return inside\n"
        "def long(a):\n" + "    a += 1\n" * 60
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("def left_out(a, b):\n    return a + b\n")
    monkeypatch.setattr(data.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def test_functions_of_the_library_are_there_once_without_comments(modules):
    functions = library(modules)
    texts = [text for _, text in functions]
    assert len(set(texts)) == len(texts) == 10 * 4 + 2
    assert ("module_3", "def f_3_2(a, b):\n    return a + b * 2") in functions
    assert ("package", "def f_0_1(a, b):\n    return a + b * 1") in functions
    (method,) = (text for text in texts if "inside" in text)
    assert method.startswith("def m(self, a):")
    assert not [text for text in texts if "left_out" in text or "long" in text]
    assert "test" in APART


def test_no_module_and_no_pair_of_synthetic_faults_is_in_two_splits(modules):
    home = {" ".join(text.split()): module for module, text in library(modules)}
    for seed in range(4):
        code = read(options("synthetic", None, "--data-seed", seed))
        found = []
        for split in code.splits.values():
            pairs = split.places.reshape(-1, 2)
            np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)
            assert (pairs[:, 0] % 2 == 0).all()
            assert split.labels.reshape(-1, 2).tolist() == [[0, 1]] * len(pairs)
            for as_it_was, broken in pairs:
                assert code.texts[as_it_was] != code.texts[broken]
                assert code.texts[broken] not in home
            found.append({home[code.texts[place]] for place in pairs[:, 0]})
        assert sum(map(len, found)) == len(set().union(*found)) == 10
        assert read(options("synthetic", None, "--data-seed", seed)).texts == code.texts


def test_a_share_of_groups_that_cannot_be_had_is_refused():
    with pytest.raises(UsageError, match="1 groups of functions cannot be split"):
        divided(np.zeros(3), 0.1, 0)


def test_limits_draw_from_all_examples(tmp_path):
    write_defect(tmp_path)
    whole = read(options("defect", tmp_path)).splits
    few = read(options("defect", tmp_path, "--train-examples", 5, "--evaluation-examples", 4))
    assert [len(one.labels) for one in few.splits.values()] == [5, 4, 4]
    for name, split in few.splits.items():
        assert set(split.places[:, 0]) < set(whole[name].places[:, 0])
        np.testing.assert_array_equal(split.labels, split.places[:, 0] % 2)


def test_tokens_are_those_of_the_preprocessor():
    texts = ["def f(x): return x", "a" * 60, "naïve = 'été 東京'"]
    vocabulary, merges = byte_pairs(texts, 290)
    assert (vocabulary, merges) == byte_pairs(texts, 290)
    assert [vocabulary[name] for name in ("<pad>", "<s>", "</s>", "<mask>")] == [0, 1, 2, 3]
    tokenizer = keras_hub.models.RobertaTokenizer(vocabulary=vocabulary, merges=merges)
    preprocessor = keras_hub.models.RobertaTextClassifierPreprocessor(tokenizer, sequence_length=30)
    rows = tokenised(preprocessor, texts)
    packed = {name: to_numpy(array) for name, array in preprocessor(texts).items()}
    np.testing.assert_array_equal(rows.padded(np.arange(3), 30), packed["token_ids"])
    np.testing.assert_array_equal(rows.lengths, packed["padding_mask"].sum(axis=1))
    unseen = "λ : unseen ☃"
    assert tokenizer.detokenize(tokenizer(unseen)) == unseen


def test_pairs_are_padded_by_the_tokenizers_own_token():
    functions = Ragged.of([np.array(row, "int32") for row in ([0, 5, 2], [0, 6, 7, 8, 2])])
    pairs = Examples(functions, np.array([[0, 1], [1, 1]]), np.array([0, 1], "int32"), 1)
    assert pairs.lengths.tolist() == [5, 5]
    assert pairs.mean_lengths.tolist() == [4, 5]
    inputs = pairs.inputs(np.array([0]), 6)
    assert inputs["token_ids_1"].tolist() == [[0, 5, 2, 1, 1, 1]]
    assert inputs["token_ids_2"].tolist() == [[0, 6, 7, 8, 2, 1]]


@pytest.mark.parametrize("pairs", [False, True])
def test_the_bag_of_tokens_finds_what_counts_tell_and_changes_nothing(pairs):
    """Label 1 is a function with two of token 9; a pair with one such function."""
    random = np.random.default_rng(0)
    rows = [np.append(random.integers(3, 8, 20), [9, 9][: 2 * (n % 2)]) for n in range(60)]
    functions = Ragged.of([random.permutation(row).astype("int32") for row in rows])
    places = random.integers(0, 60, (200, 2)) if pairs else np.arange(60)[:, None]
    labels = (places.sum(axis=1) % 2).astype("int32")
    examples = Examples(functions, places, labels, 0)
    problem = data.Problem("clone" if pairs else "defect", None, examples, examples, examples)
    before = problem.digest()
    np.testing.assert_array_equal(data.baseline(problem), labels)
    assert problem.digest() == before


def test_measures_of_pairs():
    labels = np.array([1, 1, 1, 0, 0], "int32")
    problem = argparse.Namespace(functions=2, test=argparse.Namespace(labels=labels))
    values = measures(problem, np.array([1, 1, 0, 1, 0]))
    assert values == pytest.approx(
        {"test_precision": 2 / 3, "test_recall": 2 / 3, "test_f1": 2 / 3, "test_accuracy": 0.6}
    )
    assert data.f1_of_ones(labels) == pytest.approx(f1_score(labels, np.ones(5)))


@pytest.mark.slow_on("jax")
def test_the_vector_of_the_first_token_is_classified(tmp_path):
    """One function, and two: the head by hand, from the encoder's own outputs."""
    for task, writer in (("defect", write_defect), ("clone", write_clone)):
        folder = tmp_path / task
        folder.mkdir()
        writer(folder)
        asked = options(task, folder, *TINY.split())
        problem = load(asked)
        model = build(RECIPE.trial(problem, "gfsa", asked))
        kinds = [row.class_name for row in keras_graphattn.inspect(model)]
        assert kinds == ["GraphFilterAttention"]
        inputs = problem.test.inputs(np.arange(3), problem.length)
        encoder = model.get_layer("encoder")
        vectors = [
            to_numpy(encoder({"token_ids": ids, "padding_mask": (ids != 0).astype("int32")}))[:, 0]
            for ids in inputs.values()
        ]
        features = np.concatenate(vectors, axis=-1)
        if task == "clone":
            kernel, bias = map(to_numpy, model.get_layer("hidden").weights)
            features = np.tanh(features @ kernel + bias)
        kernel, bias = map(to_numpy, model.get_layer("probabilities").weights)
        scores = np.exp(features @ kernel + bias)
        expected = scores / scores.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["defect", "clone", "bugs2fix", "synthetic"])
def test_every_task_runs_to_its_end(task, tmp_path, modules, capsys):
    files = tmp_path / "files"
    files.mkdir()
    arguments = ["--task", task, *TINY.split()]
    if task in WRITERS:
        WRITERS[task](files)
        arguments += ["--data-dir", str(files)]
    output = tmp_path / "output"
    assert RECIPE.main([*arguments, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    results = results_of(output)
    metric = "test_f1" if task == "clone" else "test_accuracy"
    assert {run["attention"] for run in results["runs"]} == {"softmax", "gfsa", "p_laplacian"}
    for run in results["runs"]:
        assert 0.0 <= run[metric] <= 1.0
        assert len(run["token_similarity"]) == 2
    assert set(results["baselines"]) >= {"most frequent class", "bag of tokens"}
    for line in ("without attention: bag of tokens", "GFSA - softmax, by seed:"):
        assert line in printed
    assert ("arXiv" in printed) == (task in ("defect", "clone"))

    model = keras.saving.load_model(output / "model.keras")
    asked = RECIPE.parse(arguments)
    problem = load(asked)
    assert problem.digest() == results["settings"]["data"]
    inputs = problem.test.inputs(np.arange(len(problem.test)), problem.length)
    chosen = to_numpy(model(inputs)).argmax(axis=-1)
    assert measures(problem, chosen)[metric] == pytest.approx(best_run(results)[metric])
    preset, text = str(output / "preset"), ["def f(x): return x"]
    loaded = keras_hub.models.TextClassifierPreprocessor.from_preset(preset)(text)
    expected = problem.preprocessor(text)
    for name in expected:
        np.testing.assert_array_equal(to_numpy(loaded[name]), to_numpy(expected[name]))
    encoder = keras_hub.models.Backbone.from_preset(preset)
    mine = to_numpy(model.get_layer("encoder")(expected))
    np.testing.assert_allclose(to_numpy(encoder(expected)), mine, atol=1e-5)
    assert (output / "saved_model" / "1" / "saved_model.pb").is_file()
    assert "<h1>" in (output / "case_study" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Roberta", "Bert"])
def test_a_preset_gives_the_encoder_and_its_tokenizer(kind, tmp_path):
    files, preset = tmp_path / "files", tmp_path / "preset"
    files.mkdir()
    write_defect(files)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    if kind == "Bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "int", "return", "x"]
        tokenizer = keras_hub.models.BertTokenizer(words)
        maker, backbone = keras_hub.models.BertTextClassifierPreprocessor, "BertBackbone"
    else:
        vocabulary, merges = byte_pairs(["int f(int x) { return x; }"], 270)
        tokenizer = keras_hub.models.RobertaTokenizer(vocabulary=vocabulary, merges=merges)
        maker, backbone = keras_hub.models.RobertaTextClassifierPreprocessor, "RobertaBackbone"
    made = getattr(keras_hub.models, backbone)(tokenizer.vocabulary_size(), **sizes)
    made.save_to_preset(str(preset))
    maker(tokenizer, sequence_length=16).save_to_preset(str(preset))
    asked = options("defect", files, "--preset", preset, "--max-length", 24)
    problem = load(asked)
    assert problem.preprocessor.sequence_length == 24
    model = build(RECIPE.trial(problem, "softmax", asked))
    for mine, theirs in zip(model.get_layer("encoder").weights, made.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(mine), to_numpy(theirs))
    converted = build(RECIPE.trial(problem, "gfsa", asked))
    assert len(keras_graphattn.inspect(converted)) == 2
