"""The two sweeps over a forest, level by level: unrolled for bushy trees, scanned for deep ones.

With N[i, parent(i)] = g_i, the sweeps are x -> (I - N)^-T x (up: each node sums over its subtree)
and x -> (I - N)^-1 x (down: each node sums over its ancestors). See `ops.trees.exponential`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.graphs.sparse import RowNumbers, sum_rows
from keras_graphattn.ops.trees.forests import Array, Forest

Tensor = Any
Sweep = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TreePlan:
    """A layout of the nodes of a forest, and the two sweeps over it.

    Attributes:
        order: The node in each row of the layout, (rows,); `None` if no node is moved.
        position: The row of each node, (n,); `None` if no node is moved.
        parents: The row of the parent, (rows,); any row for a node without a parent.
        has_parent: Booleans of shape (rows,).
        weights: Weight of the edge to the parent, (rows,); 0 for a node without a parent.
        up: x (rows, N, C), g (rows, N, 1) -> (I - N)^-T x.
        down: The same for (I - N)^-1 x.
        tensors: For a topology that comes with a batch: float32 tensors that describe all of it. A
            custom gradient takes them as arguments, because some backends lose captured tensors in
            rematerialisation.
        of: `tensors` -> a plan with the same sweeps. It is the same function for equal settings, so
            that compiled products can be stored by function.
    """

    order: Any
    position: Any
    parents: Any
    has_parent: Any
    weights: Any
    up: Sweep
    down: Sweep
    tensors: tuple[Tensor, ...] = ()
    of: Callable[..., "TreePlan"] | None = None


def plan_in_order(forest: Forest, up: Sweep, down: Sweep) -> TreePlan:
    """Returns a plan whose rows are in the forest's breadth-first order."""
    return TreePlan(
        forest.order.astype("int32"),
        forest.position.astype("int32"),
        forest.parents.astype("int32"),
        forest.depth > 0,
        forest.weights,
        up,
        down,
    )


def level_plan(forest: Forest) -> TreePlan:
    """Returns a plan of unrolled levels without padding: O(n) work, one step per level.

    Example:

    >>> from keras_graphattn.ops.trees.forests import forest_from_parents
    >>> level_plan(forest_from_parents([-1, 0, 0])).order.tolist()
    [0, 1, 2]
    """
    levels = []
    for level in range(forest.height + 1):
        start, end = (int(i) for i in forest.starts[level : level + 2])
        above = int(forest.starts[level - 1]) if level else 0
        levels.append((start, end, RowNumbers(forest.parents[start:end] - above)))

    def up(x: Tensor, decay: Tensor) -> Tensor:
        start, end, targets = levels[-1]
        found = [x[start:end]]
        for start, end, next_targets in levels[-2::-1]:
            carried = decay[end : end + len(targets)] * found[-1]
            found.append(x[start:end] + sum_rows(carried, targets, end - start, ordered=True))
            targets = next_targets
        return ops.concatenate(found[::-1], axis=0)

    def down(x: Tensor, decay: Tensor) -> Tensor:
        found = [x[: levels[0][1]]]
        for start, end, sources in levels[1:]:
            inherited = decay[start:end] * sources.of(found[-1])
            found.append(x[start:end] + inherited)
        return ops.concatenate(found, axis=0)

    return plan_in_order(forest, up, down)


def scan_plan(forest: Forest) -> TreePlan:
    """Returns a plan of `keras.ops.scan` over padded levels, for deep and narrow trees.

    Example:

    >>> from keras_graphattn.ops.trees.forests import forest_from_parents
    >>> scan_plan(forest_from_parents([-1, 0, 0])).position.tolist()  # levels padded to two nodes
    [0, 2, 3]
    """
    height, width = forest.height + 1, forest.widest
    rows = forest.depth * width + (np.arange(forest.size) - forest.starts[forest.depth])

    def in_layout(values: Array) -> Array:
        found = np.zeros(height * width, values.dtype)
        found[rows] = values
        return found

    parents = in_layout(rows[forest.parents]).astype("int32")
    inside = np.reshape(parents % width, (height, width)).astype("int32")  # in the parents' level
    filled = in_layout(np.ones(forest.size, "bool"))[:, None, None]

    def by_level(x: Tensor) -> Tensor:
        # Padding repeats a node. Its value must not reach another tree, not even as NaN times 0.
        x = ops.where(ops.convert_to_tensor(filled), x, ops.cast(0.0, x.dtype))
        return ops.reshape(x, (height, width, *ops.shape(x)[1:]))  # (levels, nodes, N, C)

    def up(x: Tensor, decay: Tensor) -> Tensor:
        def step(carried: Tensor, level: Any) -> Any:
            x, decay, targets = level
            found = x + carried
            return sum_rows(decay * found, targets, width), found

        levels = by_level(x), by_level(decay), ops.convert_to_tensor(inside)
        _, found = ops.scan(step, ops.zeros_like(levels[0][0]), levels, reverse=True)
        return ops.reshape(found, ops.shape(x))

    def down(x: Tensor, decay: Tensor) -> Tensor:
        def step(above: Tensor, level: Any) -> Any:
            x, decay, sources = level
            found = x + decay * take(above, sources, axis=0)
            return found, found

        levels = by_level(x), by_level(decay), ops.convert_to_tensor(inside)
        _, found = ops.scan(step, ops.zeros_like(levels[0][0]), levels)
        return ops.reshape(found, ops.shape(x))

    return TreePlan(
        in_layout(forest.order).astype("int32"),
        rows[forest.position].astype("int32"),
        parents,
        in_layout(forest.depth) > 0,
        in_layout(forest.weights),
        up,
        down,
    )
