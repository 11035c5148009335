"""A filter's coefficients as weights of the layer that uses it."""

from typing import Any

from keras import ops

from keras_graphattn.filters import Filter
from keras_graphattn.filters.filter import Operator

Tensor = Any


def add_coefficients(layer: Any, filter: Filter, num_heads: int | None = None) -> None:
    """Makes the weights of a filter's coefficients. Each becomes an attribute of the layer.

    Args:
        layer: The layer.
        filter: The filter, which also gives the names of the weights.
        num_heads: Number of heads; `layer.num_heads` by default.
    """
    coefficients = filter.coefficients(layer.num_heads if num_heads is None else num_heads)
    layer._coefficient_names = tuple(coefficients)
    for name, coefficient in coefficients.items():
        start = coefficient.start  # (..., N)
        weight = layer.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype, start=start: ops.convert_to_tensor(start, dtype=dtype),
            trainable=coefficient.trainable,
            autocast=False,  # mixed precision keeps it in the variable dtype
        )
        setattr(layer, name, weight)


def filtered(
    layer: Any, filter: Filter, apply: Operator, values: Tensor, trailing_axes: int = 1
) -> Tensor:
    """H(A) values: the filter of an operator, with the layer's coefficients.

    Args:
        layer: The layer for which `add_coefficients` was called.
        filter: The same filter.
        apply: The operator A.
        values: Tensor of shape (..., N, D), or (..., N, T, S) with `trailing_axes=2`.
        trailing_axes: Number of axes of `values` after that of the heads.
    """
    coefficients = {}
    for name in layer._coefficient_names:
        weight = getattr(layer, name)  # (..., N)
        # (..., N, 1): broadcasts over what follows the heads
        coefficients[name] = ops.reshape(weight, (*weight.shape, *[1] * trailing_axes))
    return filter(apply, values, coefficients)
