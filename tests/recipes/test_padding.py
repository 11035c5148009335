"""Padding and the numbers of a graph's nodes change nothing, in any model of the recipes."""

import keras
import numpy as np
import pytest

from tests.numerics import randomise, to_numpy
from tests.recipes.models import LONGEST, MODELS, batch_for

# Recipes do the same on every backend: `test_long_range_arena` trains one on each of them.
pytestmark = pytest.mark.slow_on("jax", "tensorflow")

PADDED = [name for name in MODELS if not name.startswith("images")]
OF_GRAPHS = [name for name in MODELS if name.startswith(("graphs", "regression"))]
PAIRS = ("distances", "paths")  # of nodes
NONE = ("edges", "walks", *PAIRS)  # -1 is padding in them
SHORT = 12
ANYTHING = (1e30, np.nan, np.inf)  # may lie at padding of models that replace it


def garbage_of(name):
    return ANYTHING if name.startswith(("time_series", "regression")) else (7.0,)


def made(name):
    build, *arguments = MODELS[name]
    model = build(*arguments)
    randomise(model, scale=0.3)
    if isinstance(model.layers[-1], keras.layers.Dense):  # probabilities may be 0 or 1
        model.layers[-1].activation = keras.activations.linear
    return model


def mask_of(inputs):
    """The real tokens, (B, T)."""
    masks = [array for name, array in inputs.items() if "mask" in name]
    return (masks or [array != 0 for array in inputs.values()])[0].astype(bool)


def answers(model, inputs):
    """The outputs; of outputs for each token, those of real tokens."""
    outputs = to_numpy(model(inputs))
    return outputs[mask_of(inputs)] if outputs.ndim > 2 else outputs


def longer(inputs, more):
    """The same inputs with more padding."""
    padded = {}
    for name, array in inputs.items():
        widths = [(0, 0)] * array.ndim
        for axis in (1, 2) if name in PAIRS else (1,):
            widths[axis] = (0, more)
        padded[name] = np.pad(array, widths, constant_values=-1 if name in NONE else 0)
    return padded


@pytest.mark.parametrize("name", PADDED)
def test_padding_has_no_influence_and_tokens_have(name):
    model = made(name)
    sizes = {size for tensor in model.input.values() for size in tensor.shape}
    inputs = batch_for(model, 4, LONGEST if LONGEST in sizes else SHORT)
    expected = answers(model, inputs)
    close = {"atol": 2e-6 * max(np.abs(expected).max(), 1.0), "rtol": 1e-5}
    if LONGEST not in sizes:
        np.testing.assert_allclose(answers(model, longer(inputs, 5)), expected, **close)
    values = next((one for one in ("series", "nodes") if one in inputs), None)
    mask = mask_of(inputs)[..., None]
    for garbage in garbage_of(name) if values else ():
        filled = np.where(mask, inputs[values], np.float32(garbage))
        np.testing.assert_allclose(answers(model, {**inputs, values: filled}), expected, **close)
    other = inputs[values] + mask if values else np.where(mask[..., 0], 3, 0)
    first = values or next(iter(inputs))
    moved = {**inputs, first: other.astype(inputs[first].dtype)}
    assert np.abs(answers(model, moved) - expected).max() > 1e-4


def renumbered(inputs, order):
    """The same graphs; node i becomes order[i]."""
    back = np.argsort(order)
    turned = {name: array[:, back] for name, array in inputs.items() if name != "edges"}
    for name in set(PAIRS) & set(turned):
        turned[name] = turned[name][:, :, back]
    for name in {"edges", "walks"} & set(inputs):
        nodes = turned.get(name, inputs[name])
        turned[name] = np.where(nodes >= 0, order[nodes], -1).astype("int32")
    return turned


@pytest.mark.parametrize("name", OF_GRAPHS)
def test_the_numbers_of_the_nodes_have_no_influence_and_the_edges_have(name):
    model = made(name)
    inputs = batch_for(model, 4, LONGEST)
    expected = answers(model, inputs)
    turned = renumbered(inputs, np.random.default_rng(0).permutation(LONGEST))
    close = {"atol": 2e-6 * max(np.abs(expected).max(), 1.0), "rtol": 1e-5}
    np.testing.assert_allclose(answers(model, turned), expected, **close)
    for array in {"edges", "walks", *PAIRS} & set(inputs):
        fewer = inputs[array].copy()
        fewer[:, : LONGEST // 2] = np.where(fewer[:, : LONGEST // 2] >= 0, 0, -1)
        assert np.abs(answers(model, {**inputs, array: fewer}) - expected).max() > 1e-4
