"""Kernel attention, [(phi(Q) phi(K)^T) o M] x, without the matrix where the mask allows it.

Features phi(Q), phi(K) have shape (B, T, N, m), signals (B, T, N, D). The functions do not
normalise: with a column of ones in the signal, that column of the result is the normaliser, and
`NormalisedOperator` divides by it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_graphattn.ops.precision.float32 import at_least_float32
from keras_graphattn.ops.softmax.blocks import map_in_turn

Tensor = Any

SMALLEST = 2.0**-126  # normal number of float32: the inverse of a smaller one may overflow


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
    scores = ops.einsum("btnm,bsnm->bnts", query, key)
    scores = scores * ops.cast(matrix, scores.dtype)
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
    parts = map_in_turn(lambda chunk: rematerialised(*chunk, x, *tensors), tuple(chunks))
    return ops.sum(parts, axis=0)


def _feature_chunks(features: Tensor, size: int) -> Tensor:
    """(B, T, N, m) -> (m / size, B, T, N, size), filled up with zeros."""
    missing = -features.shape[-1] % size
    features = ops.pad(features, ((0, 0), (0, 0), (0, 0), (0, missing)))
    batch, length, heads, count = ops.shape(features)
    features = ops.reshape(features, (batch, length, heads, count // size, size))
    return ops.transpose(features, (3, 0, 1, 2, 4))


def unmasked_attention(query: Tensor, key: Tensor, x: Tensor) -> Tensor:
    """phi(Q) (phi(K)^T x): every query sees every key, in linear time.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, S, N, m).
        x: Signal of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, T, N, D).
    """
    return ops.einsum("btnm,bnmd->btnd", query, ops.einsum("bsnm,bsnd->bnmd", key, x))


class NormalisedOperator:
    """Rows of kernel attention that sum to one, as an operator `x -> A x`.

    The normaliser comes with the first signal, as one more column of it. It is a sum of positive
    numbers; where a path leaves it at 0, below by rounding, or without an inverse, the row is 0.
    A row that sees NaN or inf is not finite.

    Broken tokens are those that held NaN or inf, and whose signal is 0 now. They come as one more
    column too, which tells in every row whether it sees one of them.

    Args:
        attend: Callable that maps a signal (B, S, N, D) to [(phi(Q) phi(K)^T) o M] signal.
        sighted: Optional boolean tensor that broadcasts to (B, T, N): `False` marks rows that are
            0 whatever rounding says.
        broken: Optional boolean tensor of shape (B, T): which tokens are broken.

    Attributes:
        broken: After an application, a positive number in rows (B, T, N, 1) that see a broken
            token, or are one.
    """

    def __init__(
        self,
        attend: Callable[[Tensor], Tensor],
        sighted: Tensor | None = None,
        broken: Tensor | None = None,
    ) -> None:
        self.attend = attend
        self.sighted = sighted
        self.broken = None if broken is None else broken[:, :, None, None]
        self.normaliser: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = at_least_float32(x)
        width, columns = x.shape[-1], [x]
        if self.normaliser is None:
            columns.append(ops.ones_like(x[..., :1]))
        if self.broken is not None:
            columns.append(ops.cast(self.broken, x.dtype) * ops.ones_like(x[..., :1]))
        joint = self.attend(columns[0] if len(columns) == 1 else ops.concatenate(columns, axis=-1))
        outputs = joint if len(columns) == 1 else joint[..., :width]  # (B, T, N, D)
        if self.normaliser is None:
            self.normaliser = joint[..., width : width + 1]
        if self.broken is not None:
            self.broken = ops.cast(joint[..., -1:] > 0.0, x.dtype) + columns[-1]
        return ops.cast(_quotient(outputs, self.normaliser, self.seen), dtype)

    @property
    def seen(self) -> Tensor:
        """Which rows are not 0, of shape (B, T, N, 1), once there is a normaliser."""
        if self.normaliser is None:
            raise ValueError("The operator has no normaliser yet. Apply it first.")
        # NaN counts as seen, and stays NaN. Not as `not (x < SMALLEST)`: TensorFlow's graphs turn
        # that into `x >= SMALLEST`.
        seen = ops.logical_or(self.normaliser >= SMALLEST, ops.isnan(self.normaliser))
        if self.sighted is None:
            return seen
        return ops.logical_and(seen, self.sighted[..., None])


def _quotient(outputs: Tensor, normaliser: Tensor, seen: Tensor) -> Tensor:
    """outputs / normaliser where seen, else 0; no gradient divides by a square that underflows."""
    normaliser = ops.where(seen, normaliser, ops.cast(1.0, normaliser.dtype))
    scale = ops.stop_gradient(normaliser)
    factor = (1.0 / scale) / (normaliser / scale)
    return ops.where(seen, outputs * factor, ops.cast(0.0, outputs.dtype))
