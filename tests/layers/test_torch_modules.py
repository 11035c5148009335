"""On torch, layers and masks are modules: what torch does with all modules of a model works."""

import keras
import pytest

from tests.layers.capabilities import ROWS

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch only")


@pytest.mark.parametrize("name", ROWS)
def test_torch_applies_a_function_to_every_module(name):
    layer, _ = ROWS[name].built()
    visited = []
    assert layer.apply(visited.append) is layer
    assert {id(module) for module in visited} == {id(module) for module in layer.modules()}
