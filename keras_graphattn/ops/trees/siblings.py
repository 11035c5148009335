"""Sums over the siblings of each node without a subtraction, for masks that grow with distance.

The children of one node are next to each other. There is one sum over the siblings before a node
and one over those after it; each step doubles their reach.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.numerics.precision import size_tensor, take
from keras_graphattn.ops.trees.levels import TreePlan

Tensor = Any


def sums_of_siblings(x: Tensor, plan: TreePlan) -> Tensor:
    """The sum of `x` over the other children of each node's parent; 0 for roots.

    Args:
        x: Tensor of shape (rows, N, C), in the layout of the plan.
        plan: The plan of a forest, or of the forests of a batch.
    """
    count = ops.shape(x)[0]
    places = ops.arange(count, dtype="int32")
    parents = ops.cast(ops.convert_to_tensor(plan.parents), "int32")
    has_parent = ops.not_equal(parents, places) if plan.has_parent is None else plan.has_parent
    family = ops.where(has_parent, parents, count + places)  # (rows,); a root has its own family
    if plan.position is not None:
        largest = int(np.bincount(plan.parents[plan.has_parent], minlength=1).max())
        return _sums_of_others(x, family, largest)
    order = ops.argsort(family)
    largest = count if isinstance(count, int) else 2**24
    found = _sums_of_others(take(x, order, axis=0), take(family, order, axis=0), largest)
    return take(found, ops.argsort(order), axis=0)


def _sums_of_others(x: Tensor, family: Tensor, largest: int) -> Tensor:
    """The sum over the other rows of the same family; rows of a family are consecutive."""
    count = ops.shape(x)[0]
    places, last = ops.arange(count, dtype="int32"), size_tensor(count - 1, "int32")

    def moved(x: Tensor, step: int) -> Tensor:
        source = ops.minimum(ops.maximum(places - step, 0), last)
        same = ops.equal(take(family, source, axis=0), family)
        same = ops.logical_and(same, ops.equal(source, places - step))
        return ops.where(same[:, None, None], take(x, source, axis=0), ops.cast(0.0, x.dtype))

    sides = []
    for sign in (1, -1):
        side, step = moved(x, sign), 1
        while step < largest - 1:
            side = side + moved(side, sign * step)
            step *= 2
        sides.append(side)
    return sides[0] + sides[1]
