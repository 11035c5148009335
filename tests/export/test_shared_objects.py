"""Layers that share an object, and layers at two places, are served as Keras computes them."""

import re

import keras
import pytest

from keras_graphattn.export import export_saved_model
from tests.export.served import assert_served
from tests.layers.test_made_again import OBJECTS, TOKENS
from tests.layers.twins import FORMS
from tests.layers.unseen_cases import HEADS, PER_EXAMPLE, SIZE
from tests.numerics import randomise, to_numpy

# The first form of each group of forms, such as "AGF, causal=True"
AT_TWO_PLACES = {name.rpartition(",")[0]: name for name in reversed(FORMS) if not FORMS[name].call}
FAST = ("mask Causal", "mask Exponential", "filter first_order", "feature map favor")
ARRAYS = {"tokens": TOKENS, **PER_EXAMPLE}


def pair_of(name):
    """Two layers that share an object; one layer twice if a mask or a bias has weights."""
    if name in FORMS:
        return [FORMS[name].make()] * 2
    kind, argument, make = OBJECTS[name]
    shared = make()
    first, second = (kind(HEADS, SIZE, **{argument: shared}) for _ in range(2))
    first.build(TOKENS.shape)
    has_one_owner = argument in ("mask", "bias") and shared.weights
    return [first, first if has_one_owner else second]


def model_of(names):
    """A model with a branch for each name: one layer of the pair after the other."""
    inputs, outputs = {}, {}

    def inputs_of(keys):
        for key in set(keys) - set(inputs):
            shape, dtype = ARRAYS[key].shape[1:], ARRAYS[key].dtype.name
            inputs[key] = keras.Input(shape, dtype=dtype, name=key)
        return {key: inputs[key] for key in keys}

    for name in names:
        x = inputs_of(["tokens"])["tokens"]
        for layer in pair_of(name):
            keys = {
                "mask_inputs": getattr(getattr(layer, "mask", None), "given_inputs", ()),
                "bias_inputs": getattr(getattr(layer, "bias", None), "inputs_at_call", ()),
            }
            x = layer(x, **{argument: inputs_of(of) for argument, of in keys.items() if of})
        outputs[re.sub(r"\W+", "_", name)] = x
    model = keras.Model(inputs, outputs)
    randomise(model)
    return model


def check(names, folder):
    """The served graph gives the model's outputs, and the file has each weight once."""
    from tensorflow.train import list_variables

    model = model_of(names)
    batch = {name: ARRAYS[name] for name in model.input}
    path = export_saved_model(model, folder / "served")
    assert_served(path, [batch], [{name: to_numpy(x) for name, x in model(batch).items()}], folder)
    saved = list_variables(str(path / "variables" / "variables"))
    shapes = [shape for name, shape in saved if name.endswith("VARIABLE_VALUE")]
    assert sorted(shapes) == sorted(list(weight.shape) for weight in model.weights)


@pytest.mark.slow_on("jax", "torch")
def test_some_objects_of_two_layers(tmp_path):
    check(FAST, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("names", [OBJECTS, AT_TWO_PLACES.values()], ids=["shared", "two places"])
def test_each_object_of_two_layers_and_each_layer_at_two_places(names, tmp_path):
    check(names, tmp_path)
