"""Trees with f(z) = exp(a z + b): the product with [f(dist(i, j))] in two sweeps, O(n).

With N[i, parent(i)] = g_i = exp(a w_i), D = diag(1 - g_i^2) (1 at roots) and L = (I - N)^-1,

    [exp(a dist(i, j)) within a tree, 0 across] = L D L^T

so the mask is a sweep up (L^T), a factor per node, and a sweep down (L). The operator is symmetric:
its backward pass is the same two sweeps over the cotangent y', with u = L^T y' and v = M y', and

    dg_i = u_i . (M x)_parent(i) + (L^T x)_i . v_parent(i) - 2 g_i u_i . (L^T x)_i

gives the gradients of a, of b and of edge weights. No backend differentiates a scan for this.

Source: Choromanski et al., arXiv 2107.07999, Lemma 3.5. Ours: the factored form, its gradient.
"""

from functools import partial
from typing import Any

from keras import ops

from keras_graphattn.ops.arguments import checked, instance, tensor
from keras_graphattn.ops.own_gradient import FunctionWithGradient, kept_with
from keras_graphattn.ops.tree_levels import TreePlan

Tensor = Any
Tensors = tuple[Tensor, ...]


def _nodes_of(plan: TreePlan) -> int | None:
    """Number of nodes, where the plan is of a forest known before."""
    return None if plan.position is None else len(plan.position)


@checked(
    x=tensor("n N C"),
    rate=tensor("N"),
    offset=tensor("N"),
    plan=instance(TreePlan, "what `level_plan` and its like make", "n", _nodes_of),
)
def exponential_tree_product(x: Tensor, rate: Tensor, offset: Tensor, plan: TreePlan) -> Tensor:
    """[exp(rate dist(i, j) + offset)] x within each tree, 0 across trees.

    Args:
        x: float32 tensor of shape (n, N, C): nodes, heads, columns.
        rate: Tensor of shape (N,), a of each head. Positive rates lose accuracy where
            exp(rate diameter) is large.
        offset: Tensor of shape (N,), b of each head.
        plan: How to sweep: `level_plan`, `scan_plan` or `doubling_plan` of a forest, or
            `doubling_plan_of_batch`.

    Returns:
        A tensor of shape (n, N, C).

    Example:

    >>> from keras_graphattn.ops.forests import forest_from_parents
    >>> from keras_graphattn.ops.tree_levels import level_plan
    >>> plan = level_plan(forest_from_parents([-1, 0, 1]))
    >>> x = np.array([1.0, 0.0, 0.0], "float32").reshape((3, 1, 1))
    >>> rate = np.log([0.5]).astype("float32")
    >>> y = exponential_tree_product(x, rate, np.zeros(1, "float32"), plan)
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()
    [1.0, 0.5, 0.25]
    """
    x = ops.convert_to_tensor(x)
    rate, offset = ops.convert_to_tensor(rate), ops.convert_to_tensor(offset)
    weights = ops.cast(ops.convert_to_tensor(plan.weights), rate.dtype)[:, None]
    has_parent = ops.convert_to_tensor(plan.has_parent)[:, None]
    decay = ops.where(has_parent, ops.exp(rate * weights), 0.0)
    return _symmetric_product(x, decay, plan) * ops.exp(offset)[None, :, None]


def _symmetric_product(x: Tensor, decay: Tensor, plan: TreePlan) -> Tensor:
    """L D L^T x, for x (n, N, C) in the user's order and the decays (rows, N) of a plan."""
    owner = plan if plan.of is None else plan.of
    (found,) = kept_with(owner, _product_with_gradient)(x, decay, *plan.tensors)
    return found


def _product_with_gradient(owner: Any) -> FunctionWithGradient:
    """The product by a plan, or by what makes a plan of tensors."""
    return FunctionWithGradient(partial(_value, owner), partial(_gradient, owner))


def _plan_of(owner: Any, topology: Tensors) -> TreePlan:
    plan: TreePlan = owner if isinstance(owner, TreePlan) else owner(*topology)
    return plan


def _value(owner: Any, x: Tensor, decay: Tensor, *topology: Tensor) -> tuple[Tensors, Tensors]:
    plan = _plan_of(owner, topology)
    below, found = _sweeps(x, decay[..., None], plan)
    return (_moved(found, plan.position),), (below, found)


def _gradient(
    owner: Any, tensors: Tensors, kept: Tensors, upstream: Tensors
) -> tuple[Tensor | None, ...]:
    _, decay, *topology = tensors
    plan, (below, found), factor = _plan_of(owner, tuple(topology)), kept, decay[..., None]
    other_below, other = _sweeps(upstream[0], factor, plan)
    terms = other_below * (
        ops.take(found, plan.parents, axis=0) - 2.0 * factor * below
    ) + below * ops.take(other, plan.parents, axis=0)
    return _moved(other, plan.position), ops.sum(terms, axis=-1), *(None for _ in topology)


def _sweeps(x: Tensor, decay: Tensor, plan: TreePlan) -> tuple[Tensor, Tensor]:
    """L^T x and L D L^T x in the layout of the plan."""
    x = _moved(x, plan.order)
    if plan.both is not None:
        return plan.both(x, decay)
    below = plan.up(x, decay)
    return below, plan.down((1.0 - decay * decay) * below, decay)


def _moved(x: Tensor, places: Any) -> Tensor:
    return x if places is None else ops.take(x, places, axis=0)
