"""Kernel attention, [(phi(Q) phi(K)^T) o M] x, without the matrix if the mask allows it.

Features phi(Q), phi(K) have shape (B, T, N, m), signals (B, T, N, D). The functions do not
normalise. If the signal has a column of ones, this column of the result is the normaliser, and
`NormalisedOperator` divides by it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import checked, tensor
from keras_graphattn.numerics.blocks import map_in_turn
from keras_graphattn.numerics.precision import at_least_float32, pad

Tensor = Any

SMALLEST = 2.0**-126  # smallest normal float32: the inverse of a smaller number may overflow


def masked_scores(query: Tensor, key: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """Forms the matrix of [(phi(Q) phi(K)^T) o M] x, for all query rows or a block of them.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, S, N, m).
        x: Signal of shape (B, S, N, D).
        matrix: M, of a shape that broadcasts to (B, N, T, S).

    Returns:
        A tensor of shape (B, T, N, D).
    """
    scores = ops.einsum("btnm,bsnm->bnts", query, key)  # (B, N, T, S)
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
    """Algorithm 1: sum_f phi_f(q_i) (M [phi_f(k_j) x_j])_i, for any function that applies M.

    Args:
        apply: Callable of a signal (B, T, N, f D) and of `tensors`; returns M times the signal. It
            must take tensors that need a gradient from `tensors`. If it captures them,
            TensorFlow's rematerialisation silently drops their gradient.
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, T, N, m).
        x: Signal of shape (B, T, N, D).
        tensors: Further arguments of `apply`.
        feature_chunk: Number of features f at a time. They are computed again in the backward pass,
            so the memory is O(n (f D + m D / f)) instead of O(n m D). All at once by default.

    Returns:
        A tensor of shape (B, T, N, D).

    Source: Choromanski et al., arXiv 2107.07999, Algorithm 1 and Lemma 3.1.
    """

    def of_some_features(query: Tensor, key: Tensor, x: Tensor, *tensors: Tensor) -> Tensor:
        batch, length, heads, width = ops.shape(x)
        count = key.shape[-1]
        signal = key[..., None] * x[..., None, :]  # (B, T, N, f, D)
        signal = apply(ops.reshape(signal, (batch, length, heads, -1)), *tensors)
        signal = ops.reshape(signal, (batch, length, heads, count, width))
        return ops.einsum("btnf,btnfd->btnd", query, signal)

    features = key.shape[-1]
    if feature_chunk is None or feature_chunk >= features:
        return of_some_features(query, key, x, *tensors)
    chunks = [_feature_chunks(part, feature_chunk) for part in (query, key)]
    rematerialised = keras.remat(of_some_features)
    parts = map_in_turn(lambda chunk: rematerialised(*chunk, x, *tensors), tuple(chunks))
    return ops.sum(parts, axis=0)


def _feature_chunks(features: Tensor, size: int) -> Tensor:
    """(B, T, N, m) -> (m / size, B, T, N, size), padded with zeros."""
    missing = -features.shape[-1] % size
    features = pad(features, ((0, 0), (0, 0), (0, 0), (0, missing)))
    batch, length, heads, count = ops.shape(features)
    features = ops.reshape(features, (batch, length, heads, count // size, size))
    return ops.transpose(features, (3, 0, 1, 2, 4))


@checked(query=tensor("B T N m"), key=tensor("B S N m"), x=tensor("B S N D"))
def unmasked_attention(query: Tensor, key: Tensor, x: Tensor) -> Tensor:
    """Returns phi(Q) (phi(K)^T x), in linear time: every query sees every key.

    The rows are not normalised: divide by the result for a column of ones.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, S, N, m).
        x: Signal of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, T, N, D).

    Example:

    >>> from keras_graphattn.ops.kernel.features import relu_features
    >>> query, key = relu_features(np.ones((2, 1, 5, 1, 3), "float32"))
    >>> x = np.ones((1, 5, 1, 2), "float32")
    >>> outputs, sums = (unmasked_attention(query, key, signal) for signal in (x, x[..., :1]))
    >>> keras.ops.convert_to_numpy(outputs / sums)[0, 0, 0].tolist()
    [1.0, 1.0]
    """
    return ops.einsum("btnm,bnmd->btnd", query, ops.einsum("bsnm,bsnd->bnmd", key, x))


class NormalisedOperator:
    """Kernel attention with rows that sum to one, as an operator `x -> A x`.

    The first call computes the normaliser, as one more column of the signal. It is a sum of
    positive numbers. If a path returns 0 for it, a negative number by rounding, or a number too
    small to invert, then the row is 0. A row that sees NaN or inf is not finite.

    A broken token is one that had NaN or inf; its signal is now 0. Broken tokens are one more
    column of the signal, which shows whether a row sees one of them.

    Args:
        attend: Callable that maps a signal (B, S, N, D) to [(phi(Q) phi(K)^T) o M] signal.
        sighted: Optional boolean tensor that broadcasts to (B, T, N). `False` marks rows that must
            be 0, also if rounding leaves a positive normaliser.
        broken: Optional boolean tensor of shape (B, T): which tokens are broken.

    Attributes:
        broken: After a call, a tensor of shape (B, T, N, 1). It is positive in rows that see a
            broken token, and in rows of broken tokens.
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
        """Which rows are not 0, of shape (B, T, N, 1). It needs a normaliser."""
        if self.normaliser is None:
            raise ValueError("The operator has no normaliser yet. Call it with a signal first.")
        # NaN counts as seen and stays NaN. `not (x < SMALLEST)` would not do: TensorFlow's graphs
        # rewrite it to `x >= SMALLEST`.
        seen = ops.logical_or(self.normaliser >= SMALLEST, ops.isnan(self.normaliser))
        if self.sighted is None:
            return seen
        return ops.logical_and(seen, self.sighted[..., None])


def _quotient(outputs: Tensor, normaliser: Tensor, seen: Tensor) -> Tensor:
    """outputs / normaliser where seen, else 0. Its gradient has no square that underflows.

    Both are brought near 1 first. This needs a product: XLA rewrites (a / s) / (n / s) to
    (a * s) / (s * n), and s * n may underflow.
    """
    normaliser = ops.where(seen, normaliser, ops.cast(1.0, normaliser.dtype))
    scale = ops.exp(-ops.log(ops.stop_gradient(normaliser)))
    return ops.where(seen, (outputs * scale) / (normaliser * scale), ops.cast(0.0, outputs.dtype))
