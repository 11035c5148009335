"""The coefficients of a graph filter as a layer's weights, and the filter over any operator."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.ops.filters import Operator, first_order_filter, polynomial_filter
from keras_graphattn.ops.polynomials import Step

Tensor = Any


class FilterWeights:
    """The half of a layer that filters its operator; `steps` is `None` for the first order."""

    steps: list[Step] | None
    order: int
    add_weight: Any

    def _add_coefficients(self, start: Mapping[str, np.ndarray], trained: tuple[str, ...]) -> None:
        weights = {
            name: self._add_coefficient(name, values, name in trained)
            for name, values in start.items()
        }
        if self.steps is None:
            self.identity_coefficient = weights["identity"]
            self.linear_coefficient = weights["linear"]
            self.power_coefficient = weights["power"]
        else:
            self.filter_coefficients = weights["filter"]

    def _add_coefficient(self, name: str, start: np.ndarray, trainable: bool) -> Any:
        return self.add_weight(
            name="filter_coefficients" if name == "filter" else f"{name}_coefficient",
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype=dtype),
            trainable=trainable,
            autocast=False,
        )

    @property
    def _num_signals(self) -> int:
        """How often the filter applies its operator."""
        return min(self.order, 2) if self.steps is None else self.order

    def _filtered(self, apply: Operator, values: Tensor, trailing_axes: int = 1) -> Tensor:
        """The layer's filter over any operator; heads come before `trailing_axes` axes."""

        def of_heads(coefficient: Tensor) -> Tensor:
            return ops.reshape(coefficient, (*coefficient.shape, *[1] * trailing_axes))

        if self.steps is not None:
            coefficients = of_heads(self.filter_coefficients)
            return polynomial_filter(apply, values, coefficients, self.steps)
        return first_order_filter(
            apply,
            values,
            of_heads(self.identity_coefficient),
            of_heads(self.linear_coefficient),
            of_heads(self.power_coefficient),
            self.order,
        )
