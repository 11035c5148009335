"""Walks whose steps follow attention: the kernel of walks for any matrix of one step.

Let P[v, w] be the probability of the step from v to w. The expectation over all walks of L nodes is

    f_v = sum_(l < L) decay^l (P^l)[v],      M[v, w] = f_v . f_w / (|f_v|^a |f_w|^a)

the random-walk graph-nodes kernel (Choromanski et al., arXiv 2107.07999, Eq. 5). There P is uniform
over the neighbours. Here P is any tensor, such as a softmax of attention's scores over the edges.
"""

from typing import Any

from keras import ops

from keras_graphattn.checks import checked, number, tensor, whole
from keras_graphattn.numerics.precision import at_least_float32, matmul
from keras_graphattn.ops.graphs.sparse import sum_rows
from keras_graphattn.ops.graphs.walks import normalised

Tensor = Any


@checked(steps=tensor("B N T T"), decay=tensor("N"), length=whole(), normalization=number())
def kernel_of_steps(
    steps: Tensor, decay: Tensor, length: int, normalization: float = 1.0
) -> Tensor:
    """The expected kernel of walks with given probabilities of a step.

    Args:
        steps: P, of shape (B, N, T, T), not negative. A row of zeros ends a walk.
        decay: Decay of each step, of shape (N,).
        length: Number of nodes of a walk, including its start.
        normalization: The exponent a: 1 makes M a cosine, 0 keeps the inner products.

    Returns:
        M, of shape (B, N, T, T) in at least float32, with gradients for `steps` and `decay`.

    Example:

    >>> steps = np.array([[0.0, 1.0], [0.0, 0.0]], "float32").reshape((1, 1, 2, 2))
    >>> found = kernel_of_steps(steps, np.array([0.5], "float32"), length=2, normalization=0.0)
    >>> keras.ops.convert_to_numpy(found)[0, 0].tolist()
    [[1.25, 0.5], [0.5, 1.0]]
    """
    steps = at_least_float32(steps)
    decay = ops.cast(decay, steps.dtype)[None, :, None, None]
    nodes = ops.arange(ops.shape(steps)[-1], dtype="int32")
    start = ops.cast(ops.equal(nodes[:, None], nodes[None, :]), steps.dtype)  # (T, T)
    features = start + ops.zeros_like(steps)
    for step in range(length - 1):  # Horner: f = I + decay P f
        features = start + decay * (matmul(steps, features) if step else steps)
    features = normalised(features, normalization)
    return matmul(features, ops.transpose(features, (0, 1, 3, 2)))


def edges_of_walks(walks: Tensor) -> Tensor:
    """Which nodes are next to each other in one of the walks of each example.

    Args:
        walks: int32 tensor of shape (B, T, walks, length), between -1 and T - 1; -1 after the end.

    Returns:
        A symmetric float32 tensor of shape (B, T, T), 1 for an edge and 0 elsewhere.
    """
    batch, count = ops.shape(walks)[:2]
    here, there = walks[..., :-1], walks[..., 1:]
    known = ops.logical_and(here >= 0, there >= 0)
    example = ops.reshape(ops.arange(batch, dtype="int32"), (batch, 1, 1, 1))
    here, there = (ops.where(known, nodes, 0) for nodes in (here, there))
    places = ops.reshape((example * count + here) * count + there, (-1,))
    visits = ops.reshape(ops.cast(known, "float32"), (-1, 1))
    counts = ops.reshape(sum_rows(visits, places, batch * count * count), (batch, count, count))
    return ops.cast(counts + ops.transpose(counts, (0, 2, 1)) > 0.0, "float32")
