"""What a token may not see changes nothing: every layer, path and mask, at any size.

Unseen tokens are multiplied by 1e4 and 1e15: the other rows and their gradients stay as they are,
those of the weights too, and gradients to unseen tokens are exactly 0. Padding, other segments,
other components and other examples may also be NaN or infinite. A layer or a mask that has no case
here makes a test fail.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_graphattn import layers, masks
from tests.layers.unseen_cases import (
    BATCH,
    CASES,
    CHANNELS,
    LENGTH,
    MASKS,
    kinds_of,
    mask_of,
    scene,
)
from tests.numerics import BACKEND, called_with, differentiated, dtype_policy, randomise, to_numpy

SIZES = {"float32": (1e4, 1e15), "bfloat16": (1e4, 1e15), "float16": (30.0,)}
WEIGHTS = {"float32": 2e-5, "bfloat16": 0.1, "float16": 0.1}  # beside their largest gradient
# Kinds whose unseen tokens have no numbers of their own that may overflow: gradients of weights
# would be sums with 0 * inf
ALONE = ("padding", "future", "pairs", "window")
MAY_BE_NAN = ("example", "padding", "segment", "component")
# squared ReLU makes numbers of the seventh power of the tokens: float32 and bfloat16 end at 1e38
SMALLER = {"kernel, causal, squared ReLU, filter": (1e4,)}


def _cases(fast):
    return [
        pytest.param(
            name, kind, marks=() if BACKEND == "torch" or name in fast else pytest.mark.slow
        )
        for name in CASES
        for kind in kinds_of(name)
    ]


FAST = ("graph filter", "kernel, Causal, chunked")  # compiling takes seconds each on jax
HALF = ("p-Laplacian, dense",) if BACKEND != "jax" else ()
if BACKEND != "jax":
    FAST += ("p-Laplacian, blockwise", "AGF, causal")


def prepared(name, kind, dtype):
    """(x, *weights) -> the rows that may not see the unseen tokens; these arguments; the scene."""
    keras.utils.set_random_seed(0)
    with dtype_policy(dtype if dtype == "float32" else f"mixed_{dtype}"):
        layer = CASES[name].make()
    found = scene(name, kind, layer)
    x = np.random.default_rng(1).standard_normal((BATCH, LENGTH, CHANNELS)).astype("float32")
    layer.build(x.shape)
    randomise(layer)
    rows = ops.convert_to_tensor(found.rows[:, :, None])

    def function(x, *weights):
        outputs = called_with(layer, weights, x, **found.call)
        if len(outputs.shape) == 2:  # pooled: what every node of the example sees
            outputs = ops.repeat(outputs[:, None], LENGTH, axis=1)
        return ops.where(rows, outputs, ops.zeros_like(outputs))

    return function, [x, *map(to_numpy, layer.trainable_variables)], found


def compare(name, kind, dtype, changed):
    function, (x, *weights), found = prepared(name, kind, dtype)
    differentiate = differentiated(function)
    value, gradients = differentiate(x, *weights)
    unseen = found.unseen[:, :, None]
    assert np.abs(value[found.rows]).max() > 0
    assert (gradients[0][found.unseen] == 0).all(), "gradients reach unseen tokens"
    for factor in changed:
        with np.errstate(invalid="ignore"):
            other = np.where(unseen, np.float32(factor) * np.where(x == 0, 1, x), x)
        new_value, new_gradients = differentiate(other.astype("float32"), *weights)
        seen = (np.where(unseen, 0.0, g[0]) for g in (gradients, new_gradients))
        for what, old, new in (("rows", value, new_value), ("gradients", *seen)):
            differs = np.isnan(new) | (new != old)
            assert not differs.any(), f"{what} times {factor}: {np.abs(new - old).max():.1e}"
        if kind in ALONE or factor == 1e4:
            assert_weights_learn_the_same(new_gradients, gradients, WEIGHTS[dtype])


def assert_weights_learn_the_same(new, old, tolerance):
    """The gradients of the weights: sums over tokens, which may be added up in another order."""
    largest = max((np.abs(old[place]).max() for place in list(old)[1:]), default=0.0)
    for place in list(old)[1:]:
        bound = tolerance * max(np.abs(old[place]).max(), 1e-2 * largest)
        np.testing.assert_allclose(new[place], old[place], rtol=0, atol=bound)


@pytest.mark.parametrize(("name", "kind"), _cases(FAST))
def test_unseen_tokens_change_nothing(name, kind):
    sizes = SMALLER.get(name, SIZES["float32"])
    compare(name, kind, "float32", (*sizes, np.nan, np.inf) if kind in MAY_BE_NAN else sizes)


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        pytest.param(
            name, kind, dtype, marks=() if name in HALF and kind == "padding" else pytest.mark.slow
        )
        for name in CASES
        for kind in kinds_of(name)
        for dtype in ("bfloat16", "float16")
    ],
)
def test_unseen_tokens_change_nothing_in_half_precision(name, kind, dtype):
    smaller = SMALLER.get(name, SIZES[dtype]) if dtype == "bfloat16" else SIZES[dtype]
    compare(name, kind, dtype, smaller)


def test_every_layer_and_every_mask_has_a_case():
    made = [case.make() for case in CASES.values()]
    assert {type(layer).__name__ for layer in made} == set(layers.__all__)
    found = {type(mask_of(layer)).__name__ for layer in made}
    assert set(masks.__all__) - {"Mask"} <= found
    for name, (make, _) in MASKS.items():
        assert all(f"kernel, {name}, {path}" in CASES for path in make().paths)
