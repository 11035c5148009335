"""The rate of the coefficients of filters and masks, and how far they have moved in a run."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_graphattn.coefficient_rate import MARK
from keras_graphattn.optimizers import learning_rate_multiplier, with_coefficient_rates

DISTANCE, POWER = "coefficient_distance", "mean_absolute_power_coefficient"


def with_rates(optimizer: Any, model: keras.Model, multiplier: float | None = None) -> Any:
    """The optimizer; under it, coefficients have their own rate, if the model has any.

    Args:
        optimizer: An optimizer of Keras.
        model: The model that it is for.
        multiplier: As in `with_coefficient_rates`.
    """
    found = [one for one in model.trainable_variables if hasattr(one, MARK)]
    if multiplier is None and all(learning_rate_multiplier(one) == 1.0 for one in found):
        return optimizer
    return with_coefficient_rates(optimizer, multiplier) if found else optimizer


def coefficient_report(model: keras.Model) -> Callable[[], dict[str, float]]:
    """What tells, after training, how far coefficients are from where they are now.

    Args:
        model: A model that is not trained yet.

    Returns:
        A function that returns, for a model with filters, the mean |c - start| over all trained
        coefficients, and for GFSA the mean |w_K|; an empty dictionary for other models.
    """
    variables = [variable for variable in model.trainable_variables if hasattr(variable, MARK)]
    start = _numbers(variables)

    def report() -> dict[str, float]:
        if not variables:
            return {}
        found = {DISTANCE: float(np.mean(np.abs(_numbers(variables) - start)))}
        powers = [variable for variable in variables if variable.name == "power_coefficient"]
        if powers:
            found[POWER] = float(np.mean(np.abs(_numbers(powers))))
        return found

    return report


def _numbers(variables: list[Any]) -> np.ndarray:
    arrays = (keras.ops.convert_to_numpy(variable.value) for variable in variables)
    return np.concatenate([np.zeros(0), *(array.ravel() for array in arrays)])
