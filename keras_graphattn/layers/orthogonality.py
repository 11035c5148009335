"""The orthogonality loss of AGF as a metric that `fit` shows, on every backend."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks.arguments import is_finite, is_one_of
from keras_graphattn.layers.multi_head import is_detached
from keras_graphattn.ops.singular.attention import SCALINGS


class OrthogonalityMetric(keras.metrics.Mean):  # type: ignore[misc]
    """Mean over training batches of a layer's orthogonality penalty, before its weight.

    On JAX, what a layer's call writes to a metric's variables is lost. There the two sums are
    state of the layer (`layer_state`, among the layer's `variables` as seeds are, not among its
    `weights`), and the metric has no variables of its own.

    NaN where nothing was measured: in `evaluate`, and on JAX before the end of an epoch.
    """

    @property
    def variables(self) -> list[Any]:
        return [] if keras.backend.backend() == "jax" else list(super().variables)

    @property
    def layer_state(self) -> list[Any]:
        """What the layer has to carry: the sum of penalties and their number, on JAX alone."""
        return list(super().variables) if keras.backend.backend() == "jax" else []

    def result(self) -> Any:
        if is_detached(self.total):
            return ops.convert_to_tensor(float("nan"), "float32")
        total, count = ops.convert_to_tensor(self.total), ops.convert_to_tensor(self.count)
        return ops.where(count > 0.0, total / ops.maximum(count, 1.0), float("nan"))


def check_orthogonality(weight: Any, scaling: Any) -> float:
    """The weight as a float; `ValueError` for a weight or a scaling that cannot be used."""
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not is_number or not is_finite(weight) or weight < 0:
        raise ValueError(
            "`orthogonality_weight` must be a number of at least 0, and finite. Received: "
            f"orthogonality_weight={weight!r}"
        )
    if not is_one_of(scaling, SCALINGS):
        raise ValueError(
            f"`orthogonality_scaling` must be one of {list(SCALINGS)}. Received: "
            f"orthogonality_scaling={scaling!r}"
        )
    return float(weight)
