"""The two sweeps over a forest by pointer doubling: ceil(log2(depth)) unrolled steps, no loop.

(I - N)^-1 = prod_k (I + N^(2^k)). Like N, N^(2^k) has one number per node: the product of the
decays to the ancestor 2^k edges up. The topology is either constant (`doubling_plan`), or tensors
that come with each batch (`doubling_plan_of_batch`).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from keras import ops

from keras_graphattn.checks import cached
from keras_graphattn.numerics.precision import at_least_float32, take
from keras_graphattn.ops.graphs.sparse import RowNumbers, sum_rows
from keras_graphattn.ops.trees.forests import Forest, jumps
from keras_graphattn.ops.trees.levels import Sweep, TreePlan, plan_in_order

Tensor = Any


def doubling_plan(forest: Forest) -> TreePlan:
    """Returns a plan of pointer doubling over a constant forest.

    Each step works only on the nodes that it moves.

    Example:

    >>> from keras_graphattn.ops.trees.forests import forest_from_parents
    >>> doubling_plan(forest_from_parents([-1, 0, 1])).has_parent.tolist()
    [False, True, True]
    """
    # For each k: the first node with an ancestor 2^k edges up, the end of these ancestors, and the
    # ancestors.
    steps = []
    for k, jump in enumerate(jumps(forest.parents, forest.depth)):
        start, end = int(forest.starts[2**k]), int(forest.starts[forest.height - 2**k + 1])
        steps.append((start, end, jump[start:]))
    further = [  # the same ancestors, counted from the first node of the step before
        RowNumbers(jump[later - start :] - start)
        for (start, _, jump), (later, _, _) in pairwise(steps)
    ]
    moves = [(start, end, RowNumbers(jump)) for start, end, jump in steps]

    def decays(decay: Tensor) -> list[Tensor]:
        found = [decay[steps[0][0] :]] if steps else []
        for ((start, _, _), (later, _, _)), jump in zip(pairwise(steps), further, strict=True):
            last = found[-1]
            found.append(last[later - start :] * jump.of(last))
        return found

    def up(x: Tensor, decay: Tensor) -> Tensor:
        for (start, end, jump), factor in zip(moves, decays(decay), strict=True):
            gathered = sum_rows(factor * x[start:], jump, end, ordered=True)
            x = ops.concatenate([x[:end] + gathered, x[end:]], axis=0)
        return x

    def down(x: Tensor, decay: Tensor) -> Tensor:
        for (start, _, jump), factor in zip(moves, decays(decay), strict=True):
            inherited = factor * jump.of(x)
            x = ops.concatenate([x[:start], x[start:] + inherited], axis=0)
        return x

    return plan_in_order(forest, up, down)


def flat_parents(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Joins the forests of a batch, parents (B, T) with -1 at roots, into one of B T nodes.

    Returns:
        The row of each node's parent, where a root names itself, and which nodes have a parent:
        (B T,) each.
    """
    batch, length = ops.shape(parents)
    parents = ops.cast(parents, "int32")
    nodes = ops.reshape(ops.arange(batch * length, dtype="int32"), (batch, length))
    first = nodes[:, :1]
    has_parent = parents >= 0
    rows = ops.where(has_parent, parents + first, nodes)
    return ops.reshape(rows, (-1,)), ops.reshape(has_parent, (-1,))


def doubling_plan_of_batch(parents: Tensor, edge_weights: Tensor | None, depth: int) -> TreePlan:
    """Returns a plan of pointer doubling over one forest per example.

    Args:
        parents: Integer tensor of shape (B, T), -1 at roots and padding.
        edge_weights: Optional tensor of shape (B, T); 1 by default.
        depth: The most ancestors of any node.

    Returns:
        A plan for B T nodes in the order of the batch.

    Example:

    >>> plan = doubling_plan_of_batch(np.array([[-1, 0, 0], [-1, 0, 1]]), None, depth=2)
    >>> keras.ops.convert_to_numpy(plan.parents).tolist()  # a root names itself
    [0, 0, 0, 3, 3, 4]
    """
    rows, has_parent = flat_parents(parents)
    weights = ops.cast(has_parent, "float32")
    if edge_weights is not None:
        weights = ops.where(has_parent, ops.reshape(at_least_float32(edge_weights), (-1,)), 0.0)

    of = _plan_of_rows(depth)
    tensors = (ops.cast(rows, weights.dtype),)
    plan = of(*tensors)
    return replace(plan, has_parent=has_parent, weights=weights, tensors=tensors, of=of)


@cached
def _plan_of_rows(depth: int) -> Callable[[Tensor], TreePlan]:
    """Returns the function from the rows of parents to the two sweeps, the same for one depth."""

    def of(rows_as_floats: Tensor) -> TreePlan:
        rows = ops.cast(rows_as_floats, "int32")
        tables = [rows]
        while 2 ** len(tables) <= depth:
            tables.append(take(tables[-1], tables[-1], axis=0))
        return TreePlan(None, None, rows, None, None, _sweep(tables, True), _sweep(tables, False))

    return of


def _sweep(tables: list[Tensor], upwards: bool) -> Sweep:
    """A sweep over all nodes, from their ancestors 1, 2, 4, ... edges up. Roots have decay 0."""

    def sweep(x: Tensor, decay: Tensor) -> Tensor:
        count = ops.shape(x)[0]
        for k, jump in enumerate(tables):
            if upwards:
                x = x + sum_rows(decay * x, jump, count)
            else:
                x = x + decay * take(x, jump, axis=0)
            if k + 1 < len(tables):  # the decay to the ancestor twice as far up
                decay = decay * take(decay, jump, axis=0)
        return x

    return sweep
