"""The weights of p-Laplacian attention: softmax times a power of the distance of the values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import Sizes, cached, checked, flag, mask, number, optional, tensor
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import finite_scores, masked_softmax
from keras_graphattn.ops.softmax.distances import pair_distances
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any
Tensors = tuple[Tensor, ...]

MOST_EPSILON = 1e19  # its square is the largest that float32 holds
LEAST_SHARE = 1.0 / 16.0  # times the exponent: an error of 1e-6 or so in the weight


def exponents(name: str, value: Any, sizes: Sizes) -> list[float]:
    """The rule of p: one number of at least 1 for each head."""
    numbers = value if isinstance(value, (list, tuple)) or np.ndim(value) == 1 else ()
    heads = sizes["N"][0] if "N" in sizes else len(numbers)
    if not len(numbers) or len(numbers) != heads:
        raise ValueError(
            f"`{name}` must be a list of numbers of at least 1, one for each of {heads} heads. "
            f"Received: {name}={value!r}"
        )
    return [float(number(least=1.0)(name, one, sizes)) for one in numbers]


def value_pair(name: str, value: Any, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The rule of the values of rows and of columns."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"`{name}` must be those of rows and of columns. Received: {value!r}")
    rows = tensor("B T N D")(f"{name}[0]", value[0], sizes)
    return rows, tensor("B S N D")(f"{name}[1]", value[1], sizes)


@checked(
    scores=tensor("B N T S"),
    values=value_pair,
    p=exponents,
    mask=optional(mask("B? N? T? S?")),
    diagonal=mask("T S"),
    epsilon=number(above=0.0, below=MOST_EPSILON),
    drop_diagonal=flag,
    centre=optional(tensor("B 1 N D")),
)
def p_laplacian_weights(
    scores: Tensor,
    values: tuple[Tensor, Tensor],
    p: Sequence[float],
    mask: Tensor | None,
    diagonal: Tensor,
    *,
    epsilon: float,
    drop_diagonal: bool,
    centre: Tensor | None = None,
) -> Tensor:
    """The re-weighted matrix of some query rows: softmax times distance to the power p - 2.

    Args:
        scores: Scaled logits of shape (B, N, T, S).
        values: Values of the rows, (B, T, N, D), and of the columns, (B, S, N, D).
        p: One exponent for each of the N heads.
        mask: Optional boolean tensor that broadcasts to `scores`.
        diagonal: Boolean tensor of shape (T, S): where row and column are the same token.
        epsilon: Smoothing length of the distances, greater than 0.
        drop_diagonal: Whether heads with p != 2 get zeros on the diagonal.
        centre: Optional tensor of shape (B, 1, N, D) near the values, of what every row may see.
            It changes no weight; with it, values far from 0 take no longer than others.

    Returns:
        A float32 tensor of shape (B, N, T, S). Masked entries are exactly 0.

    Example:

    >>> values = keras.random.normal((1, 3, 1, 2))
    >>> weights = p_laplacian_weights(
    ...     np.zeros((1, 1, 3, 3), "float32"), (values, values), [2.0], None, np.eye(3, dtype=bool),
    ...     epsilon=0.1, drop_diagonal=False,
    ... )
    >>> softmax = keras.ops.convert_to_numpy(weights)[0, 0, 0]  # as p = 2
    >>> softmax.astype(float).round(4).tolist()
    [0.3333, 0.3333, 0.3333]
    """
    scores = finite_scores(scores)
    exponents = ops.reshape(
        ops.convert_to_tensor([(x - 2) / 2 for x in p], scores.dtype), (-1, 1, 1)
    )
    re_weighted = ops.convert_to_tensor([x != 2.0 for x in p])[:, None, None]
    apart = ops.logical_not(ops.cast(diagonal, "bool"))  # tokens that are not the same
    if 2.0 in p:
        apart = ops.logical_and(apart, re_weighted)
    relevant = all_of(apart, mask)
    distances = pair_distances(
        *values,
        ops.abs(exponents[:, 0]) * LEAST_SHARE,
        smoothing=epsilon**2,
        relevant=relevant,
        centre=centre,
    )
    weights = _re_weighted(scores, distances, exponents, relevant, mask, epsilon**2)
    if not drop_diagonal:
        return weights
    dropped = ops.logical_and(re_weighted, ops.cast(diagonal, "bool"))
    return ops.where(dropped, ops.cast(0.0, weights.dtype), weights)


def _re_weighted(
    scores: Tensor,
    distances: Tensor,
    exponents: Tensor,
    relevant: Tensor,
    mask: Tensor | None,
    least: float,
) -> Tensor:
    """softmax(scores) * distances^exponents, with `least` for those that are not `relevant`."""
    masks = [] if mask is None else [mask]
    (weights,) = _reweighted(least)(scores, distances, exponents, relevant, *masks)
    return weights


@cached
def _reweighted(least: float) -> FunctionWithGradient:
    return FunctionWithGradient(
        lambda *tensors: _value_of_weights(least, *tensors), _gradient_of_weights
    )


def _value_of_weights(
    least: float,
    scores: Tensor,
    distances: Tensor,
    exponents: Tensor,
    relevant: Tensor,
    *masks: Tensor,
) -> tuple[Tensors, Tensors]:
    softmax = masked_softmax(scores, *masks)
    distances = ops.where(relevant, distances, ops.cast(least, distances.dtype))
    weights = softmax * ops.exp(exponents * ops.log(distances))
    return (weights,), (softmax, weights, distances)


def _gradient_of_weights(
    tensors: Tensors, kept: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    softmax, weights, distances = kept
    _, _, exponents, relevant, *masks = tensors
    products = upstream[0] * weights
    to_scores = products - softmax * ops.sum(products, axis=-1, keepdims=True)
    slopes = ops.where(relevant, exponents, ops.cast(0.0, exponents.dtype)) / distances
    return to_scores, products * slopes, None, None, *(None for _ in masks)
