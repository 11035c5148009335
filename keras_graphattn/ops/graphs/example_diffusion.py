"""Functions of the operators of graphs that come with a batch, one graph per example.

The operator is made of tensors, which may get gradients, so the terms of its series are unrolled.
The products go along the edges. The matrices come from powers of the operator, (B, T, T): all heads
share them, because heads differ only in the coefficients of their series.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from keras import ops

from keras_graphattn.numerics.precision import largest, take
from keras_graphattn.ops.graphs.heat import (
    SeriesSizes,
    decay_of,
    over_whole_time,
)
from keras_graphattn.ops.graphs.sparse import sum_rows

Tensor = Any

TERMS_AT_A_TIME = 8  # of a series, kept together while they are multiplied by their coefficients


def graph_operator_of_batch(
    edges: Tensor,
    edge_weights: Tensor | None,
    length: Any,
    operator: str,
    dtype: str = "float32",
) -> "OperatorOfBatch":
    """Returns x -> S x for one graph per example, from tensors.

    Args:
        edges: Integer tensor of shape (B, E, 2), each edge once; -1 marks padding.
        edge_weights: Optional positive tensor of shape (B, E); 1 by default.
        length: Number of nodes T of each example.
        operator: `"laplacian"`, `"normalized_laplacian"` or `"adjacency"`.
        dtype: The dtype of the operator's numbers.

    Returns:
        The operator, a function of tensors (B T, N, C).
    """
    batch = ops.shape(edges)[0]
    count = batch * length
    edges = ops.cast(edges, "int32")
    known = ops.all(edges >= 0, axis=-1)
    first = ops.arange(batch, dtype="int32")[:, None, None] * length
    ends = ops.reshape(ops.where(known[..., None], edges + first, 0), (-1, 2))  # (B E, 2)
    weights = ops.cast(known, dtype)
    if edge_weights is not None:
        weights = ops.where(known, ops.cast(edge_weights, dtype), 0.0)
    weights = ops.tile(ops.reshape(weights, (-1,)), 2)
    sources = ops.concatenate([ends[:, 0], ends[:, 1]], axis=0)
    targets = ops.concatenate([ends[:, 1], ends[:, 0]], axis=0)  # (2 B E,): both directions
    degrees = sum_rows(weights, targets, count)  # (B T,)
    if operator == "normalized_laplacian":
        isolated = degrees <= 0.0
        scale = ops.where(isolated, 0.0, ops.rsqrt(ops.where(isolated, 1.0, degrees)))
        weights = weights * take(scale, sources, axis=0) * take(scale, targets, axis=0)
        degrees = ops.cast(ops.logical_not(isolated), dtype)

    def neighbours(x: Tensor) -> Tensor:
        carried = weights[:, None, None] * take(x, sources, axis=0)
        return sum_rows(carried, targets, count)

    return OperatorOfBatch(neighbours, None if operator == "adjacency" else degrees)


@dataclass(frozen=True, eq=False)
class OperatorOfBatch:
    """x -> S x for one graph per example, in two parts.

    Attributes:
        neighbours: x -> the weighted sum over neighbours, for tensors (B T, N, C).
        diagonal: The diagonal of a Laplacian, (B T,): S x = diagonal x - neighbours(x). `None` for
            an adjacency matrix: S x = neighbours(x).
    """

    neighbours: Callable[[Tensor], Tensor]
    diagonal: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        found = self.neighbours(x)
        return found if self.diagonal is None else self.diagonal[:, None, None] * x - found

    def matrix(self, batch: Any, length: Any, dtype: str) -> Tensor:
        """`neighbours` as a matrix for each of B examples of T nodes, (B, T, T)."""
        units = ops.broadcast_to(
            ops.eye(length, dtype=dtype)[None, :, None], (batch, length, 1, length)
        )
        found = self.neighbours(ops.reshape(units, (batch * length, 1, length)))
        return ops.reshape(found, (batch, length, length))


def exponential_product_of_batch(
    x: Tensor, time: Tensor, operator: OperatorOfBatch, length: Any, sizes: SeriesSizes
) -> Tensor:
    """exp(t S) x for one graph per example. It is unrolled: weights get gradients too.

    Args:
        x: Tensor of shape (B T, N, C).
        time: Tensor of shape (N,).
        operator: The operator from `graph_operator_of_batch`.
        length: Number of nodes T of each example.
        sizes: The sizes from `series_sizes`, for the largest radius that an example can have.

    Returns:
        A tensor of the shape of `x`.
    """
    time = time / sizes.parts
    shift, rest = ops.zeros((1, 1), x.dtype), None
    if operator.diagonal is not None:
        degree = largest(ops.reshape(operator.diagonal, (-1, length)), axis=1, keepdims=True)
        shift = ops.stop_gradient(degree) + ops.zeros((1, length), x.dtype)
        shift = ops.reshape(shift, (-1, 1))  # (B T, 1): c of each example, for each of its nodes
        rest = (shift - operator.diagonal[:, None])[:, :, None]
    decay = decay_of(time[None, :], shift, sizes.longest / sizes.parts)[:, :, None]
    for _ in range(sizes.parts):
        total = x
        for order in range(sizes.terms, 0, -1):
            image = operator.neighbours(total)
            image = image if rest is None else image + rest * total
            total = x + (time / order)[None, :, None] * image
        x = decay * total
    return x


def exponential_matrix_of_batch(
    time: Tensor, operator: OperatorOfBatch, batch: Any, length: Any, sizes: SeriesSizes
) -> Tensor:
    """exp(t S) for one graph per example, with gradients for times and weights.

    With B = S + c I and the longest time u, it is sum_k (t / u)^k (u B)^k / k!, and e^(-c t). Only
    the first factor depends on the head.

    Args:
        time: Tensor of shape (N,).
        operator: The operator from `graph_operator_of_batch`.
        batch: Number of examples B.
        length: Number of nodes T of each example.
        sizes: The sizes from `series_sizes`, for the largest radius that an example can have.

    Returns:
        A tensor of shape (B, N, T, T).
    """
    identity = ops.eye(length, dtype=time.dtype)
    positive, shift = operator.matrix(batch, length, time.dtype), ops.zeros((1, 1), time.dtype)
    if operator.diagonal is not None:
        diagonal = ops.reshape(operator.diagonal, (batch, length))
        shift = ops.stop_gradient(largest(diagonal, axis=1, keepdims=True))
        positive = positive + (shift - diagonal)[:, :, None] * identity
    positive = (sizes.longest / sizes.parts) * positive

    def powers() -> Iterator[Tensor]:
        power = identity + ops.zeros_like(positive)
        yield power
        for order in range(1, sizes.terms + 1):
            power = positive if order == 1 else power @ positive / order
            yield power

    shares = (time / sizes.longest) ** ops.arange(sizes.terms + 1, dtype=time.dtype)[:, None]
    return over_whole_time(_weighted_sum(powers(), shares), time, shift, sizes)


def spectral_product_of_batch(
    x: Tensor, coefficients: Tensor, apply: Callable[[Tensor], Tensor], low: Any, high: Any
) -> Tensor:
    """sum_k c_k T_k(S') x for one graph per example. It is unrolled: weights get gradients too.

    Args:
        x: Tensor of shape (rows, N, C).
        coefficients: Tensor of shape (terms, N), at least 2 terms.
        apply: x -> S x.
        low: Lower end of an interval that contains the eigenvalues.
        high: Upper end.

    Returns:
        A tensor of the shape of `x`.
    """
    scale, middle = 2.0 / (high - low), (high + low) / 2.0
    before, now = x, scale * (apply(x) - middle * x)
    total = coefficients[0][:, None] * before + coefficients[1][:, None] * now
    for k in range(2, coefficients.shape[0]):
        before, now = now, 2.0 * scale * (apply(now) - middle * now) - before
        total = total + coefficients[k][:, None] * now
    return total


def spectral_matrix_of_batch(
    coefficients: Tensor, operator: OperatorOfBatch, batch: Any, length: Any, low: Any, high: Any
) -> Tensor:
    """sum_k c_k T_k(S') for one graph per example, with gradients for coefficients and weights.

    Args:
        coefficients: Tensor of shape (terms, N), at least 2 terms.
        operator: The operator from `graph_operator_of_batch`.
        batch: Number of examples B.
        length: Number of nodes T of each example.
        low: Lower end of an interval that contains the eigenvalues.
        high: Upper end.

    Returns:
        A tensor of shape (B, N, T, T).
    """
    identity = ops.eye(length, dtype=coefficients.dtype)
    matrix = operator.matrix(batch, length, coefficients.dtype)
    if operator.diagonal is not None:
        diagonal = ops.reshape(operator.diagonal, (batch, length))
        matrix = diagonal[:, :, None] * identity - matrix
    scaled = 2.0 / (high - low) * (matrix - (high + low) / 2.0 * identity)

    def polynomials() -> Iterator[Tensor]:
        now, following = identity + ops.zeros_like(scaled), scaled
        while True:
            yield now
            now, following = following, 2.0 * scaled @ following - now

    return _weighted_sum(polynomials(), coefficients)


def _weighted_sum(terms: Iterator[Tensor], coefficients: Tensor) -> Tensor:
    """sum_k c_k X_k for each head, (B, N, T, T), of terms (B, T, T); some of them at a time."""
    total, count = 0.0, coefficients.shape[0]
    for start in range(0, count, TERMS_AT_A_TIME):
        of_these = coefficients[start : start + TERMS_AT_A_TIME]
        some = ops.stack(list(islice(terms, of_these.shape[0])))
        total = total + ops.einsum("kbvw,kn->bnvw", some, of_these)
    return total
