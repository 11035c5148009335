"""Vision tasks, feature pyramids, files, presets, LoRA, int8 and half precision."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.hub.adapters import adapter_of
from tests.hub.models import assert_equal_outputs, fit_one_step
from tests.hub.vision_models import (
    BASES,
    TASKS,
    VISION,
    answers,
    attentions_of,
    convert,
    converted,
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


@pytest.mark.slow_on("jax")
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


@pytest.mark.slow_on("jax")
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


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_files_and_presets(name, attention, tmp_path):
    backbone = converted(name, attention)
    inputs = images(backbone)
    expected = answers(backbone, inputs)
    backbone.save(tmp_path / "model.keras")
    backbone.save_to_preset(str(tmp_path / "preset"))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    preset = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    for each in (loaded, preset):
        assert type(each) is type(backbone)
        assert kinds(each) == kinds(backbone)
        assert_equal_outputs(answers(each, inputs), expected)
    # The original does not take the weights for its own, where Keras looks at each layer.
    if attention == "graph_filter" and name not in ("dinov3", "d_fine"):
        backbone.save_weights(tmp_path / "model.weights.h5")
        with pytest.raises(ValueError, match="Layer"):
            VISION[name]().load_weights(tmp_path / "model.weights.h5")


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("converted_first", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_lora(name, converted_first):
    backbone = random_vision(name)
    layers = attentions_of(backbone)
    targets = list({adapter_of(x).projections(x)["query"].name for x in layers})
    if converted_first:
        convert(backbone, name)
    backbone.enable_lora(2, target_layer_names=targets)
    if not converted_first:
        convert(backbone, name)
    trained = backbone.trainable_variables
    factors = [v for v in trained if "lora" in v.path]
    coefficients = [v for layer in layers for v in layer.coefficients]
    assert factors
    assert {id(v) for v in trained} >= {id(v) for v in (*factors, *coefficients)}
    if name == "d_fine":
        return
    before = [to_numpy(v) for v in coefficients]
    fit_one_step(backbone, images(backbone))
    for variable, old in zip(coefficients, before, strict=True):
        assert np.abs(to_numpy(variable) - old).max() > 1e-6, variable.path


@pytest.mark.slow
@pytest.mark.parametrize("quantised_first", [False, True])
@pytest.mark.parametrize("name", [name for name in KINDS if name != "d_fine"])
def test_int8(name, quantised_first, tmp_path):
    """D-FINE as KerasHub builds it cannot be quantised on tensorflow."""
    backbone = random_vision(name)
    inputs = images(backbone)
    exact = answers(backbone, inputs)
    if quantised_first:
        backbone.quantize("int8")
    convert(backbone, name)
    if not quantised_first:
        backbone.quantize("int8")
    layers = [adapter_of(layer).projections(layer)["query"] for layer in attentions_of(backbone)]
    assert {layer.kernel.dtype for layer in layers} == {"int8"}
    rounded = answers(backbone, inputs)
    for new, old in zip(rounded, exact, strict=True):
        assert 0 < np.abs(new - old).max() < 0.3 * np.abs(old).max()
    if name != "swin":
        return  # the others' layers in int8 KerasHub cannot load
    backbone.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    assert_equal_outputs(answers(loaded, inputs), rounded, tolerance=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", BOTH)
@pytest.mark.parametrize("name", [n for n in NAMES if n == "swin" or n.values[0] != "d_fine"])
def test_mixed_bfloat16(name, attention):
    exact = converted(name, attention)
    keras.config.set_dtype_policy("mixed_bfloat16")  # some layers take no dtype
    backbone = converted(name, attention)
    keras.config.set_dtype_policy("float32")
    layer = attentions_of(backbone)[0]
    assert layer.compute_dtype == "bfloat16"
    assert {v.dtype for v in layer.coefficients} <= {"float32"}
    inputs = images(backbone)
    for new, old in zip(answers(backbone, inputs), answers(exact, inputs), strict=True):
        assert np.abs(new - old).max() < 0.1 * np.abs(old).max()
