"""Tests what a server sees of a model, and which models and names are refused."""

import keras
import numpy as np
import pytest

import keras_graphattn
from keras_graphattn.export import saved_model
from keras_graphattn.export.saved_model import defining_modules
from keras_graphattn.export.signature import model_signature, served_signatures
from keras_graphattn.layers import GraphFilterAttention
from tests.export.registered_layer import Doubled, halved


def series(name="series", length=4):
    return keras.Input((length, 3), name=name)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def several_outputs():
    inputs = series()
    layer = GraphFilterAttention(1, 2, name="attention")
    return keras.Model([inputs], layer(inputs, return_attention_scores=True))


def one_input():
    inputs = series()
    return keras.Model(inputs, keras.layers.Dense(2, name="classes")(inputs))


def dictionaries():
    inputs = {"b": series("b"), "a": series("a")}
    return keras.Model(inputs, {"z": inputs["a"] + 1, "y": inputs["b"] + 1})


def sequential():
    return keras.Sequential([series(length=None), keras.layers.Dense(2, name="classes")])


def outputs_with_names_alike():
    inputs = series()
    first, second = (GraphFilterAttention(1, 2, name=f"attention{n}") for n in ("", "_1"))
    outputs, scores = first(inputs, return_attention_scores=True)
    return keras.Model([inputs], [outputs, scores, second(outputs)])


FIXED, OPEN = ((None, 4, 3), "float32"), ((None, None, 3), "float32")
SEEN = {  # a model: its inputs, their structure, its outputs, and inputs of open length
    one_input: ({"series": FIXED}, "series", ["classes"], []),
    sequential: ({"series": OPEN}, "series", ["classes"], ["series"]),
    dictionaries: ({"a": FIXED, "b": FIXED}, {"b": "b", "a": "a"}, ["y", "z"], []),
    several_outputs: ({"series": FIXED}, ["series"], ["attention", "attention_1"], []),
    outputs_with_names_alike: (
        *({"series": FIXED}, ["series"], ["attention", "attention_2", "attention_1"]),
        [],
    ),
}


@pytest.mark.parametrize("make", SEEN)
def test_what_a_server_sees(make):
    signature = model_signature(make())
    assert (*signature, signature.open_lengths) == SEEN[make]


def test_sequential_built_by_data_keeps_the_batch_open():
    model = keras.Sequential([keras.layers.Dense(2)])
    model(np.zeros((8, 3), "float32"))
    assert list(model_signature(model).inputs.values()) == [((None, 3), "float32")]


def test_names_survive_saving(tmp_path):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs + 1))
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert model_signature(reloaded) == model_signature(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (keras.Sequential([keras.layers.Dense(2)]), r"not known.*keras\.Input as the first layer"),
        (keras.layers.Dense(2), r"must be a keras\.Model"),
    ],
)
def test_models_without_known_inputs_are_refused(model, words):
    with pytest.raises(ValueError, match=words):
        model_signature(model)


@pytest.mark.parametrize("called", [False, True])
def test_subclassed_models_are_refused_and_can_be_wrapped(called):
    model = Subclassed()
    if called:
        model(np.zeros((1, 3), "float32"))
    with pytest.raises(ValueError, match=r"not known.*keras\.Model\(inputs, model\(inputs\)\)"):
        model_signature(model)
    inputs = keras.Input((3,), name="series")
    assert "series" in model_signature(keras.Model(inputs, model(inputs))).inputs


@pytest.mark.parametrize("name", ["a-b", "a b", "a.b", "class", "_a", "self", "1a", "ä"])
def test_names_that_tensorflow_would_change_are_refused(name):
    inputs = series(name)
    with pytest.raises(ValueError, match="name of a served input"):
        model_signature(keras.Model(inputs, inputs + 1))


def test_an_open_length_that_fails_says_how_to_fix_it(monkeypatch, tmp_path):
    def fail(*args):
        raise TypeError("a length is needed")

    monkeypatch.setattr(saved_model, "_write_from_tensorflow", fail)
    monkeypatch.setattr(saved_model, "_write_from_jax", fail)
    if keras.backend.backend() == "torch":
        monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    model = keras.Sequential([series(length=None), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"\['series'\]\. Build it with fixed lengths.*is needed"):
        saved_model.write_graph(model, tmp_path / "saved_model")
    model = keras.Sequential([series(), keras.layers.Dense(2)])
    with pytest.raises(TypeError, match="is needed"):
        saved_model.write_graph(model, tmp_path / "saved_model")


def test_modules_of_a_model():
    activation = keras.layers.Activation(halved)
    model = keras.Sequential([series(), GraphFilterAttention(1, 2), Doubled(), activation])
    model.compile(loss=Subclassed.call)  # classes that only training needs do not count
    assert defining_modules(model) == ["tests.export.registered_layer"]


def test_a_converted_model_needs_the_module_that_its_plain_class_is_of():
    models = pytest.importorskip("keras_hub").models
    backbone = keras_graphattn.convert(models.BertBackbone(9, 1, 1, 4, 8))
    assert models.BertBackbone.__module__ in defining_modules(backbone)


def test_classes_of_main_are_refused():
    local = type("Local", (Doubled,), {"__module__": "__main__"})
    keras.saving.register_keras_serializable(package="export_tests")(local)
    with pytest.raises(ValueError, match=r"'Local', which is defined in `__main__`"):
        defining_modules(keras.Sequential([series(), local()]))


def two_inputs():
    inputs, ids = series(length=None), keras.Input((None,), dtype="int32", name="ids")
    return keras.Model([inputs, ids], inputs + keras.layers.Embedding(9, 3)(ids))


def shapes(signature):
    return {name: shape for name, (shape, _) in signature.inputs.items()}


def test_signatures_by_name_and_by_length():
    model = two_inputs()
    own = {"series": (None, None, 3), "ids": (None, None)}
    assert list(served_signatures(model)) == ["serving_default"]
    named = served_signatures(model, "classify")
    assert {name: shapes(one) for name, one in named.items()} == {
        "serving_default": own,
        "classify": own,
    }
    by_length = served_signatures(model, {"short": {"series": (5, 3), "ids": [5]}, "any": None})
    short = {"series": (None, 5, 3), "ids": (None, 5)}
    assert {name: shapes(one) for name, one in by_length.items()} == {
        "serving_default": short,
        "short": short,
        "any": own,
    }
    assert by_length["short"].open_lengths == []
    assert by_length["any"].open_lengths == ["series", "ids"]
    chosen = served_signatures(model, {"short": {"ids": (5,)}, "serving_default": None})
    assert shapes(chosen["serving_default"]) == own


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "must be a name, or a mapping"),
        (["short"], "must be a name, or a mapping"),
        ("a/b", "name of a signature must be .* Received: 'a/b'"),
        ("variables", "must not be one of signatures, variables"),
        ({1: None}, "Received: 1"),
        ({"short": (5, 3)}, "'short' must be None or a mapping"),
        ({"short": {"serie": (5, 3)}}, "does not have: 'serie'. It has: 'series', 'ids'"),
        ({"short": {"series": (5, 4)}}, r"shape \(5, 4\)\. The model's shape is \(None, 3\)"),
        ({"short": {"series": (5,)}}, r"The model's shape is \(None, 3\)"),
        ({"short": {"series": (0, 3)}}, "a positive integer"),
    ],
)
def test_wrong_signatures(wrong, words):
    with pytest.raises(ValueError, match=words):
        served_signatures(two_inputs(), wrong)
