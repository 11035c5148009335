"""With `--ema`, moving averages of the weights are validated, tested, kept and served."""

import json

import keras
import numpy as np
import pytest

from recipes.common.command.checks import keras_configured
from recipes.graph_classification.__main__ import RECIPE as GRAPHS
from recipes.image_classification.__main__ import RECIPE as IMAGES
from tests.numerics import to_numpy

pytestmark = pytest.mark.slow_on("jax", "tensorflow")

OF_IMAGES = "--d-model 8 --heads 2 --feed-forward 8 --layers 1 --patch 4 --warm-up-epochs 0"
OF_GRAPHS = (
    "--graphs 60 --heads 2 --key-dim 2 --feed-forward 4 --layers 1 --validation-fraction 0.3"
)
CASES = {
    "images": (IMAGES, "--attention softmax --skip-saved-model --accumulate 2 " + OF_IMAGES),
    "graphs": (GRAPHS, "--attention gcn --skip-saved-model --decay " + OF_GRAPHS),
    "graphs, mixed": (
        GRAPHS,
        "--attention gcn --skip-saved-model --precision mixed_float16 " + OF_GRAPHS,
    ),
}


@pytest.fixture(scope="module", params=CASES)
def trained(request, tmp_path_factory):
    """The recipe, its options and the folder of a run with averages, and its results."""
    recipe, given = CASES[request.param]
    output = tmp_path_factory.mktemp("averages")
    common = ["--epochs", "2", "--ema", "0.9", "--verbose", "0", "--output", str(output)]
    arguments = [*given.split(), *common]
    assert recipe.main(arguments) == 0
    options = recipe.parse(arguments)
    problem = recipe.load(options)
    options = recipe.complete(problem, options)
    return recipe, options, problem, output


def kept(trained):
    """The model that the run's folder holds, compiled for its measures, and its batches."""
    recipe, options, problem, output = trained
    with keras_configured(options.precision):
        training = recipe.model.prepare(recipe.trial(problem, options.attention[0], options))
    found = keras.saving.load_model(output / "model.keras")
    training.model.set_weights(found.get_weights())
    return found, training


def test_what_is_kept_is_what_was_validated_and_tested(trained):
    found, training = kept(trained)
    (run,) = json.loads((trained[3] / "results.json").read_text())["runs"]
    bound = 1e-5 if trained[1].precision == "float32" else 2e-3
    # by the loaded weights alone: no callback puts averages in their place
    validated = training.model.evaluate(training.validation_batches, return_dict=True, verbose=0)
    assert validated["cross_entropy"] == pytest.approx(run["validation_cross_entropy"], rel=bound)
    if training.test_batches is not None:
        tested = training.model.evaluate(training.test_batches, return_dict=True, verbose=0)
        assert tested["cross_entropy"] == pytest.approx(run["test_cross_entropy"], rel=bound)
    assert not found.compiled  # its file needs no code of the recipe


def test_they_are_the_averages_of_the_epoch_and_not_its_weights(trained):
    found, training = kept(trained)
    (file,) = (trained[3] / "runs").glob("*/*.weights.h5")
    model = training.model
    model.optimizer.build(model.trainable_variables)
    model.load_weights(file)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    raw, averages = model.trainable_variables, optimizer._model_variables_moving_average
    for variable, average in zip(found.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(average))
    pairs = zip(found.trainable_variables, raw, strict=True)
    assert max(np.abs(to_numpy(a) - to_numpy(b)).max() for a, b in pairs) > 1e-5
