"""The random-walk graph-nodes kernel (RWGNK): two nodes are similar if their walks meet.

    f_v = mean over walks from v of sum_l decay^l e_(node at step l)
    M[v, w] = f_v . f_w / (|f_v|^a |f_w|^a)

f_v = sum_l decay^l F_l[v] with constant sparse matrices F_l, and |f_v|^2 is a polynomial of the
decay with constant coefficients per node. So M x costs two sparse products and has a gradient for
the decay. The expectation of F_l over all walks is P^l, where P is the matrix of one step.

Source: Choromanski et al., arXiv 2107.07999, Eq. 5 and Section 4.2.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks import checked, instance, number, tensor, whole
from keras_graphattn.ops.graphs.graphs import Array, an_adjacency, numbers_of, transition_matrix
from keras_graphattn.ops.graphs.sparse import SparseMatrix, sparse_product, sum_rows

Tensor = Any


@dataclass(frozen=True, eq=False)
class WalkFeatures:
    """The constant part of the kernel.

    Attributes:
        steps: [F_0 F_1 ...], joined along the columns, (n, L n).
        squares: Coefficients of |f_v|^2 as a polynomial of the decay, (n, 2 L - 1).
        length: L, the number of nodes of a walk.
    """

    steps: SparseMatrix
    squares: Array
    length: int

    def parts(self) -> list[Any]:
        """F_0, F_1, ..., sparse matrices (n, n) of float64."""
        count = self.steps.shape[0]
        joined = scipy.sparse.csc_array(self.steps.matrix.astype("float64"))
        return [joined[:, step * count : (step + 1) * count] for step in range(self.length)]

    @cached_property
    def meetings(self) -> Array:
        """Coefficients of f_v . f_w as a polynomial of the decay, (2 L - 1, n, n).

        Coefficient s is the sum of F_k F_l^T over all k + l = s. They are found once; then a matrix
        of the kernel takes no product of n x n matrices.
        """
        steps, count = self.parts(), self.steps.shape[0]
        found = np.zeros((2 * self.length - 1, count, count))
        for k, one in enumerate(steps):
            for l, other in enumerate(steps):  # noqa: E741
                found[k + l] += (one @ other.T).toarray()
        return found


@checked(
    adjacency=an_adjacency,
    walks=whole(),
    length=whole(),
    seed=whole(0),
    halt_probability=number(least=0.0, below=1.0),
)
def random_walks(
    adjacency: Any, walks: int, length: int, seed: int, halt_probability: float = 0.0
) -> Array:
    """Draws walks from every node. The probability of a step is proportional to the edge's weight.

    Args:
        adjacency: The graph from `keras_graphattn.ops.graphs.graphs.read_graph`.
        walks: Number of walks from each node.
        length: Number of nodes of a walk, including its start.
        seed: Seed of NumPy's generator. The walks are the same on every backend.
        halt_probability: Probability that a walk ends before each of its steps.

    Returns:
        Integers of shape (n, walks, length); -1 after the end of a walk. A walk at an isolated node
        ends there.

    Example:

    >>> from keras_graphattn.ops.graphs.graphs import read_graph
    >>> random_walks(read_graph([[0, 1]]), walks=1, length=3, seed=0).tolist()
    [[[0, 1, 0]], [[1, 0, 1]]]
    """
    generator = np.random.default_rng(seed)
    steps, count = transition_matrix(adjacency), adjacency.shape[0]
    # The cumulative probabilities of all edges, from which a uniform number picks one edge of a
    # node. Those of a node sum to 1: sums of weights would lose a small one after a large one.
    ends = np.cumsum(np.concatenate([[0.0], steps.data]))
    first, last = ends[steps.indptr[:-1]], ends[steps.indptr[1:]]
    isolated = np.diff(steps.indptr) == 0
    found = np.full((count, walks, length), -1, "int64")
    here = np.repeat(np.arange(count), walks)
    for step in range(length):
        found[:, :, step] = here.reshape((count, walks))
        moving = (here >= 0) & ~isolated[here]
        if halt_probability > 0.0:
            moving &= generator.random(len(here)) >= halt_probability
        now = here[moving]
        target = first[now] + generator.random(len(now)) * (last[now] - first[now])
        place = np.searchsorted(ends, target, side="right") - 1
        place = np.clip(place, steps.indptr[now], steps.indptr[now + 1] - 1)
        here = np.full(len(here), -1)
        here[moving] = steps.indices[place]
    return found


def features_of_walks(walks: Any) -> WalkFeatures:
    """Returns the features of given walks.

    Args:
        walks: Integers of shape (n, walks, length); -1 after the end of a walk.

    Raises:
        ValueError: For a wrong shape, or nodes out of range.

    Example:

    >>> features_of_walks([[[0, 1]], [[1, 0]]]).length
    2
    """
    walks = numbers_of("walks", walks)
    if walks.ndim != 3 or 0 in walks.shape or not np.issubdtype(walks.dtype, np.integer):
        raise ValueError(
            "`walks` must be integers of shape (nodes, walks, length). Received: shape "
            f"{walks.shape}, dtype {walks.dtype}"
        )
    count, number, length = walks.shape
    if walks.min() < -1 or walks.max() >= count:
        raise ValueError(
            f"`walks` must hold node numbers below {count}, or -1. Received: {walks.min()} to "
            f"{walks.max()}"
        )
    rows = np.repeat(np.arange(count), number)
    steps = []
    for step in range(length):
        columns = walks[:, :, step].ravel()
        known = columns >= 0
        values = np.full(int(known.sum()), 1.0 / number)
        shape = (count, count)
        steps.append(scipy.sparse.csr_array((values, (rows[known], columns[known])), shape=shape))
    return _features(steps)


@checked(adjacency=an_adjacency, length=whole())
def expected_features(adjacency: Any, length: int) -> WalkFeatures:
    """Returns the expectation over all walks: F_l = P^l, with more entries as l grows.

    Example:

    >>> from keras_graphattn.ops.graphs.graphs import read_graph
    >>> expected_features(read_graph([[0, 1]]), length=2).steps.matrix.toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    """
    step = transition_matrix(adjacency)
    steps = [scipy.sparse.eye_array(adjacency.shape[0], format="csr")]
    for _ in range(length - 1):
        steps.append(scipy.sparse.csr_array(steps[-1] @ step))
    return _features(steps)


def collapsed(features: WalkFeatures, decay: float) -> WalkFeatures:
    """Returns the same features for one fixed decay, in the form of walks with one node."""
    total = sum(float(decay) ** step * part for step, part in enumerate(features.parts()))
    return _features([scipy.sparse.csr_array(total)])


def walk_scale(features: WalkFeatures, decay: Tensor, normalization: float) -> Tensor:
    """1 / |f_v|^a for each head, (n, N); 0 where f_v = 0.

    Args:
        features: The constant part.
        decay: Tensor of shape (N,).
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.
    """
    decay = ops.convert_to_tensor(decay)
    squares = ops.convert_to_tensor(features.squares, dtype=decay.dtype)
    return scale_of_squares(squares, decay, normalization)


def scale_of_squares(squares: Tensor, decay: Tensor, normalization: float) -> Tensor:
    """1 / |f_v|^a, (..., N), from the coefficients (..., K) of |f_v|^2 as polynomials."""
    total = squares[..., -1:] * ops.ones_like(decay)
    for k in range(squares.shape[-1] - 2, -1, -1):
        total = total * decay + squares[..., k : k + 1]
    if normalization == 0.0:
        return ops.ones_like(total)
    known = total > 0.0
    return ops.where(known, ops.where(known, total, 1.0) ** (-normalization / 2.0), 0.0)


@checked(
    x=tensor("n N C"),
    decay=tensor("N"),
    features=instance(
        WalkFeatures,
        "the features from `features_of_walks`",
        "n",
        lambda features: features.steps.shape[0],
    ),
    normalization=number(),
)
def walk_product(
    x: Tensor, decay: Tensor, features: WalkFeatures, normalization: float = 1.0
) -> Tensor:
    """M x for the kernel of walks.

    Args:
        x: float32 tensor of shape (n, N, C): nodes, heads, columns.
        decay: Tensor of shape (N,): the decay of each head.
        features: The constant part.
        normalization: The exponent a.

    Returns:
        A tensor of shape (n, N, C), with gradients for `x` and `decay`.

    Example:

    >>> features = features_of_walks([[[0, 1]], [[1, 0]]])  # two nodes, one walk from each
    >>> x = np.array([1.0, 0.0], "float32").reshape((2, 1, 1))
    >>> y = walk_product(x, np.array([0.5], "float32"), features, normalization=0.0)
    >>> keras.ops.convert_to_numpy(y).ravel().tolist()
    [1.25, 1.0]
    """
    x, decay = ops.convert_to_tensor(x), ops.convert_to_tensor(decay)
    scale = walk_scale(features, decay, normalization)[:, :, None]
    count, length = features.steps.shape[0], features.length
    others = ops.shape(x)[1:]
    powers = decay[None] ** ops.arange(length, dtype=decay.dtype)[:, None]
    powers = powers[:, None, :, None]  # (L, 1, N, 1)
    visits = sparse_product(features.steps.transpose, scale * x)
    visits = ops.reshape(visits, (length, count, *others))  # F_l^T S x, (L, n, N, C)
    total = ops.sum(powers * visits, axis=0)  # F^T S x, (n, N, C)
    spread = ops.reshape(powers * total[None], (length * count, *others))
    return scale * sparse_product(features.steps, spread)


def walk_matrix(decay: Tensor, features: WalkFeatures, normalization: float) -> Tensor:
    """M as a matrix for each head, (N, n, n); the arguments are those of `walk_product`.

    M[v, w] = s_v s_w sum_k decay^k C_k[v, w], where s_v = 1 / |f_v|^a and C_k are the `meetings`.
    """
    meetings = ops.convert_to_tensor(features.meetings, dtype=decay.dtype)  # (2 L - 1, n, n)
    powers = decay[None] ** ops.arange(meetings.shape[0], dtype=decay.dtype)[:, None]  # (., N)
    scale = ops.transpose(walk_scale(features, decay, normalization))  # (N, n)
    met = ops.einsum("svw,sn->nvw", meetings, powers)
    return met * scale[:, :, None] * scale[:, None, :]


def walk_features_of_batch(walks: Tensor, decay: Tensor, normalization: float) -> Tensor:
    """Returns f_v / |f_v|^a of each example's own walks, as a matrix for each head.

    Args:
        walks: Integer tensor of shape (B, T, walks, length), -1 after the end of a walk.
        decay: Tensor of shape (N,).
        normalization: The exponent a.

    Returns:
        A tensor of shape (B, N, T, T): the last axes are the node v and the visited node.
    """
    batch, count, number, length = ops.shape(walks)
    walks = ops.cast(walks, "int32")
    powers = decay[None] ** ops.arange(length, dtype=decay.dtype)[:, None] / number  # (L, N)
    nodes = ops.reshape(ops.arange(batch * count, dtype="int32"), (batch, count, 1, 1))
    known = walks >= 0
    places = ops.reshape(nodes * count + ops.where(known, walks, 0), (-1,))
    values = ops.cast(known, decay.dtype)[..., None] * powers  # (B, T, walks, L, N)
    met = sum_rows(ops.reshape(values, (-1, decay.shape[0])), places, batch * count * count)
    met = ops.transpose(ops.reshape(met, (batch, count, count, -1)), (0, 3, 1, 2))
    return normalised(met, normalization)


def normalised(features: Tensor, normalization: float) -> Tensor:
    """f_v / |f_v|^a along the last axis; 0 where f_v = 0."""
    if normalization == 0.0:
        return features
    squares = ops.sum(features * features, axis=-1, keepdims=True)
    some = squares > 0.0
    return features * ops.where(some, ops.where(some, squares, 1.0) ** (-normalization / 2.0), 0.0)


def _features(steps: list[Any]) -> WalkFeatures:
    length = len(steps)
    squares = np.zeros((steps[0].shape[0], 2 * length - 1))
    for k, one in enumerate(steps):
        for l, other in enumerate(steps[: k + 1]):  # noqa: E741
            product = np.asarray(one.multiply(other).sum(axis=1)).ravel()
            squares[:, k + l] += product if k == l else 2.0 * product
    return WalkFeatures(SparseMatrix(scipy.sparse.hstack(steps)), squares, length)
