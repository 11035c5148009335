"""Attention re-weighted by the distances between values (p-LaT), by blocks of query rows.

    out_i = sum_j softmax_j(q_i . k_j * scale) (|v_i - v_j|^2 + epsilon^2)^((p - 2) / 2) v_j

In float32 inside. Squared distances are centred Gram products, norms and all in one product of
matrices, with an exact 0 on the diagonal. What is done entry by entry has a gradient of its own:
it is most of the work, and that way it takes half the passes over n x n numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.ops.arguments import (
    Sizes,
    checked,
    flag,
    mask,
    number,
    optional,
    scale_of_scores,
    tensor,
    whole,
)
from keras_graphattn.ops.attention_mask import AttentionMask, attention_mask, block_mask, split_mask
from keras_graphattn.ops.blocks import map_query_blocks
from keras_graphattn.ops.precision import at_least_float32, finite_scores, masked_softmax

Tensor = Any

MOST_EPSILON = 1e19  # its square is the largest that float32 holds


def exponents(name: str, value: Any, sizes: Sizes) -> list[float]:
    """The rule of p: one number of at least 1 for each head."""
    numbers = value if isinstance(value, (list, tuple)) or np.ndim(value) == 1 else ()
    heads = sizes["N"][0] if "N" in sizes else len(numbers)
    if not len(numbers) or len(numbers) != heads:
        raise ValueError(
            f"`{name}` must be a list of numbers of at least 1, one for each of {heads} heads. "
            f"Received: {name}={value!r}"
        )
    return [float(number(least=1.0)(name, one, sizes)) for one in numbers]


def value_pair(name: str, value: Any, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The rule of the values of rows and of columns."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"`{name}` must be those of rows and of columns. Received: {value!r}")
    rows = tensor("B T N D")(f"{name}[0]", value[0], sizes)
    return rows, tensor("B S N D")(f"{name}[1]", value[1], sizes)


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
    query, key, values = (ops.convert_to_tensor(x) for x in (query, key, values))
    mask = AttentionMask() if mask is None else mask
    mask_by_row, mask_whole = split_mask(mask)
    length = ops.shape(key)[1]
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    centred = centred_values(values, mask.keys)

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        weights = p_laplacian_weights(
            ops.einsum("btnh,bsnh->bnts", tensors["query"], tensors["key"]),
            (tensors["row_values"], tensors["all_values"]),
            p,
            block_mask(mask, tensors, rows, tensors["columns"]),
            rows[:, None] == tensors["columns"][None, :],
            epsilon=epsilon,
            drop_diagonal=drop_diagonal,
        )
        return ops.einsum("bnts,bsnh->btnh", weights, at_least_float32(tensors["values"]))

    outputs = map_query_blocks(
        rows_of_block,
        {**mask_by_row, "query": query * ops.cast(scale, query.dtype), "row_values": centred},
        {
            **mask_whole,
            "key": key,
            "values": values,
            "all_values": centred,
            "columns": ops.arange(length),
        },
        length,
        block_size,
    )
    return ops.cast(outputs, values.dtype)


@checked(
    scores=tensor("B N T S"),
    values=value_pair,
    p=exponents,
    mask=optional(mask("B? N? T? S?")),
    diagonal=mask("T S"),
    epsilon=number(above=0.0, below=MOST_EPSILON),
    drop_diagonal=flag,
)
def p_laplacian_weights(
    scores: Tensor,
    values: tuple[Tensor, Tensor],
    p: Sequence[float],
    mask: Tensor | None,
    diagonal: Tensor,
    *,
    epsilon: float,
    drop_diagonal: bool,
) -> Tensor:
    """The re-weighted matrix of some query rows: softmax times distance to the power p - 2.

    Args:
        scores: Scaled logits of shape (B, N, T, S).
        values: Centred values of the rows, (B, T, N, D), and of the columns, (B, S, N, D).
        p: One exponent for each of the N heads.
        mask: Optional boolean tensor that broadcasts to `scores`.
        diagonal: Boolean tensor of shape (T, S): where row and column are the same token.
        epsilon: Smoothing length of the distances, greater than 0.
        drop_diagonal: Whether heads with p != 2 get zeros on the diagonal.

    Returns:
        A float32 tensor of shape (B, N, T, S). Masked entries are exactly 0.

    Example:

    >>> values = keras.random.normal((1, 3, 1, 2))
    >>> weights = p_laplacian_weights(
    ...     np.zeros((1, 1, 3, 3), "float32"), (values, values), [2.0], None, np.eye(3, dtype=bool),
    ...     epsilon=0.1, drop_diagonal=False,
    ... )
    >>> softmax = keras.ops.convert_to_numpy(weights)[0, 0, 0]  # as p = 2
    >>> softmax.astype(float).round(4).tolist()
    [0.3333, 0.3333, 0.3333]
    """
    softmax = masked_softmax(finite_scores(scores), mask)
    exponents = ops.convert_to_tensor([(x - 2.0) / 2.0 for x in p], dtype=softmax.dtype)
    weights = _re_weighted(
        softmax, _gram_distances(*values), exponents[:, None, None], diagonal, epsilon
    )
    if not drop_diagonal:
        return weights
    re_weighted = ops.convert_to_tensor([x != 2.0 for x in p])[:, None, None]
    return ops.where(ops.logical_and(re_weighted, diagonal), ops.cast(0.0, weights.dtype), weights)


def _re_weighted(
    softmax: Tensor, distances: Tensor, exponents: Tensor, diagonal: Tensor, epsilon: float
) -> Tensor:
    """softmax * (distances + epsilon^2)^exponents, with distances of at least 0, 0 on the diagonal.

    The derivative for a distance is 0 where it was put to 0.
    """
    least = epsilon**2

    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def weigh(softmax: Tensor, distances: Tensor, exponents: Tensor, diagonal: Tensor) -> Any:
        smoothed = ops.where(
            diagonal, ops.cast(least, distances.dtype), ops.maximum(distances + least, least)
        )
        factors = ops.exp(exponents * ops.log(smoothed))

        def gradient(*arguments: Any, upstream: Any = None) -> tuple[Any, ...]:
            (to_weights,) = arguments if upstream is None else (upstream,)
            to_softmax = to_weights * factors
            slopes = ops.where(
                smoothed > least, exponents / smoothed, ops.cast(0.0, smoothed.dtype)
            )
            return to_softmax, to_softmax * softmax * slopes, None, None

        return softmax * factors, gradient

    return weigh(softmax, distances, exponents, diagonal)  # on jax, nothing may be captured


@checked(values=tensor("B S N D"), keys=optional(mask("B S")))
def centred_values(values: Tensor, keys: Tensor | None = None) -> Tensor:
    """Values minus their mean over the tokens, in float32: distances stay, cancellation goes.

    Args:
        values: Tensor of shape (B, S, N, D).
        keys: Optional boolean tensor of shape (B, S): the tokens that count in the mean.

    Returns:
        A float32 tensor of the shape of `values`.

    Example:

    >>> values = np.array([1.0, 3.0], "float32").reshape((1, 2, 1, 1))
    >>> keras.ops.convert_to_numpy(centred_values(values)).ravel().tolist()
    [-1.0, 1.0]
    """
    values = at_least_float32(values)
    if keys is None:
        return values - ops.stop_gradient(ops.mean(values, axis=1, keepdims=True))
    weights = ops.cast(keys, values.dtype)[:, :, None, None]
    total = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
    centre = ops.sum(weights * values, axis=1, keepdims=True) / total
    return values - ops.stop_gradient(centre)


@checked(rows=tensor("B T N D"), columns=tensor("B S N D"))
def squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """|v_i - v_j|^2 by the Gram form, at least 0.

    Args:
        rows: Centred values of shape (B, T, N, D).
        columns: Centred values of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, N, T, S). Two equal tokens may come out a little above 0.

    Example:

    >>> values = np.array([1.0, 3.0], "float32").reshape((1, 2, 1, 1))
    >>> keras.ops.convert_to_numpy(squared_distances(values, values))[0, 0].tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    return ops.maximum(_gram_distances(rows, columns), 0.0)


def _gram_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """(|v_i|^2, 1, v_i) . (1, |v_j|^2, -2 v_j): at times a little below 0."""
    ones = (ops.ones_like(x[..., :1]) for x in (rows, columns))
    norms = (ops.sum(x * x, axis=-1, keepdims=True) for x in (rows, columns))
    rows = ops.concatenate([next(norms), next(ones), rows], axis=-1)
    columns = ops.concatenate([next(ones), next(norms), -2.0 * columns], axis=-1)
    return ops.einsum("btnd,bsnd->bnts", rows, columns)
