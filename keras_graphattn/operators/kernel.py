"""Kernel attention under a mask of factors: A = D^-1 [(phi(Q) phi(K)^T) o M], D the row sums.

A mask M applies itself to signals in less than quadratic time, and with it the operator does. No
n x n matrix is formed unless the mask forms one.

Source: Choromanski et al., arXiv 2107.07999, Eq. 2 and Algorithm 1.
"""

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_graphattn.numerics.precision import (
    ALL,
    at_least_float32,
    nan_where,
    new_axes,
    zero_where_masked,
)
from keras_graphattn.operators.operator import Operator
from keras_graphattn.types import Bool, Float, Tensor

SMALLEST = 2.0**-100  # the inverse of a smaller number overflows in a gradient


class KernelOperator(Operator):
    """Kernel attention with rows that sum to one.

    The first call computes the normaliser, as one more column of the signal. It is a sum of
    positive numbers. If a path returns 0 for it, a negative number by rounding, or a number too
    small to invert, then the row is 0. A row that sees NaN or inf is not finite.

    A token that held NaN or inf has a signal of 0 now. One more column of the signal marks such
    tokens, and shows whether a row sees one of them.

    Args:
        query_features: phi(Q), of shape (B, T, N, m).
        key_features: phi(K), of shape (B, S, N, m).
        mask: The factors M, a `keras_graphattn.masks.Mask`; every factor is 1 by default.
        inputs: The tensors that the mask needs at this call.
        rows: Optional booleans that broadcast to (B, T, N). `False` marks rows that must be 0, also
            if rounding leaves a positive normaliser.
        non_finite: Optional booleans (B, T): the tokens that held NaN or inf.
        path: The path of the mask; without a mask, "dense" forms the matrix.
        feature_chunk: Number of features at a time, on paths that have an (n, m, D) tensor.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = KernelOperator(keras.ops.relu(query) + 0.1, keras.ops.relu(key) + 0.1)
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        query_features: Float[Tensor, "B T N m"],
        key_features: Float[Tensor, "B S N m"],
        mask: Any = None,
        inputs: Mapping[str, Tensor] | None = None,
        *,
        rows: Bool[Tensor, "B? T? N?"] | None = None,
        non_finite: Bool[Tensor, "B T"] | None = None,
        path: str = "auto",
        feature_chunk: int | None = None,
    ) -> None:
        self.query_features, self.key_features = query_features, key_features
        self.mask, self.inputs = mask, dict(inputs or {})
        self.rows = rows
        self.non_finite = (
            None if non_finite is None else new_axes(non_finite, (ALL, ALL, None, None))
        )
        self.path, self.feature_chunk = path, feature_chunk
        self.prepared: object = None
        self.normaliser: Float[Tensor, "B T N 1"] | None = None
        self.once: Float[Tensor, "B T N D"] | None = None  # what the first call returned

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        dtype, is_first = x.dtype, self.once is None
        x = at_least_float32(x)
        width = x.shape[-1]
        if is_first:
            x = ops.concatenate([x, ops.ones_like(x[..., :1])], axis=-1)
        if self.non_finite is not None:
            if is_first:
                self.non_finite = ops.cast(self.non_finite, x.dtype) * x[..., -1:]
            x = ops.concatenate([x, self.non_finite], axis=-1)
        joint = self._sums(x)
        outputs = joint[..., :width]  # (B, T, N, D)
        if is_first:
            self._keep_normaliser(joint[..., width : width + 1])
        if self.non_finite is not None:
            self.non_finite = ops.cast(joint[..., -1:] > 0.0, x.dtype) + self.non_finite
        outputs = ops.cast(self._normalised(outputs), dtype)
        if is_first:
            self.once = outputs
        return outputs

    def _sums(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        """[(phi(Q) phi(K)^T) o M] x, without the normaliser."""
        query, key = self.query_features, self.key_features
        if self.mask is not None:
            if self.prepared is None:
                self.prepared = self.mask.prepare(x, **self.inputs)
            return self.mask.attend(query, key, x, self.path, self.feature_chunk, self.prepared)
        if self.path == "dense":
            return masked_scores(query, key, x)
        return unmasked_attention(query, key, x)

    def _keep_normaliser(self, normaliser: Float[Tensor, "B T N 1"]) -> None:
        """Keeps the normaliser, and which rows are not 0."""
        self.normaliser = normaliser
        # NaN counts as seen and stays NaN. `not (x < SMALLEST)` would not do: TensorFlow's graphs
        # rewrite it to `x >= SMALLEST`.
        self.seeing = (normaliser >= SMALLEST) | (normaliser != normaliser)
        if self.rows is not None:
            self.seeing = ops.logical_and(self.seeing, new_axes(self.rows, (..., None)))

    def _normalised(self, sums: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        """sums / normaliser where seen, else 0. Its gradient has no square that underflows.

        Both are brought near 1 first. This needs a product: XLA rewrites (a / s) / (n / s) to
        (a * s) / (s * n), and s * n may underflow.
        """
        normaliser = ops.where(self.seeing, self.normaliser, ops.cast(1.0, sums.dtype))
        scale = ops.exp(-ops.log(ops.stop_gradient(normaliser)))
        return zero_where_masked((sums * scale) / (normaliser * scale), self.seeing)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        matrix = ops.einsum("btnm,bsnm->bnts", self.query_features, self.key_features)
        if self.mask is not None:
            factors = self.mask.dense(ops.shape(self.query_features)[1], **self.inputs)
            matrix = matrix * ops.cast(factors, matrix.dtype)
        total = ops.sum(matrix, axis=-1, keepdims=True)
        seeing = (total >= SMALLEST) | (total != total)
        matrix = matrix / ops.where(seeing, total, ops.cast(1.0, total.dtype))
        matrix = zero_where_masked(matrix, seeing)
        if self.non_finite is None:
            return matrix
        return nan_where(ops.transpose(self.non_finite > 0.0, (0, 2, 1, 3)), matrix)

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if outputs is not self.once:
            outputs = zero_where_masked(outputs, self.seeing)
        return outputs if self.non_finite is None else nan_where(self.non_finite > 0.0, outputs)


def unmasked_attention(
    query: Float[Tensor, "B T N m"], key: Float[Tensor, "B S N m"], x: Float[Tensor, "B S N D"]
) -> Float[Tensor, "B T N D"]:
    """phi(Q) (phi(K)^T x), in linear time, not normalised: every query sees every key."""
    context = ops.transpose(key, (0, 2, 3, 1)) @ ops.transpose(x, (0, 2, 1, 3))  # (B, N, m, D)
    return ops.transpose(ops.transpose(query, (0, 2, 1, 3)) @ context, (0, 2, 1, 3))


def masked_scores(
    query: Float[Tensor, "B T N m"],
    key: Float[Tensor, "B S N m"],
    x: Float[Tensor, "B S N D"],
    matrix: Float[Tensor, "B? N? T S"] | None = None,
) -> Float[Tensor, "B T N D"]:
    """[(phi(Q) phi(K)^T) o M] x with the matrix formed, for all query rows or a block of them."""
    scores = ops.einsum("btnm,bsnm->bnts", query, key)  # (B, N, T, S)
    if matrix is not None:
        scores = scores * ops.cast(matrix, scores.dtype)
    return ops.einsum("bnts,bsnd->btnd", scores, x)
