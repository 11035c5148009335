"""How far the coefficients of filters have moved: what a run tells."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_graphattn.optimizers import MARK

DISTANCE, POWER = "coefficient_distance", "mean_absolute_power_coefficient"


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
