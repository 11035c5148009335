"""Softmax attention through the backend's fused kernel, one call for each application."""

import math
from collections.abc import Mapping

import keras
from keras import ops

from keras_graphattn.checks import dtype_name, traced_by_torch
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import is_float64, pad, without_padding
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.softmax import (
    Blocks,
    Logits,
    SoftmaxOperator,
    scores_of,
    zero_rows_without_keys,
)
from keras_graphattn.types import Bool, Float, Tensor

BLOCK = 512  # query rows whose pairs are formed at a time on torch
HIDDEN = -2e38  # what a hidden key gets added: float32 and bfloat16 hold it


class FusedOperator(Operator):
    """Attention through `keras.ops.dot_product_attention`: A is never formed by this package.

    A visibility that is causal, or of keys only, is handed on without an n x n tensor. A visibility
    with both, or with a window, depends on each pair of positions. On torch these pairs, and those
    of the caller's `entries`, are formed for 512 query rows at a time, and again for the backward
    pass. On tensorflow and on jax without a flash kernel, the pairs are B n^2 booleans; these
    backends form B N n^2 scores themselves anyway. Flash kernels of jax take B n^2 booleans for a
    window and for `entries`, and no pairs for keys under a causal mask.

    Kernels average over a row that sees nothing; here such a row is 0, as on every other path.
    float16 becomes float32 where it could not hold scores, or the difference that hides a key, or
    where there is no kernel for it: on tensorflow, on torch under a visibility other than causal,
    and on jax on a CPU. Kernels compute float64 in float32, so the matrix is formed for float64.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, T, N, H).
        visibility: What each query may see; everything by default.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        flash_attention: `True` insists on the backend's flash kernel (it raises where it cannot
            run), `False` forbids it, `None` leaves the choice to the backend.
        logits: What is added to the scores; nothing by default. The backend takes it in the dtype
            of the queries, as B N n^2 numbers; on torch for 512 query rows at a time.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = FusedOperator(query, key, Visibility(causal=True))
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        visibility: Visibility | None = None,
        scale: float | None = None,
        flash_attention: bool | None = None,
        logits: Logits | None = None,
    ) -> None:
        self.query, self.key = query, key
        self.logits = Logits() if logits is None else logits
        self.visibility = visibility = Visibility() if visibility is None else visibility
        self.scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        length = ops.shape(query)[1]
        self.formed = None
        if is_float64(query):
            scores = scores_of(query, key, scale)
            visible = visibility.joined(length)
            self.formed = SoftmaxOperator(scores, visible, logits=self.logits)
            return
        self.rows = visibility.rows_with_visible_keys(length)
        self.pairs = visibility._replace(queries=None)
        reasons = [visibility.entries is not None, visibility.keys is not None, visibility.causal]
        is_torch = keras.backend.backend() == "torch"
        adds_bias = self.logits.adds_bias
        self.is_in_blocks = is_torch and (
            visibility.window is not None or adds_bias or sum(reasons) > 1
        )
        parts = (visibility.entries, visibility.keys, visibility.window)
        is_masked = adds_bias or any(part is not None for part in parts)
        self.needs_float32 = _needs_float32(is_masked)
        self.visible = None
        self.bias = None
        if is_masked and not self.is_in_blocks:
            self.visible = self.pairs._replace(causal=False).joined(length)
            self.bias, self.visible = self.logits.formed(length).finite_bias(self.visible)
        if flash_attention is None and traced_by_torch():
            flash_attention = False  # torch chooses the kernel; it does not trace Keras' question
        self.flash_attention = flash_attention

    def __call__(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if self.formed is not None:
            return self.formed(x)
        dtype, operands = x.dtype, (self.query, self.key, x)
        if self.needs_float32 and "float16" in [dtype_name(z.dtype) for z in operands]:
            operands = tuple(ops.cast(z, "float32") for z in operands)
        if self.is_in_blocks:
            outputs = self._attend_by_blocks(*operands)
        else:
            outputs = self._attend(*operands, self.visible, self.bias, self.visibility.causal)
        return self._without_rows(ops.cast(outputs, dtype))

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        if self.formed is not None:
            return self.formed.finished(outputs)
        return self._without_rows(outputs)

    def _without_rows(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        """The outputs with exact zeros in rows that see nothing."""
        if self.logits.hides_keys:
            return zero_rows_without_keys(outputs, self.visibility, self.logits, BLOCK)
        return without_padding(outputs, self.rows)

    def _attend(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B S N H"],
        x: Float[Tensor, "B S N D"],
        visible: Bool[Tensor, "B? N? T? S?"] | None,
        bias: Float[Tensor, "B? N? T? S"] | None,
        causal: bool,
    ) -> Float[Tensor, "B T N D"]:
        if bias is not None and visible is not None:  # torch takes one of them
            hidden = ops.cast(HIDDEN, bias.dtype)
            bias, visible = ops.where(visible, bias, hidden), None
        size = x.shape[-1]
        widest = max(size, query.shape[-1])  # jax wants one size for all; zeros change nothing
        return ops.dot_product_attention(
            _widened(query, widest),
            _widened(key, widest),
            _widened(x, widest),
            bias=bias,
            mask=visible,
            scale=self.scale,
            is_causal=causal,
            flash_attention=self.flash_attention,
        )[..., :size]

    def _attend_by_blocks(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        x: Float[Tensor, "B T N D"],
    ) -> Float[Tensor, "B T N D"]:
        def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            visible, logits = blocks.of_block(tensors, rows, length)
            bias, visible = logits.finite_bias(visible)
            operands = tensors["query"], tensors["key"], tensors["x"]
            return self._attend(*operands, visible, bias, False)

        length = ops.shape(query)[1]
        blocks, tensors = Blocks.of(self.pairs, self.logits, BLOCK)
        by_row, whole = blocks.named(tensors)
        whole |= {"key": key, "x": x}
        return map_query_blocks(rows_of_block, {**by_row, "query": query}, whole, length, BLOCK)


def _needs_float32(is_masked: bool) -> bool:
    """Whether the backend's attention is not safe in float16."""
    if keras.backend.backend() == "jax":
        import jax

        return bool(jax.default_backend() == "cpu")
    return keras.backend.backend() == "tensorflow" or is_masked


def _widened(x: Float[Tensor, "B T N H"], size: int) -> Float[Tensor, "B T N _"]:
    """The channels, filled up with zeros to `size`."""
    missing = size - x.shape[-1]
    return pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x
