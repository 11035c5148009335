"""AdamW for fine-tuning: the filters' coefficients may learn at a rate of their own."""

import argparse
from typing import Any

import keras

from recipes.common.optimizers import WarmUpLinearDecay


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class CoefficientAdamW(keras.optimizers.Adam):
    """Adam with decoupled weight decay that moves filter coefficients `factor` times as fast.

    A coefficient is a number of the order of 1, and Adam moves a weight by about its learning
    rate in a step: at the 2e-5 that pretrained weights bear, a filter would hardly leave its
    start.

    Args:
        learning_rate: Rate, or schedule, of all other weights.
        factor: What the rate is multiplied with for weights whose name ends in `coefficient` or
            `coefficients`.
        **kwargs: Further arguments of `keras.optimizers.Adam`.
    """

    def __init__(self, learning_rate: Any = 2e-5, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.factor = factor

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        own = self._trainable_variables[self._get_variable_index(variable)]
        if own.path.endswith(("coefficient", "coefficients")):
            learning_rate = learning_rate * self.factor
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


def coefficient_adamw(options: argparse.Namespace, steps: int) -> keras.optimizers.Optimizer:
    """The optimizer that the options ask for, over `steps` steps."""
    warm_up = min(round(options.warm_up * steps), steps - 1)
    return CoefficientAdamW(
        WarmUpLinearDecay(options.learning_rate, warm_up, steps),
        factor=options.coefficient_learning_rate / options.learning_rate,
        weight_decay=options.weight_decay or None,
    )
