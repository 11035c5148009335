"""The kernel of walks for batches where each example has its own walks, without its matrix.

Let F_l[v, i] be the fraction of walks from v that are at node i at step l. The product is the one
of `keras_graphattn.ops.graphs.walks`,

    M x = S F F^T S x,      F = sum_l decay^l F_l,      S = diag(1 / |f_v|^a)

Here each F_l is applied walk by walk. This takes O(walks length n) additions for each column of x,
and only the memory of the walks and of `length` signals.
"""

from typing import Any

from keras import ops

from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import pad, take
from keras_graphattn.ops.graphs.sparse import sum_rows
from keras_graphattn.ops.graphs.walks import scale_of_squares

Tensor = Any


def walk_product_of_batch(
    x: Tensor, decay: Tensor, walks: Tensor, normalization: float = 1.0
) -> Tensor:
    """M x for the kernel of each example's walks.

    Args:
        x: float32 tensor of shape (B, T, N, C).
        decay: Tensor of shape (N,): the decay of each head.
        walks: int32 tensor of shape (B, T, walks, length), between -1 and T - 1; -1 after the end
            of a walk.
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.

    Returns:
        A tensor of shape (B, T, N, C), with gradients for `x` and `decay`.

    Source: Choromanski et al., arXiv 2107.07999, Eq. 5 and Section 4.2.
    """
    number, length = walks.shape[2:]
    if normalization == 0.0:
        scale = 1.0
    else:
        squares = ops.cast(walk_squares_of_batch(walks), decay.dtype) / float(number**2)
        scale = scale_of_squares(squares, decay, normalization)[..., None]
    powers = decay[None] ** ops.arange(length, dtype=decay.dtype)[:, None]  # (L, N)
    powers = powers[None, :, None, :, None] / float(number)
    # Nodes as floats, because on some backends a custom gradient takes no integers.
    places = ops.cast(ops.transpose(walks, (2, 0, 3, 1)), "float32")  # (walks, B, L, T)
    total = ops.sum(powers * _visits(scale * x, places), axis=1, keepdims=True)
    return scale * _met(powers * total, places)


def walk_squares_of_batch(walks: Tensor) -> Tensor:
    """|f_v|^2 times the squared number of walks, as a polynomial of the decay.

    The coefficient of decay^k counts pairs of places in the walks of v, at steps l + l' = k, with
    the same node.

    Args:
        walks: int32 tensor of shape (B, T, walks, length), -1 after the end of a walk.

    Returns:
        The coefficients, a float32 tensor of shape (B, T, 2 length - 1).
    """
    batch, count = ops.shape(walks)[:2]
    number, length = walks.shape[2:]
    turns = ops.transpose(walks, (2, 0, 1, 3))  # (walks, B, T, L)

    def add(k: Any, total: Tensor) -> Tensor:
        walk = _entry(turns, k)  # (B, T, L)
        for step in range(length):
            node = walk[:, :, step, None, None]
            same = ops.logical_and(ops.equal(walks, node), node >= 0)
            pairs = ops.sum(ops.cast(same, "int32"), axis=2)
            total = total + pad(pairs, ((0, 0), (0, 0), (step, length - 1 - step)))
        return total

    total = ops.fori_loop(0, number, add, ops.zeros((batch, count, 2 * length - 1), "int32"))
    return ops.cast(total, "float32")


def _visits(x: Tensor, places: Tensor) -> Tensor:
    """F_l^T x times the number of walks, for every l: (B, T, N, C) -> (B, L, T, N, C)."""
    return _visits_with_gradient(x, places)[0]


def _met(x: Tensor, places: Tensor) -> Tensor:
    """The transpose of `_visits`, sum_l F_l x_l: (B, L, T, N, C) -> (B, T, N, C)."""
    return _met_with_gradient(x, places)[0]


def _sum_of_visits(x: Tensor, places: Tensor) -> Tensor:
    batch, count, heads, width = ops.shape(x)
    length = places.shape[2]
    rows = batch * length * count

    def add(k: Any, total: Tensor) -> Tensor:
        targets, known = _rows_of_walk(_entry(places, k))
        given = ops.where(known[..., None, None], x[:, None], 0.0)  # (B, L, T, N, C)
        return total + sum_rows(ops.reshape(given, (rows, heads, width)), targets, rows)

    total = ops.fori_loop(0, places.shape[0], add, ops.zeros((rows, heads, width), x.dtype))
    return ops.reshape(total, (batch, length, count, heads, width))


def _sum_of_met(x: Tensor, places: Tensor) -> Tensor:
    batch, length, count, heads, width = ops.shape(x)
    flat = ops.reshape(x, (batch * length * count, heads, width))

    def add(k: Any, total: Tensor) -> Tensor:
        sources, known = _rows_of_walk(_entry(places, k))
        found = ops.reshape(take(flat, sources, axis=0), (batch, length, count, heads, width))
        return total + ops.sum(ops.where(known[..., None, None], found, 0.0), axis=1)

    start = ops.zeros((batch, count, heads, width), x.dtype)
    return ops.fori_loop(0, places.shape[0], add, start)


def _rows_of_walk(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of a signal (B, L, T, ...) that one walk of each node visits.

    The second tensor is `False` after the end of a walk.
    """
    nodes = ops.cast(nodes, "int32")
    batch, length, count = ops.shape(nodes)
    start = ops.reshape(ops.arange(batch * length, dtype="int32") * count, (batch, length, 1))
    return ops.reshape(ops.maximum(nodes, 0) + start, (-1,)), nodes >= 0


def _entry(x: Tensor, k: Any) -> Tensor:
    return x[k] if isinstance(k, int) else take(x, k, axis=0)


_visits_with_gradient = FunctionWithGradient(
    lambda x, places: ((_sum_of_visits(x, places),), ()),
    lambda tensors, kept, upstream: (_sum_of_met(upstream[0], tensors[1]), None),
)
_met_with_gradient = FunctionWithGradient(
    lambda x, places: ((_sum_of_met(x, places),), ()),
    lambda tensors, kept, upstream: (_sum_of_visits(upstream[0], tensors[1]), None),
)
