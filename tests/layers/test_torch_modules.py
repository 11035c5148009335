"""On torch, layers and masks are modules: what torch does with all modules of a model works."""

import keras
import pytest
import torch

from tests.layers.capabilities import NEAR, ROWS, TOKENS
from tests.numerics import relative_rms, to_numpy

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch only")


class Model(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer = keras.layers.Dense(4), layer


@pytest.mark.parametrize("name", ROWS)
def test_torch_applies_a_function_to_every_module_of_a_model(name):
    layer, _ = ROWS[name].built()
    for whole in (layer, Model(layer)):
        visited = []
        assert whole.apply(visited.append) is whole
        assert {id(module) for module in visited} == {id(module) for module in whole.modules()}
        # a mask, too, is an attribute of its layer
        parts = {id(part) for part in (layer, getattr(layer, "mask", None)) if part is not None}
        assert parts <= {id(module) for module in visited}


@pytest.mark.parametrize("name", ROWS)
def test_under_autocast_of_torch_the_outputs_are_near_those_of_float32(name):
    layer, call = ROWS[name].built()
    with torch.no_grad():
        expected = to_numpy(layer(TOKENS, **call))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = to_numpy(layer(TOKENS, **call))
    assert relative_rms(found, expected) < NEAR["bfloat16"]
