"""The coefficients of a layer's filter, and the filter's response curve."""

from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.filters import Filter, Polynomial
from keras_graphattn.filters.polynomial import polynomial_filter
from keras_graphattn.layers import AttentiveGraphFilter

Tensor = Any
Array = np.ndarray[Any, Any]
NAMES = ("theta_constant", "theta", "high_frequency_scale")  # weights that are not of a filter


class _Eigenvalues:
    """The operator that is one number at each point: x -> lambda x."""

    def __init__(self, points: Array) -> None:
        self.points = ops.convert_to_tensor(points.astype("float32")[None, :, None, None])

    def __call__(self, x: Tensor) -> Tensor:
        return self.points * x

    def solve(self, factor: Tensor, x: Tensor) -> Tensor:
        return x / (1.0 + factor * self.points)


def filter_holder(layer: Any) -> Any:
    """The object whose attribute `filter` is a filter of the layer's A; `None` without one."""
    for holder in (layer, getattr(layer, "settings", None)):
        if isinstance(getattr(holder, "filter", None), Filter):
            return None if isinstance(layer, AttentiveGraphFilter) else holder
    return None


def coefficients_of(layer: Any) -> dict[str, Array]:
    """The filter's learned coefficients of a layer by name, each (..., N) or one number."""
    names = [*getattr(layer, "_coefficient_names", ()), *NAMES]
    found = {name: getattr(layer, name, None) for name in names}
    return {
        name: np.asarray(ops.convert_to_numpy(ops.cast(weight, "float32")), "float64")
        for name, weight in found.items()
        if weight is not None
    }


def filter_curve(layer: Any, count: int = 101) -> tuple[Array, Array] | None:
    """The response of a layer's filter at each eigenvalue: the filter of the number lambda.

    A filter is a function of an operator. At an eigenvalue lambda of A, the operator is the number
    lambda, and H(A) is the number h(lambda). The eigenvalues of attention matrices have at most
    the modulus 1, so lambda goes from -1 to 1. For an `AttentiveGraphFilter` the curve is that of
    g(S), whose singular values go from 0 to 1.

    Args:
        layer: A built layer.
        count: The number of points.

    Returns:
        The points, of shape (count,), and the responses, of shape (heads, count); `None` for a
        layer without a filter. An AttentiveGraphFilter has one curve for all heads.

    Source: Choi et al., arXiv 2312.04234, Eq. 4-6; Wi et al., arXiv 2505.08516, Eq. 22-26.
    """
    holder = filter_holder(layer)
    if holder is not None:
        return _sampled(layer, holder.filter, np.linspace(-1.0, 1.0, count))
    if not isinstance(layer, AttentiveGraphFilter) or not isinstance(layer.filter, Filter):
        return None
    points = np.linspace(0.0, 1.0, count)
    if not isinstance(layer.filter, Polynomial):
        return _sampled(layer, layer.filter, points)
    theta = np.tanh(coefficients_of(layer)["theta"])
    constant = coefficients_of(layer).get("theta_constant")
    first = 1.0 if constant is None else np.tanh(constant)
    weights = np.concatenate([np.reshape(first, (1,)), theta]).astype("float32")
    answer = polynomial_filter(
        _Eigenvalues(points),
        ops.ones((1, count, 1, 1)),
        ops.convert_to_tensor(weights[:, None, None]),
        layer.filter.recurrence(),
    )
    return points, np.asarray(ops.convert_to_numpy(answer), "float64")[0, :, :, 0].T


def _sampled(layer: Any, filter: Filter, points: Array) -> tuple[Array, Array]:
    heads = max(array.shape[-1] for array in coefficients_of(layer).values())
    ones = ops.ones((1, len(points), heads, 1))  # (B, T, N, H): one point for each token
    answer = layer.filtered(filter, _Eigenvalues(points), ones)
    return points, np.asarray(ops.convert_to_numpy(answer), "float64")[0, :, :, 0].T
