"""Attention re-weighted by the distances between values (p-LaT), by blocks of query rows.

    out_i = sum_j softmax_j(q_i . k_j * scale) (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2) v_j

In float32 inside. A row depends on nothing that it may not see: neither its weights nor its
rounding. What is done entry by entry has a gradient of its own, from softmax to re-weighted
matrix in one: it is most of the work, and that way it takes half the passes over n x n numbers.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_graphattn.checks import (
    checked,
    flag,
    number,
    optional,
    scale_of_scores,
    tensor,
    whole,
)
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.custom_gradient import compiled_once
from keras_graphattn.numerics.precision import at_least_float32, zero_where_masked
from keras_graphattn.ops.softmax.attention import scaled
from keras_graphattn.ops.softmax.masks import (
    AttentionMask,
    attention_mask,
    block_mask,
    split_mask,
    zero_blind_rows,
)
from keras_graphattn.ops.softmax.re_weighting import (
    LEAST_SHARE,
    MOST_EPSILON,
    exponents,
    p_laplacian_weights,
)

Tensor = Any


@checked(
    query=tensor("B T N H"),
    key=tensor("B T N H"),
    values=tensor("B T N D"),
    p=exponents,
    mask=optional(attention_mask("T", "T")),
    epsilon=number(above=0.0, below=MOST_EPSILON),
    drop_diagonal=flag,
    scale=optional(scale_of_scores),
    block_size=whole(),
)
def p_laplacian_attention(
    query: Tensor,
    key: Tensor,
    values: Tensor,
    p: Sequence[float],
    mask: AttentionMask | None = None,
    *,
    epsilon: float = 0.1,
    drop_diagonal: bool = False,
    scale: float | None = None,
    block_size: int = 512,
) -> Tensor:
    """p-Laplacian attention in O(n * block_size) memory, forward and backward.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, T, N, H).
        values: Tensor of shape (B, T, N, D); its own distances re-weight the attention.
        p: One exponent for each of the N heads.
        mask: What each query may see; everything by default.
        epsilon: Smoothing length of the distances, greater than 0.
        drop_diagonal: Whether heads with p != 2 leave a token's own value out of its sum.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        block_size: Number of query rows at a time.

    Returns:
        A tensor of the shape and dtype of `values`; rows with nothing to see are 0.

    Example:

    >>> query, key, values = (keras.random.normal((2, 10, 2, 8)) for _ in range(3))
    >>> outputs = p_laplacian_attention(query, key, values, p=[1.5, 2.5], block_size=4)
    >>> tuple(outputs.shape)
    (2, 10, 2, 8)

    Source: Nguyen et al., "p-Laplacian Transformer", arXiv 2311.03235, Eq. 11-12. Ours: epsilon.
    """
    mask = AttentionMask() if mask is None else mask
    parts = {name: x for name, x in mask._asdict().items() if name in _TENSORS and x is not None}
    settings = (tuple(p), epsilon, drop_diagonal, scale, block_size)
    attend = compiled_once(_attend, tuple(parts), mask.causal, mask.window, settings)
    return attend(query, key, values, *parts.values())


_TENSORS = ("entries", "queries", "keys")  # the parts of a mask that are tensors


def _attend(
    parts: tuple[str, ...],
    causal: bool,
    window: int | None,
    settings: tuple[Any, ...],
    query: Tensor,
    key: Tensor,
    values: Tensor,
    *masks: Tensor,
) -> Tensor:
    p, epsilon, drop_diagonal, scale, block_size = settings
    mask = AttentionMask(**dict(zip(parts, masks, strict=True)), causal=causal, window=window)
    query, key, values = without_padding(query, key, values, mask.queries, mask.keys)
    mask_by_row, mask_whole = split_mask(mask)
    length = ops.shape(key)[1]
    centre = _common_centre(values, mask)
    if centre is not None:
        mask_whole["centre"] = centre

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        names = ("query", "key", "row_values", "values", "centre")
        block = block_mask(mask, tensors, rows, tensors["columns"])
        given = [*(tensors.get(name) for name in names), block]
        settings = _Settings(p, epsilon, drop_diagonal, centre is not None)
        return _rows_of_output(settings, rows, *(x for x in given if x is not None))

    outputs = map_query_blocks(
        rows_of_block,
        {**mask_by_row, "query": scaled(query, scale), "row_values": values},
        {**mask_whole, "key": key, "values": values, "columns": ops.arange(length, dtype="int32")},
        length,
        block_size,
    )
    return zero_blind_rows(ops.cast(outputs, values.dtype), mask, block_size)


class _Settings(NamedTuple):
    """What is known of the attention without its tensors."""

    p: tuple[float, ...]
    epsilon: float
    drop_diagonal: bool
    has_centre: bool


def _rows_of_output(settings: _Settings, rows: Tensor, *tensors: Tensor) -> Tensor:
    """Rows (B, T, N, D) of the output.

    The tensors are queries, keys, values of rows and of columns, and, if there are such, the
    centre and the mask.
    """
    if keras.backend.backend() != "torch":
        return _plain_rows(settings, rows, *tensors)
    from keras_graphattn.ops.softmax import torch_p_laplacian

    return torch_p_laplacian.rows_of_output(
        functools.partial(_plain_rows, settings),
        torch_p_laplacian.Settings(
            settings.p,
            settings.epsilon**2,
            LEAST_SHARE,
            settings.drop_diagonal,
            settings.has_centre,
            len(tensors) > 4 + settings.has_centre,
        ),
        rows,
        *tensors,
    )


def _plain_rows(settings: _Settings, rows: Tensor, *tensors: Tensor) -> Tensor:
    query, key, row_values, values, *others = tensors
    columns = ops.arange(ops.shape(key)[1], dtype="int32")
    weights = p_laplacian_weights(
        scores_of(query, key),
        (row_values, values),
        settings.p,
        others[-1] if len(others) > settings.has_centre else None,
        rows[:, None] == columns[None, :],
        epsilon=settings.epsilon,
        drop_diagonal=settings.drop_diagonal,
        centre=others[0] if settings.has_centre else None,
    )
    return ops.einsum("bnts,bsnh->btnh", weights, at_least_float32(values))


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Scaled queries times keys, (B, N, T, S), in float32 where float16 could not hold them."""
    if keras.backend.standardize_dtype(query.dtype) == "float16":
        query, key = at_least_float32(query), at_least_float32(key)
    return ops.einsum("btnh,bsnh->bnts", query, key)


def without_padding(
    query: Tensor, key: Tensor, values: Tensor, queries: Tensor | None, keys: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros in the padding of (B, T, ...) tensors: NaN times a weight of 0 would be NaN."""

    def zeroed(x: Tensor, mask: Tensor | None) -> Tensor:
        x = ops.convert_to_tensor(x)
        if mask is None:
            return x
        ones = (1,) * (len(x.shape) - 2)
        return zero_where_masked(x, ops.reshape(mask, (*ops.shape(mask), *ones)))

    return zeroed(query, queries), zeroed(key, keys), zeroed(values, keys)


def _common_centre(values: Tensor, mask: AttentionMask) -> Tensor | None:
    """The mean of the values, (B, 1, N, D), where all rows see the same of them; else none."""
    if mask.entries is not None or mask.causal or mask.window is not None:
        return None
    values = at_least_float32(values)
    if mask.keys is None:
        return ops.mean(values, axis=1, keepdims=True)
    count = ops.sum(ops.cast(mask.keys, values.dtype), axis=1)[:, None, None, None]
    return ops.sum(values, axis=1, keepdims=True) / ops.maximum(count, 1.0)
