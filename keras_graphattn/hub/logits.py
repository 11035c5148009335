"""From scores to attention weights, where a layer has more than a softmax of scaled scores.

An adapter tells it once, as `Logits`. Graph filters and p-Laplacian attention use it in the full
pass and in decoding.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.numerics.precision import at_least_float32, masked_softmax
from keras_graphattn.ops.softmax.attention import attention_matrix, score_operands

Tensor = Any

SOFT_CAP = "soft cap of the scores"
BIAS = "bias of the scores"
SINK = "sink"
DROPOUT = "dropout of the attention matrix"


class Logits(NamedTuple):
    """What a layer does to its scores Q K^T * scale before the softmax, in this order.

    Attributes:
        soft_cap: If given, a score s becomes soft_cap * tanh(s / soft_cap).
        bias: Tensor that is added, (B or 1, N, T or 1, S).
        sink: Logits (N,) of one more column. It takes part in the softmax and is dropped after it,
            so that the rows of A sum to less than 1.
    """

    soft_cap: float | None = None
    bias: Tensor | None = None
    sink: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the scores stay as they are."""
        return self.soft_cap is None and self.bias is None and self.sink is None

    def of(self, scores: Tensor) -> Tensor:
        """The logits (B, N, T, S), or (B, N, T, S + 1) with a sink, of scores (B, N, T, S)."""
        if self.is_plain:
            return scores
        scores = at_least_float32(scores)
        if self.soft_cap is not None:
            scores = self.soft_cap * ops.tanh(scores / self.soft_cap)
        if self.bias is not None:
            scores = scores + ops.cast(self.bias, scores.dtype)
        if self.sink is None:
            return scores
        sink = ops.reshape(ops.cast(self.sink, scores.dtype), (1, -1, 1, 1))
        return ops.concatenate([scores, sink + ops.zeros_like(scores[..., :1])], axis=-1)

    def with_sink(self, mask: Tensor | None) -> Tensor | None:
        """A mask (..., S) with a column of `True` for the sink, if there is one."""
        if mask is None or self.sink is None:
            return mask
        mask = ops.cast(mask, "bool")
        return ops.concatenate([mask, ops.ones_like(mask[..., :1])], axis=-1)

    def without_sink(self, matrix: Tensor) -> Tensor:
        """A matrix (..., S) without the column of the sink, if there is one."""
        return matrix if self.sink is None else matrix[..., :-1]

    def matrix(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """A, of shape (B, N, T, S), in the dtype of the queries.

        Args:
            query: Tensor of shape (B, T, N, H).
            key: Tensor of shape (B, S, N, H).
            mask: Optional boolean tensor that broadcasts to (B, N, T, S).
            scale: Factor of the scores.
        """
        if self.is_plain:
            return attention_matrix(query, key, mask, scale)
        scores = ops.einsum("btnh,bsnh->bnts", *score_operands(query, key, scale))
        weights = masked_softmax(self.of(scores), self.with_sink(mask))
        return ops.cast(self.without_sink(weights), query.dtype)
