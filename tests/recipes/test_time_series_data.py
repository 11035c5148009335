import shutil

import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.time_series.__main__ import RECIPE
from recipes.time_series.data import Split, read, statistics, validation_split
from tests.numerics import BACKEND
from tests.recipes.command_line import assert_one_error_line


def test_japanese_vowels_comes_with_aeon():
    problem = read("JapaneseVowels")
    assert (len(problem.train), len(problem.test)) == (270, 370)
    assert (problem.length, problem.channels, len(problem.classes)) == (29, 12, 9)
    for split in (problem.train, problem.test):
        lengths = split.padding_mask.sum(axis=1)
        assert 7 <= lengths.min() < lengths.max() <= 29
        # padding comes last, and holds zeros; the steps themselves do not
        assert all(row[:n].all() for row, n in zip(split.padding_mask, lengths, strict=True))
        assert not split.series[~split.padding_mask].any()
        assert (split.series[split.padding_mask] != 0).any(axis=1).all()


def test_local_files_in_the_folder_or_in_one_of_its_name(tiny_folder, tmp_path):
    problem = read("Tiny", tiny_folder)
    assert (len(problem.train), len(problem.test), problem.channels) == (30, 18, 3)
    assert problem.classes == ["high", "low"]
    assert np.isnan(problem.train.series).sum() == 1
    inside = tmp_path / "Tiny"
    shutil.copytree(tiny_folder, inside)
    assert read("Tiny", tmp_path).digest() == problem.digest()
    changed = (inside / "Tiny_TEST.ts").read_text().replace(":high", ":low", 1)
    (inside / "Tiny_TEST.ts").write_text(changed)
    assert read("Tiny", tmp_path).digest() != problem.digest()


def test_validation_split_is_stratified_disjoint_and_seeded():
    labels = np.repeat([0, 1, 2], [20, 10, 1])
    training, validation = validation_split(labels, 0.2, seed=1)
    assert sorted([*training, *validation]) == list(range(31))
    assert np.bincount(labels[validation], minlength=3).tolist() == [4, 2, 0]
    np.testing.assert_array_equal(validation, validation_split(labels, 0.2, seed=1)[1])
    assert set(validation) != set(validation_split(labels, 0.2, seed=2)[1])
    with pytest.raises(UsageError, match="validate"):
        validation_split(np.arange(5), 0.2, seed=0)


def test_statistics_see_neither_padding_nor_missing_values():
    series = np.array([[[1.0, 7], [3, 7], [99, 99]], [[np.nan, 7], [5, 7], [8, 7]]], "float32")
    mask = np.array([[True, True, False], [True, True, True]])
    mean, variance = statistics(Split(series, mask, np.zeros(2, "int32")))
    np.testing.assert_allclose(mean, [4.25, 7.0])
    np.testing.assert_allclose(variance, [np.var([1, 3, 5, 8]), 1.0])  # constant: left as it is


def test_no_network_is_one_line(tmp_path, capsys, monkeypatch):
    import aeon.datasets

    def no_network(*args, **kwargs):
        raise OSError("Name or service not known\nand more")

    monkeypatch.setattr(aeon.datasets, "load_classification", no_network)
    given = ["--dataset", "Handwriting", "--output", tmp_path]
    words = ["error: the data set Handwriting cannot be loaded", "--data-dir"]
    assert_one_error_line(RECIPE.main, given, words, capsys)


def test_damaged_data_file_is_one_line(tmp_path, tiny_folder, capsys):
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("@data", "@datum"))
    arguments = ["--dataset", "Tiny", "--data-dir", tmp_path, "--output", tmp_path / "output"]
    words = ["error: the data set Tiny cannot be loaded"]
    assert_one_error_line(RECIPE.main, arguments, words, capsys)


@pytest.mark.skipif(BACKEND != "torch", reason="Keras trains on several devices")
def test_distribute_needs_a_backend_that_can(tiny_arguments, tmp_path, capsys):
    given = [*tiny_arguments, "--output", tmp_path / "output", "--distribute"]
    assert_one_error_line(RECIPE.main, given, ["error: --distribute"], capsys)
    assert not (tmp_path / "output").exists()
