import shutil

import keras
import numpy as np
import pytest
from keras import ops

from recipes.common.command.parsing import UsageError
from recipes.time_series.__main__ import RECIPE
from recipes.time_series.data import Split, read, statistics, validation_split
from recipes.time_series.model import build, parts
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
    arguments = ["--dataset", "Handwriting", "--output", tmp_path]
    words = ["error: the data set Handwriting cannot be loaded", "--data-dir"]
    assert_one_error_line(RECIPE.main, arguments, words, capsys)


def test_damaged_data_file_is_one_line(tmp_path, tiny_folder, capsys):
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace("@data", "@datum"))
    arguments = ["--dataset", "Tiny", "--data-dir", tmp_path, "--output", tmp_path / "output"]
    words = ["error: the data set Tiny cannot be loaded"]
    assert_one_error_line(RECIPE.main, arguments, words, capsys)


@pytest.fixture(scope="module")
def problem(tiny_folder):
    return read("Tiny", tiny_folder)


RELEASED = ["--readout", "flatten", "--scaled-values"]


@pytest.fixture(scope="module", params=[*RECIPE.attentions, "released"])
def model(request, problem, tiny_arguments):
    released = request.param == "released"
    options = RECIPE.parse([*tiny_arguments, "--layers", "2", *(RELEASED if released else ())])
    model = build(RECIPE.trial(problem, "agf" if released else request.param, options))
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in str(weight.dtype) and "standardise" not in weight.path:
            weight.assign(0.5 * random.normal(size=weight.shape))  # no filter at its start
    return model


def probabilities(model, series, mask):
    return ops.convert_to_numpy(model({"series": series, "padding_mask": mask}))


def test_padding_may_come_first(model, problem):
    """`test_models` has the padding after the series."""
    if any("flatten" in layer.name for layer in model.layers) or "linformer" in model.name:
        pytest.skip("the model knows the tokens by their places")
    series, mask = problem.test.series, problem.test.padding_mask
    expected = probabilities(model, series, mask)
    shifts = (~mask).sum(axis=1)
    assert shifts.any()
    turned, turned_mask = (
        np.stack([np.roll(one, n, axis=0) for one, n in zip(array, shifts, strict=True)])
        for array in (series, mask)
    )
    np.testing.assert_allclose(probabilities(model, turned, turned_mask), expected, atol=2e-6)
    backwards = probabilities(model, np.nan_to_num(series)[:, ::-1], mask[:, ::-1])
    assert np.abs(backwards - expected).max() > 1e-3  # positions are learned


def test_series_are_standardised_inside_and_missing_values_are_means(
    model, problem, tiny_arguments
):
    """By the series that are trained on."""
    train, _ = parts(RECIPE.trial(problem, "softmax", RECIPE.parse(tiny_arguments)))
    mean = np.nanmean(train.series[train.padding_mask], axis=0)
    series, mask = problem.train.series, problem.train.padding_mask
    assert np.isnan(series[mask]).any()
    filled = probabilities(model, np.where(np.isnan(series), mean, series), mask)
    np.testing.assert_allclose(filled, probabilities(model, series, mask), atol=1e-5)
    standardise = model.get_layer("standardise")
    standard = ops.convert_to_numpy(standardise(train.series))[train.padding_mask]
    np.testing.assert_allclose(np.nanmean(standard, axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.nanstd(standard, axis=0), 1, atol=1e-4)


def test_the_released_readout_is_its_formula(problem, tiny_arguments):
    """Values times sqrt(d) before the positions; a classifier on all tokens, 0 where is padding."""
    options = RECIPE.parse([*tiny_arguments, *RELEASED])
    model = build(RECIPE.trial(problem, "softmax", options))
    series, mask = problem.test.series, problem.test.padding_mask
    inputs = {"series": series, "padding_mask": mask}
    names = ("embedding", "values", "positions", f"block_{options.layers}")
    seen = keras.Model(model.input, [model.get_layer(name).output for name in names])
    embedded, values, positions, tokens = map(ops.convert_to_numpy, seen(inputs))
    width = options.d_model
    np.testing.assert_allclose(embedded, values * width**0.5 + positions, atol=1e-5)
    kernel, bias = map(ops.convert_to_numpy, model.get_layer("probabilities").weights)
    logits = np.where(mask[..., None], tokens, 0).reshape(len(tokens), -1) @ kernel + bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(probabilities(model, series, mask), expected, atol=1e-5)


def test_an_empty_series_gives_numbers(model, problem):
    empty = np.zeros_like(problem.test.padding_mask[:2])
    result = probabilities(model, problem.test.series[:2], empty)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1, atol=1e-5)
