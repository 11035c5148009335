"""The orthogonality loss of AGF, and a metric of it that `fit` shows on every backend."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks.arguments import is_finite, is_one_of
from keras_graphattn.ops.singular.attention import (
    SCALINGS,
    orthogonality_penalty,
    right_singular_vectors,
)

Tensor = Any


class OrthogonalityMetric(keras.metrics.Mean):  # type: ignore[misc]
    """Mean over training batches of a layer's orthogonality penalty, before its weight.

    On JAX, values that a layer's call writes to a metric's variables are lost. There the two sums
    are state of the layer (`layer_state`): like seeds, they are in the layer's `variables` but not
    in its `weights`. The metric then has no variables.

    The result is NaN if nothing was measured: in `evaluate`, and on JAX before the end of an
    epoch.
    """

    @property
    def variables(self) -> list[Any]:
        return [] if keras.backend.backend() == "jax" else list(super().variables)

    @property
    def layer_state(self) -> list[Any]:
        """State that the layer holds on JAX: the sum of penalties and their number. Else empty."""
        return list(super().variables) if keras.backend.backend() == "jax" else []

    def result(self) -> Any:
        if is_detached(self.total):
            return ops.convert_to_tensor(float("nan"), "float32")
        total, count = ops.convert_to_tensor(self.total), ops.convert_to_tensor(self.count)
        return ops.where(count > 0.0, total / ops.maximum(count, 1.0), float("nan"))


def is_detached(variable: Any) -> bool:
    """Whether the variable has no value now: on JAX, `fit` holds values outside during an epoch."""
    return variable._value is None


def add_orthogonality(
    layer: Any,
    left: Tensor,
    logits: Tensor,
    query_mask: Tensor | None,
    source_mask: Tensor | None,
    training: bool | None,
) -> None:
    """Adds the penalty on U and V of one call to the layer's losses, and to its metric.

    Args:
        layer: An `AttentiveGraphFilter`.
        left: The left singular vectors U, (B, T, N, H).
        logits: The logits of the right singular vectors V, (B, S, N, H).
        query_mask: Boolean tensor (B, T), `False` in padding.
        source_mask: Boolean tensor (B, S), `False` in padding.
        training: The metric counts calls in training only.
    """
    right = right_singular_vectors(logits, source_mask)  # V, (B, S, N, H)
    penalty = orthogonality_penalty(left, query_mask, layer.orthogonality_scaling)
    penalty += orthogonality_penalty(right, source_mask, layer.orthogonality_scaling)
    layer.add_loss(layer.orthogonality_weight * penalty)
    if training and layer._orthogonality is not None:
        # the metric must not keep the gradient of the step
        layer._orthogonality.update_state(ops.stop_gradient(penalty))


def check_orthogonality(weight: Any, scaling: Any) -> float:
    """Returns the weight as a float. Raises a `ValueError` for an invalid weight or scaling."""
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
