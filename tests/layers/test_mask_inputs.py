"""Layers with a mask that takes inputs: errors when called, NaN in one example when compiled."""

import numpy as np
import pytest

from keras_graphattn.layers import GraphKernelAttention, MaskedKernelAttention
from tests.call_inputs import BAD, BATCH, FIRST, LENGTH, MASKS, batch_for, made, wrong_batches
from tests.layers.capabilities import chain
from tests.numerics import BACKEND, randomise

OTHERS = [example for example in range(BATCH) if example != BAD]
TOKENS = np.random.default_rng(0).standard_normal((BATCH, LENGTH, 5)).astype("float32")
LAYERS = {
    "kernel": (MaskedKernelAttention, {}),
    "filtered": (MaskedKernelAttention, {"filter": "first_order"}),
    "graph kernel": (GraphKernelAttention, {}),
    "dynamic walks": (GraphKernelAttention, {"dynamic_walks": True}),
}
CASES = [
    (kind, name)
    for kind in LAYERS
    for name in FIRST
    if MASKS[name]().given_inputs
    if kind != "dynamic walks" or name == "RandomWalk"
]
ALWAYS = [("kernel", "Tree plain"), ("graph kernel", "RandomWalk")]
COMPILED = [
    pytest.param(
        kind, name, marks=[] if BACKEND == "torch" or (kind, name) in ALWAYS else pytest.mark.slow
    )
    for kind, name in CASES
]


def layer_of(kind, name):
    cls, options = LAYERS[kind]
    layer = cls(2, 3, mask=MASKS[name](), **options)
    layer.build((None, LENGTH, 5))
    randomise(layer)
    return layer


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_called_as_a_function(kind, name):
    layer = layer_of(kind, name)
    for inputs in wrong_batches(name).values():
        with pytest.raises(ValueError, match=f"of example {BAD}"):
            layer(TOKENS, mask_inputs=inputs)


@pytest.mark.parametrize(("kind", "name"), COMPILED)
def test_in_a_compiled_model(kind, name, monkeypatch):
    if BACKEND == "torch":  # its models are not compiled: values are kept from their eyes
        monkeypatch.setattr("keras_graphattn.masks.inputs.known_value", lambda given: None)
    right = batch_for(made(name))
    model = chain([layer_of(kind, name)], right, TOKENS.shape)
    outputs = model.predict({"tokens": TOKENS, **right}, verbose=0)
    assert np.isfinite(outputs).all()
    for wrong, inputs in wrong_batches(name).items():
        found = model.predict({"tokens": TOKENS, **inputs}, verbose=0)
        assert np.isnan(found[BAD]).all(), wrong
        np.testing.assert_array_equal(found[OTHERS], outputs[OTHERS], wrong)
