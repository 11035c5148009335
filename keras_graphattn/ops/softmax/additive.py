"""The additive score of graph attention networks (GAT): a sum over the two ends of a pair."""

from typing import Any

from keras import ops

from keras_graphattn.checks import checked, number, tensor
from keras_graphattn.numerics.precision import at_least_float32

Tensor = Any


@checked(
    query=tensor("B T N H"),
    key=tensor("B S N H"),
    query_vector=tensor("N H"),
    key_vector=tensor("N H"),
    negative_slope=number(),
)
def additive_scores(
    query: Tensor,
    key: Tensor,
    query_vector: Tensor,
    key_vector: Tensor,
    negative_slope: float = 0.2,
) -> Tensor:
    """LeakyReLU(a . [q_i || k_j]) for each pair, where a = [query_vector || key_vector].

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        query_vector: Tensor of shape (N, H), the first half of a for each head.
        key_vector: Tensor of shape (N, H), the second half.
        negative_slope: The slope of LeakyReLU below 0.

    Returns:
        A tensor of shape (B, N, T, S), in at least float32.

    Example:

    >>> query = np.array([1.0, -6.0], "float32").reshape((1, 2, 1, 1))
    >>> key = np.array([1.0, 2.0], "float32").reshape((1, 2, 1, 1))
    >>> one = np.ones((1, 1), "float32")
    >>> scores = additive_scores(query, key, one, one, negative_slope=0.5)
    >>> keras.ops.convert_to_numpy(scores)[0, 0].tolist()
    [[2.0, 3.0], [-2.5, -2.0]]

    Source: Velickovic et al., "Graph Attention Networks", arXiv 1710.10903 (ICLR 2018), Eq. 3.
    """
    query, key, query_vector, key_vector = (
        at_least_float32(x) for x in (query, key, query_vector, key_vector)
    )
    of_queries = ops.einsum("btnh,nh->bnt", query, query_vector)
    of_keys = ops.einsum("bsnh,nh->bns", key, key_vector)
    scores = of_queries[:, :, :, None] + of_keys[:, :, None, :]
    return ops.leaky_relu(scores, negative_slope=negative_slope)
