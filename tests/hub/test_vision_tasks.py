"""Vision tasks and feature pyramids."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from tests.hub.models import assert_equal_outputs
from tests.hub.vision_models import (
    BASES,
    TASKS,
    answers,
    attentions_of,
    convert,
    images,
    moved,
    random_vision,
    randomised,
)
from tests.numerics import BACKEND, to_numpy

BOTH = ["graph_filter", pytest.param("p_laplacian", marks=pytest.mark.slow)]
# In the fast suite, one model stands for all.
KINDS = ("swin", "dinov3", "vit_det", "mit", "d_fine")
NAMES = [name if name == "swin" else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
CASES = [
    name if name == "segformer" else pytest.param(name, marks=pytest.mark.slow) for name in TASKS
]


def kinds(model):
    """The classes of its attention layers; some of their names count what a program has made."""
    return [row.class_name for row in keras_graphattn.inspect(model)]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_starts_with_the_outputs_of_the_original(name):
    task = randomised(TASKS[name]())
    inputs = images(task)
    before = answers(task, inputs)
    plain = [type(layer) for layer in attentions_of(task.backbone)]
    convert(task, name)
    layers = attentions_of(task.backbone)
    assert layers == attentions_of(task)
    assert all(layer.coefficients for layer in layers)
    assert_equal_outputs(answers(task, inputs), before, tolerance=1e-5)
    moved(task)
    differences = zip(answers(task, inputs), before, strict=True)
    assert max(np.abs(new - old).max() for new, old in differences) > 1e-3
    keras_graphattn.revert(task)
    assert [type(layer) for layer in attentions_of(task.backbone)] == plain
    assert_equal_outputs(answers(task, inputs), before, tolerance=0)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", [x for x in CASES if x == "segformer" or x.values[0] != "sam"])
def test_a_task_trains(name):
    """SAM's task does not: KerasHub refuses it."""
    task = convert(randomised(TASKS[name]()), name)
    way = {"run_eagerly": BACKEND != "jax", "jit_compile": BACKEND == "jax"}
    coefficients = [v for layer in attentions_of(task) for v in layer.coefficients]
    before = [to_numpy(variable) for variable in coefficients]
    inputs = images(task)["images"]
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
@pytest.mark.parametrize("name", CASES)
def test_files_and_presets_of_a_task(name, tmp_path):
    task = moved(convert(randomised(TASKS[name]()), name))
    inputs = images(task)
    expected = answers(task, inputs)
    task.save(tmp_path / "task.keras")
    task.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "task.keras")
    preset = BASES[name].from_preset(str(tmp_path / "preset"), preprocessor=None)
    for each in (loaded, preset):
        assert type(each) is type(task)
        assert kinds(each) == kinds(task)
        assert_equal_outputs(answers(each, inputs), expected)
    if name == "sam":
        return  # KerasHub does not load the backbone of a task's preset: a decoder is not built
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    assert type(backbone) is type(task.backbone)
    assert_equal_outputs(answers(backbone, inputs), answers(task.backbone, inputs))


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("name", ["dinov3", "mit", "mit_square"])
def test_a_feature_pyramid(name, tmp_path):
    """A model of the pyramid, made before the conversion, has it, and keeps it in a file."""
    backbone = random_vision(name)
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
