"""Every container of converted attention, copied in every way, keeps the conversion."""

import itertools

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn import masks
from keras_graphattn.hub.slots import attention_slots
from keras_graphattn.keras_internals import walk
from tests.hub.abilities import added_names, added_paths
from tests.hub.containers import (
    ATTENTIONS,
    CONTAINERS,
    INPUTS,
    LAYERS,
    OPTIONS,
    SERIES,
    TOKENS,
    WAYS,
    BuiltTower,
    Subclassed,
    Tower,
    answers,
    called,
    classes,
    converted,
    functional,
)
from tests.hub.families import family, fast_for
from tests.hub.models import (
    BACKBONES,
    assert_equal_outputs,
    moved,
    outputs,
    random_backbone,
    random_inputs,
    with_head,
)
from tests.numerics import BACKEND, to_numpy
from tests.recipes.command_line import run_to_its_end

FAST = [
    *(("composed", way, "graph_filter") for way in WAYS),
    *(("backbone", way, "graph_filter") for way in ("cloned", "pickled", "deep_copied")),
    *((name, "saved", "p_laplacian") for name in ("task", "sequential", "time_distributed")),
    *((name, "saved", "p_laplacian") for name in ("layer", "subclassed", "own_functional")),
    ("cut", "saved", "p_laplacian"),
    *(("llama", way, "graph_filter") for way in ("cloned", "pickled", "deep_copied")),
    ("llama_task", "saved", "graph_filter"),
    ("llama_task", "saved", "p_laplacian"),
    ("tower", "pickled", "p_laplacian"),
]


def cases():
    found = []
    for name, way, attention in itertools.product(CONTAINERS, WAYS, OPTIONS):
        if attention not in ATTENTIONS[name]:
            continue
        if name in LAYERS and way in ("saved", "cloned", "cloned_by_layer"):
            continue  # for models only
        if name in ("causal_task", "llama_task") and way in ("cloned", "cloned_by_layer"):
            continue  # Keras' clone of a plain one has other weights: its embedding is not tied
        marks = [] if (name, way, attention) in FAST else [pytest.mark.slow]
        found.append(pytest.param(name, way, attention, marks=marks))
    return found


@pytest.mark.parametrize(("name", "way", "attention"), cases())
def test_a_copy_computes_what_its_original_does(name, way, attention, tmp_path):
    model, inputs = converted(name, attention)
    expected = answers(model, inputs)
    kept = [site.layer.get_config() for site in attention_slots(model)]
    new = WAYS[way](model, tmp_path)
    found = answers(new, inputs)
    assert [name for _, name in classes(new)] == [name for _, name in classes(model)]
    assert [site.layer.get_config() for site in attention_slots(new)] == kept
    assert added_names(new) == added_names(model)
    assert_equal_outputs(found, expected, 1e-5)


@pytest.mark.parametrize("way", ["saved", "cloned", "deep_copied"])
def test_each_converted_layer_has_a_mask_of_its_own(way, tmp_path):
    """Keras makes an object of a file only once, from its second place on: four layers tell."""
    backbone = BACKBONES["bert"](num_layers=4)
    inputs = random_inputs(backbone)
    mask = masks.Product([masks.Exponential(), masks.Toeplitz(24)])
    moved(keras_graphattn.convert(backbone, "masked_kernel", mask=mask))
    new = WAYS[way](backbone, tmp_path)
    assert len(added_paths(backbone)) == len(set(added_paths(backbone))) == 8
    assert added_paths(new) == added_paths(backbone)
    assert_equal_outputs(outputs(new, inputs), outputs(backbone, inputs))


BLOCK = """
import keras

@keras.saving.register_keras_serializable(package="apart")
class Block(keras.layers.Layer):
    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x)
"""
WRITES = """
import sys
sys.path.insert(0, sys.argv[1])
import keras, keras_graphattn
from block import Block
keras_graphattn.hub.reach(Block)
x = keras.Input((5, 8))
model = keras_graphattn.convert(keras.Model(x, Block()(x)), "p-lat", p=1.5)
model.save(sys.argv[1] + "/model.keras")
"""
READS = """
import sys
sys.path.insert(0, sys.argv[1])
import keras, keras_graphattn
import block
model = keras.saving.load_model(sys.argv[1] + "/model.keras")
assert isinstance(model.layers[1].attention, keras_graphattn.layers.PLaplacianAttention)
assert "keras_hub" not in sys.modules
"""


@pytest.mark.slow
def test_a_block_of_ones_own_loads_without_keras_hub(tmp_path):
    (tmp_path / "block.py").write_text(BLOCK)
    run_to_its_end("-c", WRITES, tmp_path)
    run_to_its_end("-c", READS, tmp_path)


MODELS = [name for name in CONTAINERS if name not in LAYERS]


@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
@pytest.mark.parametrize("name", fast_for(MODELS, ("composed",)))
def test_weights_fit_another_conversion_of_the_same_kind(name, attention, tmp_path):
    model, inputs = converted(name, attention)
    expected = answers(model, inputs)
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras_graphattn.convert(CONTAINERS[name][0](), attention, **OPTIONS[attention])
    other.load_weights(tmp_path / "model.weights.h5")
    assert_equal_outputs(answers(other, inputs), expected, 1e-5)


@pytest.mark.parametrize("name", fast_for(MODELS, ("composed",)))
def test_weights_of_the_original_fit_its_conversion_or_are_refused(name, tmp_path):
    plain, inputs = CONTAINERS[name][0](), CONTAINERS[name][1]
    expected = answers(keras_graphattn.convert(plain, "p_laplacian", p=2.0), inputs)
    keras_graphattn.revert(plain).save_weights(tmp_path / "plain.weights.h5")
    assert not any("hub.saving" in type(layer).__module__ for layer in walk(plain))
    other = keras_graphattn.convert(CONTAINERS[name][0](), "p_laplacian", p=2.0)
    if name in ("nested_backbone", "task", "causal_task", "llama_task"):
        # Keras' paths have the class of the inner backbone in them, which has a name of its own.
        with pytest.raises(ValueError, match=r"could not be loaded"):
            other.load_weights(tmp_path / "plain.weights.h5")
        return
    other.load_weights(tmp_path / "plain.weights.h5")
    assert_equal_outputs(answers(other, inputs), expected, 1e-5)


BROKEN = ("vit", "deit")  # KerasHub 0.32 cannot load its own layers of these by configuration


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in BROKEN])
def test_a_model_composed_of_any_backbones_tensors_lasts(name, tmp_path):
    backbone = keras_graphattn.convert(random_backbone(name), "p_laplacian", p=1.5)
    inputs = random_inputs(backbone)
    model = with_head(backbone)
    expected = outputs(model, inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_outputs(outputs(loaded, inputs), expected, tolerance=1e-5)
    kept = {site.layer.name for site in attention_slots(loaded) if site.is_converted}
    assert kept == {site.layer.name for site in attention_slots(model)}


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow writes and reads a SavedModel")
@pytest.mark.parametrize("name", MODELS)
def test_an_export_keeps_the_conversion(name, tmp_path):
    import tensorflow as tf

    model, inputs = converted(name, "p_laplacian")
    expected = answers(model, inputs)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    given = keras.tree.map_structure(tf.constant, typed(inputs, model))
    found = map(np.asarray, keras.tree.flatten(loaded.serve(given)))
    assert_equal_outputs(list(found), expected, 1e-5)


def typed(inputs, model):
    """The inputs in the dtypes of the model's own, which a signature insists on."""
    if not isinstance(inputs, dict):
        return inputs if inputs.dtype.kind == "f" else inputs.astype(model.input_dtype)
    return {name: inputs[name].astype(x.dtype) for name, x in model.input.items()}


@pytest.mark.parametrize("attention", OPTIONS)
def test_weights_of_a_conversion_are_refused_by_another_attention(attention, tmp_path):
    model, _ = converted("encoder", attention)
    path = tmp_path / "model.weights.h5"
    functional(model).save_weights(path)
    functional(converted("encoder", attention)[0]).load_weights(path)
    for other in (None, *OPTIONS):
        if other != attention:
            new = CONTAINERS["encoder"][0]() if other is None else converted("encoder", other)[0]
            with pytest.raises(ValueError, match=r"self_attention_layer|could not be loaded"):
                functional(new).load_weights(path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("holder", [BuiltTower, Tower, "subclassed"])
def test_what_holds_the_part_that_was_converted_carries_the_conversion(holder, way, tmp_path):
    """`convert` is called on a layer that a class of one's own makes itself."""
    if holder == "subclassed":
        model, inputs = called(Subclassed(), TOKENS), TOKENS
        part = model.tower.encoders[0]
    else:
        model, inputs = functional(holder(name="tower")), SERIES
        part = model.get_layer("tower").encoders[0]
    model.compile("sgd", "mse")
    before = model.predict(inputs, verbose=0)
    keras_graphattn.convert(part, "p_laplacian", p=1.5)
    expected = answers(model, inputs)
    assert np.abs(expected[0] - before).max() > 1e-4
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected[0], atol=1e-5)
    new = WAYS[way](model, tmp_path)
    assert [name for _, name in classes(new)] == [name for _, name in classes(model)]
    np.testing.assert_allclose(answers(new, inputs)[0], expected[0], atol=1e-5)
    keras_graphattn.revert(part)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), before, atol=1e-5)
    assert not any("hub.saving" in type(layer).__module__ for layer in walk(model))


def test_a_model_composed_before_the_conversion_is_brought_up_to_date():
    backbone = random_backbone("bert")
    model = with_head(backbone)
    other = keras.Model(backbone.input, backbone.get_layer("token_embedding").output)
    for each in (model, other):
        each.compile("adam", "mse")
        each.optimizer.build(each.trainable_variables)
    kept = other.optimizer
    before = model.predict(INPUTS, verbose=0)
    keras_graphattn.convert(backbone, "p_laplacian", p=1.5)
    after = model.predict(INPUTS, verbose=0)
    assert np.abs(after - before).max() > 1e-5
    np.testing.assert_allclose(after, answers(model, INPUTS)[0], atol=1e-5)
    assert other.optimizer is kept  # it has none of the converted layers


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["graph_filter", "p_laplacian"])
def test_int8_of_a_composed_model_keeps_the_conversion(attention):
    model, inputs = converted("composed", attention)
    expected, kept = answers(model, inputs), classes(model)
    model.quantize("int8")
    assert classes(model) == kept
    for actual, right in zip(answers(model, inputs), expected, strict=True):
        assert 0 < np.abs(actual - right).max() < 0.2 * np.abs(right).max()


def test_lora_of_a_composed_model_keeps_the_conversion():
    backbone, _ = converted("backbone")
    composed = keras.Model(backbone.input, backbone.output["pooled_output"])
    trained = {v.path for v in backbone.trainable_variables if "coefficient" in v.path}
    backbone.enable_lora(2)
    assert trained
    assert trained <= {v.path for v in composed.trainable_variables}
    assert any("lora" in v.path for v in composed.trainable_variables)
    assert [name for _, name in classes(composed)] == [name for _, name in classes(backbone)]


def test_a_class_that_keras_does_not_know_is_asked_for_by_name(tmp_path):
    class Unknown(Tower):
        pass

    model = keras_graphattn.convert(functional(Unknown(1)), "p_laplacian", p=1.5)
    model.save(tmp_path / "model.keras")
    expected = answers(model, SERIES)[0]
    given = {"Unknown": Unknown}
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects=given)
    np.testing.assert_allclose(answers(loaded, SERIES)[0], expected, atol=1e-6)
    config = model.get_config()
    carried = config["layers"][1]["config"]["graph_attention"]
    carried["of"] = {"module": "gone", "name": "Gone"}
    with pytest.raises(ValueError, match="class Gone"):
        keras.Model.from_config(config)


@pytest.mark.slow_on("jax")
def test_preprocessing_of_ones_own_is_found_in_presets_of_converted_backbones(tmp_path):
    """KerasHub looks for one that names exactly the class of the backbone."""
    from keras_hub.models import (
        GPT2Backbone,
        RobertaTextClassifierPreprocessor,
        RobertaTokenizer,
        TextClassifierPreprocessor,
    )

    @keras.saving.register_keras_serializable(package="tests")
    class OwnPreprocessor(RobertaTextClassifierPreprocessor):
        backbone_cls = GPT2Backbone

    stands_for_it = keras_graphattn.hub.reach(OwnPreprocessor)
    assert issubclass(stands_for_it, OwnPreprocessor)
    assert keras_graphattn.hub.reach(stands_for_it) is keras_graphattn.hub.reach(OwnPreprocessor)
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<mask>": 3, "a": 4, "b": 5, "ab": 6}
    preprocessor = OwnPreprocessor(RobertaTokenizer(vocabulary, ["a b"]), sequence_length=6)
    backbone = family("gpt2").make()
    for convert in (lambda: None, lambda: keras_graphattn.convert(backbone, "graph_filter")):
        convert()
        backbone.save_to_preset(str(tmp_path))
        preprocessor.save_to_preset(str(tmp_path))
        loaded = TextClassifierPreprocessor.from_preset(str(tmp_path))
        assert type(loaded) is OwnPreprocessor
        assert to_numpy(loaded(["ab"])["token_ids"]).tolist() == [[0, 6, 2, 1, 1, 1]]
