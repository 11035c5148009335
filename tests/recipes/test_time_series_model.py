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


def test_padding_may_come_first(model, problem):
    """`test_padding` has the padding after the series."""
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


def test_an_empty_series_gives_numbers(model, problem):
    empty = np.zeros_like(problem.test.padding_mask[:2])
    result = probabilities(model, problem.test.series[:2], empty)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result.sum(axis=-1), 1, atol=1e-5)


RATE = "coefficient_learning_rate_multiplier"


def jacobi(order, alpha, beta):
    return {"name": "jacobi", "order": order, "alpha": alpha, "beta": beta}


def test_filter_settings_are_the_published_ones_unless_given():
    settings = RECIPE.settings(RECIPE.parse(["--dataset", "PEMS-SF"]))
    assert settings["gfsa"] == {"filter": {"name": "first_order", "order": 3}, RATE: 50.0}
    agf = {"learned_constant": False, "orthogonality_weight": 0.05}  # 0.1 over two layers
    assert settings["agf"] == {"filter": jacobi(5, 1.5, 2.0), RATE: 50.0, **agf}
    given = "--order 2 --filter legendre --orthogonality-weight 0.4 --layers 4"
    given += " --start high_pass --coefficient-learning-rate-multiplier 3"
    settings = RECIPE.settings(RECIPE.parse(given.split()))
    both = {"filter": {"name": "legendre", "order": 2, "start": "high_pass"}, RATE: 3.0}
    assert settings["gfsa"] == both
    assert settings["agf"] == {**both, **agf, "orthogonality_weight": 0.1}


# METHODS, AGF on UEA: K, gamma, a, b
PUBLISHED = """EthanolConcentration 6, .1, 1.5, -1.5; FaceDetection 9, .1, 2, .5;
Handwriting 3, .01, 1, .2; Heartbeat 6, .01, -.5, -.5; JapaneseVowels 4, .01, 0, 0;
PEMS-SF 5, .1, 1.5, 2; SelfRegulationSCP1 9, .1, 1.5, 2; SelfRegulationSCP2 7, .1, 2, 1.5;
SpokenArabicDigits 4, .1, 1, 0; UWaveGestureLibrary 10, .1, 2, 1.5"""
TRAINING = {"epochs": 100, "batch_size": 16, "learning_rate": 1e-3, "layers": 2}
TRAINING |= {"d_model": 512, "heads": 8, "attention": ["softmax", "linear", "gfsa", "agf"]}


def test_published_names_the_ten_sets_settings():
    lines = [line.strip() for line in PUBLISHED.replace("\n", " ").split(";")]
    assert len(lines) == len(PUBLISHED_AGF) == 10
    for line in lines:
        name, _, numbers = line.partition(" ")
        order, weight, *exponents = map(float, numbers.split(","))
        options = RECIPE.parse(["--published", "--dataset", name])
        assert RECIPE.settings(options)["agf"] == {
            "filter": jacobi(order, *exponents),
            "learned_constant": name in ("Handwriting", "Heartbeat", "JapaneseVowels"),
            "orthogonality_weight": weight / 2,
            RATE: 1.0,
        }
        assert TRAINING.items() <= vars(options).items()
        assert options.patience >= options.epochs  # nothing ends it early
        assert RECIPE.deviations(options) == []


def test_deviations_from_the_published_settings_are_named():
    text = "--published --epochs 3 --order 2 --attention agf --batch-size 16"
    options = RECIPE.parse(text.split())
    assert (options.epochs, options.d_model, options.attention) == (3, 512, ["agf"])
    assert RECIPE.deviations(options) == ["epochs 3 (published: 100)", "order 2"]
    assert RECIPE.deviations(RECIPE.parse(["--epochs", "3"])) == []
