"""With `--ema`, moving averages of the weights are validated, tested, kept and served."""

import keras
import numpy as np
import pytest

from recipes.common.command.checks import keras_configured
from recipes.graph_classification.__main__ import RECIPE as GRAPHS
from recipes.image_classification.__main__ import RECIPE as IMAGES
from tests.numerics import to_numpy
from tests.recipes.command_line import results_of, run

pytestmark = pytest.mark.slow_on("jax", "tensorflow")

OF_GRAPHS = "--graphs 60 --key-dim 2 --validation-fraction 0.3 --attention gcn"
CASES = {
    "images": (
        IMAGES,
        "--accumulate 2 --d-model 8 --patch 4 --warm-up-epochs 0 --attention softmax --epochs 2",
    ),
    "graphs": (GRAPHS, f"--decay --epochs 2 {OF_GRAPHS}"),
    # Enough epochs to keep a late one: in the first one the loss scale skips steps, and after one
    # step the averages are still the weights.
    "graphs, mixed": (GRAPHS, f"--precision mixed_float16 --epochs 16 {OF_GRAPHS}"),
}


@pytest.fixture(scope="module", params=CASES)
def trained(request, tmp_path_factory):
    """The recipe, its options and the folder of a run with averages, and its results."""
    recipe, own = CASES[request.param]
    output = tmp_path_factory.mktemp("averages")
    common = "--heads 2 --feed-forward 8 --layers 1 --ema 0.9 --verbose 0"
    run(recipe, output, own, common, "--skip-saved-model")
    options = recipe.parse(f"{own} {common} --output {output}".split())
    problem = recipe.load(options)
    return recipe, recipe.complete(problem, options), problem, output


def kept(trained):
    """The model that the run's folder holds, and a run of its weights to evaluate."""
    recipe, options, problem, output = trained
    with keras_configured(options.precision):
        training = recipe.model.prepare(recipe.trial(problem, options.attention[0], options))
    stored = keras.saving.load_model(output / "model.keras")
    training.model.set_weights(stored.get_weights())
    return stored, training


def test_what_is_kept_is_what_was_validated_and_tested(trained):
    stored, training = kept(trained)
    (one,) = results_of(trained[3])["runs"]
    bound = 1e-5 if trained[1].precision == "float32" else 2e-3
    # by nothing but the loaded weights: no callback puts averages in their place
    parts = {"validation": training.validation_batches, "test": training.test_batches}
    for part, batches in parts.items():
        if batches is not None:
            values = training.model.evaluate(batches, return_dict=True, verbose=0)
            expected = pytest.approx(one[f"{part}_cross_entropy"], rel=bound)
            assert values["cross_entropy"] == expected
    assert not stored.compiled  # its file needs no code of the recipe


def test_they_are_the_averages_of_the_epoch_and_not_its_weights(trained):
    stored, training = kept(trained)
    (file,) = (trained[3] / "runs").glob("*/*.weights.h5")
    model = training.model
    model.optimizer.build(model.trainable_variables)
    model.load_weights(file)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    raw, averages = model.trainable_variables, optimizer._model_variables_moving_average
    for variable, average in zip(stored.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(average))
    pairs = zip(stored.trainable_variables, raw, strict=True)
    assert max(np.abs(to_numpy(a) - to_numpy(b)).max() for a, b in pairs) > 1e-5
