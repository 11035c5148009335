"""The orthogonality loss of AGF."""

from typing import Any

from keras_graphattn.checks import is_finite, is_one_of
from keras_graphattn.ops.singular.attention import (
    SCALINGS,
    orthogonality_penalty,
    right_singular_vectors,
)

Tensor = Any


def add_orthogonality(
    layer: Any,
    left: Tensor,
    logits: Tensor,
    query_mask: Tensor | None,
    source_mask: Tensor | None,
) -> None:
    """Adds the penalty on U and V of one call to the layer's losses.

    Args:
        layer: An `AttentiveGraphFilter`.
        left: The left singular vectors U, (B, T, N, H).
        logits: The logits of the right singular vectors V, (B, S, N, H).
        query_mask: Boolean tensor (B, T), `False` in padding.
        source_mask: Boolean tensor (B, S), `False` in padding.
    """
    right = right_singular_vectors(logits, source_mask)  # V, (B, S, N, H)
    penalty = orthogonality_penalty(left, query_mask, layer.orthogonality_scaling)
    penalty += orthogonality_penalty(right, source_mask, layer.orthogonality_scaling)
    layer.add_loss(layer.orthogonality_weight * penalty)


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
