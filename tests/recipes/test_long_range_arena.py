import sys
import types

import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.data.listops import Rules
from recipes.common.data.ragged import majority_level
from recipes.long_range_arena import data
from recipes.long_range_arena.__main__ import RECIPE
from tests.recipes.command_line import (
    assert_validation_chooses_the_epoch,
    predictions_in_another_process,
    results_of,
)

GENERATED = "--train-examples 20 --evaluation-examples 5 --max-length 40"


def options(text, *more):
    return RECIPE.parse([*text.split(), *map(str, more)])


def test_made_data_is_kept_whole_and_made_again_when_damaged(tmp_path, monkeypatch, capsys):
    asked = options(GENERATED, "--cache-dir", tmp_path)
    first = data.load(asked)
    assert [len(split) for split in first.splits.values()] == [20, 5, 5]
    [path] = (tmp_path / "long_range_arena").glob("*.npz")
    assert "making 30 examples" in capsys.readouterr().out
    assert data.load(asked).digest() == first.digest()
    assert capsys.readouterr().out == ""
    path.write_bytes(path.read_bytes()[:100])
    assert data.load(asked).digest() == first.digest()
    assert "making" in capsys.readouterr().out
    other = options(GENERATED, "--cache-dir", tmp_path, "--data-seed", 1)
    assert data.load(other).digest() != first.digest()

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    third = options(GENERATED, "--cache-dir", tmp_path, "--data-seed", 2)
    with pytest.raises(KeyboardInterrupt):
        data.load(third)
    assert len(list((tmp_path / "long_range_arena").glob("listops-*.npz"))) == 2


def test_no_example_is_in_two_splits_and_the_paper_has_the_published_rules(tmp_path):
    problem = data.load(options("--max-length 24", "--cache-dir", tmp_path))
    seen = [
        {split.tokens["tokens"][index].tobytes() for index in range(len(split))}
        for split in problem.splits.values()
    ]
    assert [len(one) for one in seen] == [4000, 1000, 1000]
    assert len(set.union(*seen)) == 6000
    assert data.listops_rules(options("--preset paper")) == (10, 10, 500, 2000)


def test_more_examples_than_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "listops_rules", lambda options: Rules(2, 2, 3, 5))
    with pytest.raises(UsageError, match="different trees"):
        data.load(options("--train-examples 500", "--cache-dir", tmp_path))


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--cache-dir"):
        data.load(options(GENERATED, "--cache-dir", tmp_path / "file"))


def test_pathfinder_smoke_images(tmp_path):
    text = "--task pathfinder --train-examples 20 --evaluation-examples 4"
    problem = data.load(options(text, "--cache-dir", tmp_path))
    assert problem.length == 256
    assert np.concatenate([s.labels for s in problem.splits.values()]).sum() == 14


def text_of(tokens):
    return bytes((tokens - 1).astype("uint8"))


def write_pairs(folder, name, rows):
    lines = [f"{label}\ta\tb\t{one}\t{other}" for label, one, other in rows]
    (folder / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_retrieval_reads_pairs(tmp_path):
    for name in ("train", "eval", "test"):
        write_pairs(tmp_path, name, [(1.0, 'a "quoted text', "bé"), (0, "x" * 600, "")])
    problem = data.load(options("--task retrieval", "--data-dir", tmp_path))
    split = problem.train
    assert split.labels.tolist() == [1, 0]
    assert text_of(split.tokens["tokens_1"][0]) == b'a "quoted text'
    assert text_of(split.tokens["tokens_2"][0]).decode() == "bé"
    assert problem.length == 512  # cut
    assert split.tokens["tokens_2"].lengths.tolist() == [3, 1]  # nothing is one blank
    np.testing.assert_array_equal(split.lengths, [14, 512])


def test_retrieval_errors_name_file_and_line(tmp_path):
    asked = options("--task retrieval", "--data-dir", tmp_path)
    with pytest.raises(UsageError, match=r"one file \*train\.tsv\. It has 0"):
        data.load(asked)
    write_pairs(tmp_path, "train", [(1, "one", "two"), (3, "one", "two")])
    with pytest.raises(UsageError, match=r"train.tsv, line 2: expected a label"):
        data.load(asked)
    (tmp_path / "new_aan_pairs.train.tsv").write_text("")
    with pytest.raises(UsageError, match="is empty"):
        data.load(asked)


def fake_tfds(monkeypatch, examples):
    module = types.ModuleType("tensorflow_datasets")

    module.load, module.as_numpy = lambda name, split, data_dir: examples[split], iter
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def test_text_is_bytes_and_validation_comes_from_training(monkeypatch):
    texts = [{"text": f"review {n}".encode() * 80, "label": n % 2} for n in range(40)]
    fake_tfds(monkeypatch, {"train": texts, "test": texts[:10]})
    problem = data.load(options("--task text"))
    assert [len(split) for split in problem.splits.values()] == [36, 4, 10]
    assert problem.length == 512
    seen = {
        text_of(split.tokens["tokens"][index]): label
        for split in (problem.train, problem.validation)
        for index, label in enumerate(split.labels)
    }
    assert seen == {one["text"][:512]: one["label"] for one in texts}


def test_image_is_grey_pixels(monkeypatch):
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    images = [
        {"image": np.full((32, 32, 3), colour, "uint8"), "label": number}
        for number, colour in enumerate(colours)
    ]
    fake_tfds(monkeypatch, {"train": images * 5, "test": images})
    problem = data.load(options("--task image"))
    assert (problem.length, len(problem.classes)) == (1024, 10)
    assert [len(split) for split in problem.splits.values()] == [18, 2, 4]
    for index, label in enumerate(problem.test.labels):
        expected = np.dot(colours[label], [0.2989, 0.587, 0.114])
        pixels = problem.test.tokens["tokens"][index].astype(int) - 1
        assert abs(pixels - expected).max() <= 1


TINY = (
    *("--train-examples", "64", "--evaluation-examples", "32", "--max-length", "24"),
    *("--batch-size", "16", "--epochs", "2", "--warm-up", "2", "--verbose", "0"),
    *("--d-model", "8", "--heads", "2", "--key-dim", "4", "--feed-forward", "8", "--layers", "1"),
)


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def arguments(output, tmp_path_factory):
    folders = ["--cache-dir", str(tmp_path_factory.mktemp("cache")), "--output", str(output)]
    return [*TINY, *folders, "--attention", "linear,agf"]


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_run_leaves_everything_behind(arguments, output, capsys):
    assert RECIPE.main(arguments) == 0
    results = results_of(output)
    level = majority_level(data.load(RECIPE.parse(arguments)).test.labels)
    assert results["majority"]["test"] == level
    assert results["examples"] == {"train": 64, "validation": 32, "test": 32}
    assert [row["attention"] for row in results["table"]] == ["linear", "agf"]
    assert_validation_chooses_the_epoch(output)
    printed = capsys.readouterr().out
    assert "without looking at the input" in printed
    assert f"{level['cross_entropy']:.4f}" in printed


@pytest.mark.slow
def test_the_best_model_loads_with_the_package_only(arguments, output, tmp_path):
    assert RECIPE.main(arguments) == 0
    inputs = {"tokens": np.array([[12, 3, 4, 15, 0, 0]])}
    answers = predictions_in_another_process(output / "model.keras", inputs, tmp_path)
    assert answers.shape == (1, 10)
