"""Softmax attention as a linear operator `x -> A x`, in three forms with one meaning.

Each function takes queries and keys and returns a callable that applies the attention matrix
A = softmax(Q K^T * scale) to signals of shape (B, S, N, H), as the filters of
`keras_graphattn.ops` want it. They differ in memory alone:

    softmax_operator      A formed once, applied many times      O(n^2), fastest on repeats
    BlockwiseOperator    A formed again for each application    O(n * block), on any backend
    fused_operator        the backend's fused attention kernel   the kernel's: O(n) if it has one
"""

import math
from typing import Any

from keras import ops

from keras_graphattn.ops.attention_mask import AttentionMask, joined_mask, sighted_rows
from keras_graphattn.ops.filters import Operator
from keras_graphattn.ops.precision import masked_softmax

Tensor = Any


def attention_matrix(
    query: Tensor, key: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """A = softmax(Q K^T * scale) over the keys that the mask lets through.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        mask: Optional boolean tensor that broadcasts to (B, N, T, S); `True` is visible.
        scale: Factor of the scores; 1 / sqrt(H) by default.

    Returns:
        A tensor of shape (B, N, T, S) and the dtype of `query`; a row with nothing to see is 0.
    """
    scores = ops.einsum("btnh,bsnh->bnts", scaled(query, scale), key)
    return masked_softmax(scores, mask)


def matrix_operator(matrix: Tensor) -> Operator:
    """The operator of a matrix that exists: (B, N, T, S) times (B, S, N, H)."""
    matrix = ops.convert_to_tensor(matrix)
    return lambda x: ops.einsum("bnts,bsnh->btnh", matrix, ops.convert_to_tensor(x))


def softmax_operator(
    query: Tensor, key: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Operator:
    """Attention with its matrix formed once, however often it is applied.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        mask: Optional boolean tensor that broadcasts to (B, N, T, S); `True` is visible.
        scale: Factor of the scores; 1 / sqrt(H) by default.

    Returns:
        A callable that maps signals of shape (B, S, N, D) to (B, T, N, D).

    Example:

    >>> query, key, values = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> apply = softmax_operator(query, key)
    >>> tuple(apply(apply(values)).shape)  # A A V
    (2, 10, 4, 8)
    """
    return matrix_operator(attention_matrix(query, key, mask, scale))


def fused_operator(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask | None = None,
    scale: float | None = None,
    flash_attention: bool | None = None,
) -> Operator:
    """Attention through `keras.ops.dot_product_attention`, one call for each application.

    A mask that is causal or of keys alone is handed on without an n x n tensor. Kernels average
    over a row that sees nothing; here such a row is 0, as on every other path.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, T, N, H).
        mask: What each query may see; everything by default.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        flash_attention: `True` insists on the backend's flash kernel (it raises where it cannot
            run), `False` forbids it, `None` leaves the choice to the backend.

    Returns:
        A callable that maps signals of shape (B, T, N, D) to (B, T, N, D).

    Example:

    >>> query, key, values = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> apply = fused_operator(query, key, AttentionMask(causal=True))
    >>> tuple(apply(values).shape)
    (2, 10, 4, 8)
    """
    mask = AttentionMask() if mask is None else mask
    length = ops.shape(query)[1]
    entries = None
    if not (mask.entries is None and mask.keys is None and mask.window is None):
        positions = ops.arange(length)
        entries = joined_mask(mask._replace(queries=None, causal=False), positions, positions)
    seen = sighted_rows(mask, length)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale

    def apply(x: Tensor) -> Tensor:
        outputs = ops.dot_product_attention(
            query,
            key,
            x,
            mask=entries,
            scale=scale,
            is_causal=mask.causal,
            flash_attention=flash_attention,
        )
        if seen is None:
            return outputs
        return ops.where(seen[..., None], outputs, ops.cast(0.0, outputs.dtype))

    return apply


def scaled(query: Tensor, scale: float | None) -> Tensor:
    """Queries times `scale`, 1 / sqrt(H) by default: their products with keys are the scores."""
    query = ops.convert_to_tensor(query)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query * ops.cast(scale, query.dtype)
