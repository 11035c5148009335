import numpy as np
import pytest
from keras import ops

from recipes.time_series.__main__ import PUBLISHED_AGF, RECIPE
from recipes.time_series.data import read
from recipes.time_series.model import build, parts


@pytest.fixture(scope="module")
def problem(tiny_folder):
    return read("Tiny", tiny_folder)


@pytest.fixture(scope="module", params=RECIPE.attentions)
def model(request, problem, tiny_arguments):
    options = RECIPE.parse([*tiny_arguments, "--layers", "2"])
    model = build(RECIPE.trial(problem, request.param, options))
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in str(weight.dtype) and "standardise" not in weight.path:
            weight.assign(0.5 * random.normal(size=weight.shape))  # no filter at its start
    return model


def probabilities(model, series, mask):
    return ops.convert_to_numpy(model({"series": series, "padding_mask": mask}))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("garbage", [1e30, -7.0, np.nan, np.inf])
def test_padding_has_no_influence(model, problem, garbage):
    series, mask = problem.test.series, problem.test.padding_mask
    assert not mask.all()
    expected = probabilities(model, series, mask)
    filled = np.where(mask[..., None], series, garbage).astype("float32")
    np.testing.assert_array_equal(probabilities(model, filled, mask), expected)
    moved = series.copy()
    moved[:, 0] += 1.0
    assert np.abs(probabilities(model, moved, mask) - expected).max() > 1e-3


def test_padding_may_come_first(model, problem):
    series, mask = problem.test.series, problem.test.padding_mask
    shifts = (~mask).sum(axis=1)
    turned = np.stack([np.roll(one, n, axis=0) for one, n in zip(series, shifts, strict=True)])
    turned_mask = np.stack([np.roll(one, n) for one, n in zip(mask, shifts, strict=True)])
    np.testing.assert_allclose(
        probabilities(model, turned, turned_mask), probabilities(model, series, mask), atol=2e-6
    )
    backwards = np.where(mask[..., None], series, 0)[:, ::-1]
    assert (
        np.abs(
            probabilities(model, backwards, mask[:, ::-1]) - probabilities(model, series, mask)
        ).max()
        > 1e-3
    )  # the order of the steps counts: positions are learned


def test_series_are_standardised_inside_and_missing_values_are_means(
    model, problem, tiny_arguments
):
    """By the series that are trained on."""
    train, _ = parts(RECIPE.trial(problem, "softmax", RECIPE.parse(tiny_arguments)))
    mean = np.nanmean(train.series[train.padding_mask], axis=0)
    series, mask = problem.train.series, problem.train.padding_mask
    assert np.isnan(series[mask]).any()
    np.testing.assert_allclose(
        probabilities(model, np.where(np.isnan(series), mean, series), mask),
        probabilities(model, series, mask),
        atol=1e-5,
    )
    standardise = model.get_layer("standardise")
    standard = ops.convert_to_numpy(standardise(train.series))[train.padding_mask]
    np.testing.assert_allclose(np.nanmean(standard, axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.nanstd(standard, axis=0), 1, atol=1e-4)


def test_an_empty_series_gives_numbers(model, problem):
    empty = np.zeros_like(problem.test.padding_mask[:2])
    result = probabilities(model, problem.test.series[:2], empty)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1, atol=1e-5)


def test_filter_settings_are_the_published_ones_unless_given():
    settings = RECIPE.settings(RECIPE.parse(["--dataset", "PEMS-SF"]))
    rate = {"coefficient_learning_rate_multiplier": 50.0}
    assert settings["gfsa"] == {"filter": {"name": "first_order", "order": 3}, **rate}
    assert settings["agf"] == {
        "filter": {"name": "jacobi", "order": 5, "alpha": 1.5, "beta": 2.0},
        "learned_constant": False,
        "orthogonality_weight": 0.05,  # 0.1 over two layers
        **rate,
    }
    given = "--order 2 --filter legendre --orthogonality-weight 0.4 --layers 4"
    given += " --start high_pass --coefficient-learning-rate-multiplier 3"
    settings = RECIPE.settings(RECIPE.parse(given.split()))
    both = {
        "filter": {"name": "legendre", "order": 2, "start": "high_pass"},
        "coefficient_learning_rate_multiplier": 3.0,
    }
    assert settings["gfsa"] == both
    assert settings["agf"] == {
        "learned_constant": False,
        "orthogonality_weight": 0.1,
        **both,
    }


# METHODS, AGF on UEA: K, gamma, a, b
PUBLISHED = """EthanolConcentration 6, .1, 1.5, -1.5; FaceDetection 9, .1, 2, .5;
Handwriting 3, .01, 1, .2; Heartbeat 6, .01, -.5, -.5; JapaneseVowels 4, .01, 0, 0;
PEMS-SF 5, .1, 1.5, 2; SelfRegulationSCP1 9, .1, 1.5, 2; SelfRegulationSCP2 7, .1, 2, 1.5;
SpokenArabicDigits 4, .1, 1, 0; UWaveGestureLibrary 10, .1, 2, 1.5"""


def test_published_names_the_ten_sets_settings():
    lines = [line.strip() for line in PUBLISHED.replace("\n", " ").split(";")]
    assert len(lines) == len(PUBLISHED_AGF) == 10
    for line in lines:
        name, _, numbers = line.partition(" ")
        order, weight, alpha, beta = map(float, numbers.split(","))
        options = RECIPE.parse(["--published", "--dataset", name])
        assert RECIPE.settings(options)["agf"] == {
            "filter": {"name": "jacobi", "order": order, "alpha": alpha, "beta": beta},
            "learned_constant": name in ("Handwriting", "Heartbeat", "JapaneseVowels"),
            "orthogonality_weight": weight / 2,
            "coefficient_learning_rate_multiplier": 1.0,
        }
        assert (options.epochs, options.batch_size, options.learning_rate) == (100, 16, 1e-3)
        assert (options.layers, options.d_model, options.heads) == (2, 512, 8)
        assert options.patience >= options.epochs  # nothing ends it early
        assert options.attention == ["softmax", "linear", "gfsa", "agf"]
        assert RECIPE.deviations(options) == []


def test_deviations_from_the_published_settings_are_named():
    text = "--published --epochs 3 --order 2 --attention agf --batch-size 16"
    options = RECIPE.parse(text.split())
    assert (options.epochs, options.d_model, options.attention) == (3, 512, ["agf"])
    assert RECIPE.deviations(options) == ["epochs 3 (published: 100)", "order 2"]
    assert RECIPE.deviations(RECIPE.parse(["--epochs", "3"])) == []
