"""Topologies that come with a batch, made safe for compiled code.

Compiled code cannot raise an error for a wrong number. So these functions keep every index within
its own example: a wrong index never changes another example of the batch. They also return which
examples hold a wrong entry. The masks put NaN into the outputs of only these examples.
"""

from typing import Any

from keras import backend, ops

from keras_graphattn.numerics.precision import largest, size_tensor, take, take_along
from keras_graphattn.ops.graphs.edge_lists import SAME_WEIGHT
from keras_graphattn.ops.graphs.sparse import sum_rows

Tensor = Any

NARROW = ("int8", "int16", "uint8", "uint16")
WIDEST_KEY = 46340  # the largest number whose square is below 2^31


def bounded_ids(ids: Tensor, low: int, high: Any) -> tuple[Tensor, Tensor]:
    """Returns ids in int32, and which of them satisfy low <= id < high. The others become -1.

    The ids are compared before the cast, because a cast can move a wide integer into the range.

    Args:
        ids: Integer tensor of any shape and type.
        low: The least valid id, -1 or below.
        high: The first id that is too large, a number or an integer tensor.

    Returns:
        An int32 tensor and a boolean tensor, both of the shape of `ids`.
    """
    dtype = backend.standardize_dtype(ids.dtype)
    if dtype in NARROW:
        ids, dtype = ops.cast(ids, "int32"), "int32"
    right = ids < size_tensor(high, dtype)
    if not dtype.startswith("uint"):
        right = ops.logical_and(right, ids >= ops.cast(low, dtype))
    known = ops.cast(ops.where(right, ids, ops.zeros_like(ids)), "int32")
    return ops.where(right, known, ops.cast(-1, "int32")), right


def any_of_example(entries: Tensor) -> Tensor:
    """Returns which examples have a `True` entry: (B, ...) -> (B,)."""
    return ops.any(entries, axis=tuple(range(1, len(entries.shape))))


def example_flags(flags: Tensor, like: Tensor) -> Tensor:
    """Adds axes of size 1 to flags (B,), so that they broadcast with `like`, (B, ...)."""
    return ops.reshape(flags, (-1, *[1] * (len(like.shape) - 1)))


def edges_once(
    edges: Tensor, edge_weights: Tensor | None, length: Any
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Returns each edge once, even if it is given several times or in both directions.

    Args:
        edges: int32 tensor of shape (B, E, 2), between -1 and T - 1; -1 marks padding.
        edge_weights: Optional tensor of shape (B, E).
        length: Number of nodes T.

    Returns:
        The sorted edges, smaller node first, where repeated edges are padding. Their weights: the
        mean of the given weights of an edge, so that each of these gets its part of the gradient.
        And which examples give one edge two different weights, (B,).
    """
    last = size_tensor(length, "int32")
    known = ops.all(edges >= 0, axis=-1)
    low = ops.where(known, ops.minimum(edges[..., 0], edges[..., 1]), last)
    high = ops.where(known, ops.maximum(edges[..., 0], edges[..., 1]), last)
    order = _order_of_pairs(low, high, length)
    low, high = (take_along(ends, order, axis=1) for ends in (low, high))
    again = ops.logical_and(
        ops.equal(low[:, 1:], low[:, :-1]), ops.equal(high[:, 1:], high[:, :-1])
    )
    again = ops.concatenate([ops.zeros_like(low[:, :1], dtype="bool"), again], axis=1)  # (B, E)
    known = low < last
    first = ops.logical_and(known, ops.logical_not(again))
    found = ops.where(first[..., None], ops.stack([low, high], axis=-1), ops.cast(-1, "int32"))
    if edge_weights is None:
        return found, None, ops.zeros_like(low[:, 0], dtype="bool")
    weights = ops.where(known, take_along(edge_weights, order, axis=1), 0.0)
    batch, count = ops.shape(low)
    start = ops.arange(batch, dtype="int32")[:, None] * count
    # the number of each edge's run of equal edges
    runs = ops.maximum(ops.cumsum(ops.cast(first, "int32"), axis=1) - 1, 0) + start
    runs = ops.reshape(runs, (-1,))
    sums = ops.stack([weights, ops.cast(known, weights.dtype)], axis=-1)  # (B, E, 2)
    sums = take(sum_rows(ops.reshape(sums, (-1, 2)), runs, batch * count), runs, axis=0)
    mean = ops.reshape(sums[:, 0] / ops.maximum(sums[:, 1], 1.0), (batch, count))
    before = ops.concatenate([weights[:, :1], weights[:, :-1]], axis=1)
    apart = ops.abs(weights - before) > SAME_WEIGHT * ops.maximum(weights, before)
    conflict = ops.logical_and(ops.logical_and(again, known), apart)
    return found, ops.where(first, mean, 1.0), any_of_example(conflict)


def _order_of_pairs(low: Tensor, high: Tensor, length: Any) -> Tensor:
    """Returns the places of the pairs (B, E) in sorted order; both are between 0 and `length`."""
    if isinstance(length, int) and length < WIDEST_KEY:
        return ops.argsort(low * (length + 1) + high, axis=1)
    order = ops.argsort(high, axis=1)
    later = ops.argsort(take_along(low, order, axis=1), axis=1)  # stable on all backends
    return take_along(order, later, axis=1)


def largest_eigenvalue_bound(
    edges: Tensor, edge_weights: Tensor | None, length: Any, operator: str
) -> Tensor:
    """Bounds each example's largest eigenvalue by the degrees of its edges' ends.

    Args:
        edges: int32 tensor of shape (B, E, 2), each edge once; -1 marks padding.
        edge_weights: Optional tensor of shape (B, E).
        length: Number of nodes T.
        operator: `"laplacian"`: the largest d_u + d_v; `"adjacency"`: the largest sqrt(d_u d_v).

    Returns:
        A float32 tensor of shape (B,); 0 for an example without edges.
    """
    batch, count = ops.shape(edges)[:2]
    known = ops.all(edges >= 0, axis=-1)
    weights = ops.cast(known, "float32")
    if edge_weights is not None:
        weights = ops.where(known, ops.cast(edge_weights, "float32"), 0.0)
    start = ops.arange(batch, dtype="int32")[:, None, None] * length
    ends = ops.reshape(ops.where(known[..., None], edges + start, start), (-1,))
    spread = ops.reshape(ops.repeat(weights, 2, axis=1), (-1,))
    degrees = take(sum_rows(spread, ends, batch * length), ends, axis=0)
    degrees = ops.reshape(degrees, (batch, count, 2))  # of both ends of each edge
    if operator == "adjacency":
        bounds = ops.sqrt(degrees[..., 0]) * ops.sqrt(degrees[..., 1])
    else:
        bounds = degrees[..., 0] + degrees[..., 1]
    return largest(ops.where(known, bounds, 0.0), axis=1)
