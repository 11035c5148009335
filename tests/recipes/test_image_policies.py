"""A training of every image model, with every attention it has, in every precision.

Models and attentions are those that the recipe lists, at tiny sizes. The data come through
tensorflow-datasets, shaped like CIFAR, and are random.
"""

import keras
import numpy as np
import pytest

from recipes.common.command.checks import keras_configured
from recipes.common.command.options import PRECISIONS
from recipes.common.command.parsing import UsageError
from recipes.common.images.sizes import SIZES
from recipes.image_classification.__main__ import MODELS, RECIPE
from recipes.image_classification.data import load
from recipes.image_classification.model import prepare
from tests.compiling import compiled_once
from tests.numerics import BACKEND, to_numpy

pytestmark = pytest.mark.slow

CASES = [
    (model, attention, precision)
    for model, (_, _, attentions) in MODELS.items()
    for attention in attentions
    for precision in PRECISIONS
]
# Keras halves its scale of the loss, from 2^15 on, until all gradients fit into float16. Until then
# no weight moves.
HALVINGS = 5
ON_CPU_OF_JAX = BACKEND == "jax" and keras.distribution.list_devices()[0].startswith("cpu")


def is_refused(model, attention, precision):
    """Keras' softmax attention, also that of CaiT's class layers, in float16 on a CPU of JAX."""
    is_keras = model == "cait" or (attention == "softmax" and model != "swin")
    return ON_CPU_OF_JAX and is_keras and precision == "mixed_float16"


def tiny(size):
    """The same family: 2 blocks, or 2 and 1 in two stages, of which one is shifted."""
    given = {"width": 16, "heads": 2, "feed_forward": 32, "image": 32}
    if size.depths:
        return size._replace(**given, layers=3, depths=(2, 1), patch=4, window=4)
    class_layers = min(size.class_layers, 1)
    return size._replace(**given, layers=2, patch=8, class_layers=class_layers)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Random images of 32 x 32 pixels in ten classes; read by the recipe, as those of CIFAR are.

    Models that differ in their published sizes only are equal here, and compiled once.
    """
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    given = ["--dataset", "cifar10", "--data-dir", str(folder)]
    mocked = tfds.testing.mock_data(num_examples=12, data_dir=str(folder))
    with compiled_once(folder / "compiled"), mocked:
        yield given, load(RECIPE.parse(given))


@pytest.mark.parametrize(("model", "attention", "precision"), CASES)
def test_training_on_data_shaped_like_cifar(model, attention, precision, cifar, monkeypatch):
    family, name, _ = MODELS[model]
    if family == "swin":
        pytest.importorskip("keras_hub")
    monkeypatch.setitem(SIZES, name, tiny(SIZES[name]))
    given, problem = cifar
    training = ["--epochs", "1", "--batch-size", "8", "--warm-up-epochs", "0", "--flip"]
    asked = ["--model", model, "--size", name, "--attention", attention, "--precision", precision]
    options = RECIPE.parse([*given, *asked, *training])
    trial = RECIPE.trial(problem, attention, options)
    with keras_configured(precision):
        if is_refused(model, attention, precision):
            with pytest.raises(UsageError, match="only on accelerators"):
                prepare(trial)
            return
        found = prepare(trial)
        trained = found.model
        if BACKEND == "tensorflow":
            trained.jit_compile = True  # as `compile` does by itself where there is a GPU
        assert precision.removeprefix("mixed_") in {
            layer.compute_dtype for layer in trained._flatten_layers()
        }
        before = [to_numpy(variable) for variable in trained.trainable_variables]
        epochs = HALVINGS if precision == "mixed_float16" else 1
        assert found.batches.num_batches == 2
        fitted = trained.fit(found.batches, epochs=epochs, verbose=0)
    if BACKEND != "torch":  # where Keras compiles nothing by itself
        assert trained.jit_compile
    assert np.isfinite(fitted.history["loss"]).all()
    moved = []
    for variable, old in zip(trained.trainable_variables, before, strict=True):
        assert variable.dtype == "float32"
        assert np.isfinite(to_numpy(variable)).all(), variable.path
        moved.append((to_numpy(variable) != old).any())
    assert np.mean(moved) > 0.9
