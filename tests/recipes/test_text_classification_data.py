import sys
import types

import pytest

from recipes.common.command.parsing import UsageError
from recipes.text_classification.__main__ import RECIPE
from recipes.text_classification.data import TASKS, read_texts

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
    given = ["--data-dir", str(folder)] if folder else []
    return RECIPE.parse(["--task", task, *given, *more])


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


def test_published_settings():
    for preset, constant in (("bert_base_en", -0.01), ("roberta_base_en", -0.05)):
        asked = options("cola", None, "--preset", preset, "--published")
        assert (asked.epochs, asked.batch_size, asked.learning_rate) == (5, 32, 2e-5)
        assert (asked.weight_decay, asked.coefficient_learning_rate) == (0.0, 2e-5)
        assert RECIPE.deviations(asked) == []
        assert RECIPE.settings(asked)["gfsa"] == {
            "filter": {
                "name": "first_order",
                "order": 3,
                "initial_coefficients": {"identity": constant},
                "trainable_coefficients": ["power"],
            }
        }
    albert = options("cola", None, "--preset", "albert_base_en_uncased", "--published")
    assert albert.constant == 0.05
    assert options("rte", None, "--preset", "bert_base_en", "--published").constant == 0.0
    changed = options("cola", None, "--preset", "minilm", "--published", "--epochs", "2")
    assert RECIPE.deviations(changed) == ["epochs 2 (published: 5)"]
    with pytest.raises(UsageError, match="has settings for"):
        options("cola", None, "--preset", "electra_small", "--published")
    settings = RECIPE.settings(options("cola"))["gfsa"]
    assert settings == {"filter": {"name": "first_order", "order": 3}}
