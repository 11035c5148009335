"""Tasks of images and of encoders, and feature pyramids."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.encoders import inputs_of
from tests.hub.families import WHERE, family, fast_for
from tests.hub.models import (
    assert_equal_outputs,
    attentions_of,
    by_fan_in,
    moved,
    outputs,
    randomised,
)
from tests.hub.vision_models import TASK_WHERE, TASKS, images
from tests.numerics import BACKEND, to_numpy

models = keras_hub.models
STAND_FOR_ALL = ("segformer", "DebertaV3TextClassifier", "DebertaV3MaskedLM")  # in the fast suite
CASES = fast_for(TASKS, STAND_FOR_ALL)
ENCODER_TASKS = {  # and their backbones
    **dict.fromkeys(("DebertaV3TextClassifier", "DebertaV3MaskedLM"), "deberta_v3"),
    **dict.fromkeys(("ESMProteinClassifier", "ESMMaskedPLM"), "esm"),
    **dict.fromkeys(("RoformerV2TextClassifier", "RoformerV2MaskedLM"), "roformer_v2"),
}


def random_task(name):
    """A task with random weights, and its inputs."""
    if name in TASKS:
        task = randomised(TASKS[name](), size=by_fan_in)
        return task, images(task)
    backbone = family(ENCODER_TASKS[name]).make()
    inputs = inputs_of(backbone)
    if "Classifier" in name:
        return getattr(models, name)(backbone=backbone, num_classes=3), inputs
    return getattr(models, name)(backbone), {**inputs, "mask_positions": np.array([[1, 2], [0, 4]])}


def base_of(task):
    """The class of KerasHub's tasks of this kind."""
    kinds = ("ImageClassifier", "ImageSegmenter", "DepthEstimator", "TextClassifier", "MaskedLM")
    return next(kind for kind in map(vars(models).get, kinds) if isinstance(task, kind))


def convert(model, name):
    return keras_graphattn.convert(model, where={**WHERE, **TASK_WHERE}.get(name, "all"), order=4)


def kinds(model):
    """The classes of its attention layers; some of their names count what a program has made."""
    return [row.class_name for row in keras_graphattn.inspect(model)]


@pytest.mark.parametrize(
    "name", [*TASKS, *(pytest.param(x, marks=pytest.mark.slow_on("jax")) for x in ENCODER_TASKS)]
)
def test_a_task_starts_with_the_outputs_of_the_original(name):
    task, inputs = random_task(name)
    before = outputs(task, inputs)
    plain = [type(layer) for layer in attentions_of(task.backbone)]
    convert(task, name)
    layers = attentions_of(task.backbone)
    assert layers == attentions_of(task)
    assert all(layer.coefficients for layer in layers)
    assert_equal_outputs(outputs(task, inputs), before, tolerance=1e-5)
    moved(task)
    differences = zip(outputs(task, inputs), before, strict=True)
    assert max(np.abs(new - old).max() for new, old in differences) > 1e-3
    keras_graphattn.revert(task)
    assert [type(layer) for layer in attentions_of(task.backbone)] == plain
    assert_equal_outputs(outputs(task, inputs), before, tolerance=0)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [x for x in CASES if x == "segformer" or x.values[0] != "sam"])
def test_a_task_trains(name):
    """SAM's task does not: KerasHub refuses it."""
    task, inputs = random_task(name)
    convert(task, name)
    way = {"run_eagerly": BACKEND != "jax", "jit_compile": BACKEND == "jax"}
    coefficients = [v for layer in attentions_of(task) for v in layer.coefficients]
    before = [to_numpy(variable) for variable in coefficients]
    inputs = inputs["images"]
    if "classifier" in name:
        task.compile(optimizer="adam", **way)  # KerasHub's own loss
        target = np.array([0, 2])
    else:
        task.compile(optimizer="adam", loss="mse", metrics=None, **way)
        target = keras.tree.map_structure(lambda x: np.ones(x.shape, "float32"), task(inputs))
    task.fit(inputs, target, verbose=0)
    for variable, old in zip(coefficients, before, strict=True):
        assert (np.abs(to_numpy(variable) - old) > 1e-6).all(), variable.path


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", fast_for([*TASKS, *ENCODER_TASKS], STAND_FOR_ALL))
def test_files_and_presets_of_a_task(name, tmp_path):
    task, inputs = random_task(name)
    moved(convert(task, name))
    expected = outputs(task, inputs)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "task.keras")
    preset = base_of(task).from_preset(str(tmp_path / "preset"), preprocessor=None)
    for each in (loaded, preset):
        assert type(each) is type(task)
        assert kinds(each) == kinds(task)
        assert_equal_outputs(outputs(each, inputs), expected)
    if name == "sam":
        return  # KerasHub does not load the backbone of a task's preset: a decoder is not built
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    assert type(backbone) is type(task.backbone)
    inputs.pop("mask_positions", None)
    assert_equal_outputs(outputs(backbone, inputs), outputs(task.backbone, inputs))


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", ["dinov3", "mit", "mit_square"])
def test_a_feature_pyramid(name, tmp_path):
    """A model of the pyramid, made before the conversion, has it, and keeps it in a file."""
    backbone = family(name).make()
    pyramid = keras.Model(backbone.inputs, backbone.pyramid_outputs)
    (images_of_all,) = images(backbone).values()

    def levels(model):
        return [to_numpy(x) for x in keras.tree.flatten(model([images_of_all]))]

    before = levels(pyramid)
    convert(backbone, name)
    assert_equal_outputs(levels(pyramid), before, tolerance=1e-5)
    moved(backbone)
    after = levels(pyramid)
    assert max(np.abs(a - b).max() for a, b in zip(after, before, strict=True)) > 1e-3
    later = keras.Model(backbone.inputs, backbone.pyramid_outputs)
    assert_equal_outputs(levels(later), after)
    if name == "mit":
        return  # KerasHub's own block, of the stage that is not square, cannot be loaded
    pyramid.save(tmp_path / "pyramid.keras")
    loaded = keras.saving.load_model(tmp_path / "pyramid.keras")
    assert_equal_outputs(levels(loaded), after)
