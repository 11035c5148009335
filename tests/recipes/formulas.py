"""Layers and models of the recipes against formulas in float64."""

import keras

from tests.numerics import (
    assert_all_close,
    assert_close,
    reference_value_and_gradients,
    to_numpy,
    value_and_gradients,
)


def weight_names(layer):
    """The names of the trained weights: their paths in the layer or in the model."""
    paths = [variable.path for variable in layer.trainable_variables]
    return paths if isinstance(layer, keras.Model) else [path.partition("/")[2] for path in paths]


def assert_is_formula(layer, formula, inputs, *others, bounds=(1e-5, 2e-5)):
    """The layer's values and gradients are those of `formula(*inputs, weights)`.

    Gradients are for the inputs and for the weights, which the formula gets by their names;
    `others` are further arguments of the call, without gradients.
    """
    names, count = weight_names(layer), len(inputs)
    arrays = [*inputs, *(to_numpy(variable) for variable in layer.trainable_variables)]

    def fast(*arrays):
        given = (*arrays[:count], *others)
        return layer.stateless_call(arrays[count:], layer.non_trainable_variables, *given)[0]

    def naive(*arrays):
        return formula(*arrays[:count], dict(zip(names, arrays[count:], strict=True)))

    value, gradients = value_and_gradients(fast, *arrays)
    expected, expected_gradients = reference_value_and_gradients(naive, *arrays)
    assert_close(value, expected, bounds[0])
    names = [*(f"input {number}" for number in range(count)), *names]
    assert_all_close(
        dict(zip(names, gradients.values(), strict=True)),
        dict(zip(names, expected_gradients.values(), strict=True)),
        bounds[1],
    )
