"""Kernel attention, [(phi(Q) phi(K)^T) o M] x, without the matrix where the mask allows it.

Features phi(Q), phi(K) have shape (B, T, N, m), signals (B, T, N, D). Nothing is normalised here:
with a column of ones in the signal, that column of the result is the normaliser.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

Tensor = Any


def masked_scores(query: Tensor, key: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """[(phi(Q) phi(K)^T) o M] x with the matrix formed, for all query rows or a block of them.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, S, N, m).
        x: Signal of shape (B, S, N, D).
        matrix: M, of a shape that broadcasts to (B, N, T, S).

    Returns:
        A tensor of shape (B, T, N, D).
    """
    scores = ops.einsum("btnm,bsnm->bnts", query, key) * matrix
    return ops.einsum("bnts,bsnd->btnd", scores, x)


def sum_over_features(
    apply: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    x: Tensor,
    tensors: Sequence[Tensor] = (),
    feature_chunk: int | None = None,
) -> Tensor:
    """Algorithm 1: sum_f phi_f(q_i) (M [phi_f(k_j) x_j])_i, for any way to apply M.

    Args:
        apply: Callable of a signal (B, T, N, f D) and of `tensors`; returns M times the signal. It
            must not capture tensors that need a gradient (TensorFlow's rematerialisation drops
            it in silence): they come as `tensors`.
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        tensors: Further arguments of `apply`.
        feature_chunk: Number of features f at a time, computed again for the backward pass: memory
            O(n (f D + m D / f)) in place of O(n m D). All at once by default.

    Returns:
        A tensor of shape (B, T, N, D).

    Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
    """

    def of_some_features(query: Tensor, key: Tensor, x: Tensor, *tensors: Tensor) -> Tensor:
        batch, length, heads, width = ops.shape(x)
        count = key.shape[-1]
        signal = ops.reshape(key[..., None] * x[..., None, :], (batch, length, heads, -1))
        signal = ops.reshape(apply(signal, *tensors), (batch, length, heads, count, width))
        return ops.einsum("btnf,btnfd->btnd", query, signal)

    features = key.shape[-1]
    if feature_chunk is None or feature_chunk >= features:
        return of_some_features(query, key, x, *tensors)
    chunks = [_feature_chunks(part, feature_chunk) for part in (query, key)]
    rematerialised = keras.remat(of_some_features)
    parts = ops.map(lambda chunk: rematerialised(*chunk, x, *tensors), tuple(chunks))
    return ops.sum(parts, axis=0)


def _feature_chunks(features: Tensor, size: int) -> Tensor:
    """(B, T, N, m) -> (m / size, B, T, N, size), filled up with zeros."""
    missing = -features.shape[-1] % size
    features = ops.pad(features, ((0, 0), (0, 0), (0, 0), (0, missing)))
    batch, length, heads, count = ops.shape(features)
    features = ops.reshape(features, (batch, length, heads, count // size, size))
    return ops.transpose(features, (3, 0, 1, 2, 4))
