"""Rows of attention for new tokens, against all tokens so far: decoding token by token.

A polynomial filter of order K applies A up to K times: to V, to P_1(A) V, ..., P_{K-1}(A) V. In
a causal sequence, a new token does not change any of these signals for past tokens. So each
application keeps its signal in the cache, next to the keys, and a new row costs O(n) per
application. The filter itself is the same as in the full pass: it only applies the operator.
"""

from keras import ops

from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.softmax import zero_hidden_rows
from keras_graphattn.types import Bool, Float, Int, Tensor

Cache = dict[str, Tensor]


class CachedOperator(Operator):
    """The rows of A for new tokens, as an operator that keeps its signals in the cache.

    Its k-th call writes the new tokens' signal into slot k of the cache and applies the rows to
    the whole slot. Each step must make its calls in the same order, as a filter does. `index` is
    the position of the first new token; `signals` has the signals of the new tokens after a call.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "B N t L"],
        signals: Float[Tensor, "B _ L N D"],
        index: int | Int[Tensor, ""],
        visible: Bool[Tensor, "B? N? t? L?"] | None = None,
    ) -> None:
        self.rows, self.signals, self.index, self.visible = matrix, signals, index, visible
        self.calls = 0

    def __call__(self, x: Float[Tensor, "B t N D"]) -> Float[Tensor, "B t N D"]:
        slot = ops.cast(x, self.signals.dtype)[:, None]  # (B, 1, t, N, D)
        self.signals = ops.slice_update(self.signals, (0, self.calls, self.index, 0, 0), slot)
        signal = self.signals[:, self.calls]  # (B, L, N, D)
        self.calls += 1
        return ops.einsum("bnts,bsnh->btnh", self.rows, signal)

    def finished(self, outputs: Float[Tensor, "B t N D"]) -> Float[Tensor, "B t N D"]:
        return zero_hidden_rows(outputs, self.visible)


def updated_booleans(
    whole: Bool[Tensor, "B L"], part: Bool[Tensor, "B t"], index: int | Int[Tensor, ""]
) -> Bool[Tensor, "B L"]:
    """Writes a part into the booleans, at `index`."""
    updated = ops.slice_update(ops.cast(whole, "int32"), (0, index), ops.cast(part, "int32"))
    return ops.cast(updated, "bool")
