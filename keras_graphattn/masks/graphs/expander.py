"""Random cycles through all nodes: a few of them together are an expander graph.

The order of a cycle is that of a hash of the nodes' numbers. So it needs no table, compiled code
can draw it for any length, and padding changes nothing: a cycle goes on from the last node that is
not padding to the first one.

Source: Shirzad et al., arXiv 2303.06147, Section 4: random regular graphs made of Hamiltonian
cycles. The second largest eigenvalue of such a graph is near the least possible, as for random
permutations.
"""

import numpy as np
from keras import ops

from keras_graphattn.masks.inputs import Length
from keras_graphattn.numerics.precision import order_of, positions_of, size_tensor, take_along
from keras_graphattn.types import Bool, Int, Tensor

BEHIND = 2**31 - 1  # larger than every key of a node


Cycles = list[tuple[int, int, int]]  # what the hash of each cycle is made of


def cycles_of_seed(count: int, seed: int) -> Cycles:
    """Random numbers for `count` cycles."""
    numbers = np.random.default_rng(seed).integers(0, 2**31 - 1, (count, 3))
    return [(factor, start, step) for factor, start, step in numbers.tolist()]


def random_cycles(
    cycles: Cycles, length: Length, nodes: Bool[Tensor, "B T"] | None = None
) -> Int[Tensor, "B? E 2"]:
    """The edges of cycles, each in both directions; -1 in padding.

    Args:
        cycles: The result of `cycles_of_seed`.
        length: Number T of nodes.
        nodes: Optional booleans (B, T); `False` marks padding, which is in no cycle.
    """
    count = size_tensor(length, "int32")
    edges = [_cycle(_keys(length, *numbers)[None], count, nodes) for numbers in cycles]
    return ops.concatenate([*edges, *(ops.flip(one, axis=-1) for one in edges)], axis=1)


def _keys(length: Length, factor: int, start: int, step: int) -> Int[Tensor, " T"]:
    """Integers of at most 31 bits that look random, different for nearly all nodes.

    Arithmetic is modulo 2^32, where x -> x (2 x + 1) is one to one.
    """
    x = positions_of(length) * (factor | 1) + start
    x = x * (2 * x + 1) + step
    return x * (2 * x + 1) // 2


def _cycle(
    keys: Int[Tensor, "1 T"], count: Int[Tensor, ""], nodes: Bool[Tensor, "B T"] | None
) -> Int[Tensor, "B? T 2"]:
    """The edge from each node to the next one in the order of the keys."""
    if nodes is not None:
        keys = ops.where(nodes, keys, BEHIND)
        count = ops.sum(ops.cast(nodes, "int32"), axis=1, keepdims=True)
    order = ops.cast(order_of(keys, axis=1), "int32")
    places = positions_of(ops.shape(order)[1])[None]
    following = take_along(order, ops.where(places + 1 < count, places + 1, 0), axis=1)
    is_edge = ops.logical_and(places < count, ops.not_equal(order, following))[..., None]
    return ops.where(is_edge, ops.stack([order, following], axis=-1), ops.cast(-1, "int32"))
