import sys
import types

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

import keras_hub
import scipy.stats
import sklearn.metrics

import keras_graphattn
from keras_graphattn.layers import GraphFilterAttention
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import filled_weights
from recipes.text_classification.__main__ import RECIPE
from recipes.text_classification.data import TASKS, load, read_texts, validation_split
from recipes.text_classification.model import (
    build,
    compile_model,
    criterion_metric,
    measures,
    padded_lengths,
    report,
)
from tests.numerics import to_numpy
from tests.recipes.command_line import assert_one_error_line, best_run, results_of

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

PAIR = ("A.", "B.")
# first lines of the published files, one example with them, what is to be read from it
PUBLISHED = {
    "sst2": ("sentence\tlabel", 'a "fine" film \t1', ('a "fine" film ',), 1),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tA.\tB.", PAIR, 0),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMS\t2012\t1\tnone\tnone\tA.\tB.\t4.250",
        PAIR,
        4.25,
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tA.\tB.\t1", PAIR, 1),
    "mnli": (
        "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\tA.\tB.\tneutral\tcontradiction",
        PAIR,
        2,
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\tA.\tB.\tnot_entailment", PAIR, 1),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tentailment", PAIR, 0),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1", PAIR, 1),
}


def options(task, folder=None, *more):
    place = ["--data-dir", str(folder)] if folder else []
    return RECIPE.parse(["--task", task, *place, *more])


def write(folder, name, *lines):
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("task", PUBLISHED)
def test_published_files(task, tmp_path):
    header, line, texts, label = PUBLISHED[task]
    for name in ("train", *(file for _, file in TASKS[task].evaluations)):
        write(tmp_path, name, header, line, line)
    train, evaluations = read_texts(options(task, tmp_path))
    assert [one[1] for one in train.texts] == list(texts)
    assert train.labels.tolist() == [label, label]
    assert train.labels.dtype == ("float32" if task == "stsb" else "int32")
    assert list(evaluations) == (["", "mismatched"] if task == "mnli" else [""])


def test_cola_by_its_own_files_and_by_those_of_glue(tmp_path):
    write(tmp_path, "in_domain_train", "gj04\t1\t\tHe ran.", 'gj04\t0\t*\tRan he "up.')
    write(tmp_path, "in_domain_dev", "gj04\t0\t*\tThe the.")
    train, evaluations = read_texts(options("cola", tmp_path))
    assert train.texts == (["He ran.", 'Ran he "up.'],)
    assert train.labels.tolist() == [1, 0]
    assert list(evaluations) == [""]
    write(tmp_path, "out_of_domain_dev", "clc95\t1\t\tIt left.")
    _, evaluations = read_texts(options("cola", tmp_path))
    assert evaluations["out_of_domain"].texts == (["It left."],)
    glue = tmp_path / "glue"
    glue.mkdir()
    write(glue, "train", "gj04\t1\t\tHe ran.")
    write(glue, "dev", "gj04\t0\t*\tThe the.")
    train, evaluations = read_texts(options("cola", glue))
    assert (train.texts, evaluations[""].labels.tolist()) == ((["He ran."],), [0])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["sentence\tlabel", "fine\t2"], ["train.tsv, line 2", "0 or 1", "fine | 2"]),
        (["sentence\tlabel", "fine"], ["line 2", "received 1 columns"]),
        (["text\tlabel", "fine\t1"], ["no column 'sentence'", "text, label"]),
        (["sentence\tlabel"], ["has no examples"]),
        ([""], ["no column 'sentence'"]),
    ],
)
def test_files_that_cannot_be_read(lines, words, tmp_path):
    write(tmp_path, "train", *lines)
    write(tmp_path, "dev", "sentence\tlabel", "fine\t1")
    with pytest.raises(UsageError) as raised:
        read_texts(options("sst2", tmp_path))
    for word in words:
        assert word in str(raised.value)
    (tmp_path / "dev.tsv").unlink()
    with pytest.raises(UsageError, match=r"has no dev\.tsv"):
        read_texts(options("sst2", tmp_path))


def test_broken_lines_of_qqp_are_left_out_and_counted(tmp_path, capsys):
    header, line, _, _ = PUBLISHED["qqp"]
    write(tmp_path, "train", header, line, "a question that was cut", line)
    write(tmp_path, "dev", header, line)
    train, _ = read_texts(options("qqp", tmp_path))
    assert train.labels.tolist() == [1, 1]
    assert "train.tsv: 1 lines with too few columns left out" in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS)
def test_tfds(task, monkeypatch):
    asked = []
    features = TASKS[task].features

    def load(name, split, data_dir):
        asked.append((name, split))
        return [{**{one: f"{one} {split}".encode() for one in features}, "label": 1, "idx": 0}]

    module = types.SimpleNamespace(load=load, as_numpy=list)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    train, evaluations = read_texts(options(task))
    assert train.texts == tuple([f"{one} train"] for one in features)
    assert train.labels.tolist() == [1]
    kinds = ("_matched", "_mismatched") if task == "mnli" else ("",)
    splits = ["train", *(f"validation{kind}" for kind in kinds)]
    assert asked == [(f"glue/{task}", split) for split in splits]
    assert evaluations[""].texts[0] == [f"{features[0]} {splits[1]}"]


WORDS = ("the", "a", "man", "dog", "cat", "saw", "ran", "and", "then", "that", "which", "house")


def sentences(random, count):
    """Acceptable is what has no word twice in a row; 2 to 14 words."""
    for number in range(count):
        words = list(random.permutation(WORDS)[: random.integers(2, 14)])
        if number % 3 == 0:
            words.insert(1, words[0])
        yield f"made\t{int(number % 3 != 0)}\t\t{' '.join(words)}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("cola"), np.random.default_rng(0)
    for name, count in (("in_domain_train", 60), ("in_domain_dev", 18), ("out_of_domain_dev", 7)):
        (folder / f"{name}.tsv").write_text("\n".join(sentences(random, count)) + "\n")
    return folder


@pytest.fixture(scope="module")
def tiny(folder):
    text = (
        f"--data-dir {folder} --vocabulary 60 --layers 1 --d-model 8 --heads 2 --feed-forward 8 "
        "--batch-size 8 --epochs 2 --learning-rate 0.02 --max-length 24 --verbose 0 "
        "--validation-fraction 0.2"
    )
    return text.split()


@pytest.fixture(scope="module")
def output(tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    assert RECIPE.main([*tiny, "--output", str(output), "--attention", "softmax,gfsa"]) == 0
    return output


def test_the_dev_sets_are_seen_after_training(output):
    results = results_of(output)
    assert results["examples"] == {"train": 60, "dev": 18, "out_of_domain": 7}
    for run in results["runs"]:
        assert -1 <= run["test_matthews_correlation"] <= 1
        assert "test_matthews_correlation_out_of_domain" in run
    plain, filtered = (row["parameters"] for row in results["table"])
    assert filtered - plain == 6


def test_the_best_model_takes_texts_from_its_preset(output, tiny):
    run = best_run(results_of(output))
    task = keras_hub.models.TextClassifier.from_preset(str(output / "preset"))
    expected = {"softmax": "MultiHeadAttention", "gfsa": "GraphFilterAttention"}
    rows = [row.class_name for row in keras_graphattn.inspect(task)]
    assert rows == [expected[run["attention"]]]
    texts = [line.split("\t")[3] for line in sentences(np.random.default_rng(5), 4)]
    logits = task.predict(texts, batch_size=4)
    loaded = keras.saving.load_model(output / "model.keras")
    inputs = {name: np.asarray(array) for name, array in task.preprocessor(texts).items()}
    np.testing.assert_allclose(logits, to_numpy(loaded(inputs)), atol=1e-5)
    assert logits.shape == (4, 2)
    options = RECIPE.parse(tiny)
    values = report(keras.Model(task.input, task.output), load(options), options)
    name = "test_matthews_correlation"
    assert values[name] == pytest.approx(run[name])
    assert (output / "saved_model" / "1" / "saved_model.pb").is_file()


def test_the_similarity_of_tokens_by_depth_is_that_of_all_pairs_but_of_padding(output, tiny):
    model = keras.saving.load_model(output / "model.keras")
    names = ("embeddings_layer_norm", "transformer_layer_0")
    tokens = [model.backbone.get_layer(name).output for name in names]
    texts = load(RECIPE.parse(tiny)).evaluations[""]
    inputs = texts.inputs(np.arange(len(texts)), int(texts.lengths.max()))
    expected = []
    for layer in keras.Model(model.backbone.input, tokens).predict(inputs, verbose=0):
        cosines = []
        for states, length in zip(layer, texts.lengths, strict=True):
            directions = states[:length] / np.linalg.norm(states[:length], axis=1, keepdims=True)
            pairs = [x @ y for i, x in enumerate(directions) for y in directions[:i]]
            cosines.append(np.mean(pairs))
        expected.append(np.mean(cosines))
    run = best_run(results_of(output))
    np.testing.assert_allclose(run["token_similarity"], expected, atol=1e-4)


def test_pairs_with_a_value_in_mixed_precision(tiny, tmp_path):
    random = np.random.default_rng(0)
    for name, count in (("train", 40), ("dev", 9)):
        lines = ["sentence1\tsentence2\tscore"]
        for score in random.uniform(0, 5, count):
            lines.append(f"{' '.join(random.choice(WORDS, 3))}\tthe cat\t{score:.3f}")
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    more = ["--task", "stsb", "--precision", "mixed_bfloat16", "--attention", "p_laplacian"]
    more += ["--epochs", "1", "--data-dir", str(tmp_path), "--output", str(tmp_path / "output")]
    assert RECIPE.main([*tiny, *more, "--skip-saved-model"]) == 0
    (run,) = results_of(tmp_path / "output")["runs"]
    assert np.isfinite(run["validation_squared_error"])
    assert -1 <= run["test_spearman"] <= 1
    assert keras.config.dtype_policy().name == "float32"
    problem = load(RECIPE.parse([*tiny, *more]))
    segments = problem.train.arrays["segment_ids"]
    assert set(segments.sum(axis=1)) == {3}  # the, cat and the mark after them


def test_preset_of_another_model(tiny, tmp_path, capsys):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    preprocessor = keras_hub.models.DistilBertTextClassifierPreprocessor(
        keras_hub.models.DistilBertTokenizer(vocabulary), sequence_length=24
    )
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = keras_hub.models.DistilBertBackbone(len(vocabulary), **sizes, max_sequence_length=24)
    task = keras_hub.models.DistilBertTextClassifier(backbone, 2, preprocessor)
    task.save_to_preset(str(tmp_path / "plain"))
    arguments = [*tiny[:2], "--preset", str(tmp_path / "plain"), "--max-length", "24"]
    options = RECIPE.parse([*arguments, "--where", "1", "--attention", "gfsa"])
    model = build(RECIPE.trial(load(options), "gfsa", options))
    assert type(model).__name__ == "GraphAttentionDistilBertTextClassifier"
    rows = [row.class_name for row in keras_graphattn.inspect(model)]
    assert rows == ["MultiHeadAttention", "GraphFilterAttention"]
    first = [to_numpy(one.backbone.weights[0]) for one in (task, model)]
    np.testing.assert_array_equal(*first)
    model.preprocessor = preprocessor
    model.save_to_preset(str(tmp_path / "converted"))
    arguments[3] = str(tmp_path / "converted")
    arguments += ["--output", str(tmp_path / "output")]
    assert_one_error_line(RECIPE.main, arguments, ["converted attention already"], capsys)


def test_all_attentions_start_with_the_same_weights(tiny):
    options = RECIPE.parse(tiny)
    problem = load(options)
    indices = np.arange(8)
    outputs = []
    inputs = problem.train.inputs(indices, padded_lengths(problem)[-1])
    for attention in ("softmax", "gfsa"):
        keras.utils.set_random_seed(3)
        outputs.append(to_numpy(build(RECIPE.trial(problem, attention, options))(inputs)))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-6)


def test_validation_is_drawn_from_training_by_the_seed(tiny):
    problem = load(RECIPE.parse(tiny))
    training, validation = validation_split(problem, 0.2, 0)
    assert sorted([*training, *validation]) == list(range(60))
    assert problem.train.labels[validation].sum() == 8
    assert list(validation) != list(validation_split(problem, 0.2, 1)[1])


def test_lengths_that_hardly_any_example_needs_are_left_out(tiny):
    problem = load(RECIPE.parse(tiny))
    lengths = padded_lengths(problem)
    assert lengths[-1] == problem.length
    assert set(lengths[:-1]) <= {8, 12, 16}
    problem.train.lengths = np.full(60, 5)
    assert padded_lengths(problem) == [8, problem.length]


def test_metrics_in_batches_are_those_of_scikit_learn_and_scipy():
    random = np.random.default_rng(0)
    labels, logits = random.integers(0, 2, 90), random.normal(size=(90, 2)).astype("float32")
    logits[np.arange(90), labels] += 0.5
    # three batches of 30 rows; the last one is filled up
    weights = np.concatenate([filled_weights(count, 30) for count in (30, 30, 23)])
    real = slice(0, 83)
    for name in ("cola", "mrpc", "sst2"):
        metric = criterion_metric(TASKS[name])
        for at in range(0, 90, 30):
            part = slice(at, at + 30)
            metric.update_state(labels[part], logits[part], weights[part])
        expected = measures(TASKS[name], labels[real], logits[real])[TASKS[name].metrics[0]]
        assert float(metric.result()) == pytest.approx(expected, abs=1e-5)
        assert 0.1 < expected < 1
    chosen = logits[real].argmax(axis=1)
    assert measures(TASKS["cola"], labels[real], logits[real])["matthews_correlation"] == (
        sklearn.metrics.matthews_corrcoef(labels[real], chosen)
    )
    values = (labels + random.normal(size=90)).astype("float32")
    metric = criterion_metric(TASKS["stsb"])
    metric.update_state(values, logits[:, 1:], weights)
    both = measures(TASKS["stsb"], values[real], logits[real, 1:])
    assert float(metric.result()) == pytest.approx(both["pearson"], abs=1e-5)
    assert both["spearman"] == scipy.stats.spearmanr(values[real], logits[real, 1])[0]
    constant = criterion_metric(TASKS["cola"])
    constant.update_state(labels, np.zeros((90, 2)))
    assert float(constant.result()) == 0.0
    assert measures(TASKS["stsb"], values, np.zeros((90, 1))) == {"pearson": 0.0, "spearman": 0.0}


def test_coefficients_learn_at_their_own_rate():
    tokens = keras.Input((3, 4))  # the recipe's option goes before what the layer says
    layer = GraphFilterAttention(1, 2, coefficient_learning_rate_multiplier=100.0)
    model = keras.Model(tokens, layer(tokens, tokens))
    options = RECIPE.parse(["--learning-rate", "1e-3", "--coefficient-learning-rate", "2e-2"])
    options.warm_up = 0.0
    compile_model(model, types.SimpleNamespace(task=TASKS["cola"]), options, steps=10)
    both = [layer.power_coefficient, layer._query_dense.kernel]
    starts = [to_numpy(one) for one in both]
    model.optimizer.build(both)
    model.optimizer.apply([keras.ops.full(one.shape, 0.3) for one in both])
    moved = [np.abs(to_numpy(x) - start).mean() for x, start in zip(both, starts, strict=True)]
    np.testing.assert_allclose(moved, [2e-2, 1e-3], rtol=1e-3)
