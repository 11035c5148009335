"""Softmax attention as a linear operator `x -> A x`, in three forms with one meaning.

Each function takes queries and keys and returns a callable that applies the attention matrix
A = softmax(Q K^T * scale) to signals of shape (B, S, N, H), as the filters of
`keras_graphattn.ops` want it. They differ only in memory:

    softmax_operator      A formed once, applied many times      O(n^2), fastest on repeats
    BlockwiseOperator    A formed again for each application    O(n * block), on any backend
    fused_operator        the backend's fused attention kernel   the kernel's: O(n) if it has one
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import (
    Sizes,
    check_shape,
    checked,
    dtype_name,
    flag,
    mask,
    optional,
    scale_of_scores,
    tensor,
    traced_by_torch,
)
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.precision import is_float64, masked_softmax, pad
from keras_graphattn.ops.filters.operator_filters import Operator
from keras_graphattn.ops.filters.triangular import solve_causal
from keras_graphattn.ops.softmax.masks import (
    AttentionMask,
    attention_mask,
    block_mask,
    joined_mask,
    sighted_rows,
    split_mask,
)

Tensor = Any


@checked(
    query=tensor("B T N H"),
    key=tensor("B S N H"),
    mask=optional(mask("B? N? T? S?")),
    scale=optional(scale_of_scores),
)
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

    Example:

    >>> query, key = keras.random.normal((2, 5, 4, 8)), keras.random.normal((2, 7, 4, 8))
    >>> tuple(attention_matrix(query, key).shape)
    (2, 4, 5, 7)
    """
    dtype = query.dtype
    scores = ops.einsum("btnh,bsnh->bnts", *score_operands(query, key, scale))
    return ops.cast(masked_softmax(scores, mask), dtype)


@checked(matrix=tensor("B N T S"))
def matrix_operator(matrix: Tensor) -> "_MatrixOperator":
    """The operator of a matrix that exists: (B, N, T, S) times (B, S, N, H).

    If the matrix is lower triangular, `solve(factor, x)` returns the y with y + factor * A y = x.

    Example:

    >>> apply = matrix_operator(np.ones((1, 1, 2, 2), "float32"))
    >>> outputs = apply(np.array([1.0, 2.0], "float32").reshape((1, 2, 1, 1)))
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [3.0, 3.0]
    """

    return _MatrixOperator(matrix)


class _MatrixOperator:
    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        sizes: Sizes = {}
        check_shape("matrix", self.matrix, ("B N T S",), sizes)
        x = tensor("B S N H")("x", x, sizes)
        return ops.einsum("bnts,bsnh->btnh", self.matrix, ops.convert_to_tensor(x))

    def solve(self, factor: Tensor, x: Tensor) -> Tensor:
        """As `BlockwiseOperator.solve`, for a matrix that is lower triangular."""
        x = ops.convert_to_tensor(x)
        right = ops.transpose(x, (0, 2, 1, 3))  # (B, N, T, D)
        found = solve_causal(self.matrix, ops.expand_dims(factor, -1), right)
        return ops.cast(ops.transpose(found, (0, 2, 1, 3)), x.dtype)


@checked(
    query=tensor("B T N H"),
    key=tensor("B S N H"),
    mask=optional(mask("B? N? T? S?")),
    scale=optional(scale_of_scores),
)
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


@checked(
    query=tensor("B T N H"),
    key=tensor("B T N H"),
    mask=optional(attention_mask("T", "T")),
    scale=optional(scale_of_scores),
    flash_attention=optional(flag),
)
def fused_operator(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask | None = None,
    scale: float | None = None,
    flash_attention: bool | None = None,
) -> Operator:
    """Attention through `keras.ops.dot_product_attention`, one call for each application.

    A mask that is causal, or of keys only, is handed on without an n x n tensor. What joins both,
    or has a window, says something of each pair of positions. On torch it is formed, as are the
    pairs of the caller's `entries`, for 512 query rows at a time, and again for the backward pass.
    On tensorflow and on jax without a flash kernel, pairs are formed by B n^2 booleans beside the
    B N n^2 scores that these backends form themselves; flash kernels of jax take B n^2 booleans
    for a window and for `entries`, and no pairs for keys under a causal mask.

    Kernels average over a row that sees nothing; here such a row is 0, as on every other path.
    float16 becomes float32 where it could not hold scores, or the difference that hides a key, or
    where there is no kernel for it: on tensorflow, on torch under a mask other than the causal
    one, and on jax on a CPU.
    Kernels make float32 of float64: there the matrix is formed.

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
    if is_float64(query):
        positions = ops.arange(length, dtype="int32")
        return softmax_operator(query, key, joined_mask(mask, positions, positions), scale)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    seen = sighted_rows(mask, length)
    pairs = mask._replace(queries=None)
    reasons = [mask.entries is not None, mask.keys is not None, mask.causal]
    backend = keras.backend.backend()
    by_blocks = backend == "torch" and (mask.window is not None or sum(reasons) > 1)
    is_masked = any(part is not None for part in (mask.entries, mask.keys, mask.window))
    needs_float32 = _needs_float32(is_masked)
    entries = None
    if is_masked and not by_blocks:
        positions = ops.arange(length, dtype="int32")
        entries = joined_mask(pairs._replace(causal=False), positions, positions)

    if flash_attention is None and traced_by_torch():
        flash_attention = False  # torch chooses the kernel; it does not trace Keras' question

    def attend(query: Tensor, key: Tensor, x: Tensor, entries: Tensor, causal: bool) -> Tensor:
        size = x.shape[-1]
        widest = max(size, query.shape[-1])  # jax wants one size for all; zeros change nothing
        return ops.dot_product_attention(
            _widened(query, widest),
            _widened(key, widest),
            _widened(x, widest),
            mask=entries,
            scale=scale,
            is_causal=causal,
            flash_attention=flash_attention,
        )[..., :size]

    def attend_by_blocks(query: Tensor, key: Tensor, x: Tensor) -> Tensor:
        def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
            entries = block_mask(pairs, tensors, rows, tensors["columns"])
            return attend(tensors["query"], tensors["key"], tensors["x"], entries, False)

        by_row, whole = split_mask(pairs)
        whole |= {"key": key, "x": x, "columns": ops.arange(length, dtype="int32")}
        return map_query_blocks(rows_of_block, {**by_row, "query": query}, whole, length, 512)

    def apply(x: Tensor) -> Tensor:
        sizes: Sizes = {}
        check_shape("key", key, ("B S N _",), sizes)
        x = tensor("B S N D")("x", x, sizes)
        dtype, operands = x.dtype, (query, key, x)
        if needs_float32 and "float16" in [dtype_name(z.dtype) for z in operands]:
            operands = tuple(ops.cast(z, "float32") for z in operands)
        if by_blocks:
            outputs = attend_by_blocks(*operands)
        else:
            outputs = attend(*operands, entries, mask.causal)
        outputs = ops.cast(outputs, dtype)
        if seen is None:
            return outputs
        return ops.where(seen[..., None], outputs, ops.cast(0.0, outputs.dtype))

    return apply


def _needs_float32(is_masked: bool) -> bool:
    """Whether the backend's attention goes wrong in float16."""
    if keras.backend.backend() == "jax":
        import jax

        return bool(jax.default_backend() == "cpu")
    return keras.backend.backend() == "tensorflow" or is_masked


def _widened(x: Tensor, size: int) -> Tensor:
    """The channels of (B, T, N, H), filled up with zeros to `size`."""
    missing = size - x.shape[-1]
    return pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x


def scaled(query: Tensor, scale: float | None) -> Tensor:
    """Queries times `scale`, 1 / sqrt(H) by default: their products with keys are the scores."""
    query = ops.convert_to_tensor(query)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query * float(scale)


def score_operands(query: Tensor, key: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Queries times `scale`, and keys, whose products are the scores: finite in every precision.

    float16 becomes float32, and with it the scores. A score may be larger than float16 holds, and
    where partial sums are of float16 too, as in TensorFlow on a CPU, it becomes NaN.
    """
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    if "float16" in (dtype_name(query.dtype), dtype_name(key.dtype)):
        query, key = ops.cast(query, "float32"), ops.cast(key, "float32")
    return scaled(query, scale), key
