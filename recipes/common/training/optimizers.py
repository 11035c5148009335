"""Learning rates: RAdam as Adam under its rectification; a warm-up and a linear decay."""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class RectifiedLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """`learning_rate` times the rectification r_t of RAdam: Adam under it is RAdam.

    With t the step, counted from 1, and rho_inf = 2 / (1 - beta_2) - 1,

        rho_t = rho_inf - 2 t beta_2^t / (1 - beta_2^t)
        r_t   = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))

    r_t rises from 0 to 1 like a warm-up. While rho_t <= 4 (the first four steps for the usual
    beta_2) r_t is 0 and nothing moves; the paper takes steps of plain momentum there.

    Args:
        learning_rate: The rate that is reached, a positive number.
        beta_2: The optimiser's `beta_2`.

    Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond",
    arXiv 1908.03265, Algorithm 2.
    """

    def __init__(self, learning_rate: float = 1e-3, beta_2: float = 0.999) -> None:
        if not 0.6 < beta_2 < 1:  # rho_inf must exceed 4
            raise ValueError(f"`beta_2` must lie in (0.6, 1). Received: beta_2={beta_2!r}")
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


def radam(learning_rate: float) -> keras.optimizers.Optimizer:
    """RAdam with Adam's usual betas."""
    return keras.optimizers.Adam(RectifiedLearningRate(learning_rate, 0.999), beta_2=0.999)


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class WarmUpLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to its peak, then falls linearly to 0.

    Args:
        learning_rate: The peak.
        warm_up: Steps until the peak is reached; none when 0.
        steps: All steps, the warm-up among them; the rate is 0 after them.
    """

    def __init__(self, learning_rate: float, warm_up: int, steps: int) -> None:
        if not 0 <= warm_up < steps:
            raise ValueError(
                "`warm_up` must be at least 0 and less than `steps`. Received: "
                f"warm_up={warm_up!r}, steps={steps!r}"
            )
        self.learning_rate, self.warm_up, self.steps = learning_rate, warm_up, steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        rising = step / max(self.warm_up, 1)
        falling = (self.steps + 1 - step) / (self.steps + 1 - max(self.warm_up, 1))
        share = ops.minimum(rising, falling) if self.warm_up else falling
        return self.learning_rate * ops.clip(share, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        names = ("learning_rate", "warm_up", "steps")
        return {name: getattr(self, name) for name in names}
