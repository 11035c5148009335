"""Attention in a learned singular-value domain, linear in the sequence length (AGF).

    out = (U * g(S)) @ (V^T values),    g(S) = sum_k theta_k T_k(S)

U is a softmax over features, V a softmax over tokens, S a sigmoid: stand-ins, learned from
the tokens, for the singular vectors and values of an attention matrix that is never formed.
"""

from typing import Any

from keras import ops

from keras_graphattn.ops.polynomials import Step, polynomial
from keras_graphattn.ops.precision import at_least_float32, masked_softmax

Tensor = Any


def _column(mask: Tensor | None) -> Tensor | None:
    """A (B, T) token mask as (B, T, 1, 1), to broadcast over heads and channels."""
    return None if mask is None else ops.cast(mask, "bool")[:, :, None, None]


def left_singular_vectors(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """U: softmax over the head's features, with zero rows for padded tokens.

    Args:
        logits: Tensor of shape (B, T, N, H).
        mask: Optional boolean tensor of shape (B, T); `False` marks padding.

    Returns:
        A float32 tensor of shape (B, T, N, H).
    """
    return masked_softmax(at_least_float32(logits), _column(mask), axis=-1)


def right_singular_vectors(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """V: softmax over the tokens that are not padding, one per head and feature.

    Args:
        logits: Tensor of shape (B, S, N, H).
        mask: Optional boolean tensor of shape (B, S); `False` marks padding.

    Returns:
        A float32 tensor of shape (B, S, N, H).
    """
    return masked_softmax(at_least_float32(logits), _column(mask), axis=1)


def singular_value_filter(logits: Tensor, coefficients: Tensor, steps: list[Step]) -> Tensor:
    """g(S): the singular values `sigmoid(logits)` through a polynomial, in float32.

    Args:
        logits: Tensor of shape (B, T, N, H).
        coefficients: Tensor of shape (K + 1,): theta_0 ... theta_K.
        steps: The polynomial basis, from `keras_graphattn.ops.recurrence`.

    Returns:
        A float32 tensor of shape (B, T, N, H).
    """
    singular_values = ops.sigmoid(at_least_float32(logits))
    return polynomial(singular_values, at_least_float32(coefficients), steps)


def singular_value_attention(left: Tensor, right: Tensor, values: Tensor) -> Tensor:
    """`left @ (right^T values)` without a T x S or a T x H x H tensor.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        right: V, of shape (B, S, N, H).
        values: Token values, of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, T, N, D) and the dtype of `values`. The sum over tokens is taken
        in float32, so that long sequences keep their small weights in half precision.

    Source: Wi et al., arXiv 2505.08516, Eq. 7-10. Time O(T H D), memory O(T H + H D) per head.
    """
    values = ops.convert_to_tensor(values)
    context = ops.einsum("bsnh,bsnd->bnhd", at_least_float32(right), at_least_float32(values))
    return ops.einsum(
        "btnh,bnhd->btnd", ops.cast(left, values.dtype), ops.cast(context, values.dtype)
    )


def singular_value_matrix(left: Tensor, right: Tensor) -> Tensor:
    """The matrix H = (U * g(S)) V^T itself, O(T S) memory: to look at, not to train with.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        right: V, of shape (B, S, N, H).

    Returns:
        A tensor of shape (B, N, T, S).
    """
    return ops.einsum("btnh,bsnh->bnts", left, right)


def orthogonality_penalty(vectors: Tensor) -> Tensor:
    """Mean over batch, heads and entries of |X^T X - I|: how far columns are from orthonormal.

    Args:
        vectors: U or V, of shape (B, T, N, H), with zero rows at padded tokens.

    Returns:
        A float32 scalar.

    Source: Wi et al., arXiv 2505.08516, Eq. 11, in the scale that the released code trains with.
    """
    vectors = at_least_float32(vectors)
    gram = ops.einsum("btnh,btng->bnhg", vectors, vectors)
    return ops.mean(ops.abs(gram - ops.eye(gram.shape[-1], dtype=gram.dtype)))
