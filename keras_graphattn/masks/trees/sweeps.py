"""Trees with f(z) = exp(a z + b): the product with [f(dist(i, j))] in two sweeps, O(n).

Let N[i, parent(i)] = g_i = exp(a w_i) (0 at roots) and L = (I - N)^-1. A sweep up gives s, the sum
over the subtree of each node i. A sweep down gives o, the sum over all other nodes, seen from the
parent p of i:

    s = L^T x,      o_i = (s_p - g_i s_i) + g_p o_p,      M x = s + g o

The operator is symmetric. So its backward pass is the same two sweeps over the cotangent y', which
give s' and o'. Then

    dg_i = s'_i . o_i + s_i . o'_i

gives the gradients of a, of b and of edge weights. No backend needs to differentiate a scan. For
positive x all terms are positive, so each row is exact on its own: see `Sweeps._terms`.

There are three ways to sweep: `Levels`, `Scan` and `Doubling`. `sweep_path` chooses one of them.

Source: Choromanski et al., arXiv 2107.07999, Lemma 3.5. Our additions: whole forests at once, and
the gradient.
"""

from collections.abc import Callable, Iterator

import keras
import numpy as np
from keras import ops

from keras_graphattn.checks import checked, instance, one_of, optional, tensor
from keras_graphattn.masks.graphs.sparse import RowNumbers
from keras_graphattn.masks.trees.forest import Forest, flat_lengths, flat_parents, jumps
from keras_graphattn.numerics.blocks import where_needed
from keras_graphattn.numerics.custom_gradient import FunctionWithGradient, kept_with
from keras_graphattn.numerics.precision import constant, order_of, positions_of, size_tensor, take
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.types import Bool, Float, Int, Num, Tensor

Signal = Float[Tensor, "n N C"]
PerHead = Float[Tensor, " N"]
Rows = Float[Tensor, "rows N C"]  # a signal in the layout of the sweeps
Decays = Float[Tensor, "rows N 1"]  # g: the decay from each node to its parent, 0 at roots
Topology = tuple[Int[Tensor, " rows"], ...]  # the rows of parents and, for `Doubling`, ancestors

UNROLLED_LEVELS = 256  # more levels are never unrolled: the graph would take too long to build


class Sweeps:
    """Base of the ways to sweep: x, a, b -> M x, by a layout of the nodes and two sweeps.

    A subclass writes `up`, x -> (I - N)^-T x, where each node sums over its subtree, and `down`,
    x -> (I - N)^-1 x, where each node sums over its ancestors. A layout has `count` rows, and
    `rows` of the nodes in breadth-first order; by default these are this order.
    """

    _most_children: int | None = None  # of one node, if it is known

    def __init__(
        self, forest: Forest, rows: Int[np.ndarray, " n"] | None = None, count: int | None = None
    ) -> None:
        self._rows = np.arange(forest.size) if rows is None else rows
        self._count = forest.size if count is None else count
        parents = np.arange(self._count)  # roots and padding name themselves
        parents[self._rows] = self._rows[forest.parents]
        self.has_parent = self._laid_out(forest.depth > 0)
        self.weights = self._laid_out(forest.weights)  # of the edge to the parent; 0 at roots
        self.order: RowNumbers | None = RowNumbers(self._laid_out(forest.order))
        self.position: RowNumbers | None = RowNumbers(self._rows[forest.position])
        self._parents = RowNumbers(parents)
        self._most_children = int(np.bincount(parents[self.has_parent], minlength=1).max())
        self.product = FunctionWithGradient(self._value, self._gradient)

    def __call__(self, x: Signal, rate: PerHead, offset: PerHead) -> Signal:
        weights, has_parent = constant(self.weights, rate.dtype), constant(self.has_parent)
        decay = _decays(rate, weights, has_parent)
        (product,) = self.product(x, decay, *self.topology(x))
        return product * ops.exp(offset)[None, :, None]

    def up(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        """(I - N)^-T x."""
        raise NotImplementedError

    def down(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        """(I - N)^-1 x."""
        raise NotImplementedError

    def topology(self, like: Tensor) -> Topology:
        """The row of each node's parent, any row for a node without a parent, on one device."""
        return (self._parents.tensor(like),)

    def _laid_out(self, values: Num[np.ndarray, " n"]) -> np.ndarray:
        padded = np.zeros(self._count, values.dtype)
        padded[self._rows] = values
        return padded

    def _value(
        self, x: Signal, decay: Float[Tensor, "rows N"], *topology: Tensor
    ) -> tuple[tuple[Signal], tuple[Rows, ...]]:
        terms = below, _, above = self._terms(x, decay[..., None], topology)
        return (_moved(below + above, self.position),), terms

    def _gradient(
        self, tensors: tuple[Tensor, ...], terms: tuple[Rows, ...], upstream: tuple[Signal]
    ) -> tuple[Tensor | None, ...]:
        (_, decay, *topology), (below, near, above) = tensors, terms
        other_terms = self._terms(upstream[0], decay[..., None], tuple(topology))
        other_below, other_near, other_above = other_terms
        products = other_below * (near + take(above, topology[0], axis=0))
        products = products + below * (other_near + take(other_above, topology[0], axis=0))
        other = _moved(other_below + other_above, self.position)
        return other, ops.sum(products, axis=-1), *(None for _ in topology)

    def _terms(self, x: Signal, decay: Decays, topology: Topology) -> tuple[Rows, Rows, Rows]:
        """s, o - g_p o_p and g o in this layout, where p is the parent of each node.

        o_i - g_p o_p is x_p plus the sum of g s over the siblings of i. It also equals
        s_p - g_i s_i, which is faster, and as exact if no decay is above 1.
        """
        x, parents = _moved(x, self.order), topology[0]
        below = self.up(x, decay, topology)
        carried = decay * below

        def by_sum() -> Rows:
            return take(x, parents, axis=0) + self._sums_of_siblings(carried, topology)

        def by_difference() -> Rows:
            return take(below, parents, axis=0) - carried

        near = where_needed(ops.any(decay > 1.0), by_sum, by_difference)
        return below, near, self.down(decay * near, decay, topology)

    def _sums_of_siblings(self, x: Rows, topology: Topology) -> Rows:
        """The sum over the other children of each node's parent, without a subtraction."""
        count = ops.shape(x)[0]
        places = positions_of(count)
        parents = ops.cast(topology[0], "int32")
        # each root is the only member of its family
        family = ops.where(ops.not_equal(parents, places), parents, count + places)
        order = order_of(family, axis=0)
        in_order = take(x, order, axis=0), take(family, order, axis=0)
        sums = _sums_of_others(*in_order, self._most_children)
        return take(sums, order_of(order, axis=0), axis=0)


class Levels(Sweeps):
    """Unrolled levels without padding: O(n) work, one step per level."""

    def __init__(self, forest: Forest) -> None:
        super().__init__(forest)
        self._levels = []  # the start and the end of each level, and its parents in the level above
        for level in range(forest.height + 1):
            start, end = (int(i) for i in forest.starts[level : level + 2])
            above = int(forest.starts[level - 1]) if level else 0
            self._levels.append((start, end, RowNumbers(forest.parents[start:end] - above)))

    def up(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        start, end, targets = self._levels[-1]
        sums = [x[start:end]]
        for start, end, next_targets in self._levels[-2::-1]:
            carried = decay[end : end + len(targets)] * sums[-1]
            rows = targets.tensor(carried)
            sums.append(x[start:end] + add_rows(carried, rows, end - start, ordered=True))
            targets = next_targets
        return ops.concatenate(sums[::-1], axis=0)

    def down(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        sums = [x[: self._levels[0][1]]]
        for start, end, sources in self._levels[1:]:
            sums.append(x[start:end] + decay[start:end] * sources.of(sums[-1]))
        return ops.concatenate(sums, axis=0)


class Scan(Sweeps):
    """`keras.ops.scan` over levels that are padded to the widest one, for deep and narrow trees."""

    def __init__(self, forest: Forest) -> None:
        self._shape = forest.height + 1, forest.widest
        places = np.arange(forest.size) - forest.starts[forest.depth]
        super().__init__(
            forest, forest.depth * forest.widest + places, self._shape[0] * forest.widest
        )
        inside = self._parents.numbers % forest.widest  # the parents' places in their own level
        self._inside = np.reshape(inside, self._shape)
        self._filled = self._laid_out(np.ones(forest.size, "bool"))[:, None, None]

    def up(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        def step(carried: Rows, level: tuple[Rows, Decays, Tensor]) -> tuple[Rows, Rows]:
            x, decay, targets = level
            sums = x + carried
            return add_rows(decay * sums, targets, self._shape[1]), sums

        return self._scanned(step, x, decay, reverse=True)

    def down(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        def step(above: Rows, level: tuple[Rows, Decays, Tensor]) -> tuple[Rows, Rows]:
            x, decay, sources = level
            sums = x + decay * take(above, sources, axis=0)
            return sums, sums

        return self._scanned(step, x, decay)

    def _scanned(
        self, step: Callable[..., tuple[Rows, Rows]], x: Rows, decay: Decays, reverse: bool = False
    ) -> Rows:
        levels = self._by_level(x), self._by_level(decay), constant(self._inside)
        _, sums = ops.scan(step, ops.zeros_like(levels[0][0]), levels, reverse=reverse)
        return ops.reshape(sums, ops.shape(x))

    def _by_level(self, x: Rows) -> Float[Tensor, "levels nodes N C"]:
        # Padding repeats a node. Its value must not reach another tree, not even as NaN times 0.
        x = ops.where(constant(self._filled), x, ops.cast(0.0, x.dtype))
        return ops.reshape(x, (*self._shape, *ops.shape(x)[1:]))


class Doubling(Sweeps):
    """Pointer doubling: about log2(depth) unrolled steps over all nodes, no loop.

    (I - N)^-1 = prod_k (I + N^(2^k)). Like N, N^(2^k) has one number per node: the product of the
    decays to the ancestor 2^k edges up. The layout is the user's order, or that of a batch, whose
    forests come with each call. The topology is the ancestors 1, 2, 4, ... edges up.
    """

    def __init__(self, forest: Forest | None = None) -> None:
        if forest is None:
            self.product = FunctionWithGradient(self._value, self._gradient)
        else:
            super().__init__(forest, forest.order)
            ancestors = jumps(self._parents.numbers, forest.height)
            self._ancestors = [RowNumbers(jump) for jump in ancestors]
        self.order = self.position = None

    def topology(self, like: Tensor) -> Topology:
        return tuple(jump.tensor(like) for jump in self._ancestors)

    def up(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        count = ops.shape(x)[0]
        for jump, product in self._steps(decay, topology):
            x = x + add_rows(product * x, jump, count)
        return x

    def down(self, x: Rows, decay: Decays, topology: Topology) -> Rows:
        for jump, product in self._steps(decay, topology):
            x = x + product * take(x, jump, axis=0)
        return x

    def _steps(
        self, decay: Decays, topology: Topology
    ) -> Iterator[tuple[Int[Tensor, " rows"], Decays]]:
        """The ancestors 2^k edges up, and the product of the decays to them, for each k."""
        for k, jump in enumerate(topology):
            decay = decay * take(decay, topology[k - 1], axis=0) if k else decay
            yield jump, decay


SWEEPS: dict[str, type[Levels | Scan | Doubling]] = {
    "levels": Levels,
    "scan": Scan,
    "doubling": Doubling,
}
_sweeps_of_batch = Doubling()


def sweep_path(forest: Forest) -> str:
    """The fastest of `SWEEPS`, by measurements on a CPU (benchmarks/tree_and_graph_masks.py).

    An unrolled level costs 5 to 220 microseconds, so levels are for bushy trees. A scanned level
    costs less than a microsecond in compiled loops, else as much as an unrolled one. Doubling works
    on each node once per bit of its depth.
    """
    backend = keras.backend.backend()
    bushy = 128 if backend == "torch" else 16  # nodes per level
    levels = forest.height + 1
    if levels <= UNROLLED_LEVELS and forest.size >= bushy * (levels - 1):
        return "levels"
    return "scan" if backend == "jax" or _under_xla() else "doubling"


def _under_xla() -> bool:
    """Whether TensorFlow traces this code for XLA."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()  # set by `tf.function(jit_compile=True)`
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


@checked(
    x=tensor("n N C"),
    rate=tensor("N"),
    offset=tensor("N"),
    forest=instance(Forest, "a Forest", "n", lambda forest: forest.size),
    path=optional(one_of(*SWEEPS)),
)
def exponential_tree_product(
    x: Signal, rate: PerHead, offset: PerHead, forest: Forest, path: str | None = None
) -> Signal:
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

    >>> forest = Forest([-1, 0, 1])
    >>> x = np.array([1.0, 0.0, 0.0], "float32").reshape((3, 1, 1))
    >>> rate = np.log([0.5]).astype("float32")
    >>> y = exponential_tree_product(x, rate, np.zeros(1, "float32"), forest)
    >>> keras.ops.convert_to_numpy(y).ravel().astype(float).round(4).tolist()
    [1.0, 0.5, 0.25]

    Source: Choromanski et al., arXiv 2107.07999, Lemmas 3.5 and 6.1. Forests are ours.
    """
    return kept_with(forest, SWEEPS[path or sweep_path(forest)])(x, rate, offset)


def exponential_product_of_batch(
    x: Signal,
    rate: PerHead,
    offset: PerHead,
    parents: Int[Tensor, "B T"],
    edge_weights: Float[Tensor, "B T"] | None,
    depth: int,
) -> Signal:
    """`exponential_tree_product` for one forest per example, n = B T, by pointer doubling.

    `depth` is the largest number of ancestors of a node.
    """
    rows, has_parent = flat_parents(parents)
    weights = flat_lengths(has_parent, edge_weights)
    decay = _decays(rate, ops.cast(weights, rate.dtype), has_parent)
    ancestors = [rows]
    while 2 ** len(ancestors) <= depth:
        ancestors.append(take(ancestors[-1], ancestors[-1], axis=0))
    (product,) = _sweeps_of_batch.product(x, decay, *ancestors)
    return product * ops.exp(offset)[None, :, None]


def _decays(
    rate: PerHead, weights: Float[Tensor, " rows"], has_parent: Bool[Tensor, " rows"]
) -> Float[Tensor, "rows N"]:
    """g: exp(a w) for nodes with a parent, 0 for roots."""
    return ops.where(has_parent[:, None], ops.exp(rate * weights[:, None]), 0.0)


def _moved(x: Tensor, rows: RowNumbers | None) -> Tensor:
    """The rows of `x` with these numbers; `None` for all of them."""
    return x if rows is None else rows.of(x)


def _sums_of_others(x: Rows, family: Int[Tensor, " rows"], most: int | None) -> Rows:
    """The sum over the other rows of the same family, which has at most `most` rows.

    Rows of a family are consecutive. There is one sum over the rows before a row and one over the
    rows after it; each step doubles their reach.
    """
    count = ops.shape(x)[0]
    places, last = positions_of(count), size_tensor(count - 1, "int32")
    most = most or (count if isinstance(count, int) else 2**24)

    def moved(x: Rows, step: int) -> Rows:
        source = ops.minimum(ops.maximum(places - step, 0), last)
        same = ops.equal(take(family, source, axis=0), family)
        same = ops.logical_and(same, ops.equal(source, places - step))
        return ops.where(same[:, None, None], take(x, source, axis=0), ops.cast(0.0, x.dtype))

    sides = []
    for sign in (1, -1):
        side, step = moved(x, sign), 1
        while step < most - 1:
            side = side + moved(side, sign * step)
            step *= 2
        sides.append(side)
    return sides[0] + sides[1]
