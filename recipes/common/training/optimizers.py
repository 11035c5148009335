"""Learning rates, moving averages of weights, and the rate of filters' and masks' coefficients."""

import argparse
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.biases import Bias
from keras_graphattn.coefficient_rate import MARK
from keras_graphattn.keras_internals import walk
from keras_graphattn.optimizers import learning_rate_multiplier, with_coefficient_rates
from recipes.common.attentions import DISTANCE, POWER


def averaged(momentum: float) -> dict[str, Any]:
    """Arguments of an optimizer that averages the weights with this momentum; none for 0.

    The averages are validated, tested and kept; training continues from the weights themselves.
    """
    return {"use_ema": momentum > 0, "ema_momentum": momentum or None}


def noam_adam(model: keras.Model, options: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Adam under Noam's schedule, by the options of a recipe: for `model`, with all its rates."""
    optimizer = keras.optimizers.Adam(
        Noam(options.learning_rate, options.warm_up * options.accumulate),
        beta_2=0.98,
        weight_decay=options.weight_decay or None,
        global_clipnorm=options.clip,
        **averaged(options.ema),
        gradient_accumulation_steps=options.accumulate if options.accumulate > 1 else None,
    )
    return with_rates(optimizer, model)


def with_rates(
    optimizer: keras.optimizers.Optimizer, model: keras.Model, multiplier: float | None = None
) -> keras.optimizers.Optimizer:
    """The optimizer, which gives coefficients their own rate if the model has any."""
    coefficients = _coefficients(model)
    if multiplier is None and all(learning_rate_multiplier(one) == 1.0 for one in coefficients):
        return optimizer
    if not coefficients:
        return optimizer
    return with_coefficient_rates(optimizer, multiplier=multiplier)


def coefficient_report(model: keras.Model) -> Callable[[], dict[str, float]]:
    """A function that measures after training how far the coefficients have moved since now.

    It returns, for a model with filters, the mean |c - start| over all trained coefficients, and
    for GFSA the mean |w_K|; an empty dictionary for other models.
    """
    variables = _coefficients(model)
    start = _numbers(variables)

    def report() -> dict[str, float]:
        if not variables:
            return {}
        means = {DISTANCE: float(np.mean(np.abs(_numbers(variables) - start)))}
        powers = [variable for variable in variables if variable.name == "power_coefficient"]
        if powers:
            means[POWER] = float(np.mean(np.abs(_numbers(powers))))
        return means

    return report


def _coefficients(model: keras.Model) -> list[keras.Variable]:
    """The coefficients of filters and masks, without the weights of biases of scores."""
    biases = [layer for layer in walk(model) if isinstance(layer, Bias)]
    of_biases = {id(variable) for bias in biases for variable in bias.weights}
    marked = [variable for variable in model.trainable_variables if hasattr(variable, MARK)]
    return [variable for variable in marked if id(variable) not in of_biases]


def _numbers(variables: list[keras.Variable]) -> np.ndarray:
    arrays = (ops.convert_to_numpy(variable.value) for variable in variables)
    return np.concatenate([np.zeros(0), *(array.ravel() for array in arrays)])


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class RectifiedLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """`learning_rate` times the rectification r_t of RAdam: Adam under it is RAdam.

    With t the step, counted from 1, and rho_inf = 2 / (1 - beta_2) - 1,

        rho_t = rho_inf - 2 t beta_2^t / (1 - beta_2^t)
        r_t   = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))

    r_t rises from 0 to 1 like a warm-up. While rho_t <= 4 (the first four steps for the usual
    beta_2) r_t is 0 and no weight changes; the paper uses plain momentum in these steps.

    Args:
        learning_rate: The rate that is reached, a positive number.
        beta_2: The optimiser's `beta_2`, above 0.6.

    Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond",
    arXiv 1908.03265, Algorithm 2.
    """

    def __init__(self, learning_rate: float = 1e-3, beta_2: float = 0.999) -> None:
        self.learning_rate, self.beta_2 = learning_rate, beta_2

    def __call__(self, step: Any) -> Any:
        last = 2.0 / (1.0 - self.beta_2) - 1.0
        t = ops.cast(step, "float32") + 1.0
        # beta_2^t / (1 - beta_2^t) = 1 / (beta_2^-t - 1), kept exact for small t by expm1
        now = last - 2.0 * t / ops.expm1(-t * math.log(self.beta_2))
        safe = ops.maximum(now, 4.0)
        ratio = (safe - 4.0) * (safe - 2.0) * last / ((last - 4.0) * (last - 2.0) * safe)
        return self.learning_rate * ops.sqrt(ratio)

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "beta_2": self.beta_2}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class WarmUpLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then falls linearly to 0.

    Args:
        learning_rate: The peak.
        warm_up: Steps until the peak is reached; none when 0. A longer one ends with the training.
        steps: All steps, the warm-up among them; the rate is 0 after them.
    """

    def __init__(self, learning_rate: float, warm_up: int, steps: int) -> None:
        self.learning_rate, self.warm_up, self.steps = learning_rate, warm_up, steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        warm_up = min(self.warm_up, self.steps - 1)
        rising = step / max(warm_up, 1)
        falling = (self.steps + 1 - step) / (self.steps + 1 - max(warm_up, 1))
        share = ops.minimum(rising, falling) if warm_up else falling
        return self.learning_rate * ops.clip(share, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        names = ("learning_rate", "warm_up", "steps")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then falls as 1 / sqrt(step).

    Args:
        learning_rate: The peak, a positive number.
        warm_up: Steps until the peak is reached, at least 1.

    Source: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, Eq. 3, with the peak in
    place of the model's width.
    """

    def __init__(self, learning_rate: float, warm_up: int) -> None:
        self.learning_rate, self.warm_up = learning_rate, warm_up

    def __call__(self, step: Any) -> Any:
        share = (ops.cast(step, "float32") + 1.0) / self.warm_up
        return self.learning_rate * ops.minimum(share, ops.rsqrt(share))

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "warm_up": self.warm_up}
