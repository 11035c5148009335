"""Trees with f(z) = exp(a z + b): the product with [f(dist(i, j))] in two sweeps, O(n).

Let N[i, parent(i)] = g_i = exp(a w_i) (0 at roots) and L = (I - N)^-1. A sweep up gives s, the sum
over the subtree of each node i. A sweep down gives o, the sum over all other nodes, seen from the
parent p of i:

    s = L^T x,      o_i = (s_p - g_i s_i) + g_p o_p,      M x = s + g o

The operator is symmetric. So its backward pass is the same two sweeps over the cotangent y', which
give s' and o'. Then

    dg_i = s'_i . o_i + s_i . o'_i

gives the gradients of a, of b and of edge weights. No backend needs to differentiate a scan. For
positive x all terms are positive, so each row is exact on its own: see `_sweeps`.

Source: Choromanski et al., arXiv 2107.07999, Lemma 3.5. Our additions: whole forests at once, and
the gradient.
"""

from functools import partial
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import checked, instance, one_of, optional, tensor
from keras_graphattn.numerics.blocks import where_needed
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, kept_with
from keras_graphattn.numerics.precision import take
from keras_graphattn.ops.trees.choice import sweep_path, way_of_running
from keras_graphattn.ops.trees.doubling import doubling_plan
from keras_graphattn.ops.trees.forests import Array, Forest
from keras_graphattn.ops.trees.levels import TreePlan, level_plan, scan_plan
from keras_graphattn.ops.trees.siblings import sums_of_siblings

Tensor = Any
Tensors = tuple[Tensor, ...]

PLANS = {"levels": level_plan, "scan": scan_plan, "doubling": doubling_plan}


def check_exponents(rate: Array, offset: Array, farthest: float, dtype: str) -> None:
    """Raises a `ValueError` if exp(a z + b) is too large for the dtype at some distance z."""
    largest = np.maximum(rate, 0.0) * farthest
    limit = 640.0 if dtype == "float64" else 80.0
    if (np.maximum(largest, largest + offset) > limit).any():
        raise ValueError(
            f"exp(a z + b) overflows: a z, b and their sum must stay below {limit:g} for all "
            f"distances z, here up to {farthest:g}. Received: initial_rate={rate.tolist()}, "
            f"initial_offset={offset.tolist()}. Use smaller start values or shorter edges."
        )


@checked(
    x=tensor("n N C"),
    rate=tensor("N"),
    offset=tensor("N"),
    forest=instance(Forest, "a Forest", "n", lambda forest: forest.size),
    path=optional(one_of(*PLANS)),
)
def exponential_tree_product(
    x: Tensor, rate: Tensor, offset: Tensor, forest: Forest, path: str | None = None
) -> Tensor:
    """[exp(rate dist(i, j) + offset)] x within each tree, 0 across trees.

    Args:
        x: float32 tensor of shape (n, N, C): nodes, heads, columns.
        rate: Tensor of shape (N,): a of each head.
        offset: Tensor of shape (N,): b of each head.
        forest: The trees, with the weights of their edges.
        path: How to sweep: `"levels"`, one step for each level; `"scan"`, the same in a loop; or
            `"doubling"`, a logarithmic number of steps. By default the fastest for this forest.

    Returns:
        A tensor of shape (n, N, C).

    Example:

    >>> from keras_graphattn.ops.trees.forests import forest_from_parents
    >>> forest = forest_from_parents([-1, 0, 1])
    >>> x = np.array([1.0, 0.0, 0.0], "float32").reshape((3, 1, 1))
    >>> rate = np.log([0.5]).astype("float32")
    >>> y = exponential_tree_product(x, rate, np.zeros(1, "float32"), forest)
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()
    [1.0, 0.5, 0.25]
    """
    if path is None:
        columns = 64 if None in x.shape else x.shape[1] * x.shape[2]
        path = sweep_path(forest, way_of_running(), columns)
    return swept_product(x, rate, offset, kept_with(forest, PLANS[path]))


def swept_product(x: Tensor, rate: Tensor, offset: Tensor, plan: TreePlan) -> Tensor:
    """`exponential_tree_product` with a plan of the sweeps, also that of a batch of forests."""
    x = ops.convert_to_tensor(x)
    rate, offset = ops.convert_to_tensor(rate), ops.convert_to_tensor(offset)
    weights = ops.cast(ops.convert_to_tensor(plan.weights), rate.dtype)[:, None]
    has_parent = ops.convert_to_tensor(plan.has_parent)[:, None]
    decay = ops.where(has_parent, ops.exp(rate * weights), 0.0)  # g, (rows, N)
    return _symmetric_product(x, decay, plan) * ops.exp(offset)[None, :, None]


def _symmetric_product(x: Tensor, decay: Tensor, plan: TreePlan) -> Tensor:
    """s + g o, for x (n, N, C) in the user's order and decays (rows, N) in the plan's order."""
    owner = plan if plan.of is None else plan.of
    (found,) = kept_with(owner, _product_with_gradient)(x, decay, *plan.tensors)
    return found


def _product_with_gradient(owner: Any) -> FunctionWithGradient:
    """The product with its gradient, for a plan or for a function that returns a plan."""
    return FunctionWithGradient(partial(_value, owner), partial(_gradient, owner))


def _plan_of(owner: Any, topology: Tensors) -> TreePlan:
    plan: TreePlan = owner if isinstance(owner, TreePlan) else owner(*topology)
    return plan


def _value(owner: Any, x: Tensor, decay: Tensor, *topology: Tensor) -> tuple[Tensors, Tensors]:
    plan = _plan_of(owner, topology)
    below, near, above = _sweeps(x, decay[..., None], plan)
    return (_moved(below + above, plan.position),), (below, near, above)


def _gradient(
    owner: Any, tensors: Tensors, kept: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    _, decay, *topology = tensors
    plan, (below, near, above) = _plan_of(owner, tuple(topology)), kept
    other_below, other_near, other_above = _sweeps(upstream[0], decay[..., None], plan)
    terms = other_below * (near + take(above, plan.parents, axis=0))
    terms = terms + below * (other_near + take(other_above, plan.parents, axis=0))
    other = _moved(other_below + other_above, plan.position)
    return other, ops.sum(terms, axis=-1), *(None for _ in topology)


def _sweeps(x: Tensor, decay: Tensor, plan: TreePlan) -> tuple[Tensor, Tensor, Tensor]:
    """s, o - g_p o_p and g o in the layout of the plan, where p is the parent of each node.

    o_i - g_p o_p is x_p plus the sum of g s over the siblings of i. It also equals s_p - g_i s_i,
    which is faster, and as exact if no decay is above 1.
    """
    x = _moved(x, plan.order)  # (rows, N, C)
    below = plan.up(x, decay)
    carried = decay * below

    def by_sum() -> Tensor:
        return take(x, plan.parents, axis=0) + sums_of_siblings(carried, plan)

    def by_difference() -> Tensor:
        return take(below, plan.parents, axis=0) - carried

    near = where_needed(ops.any(decay > 1.0), by_sum, by_difference)
    return below, near, plan.down(decay * near, decay)


def _moved(x: Tensor, places: Any) -> Tensor:
    return x if places is None else take(x, places, axis=0)
