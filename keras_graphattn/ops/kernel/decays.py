"""Exponential decay of attention with the distance between two tokens."""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import Sizes, optional, tensor
from keras_graphattn.numerics.precision import matmul

Tensor = Any


class Decay(NamedTuple):
    """A sum of exponentials sum_r c_r exp(-a_r |i - j|), per head.

    Example:

    >>> from keras_graphattn.ops.kernel.chunks import chunked_attention
    >>> ones, decay = np.ones((1, 3, 1, 1), "float32"), Decay(np.log(2.0) * np.ones((1, 1)))
    >>> sums = chunked_attention(ones, ones, ones, causal=True, decay=decay)
    >>> keras.ops.convert_to_numpy(sums).ravel().round(4).tolist()
    [1.0, 1.5, 1.75]
    """

    rates: Tensor  # (N, R), not negative
    weights: Tensor | None = None  # (N, R); 1 by default


def a_decay(name: str, value: Any, sizes: Sizes) -> Decay:
    """The rule of a `Decay`."""
    if not isinstance(value, Decay):
        raise ValueError(f"`{name}` must be a Decay of rates. Received: {name}={value!r}")
    rates = tensor("N R")(f"{name}.rates", value.rates, sizes)
    weights = optional(tensor("N R"))(f"{name}.weights", value.weights, sizes)
    return Decay(rates, weights)


def decay_matrix(decay: Decay, distance: Tensor) -> Tensor:
    """sum_r c_r exp(-a_r distance), of shape (N, *distance.shape)."""
    spread = (*decay.rates.shape, *[1] * len(distance.shape))
    powers = ops.exp(-ops.reshape(decay.rates, spread) * ops.cast(distance, decay.rates.dtype))
    if decay.weights is not None:
        powers = powers * ops.reshape(decay.weights, spread)
    return ops.sum(powers, axis=1)


def of_dtype(decay: Decay, dtype: Any) -> Decay:
    """The same decay in another dtype."""
    weights = None if decay.weights is None else ops.cast(decay.weights, dtype)
    return Decay(ops.cast(decay.rates, dtype), weights)


def decayed_product(query: Tensor, states: Tensor, decay: Decay | None, distance: Tensor) -> Tensor:
    """phi(Q) S, with the decay from the edge of the chunk to each token: (B, N, C, c, D)."""
    if decay is None:
        return matmul(query, states)
    if decay.rates.shape[1] > 1:
        return matmul(with_decays(query, decay.rates, distance, decay.weights), states)
    # With one decay it is a factor per row. Applied to the product, it can be fused with the sum
    # that follows, in one pass over memory.
    return with_decays(matmul(query, states), decay.rates, distance, decay.weights)


def with_decays(
    features: Tensor, rates: Tensor, distance: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Features times c_r exp(-a_r distance): (B, N, ..., c, m) -> (B, N, ..., c, R m)."""
    powers = ops.exp(-rates[:, :, None] * ops.cast(distance, rates.dtype))  # (N, R, c)
    if weights is not None:
        powers = powers * weights[:, :, None]
    between = [1] * (len(features.shape) - 4)
    powers = ops.reshape(powers, (*powers.shape[:2], *between, -1, 1))
    parts = [features * powers[:, r] for r in range(rates.shape[1])]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)
