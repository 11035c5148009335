"""Attention in a learned singular-value domain, linear in the sequence length (AGF).

    out = (U * g(S)) @ (V^T values),    g(S) = sum_k theta_k T_k(S)

U is a softmax over features, V is a softmax over tokens, and S is a sigmoid. They are learned from
the tokens, and replace the singular vectors and values of an attention matrix. That matrix is
never formed.
"""

from typing import Any

from keras import ops

from keras_graphattn.checks import checked, float_dtype, mask, one_of, optional, tensor
from keras_graphattn.numerics.precision import (
    at_least_float32,
    larger,
    masked_softmax,
    size_tensor,
    zero_where_masked,
)
from keras_graphattn.ops.filters.polynomials import Step, basis_steps, polynomial

Tensor = Any

SCALINGS = ("mean", "squared_length")


def _column(mask: Tensor | None) -> Tensor | None:
    """A token mask (B, T) as (B, T, 1, 1), which broadcasts over heads and channels."""
    return None if mask is None else ops.cast(mask, "bool")[:, :, None, None]


@checked(logits=tensor("B T N H"), mask=optional(mask("B T")))
def left_singular_vectors(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """U: the softmax over the head's features, with zero rows for padded tokens.

    Args:
        logits: Tensor of shape (B, T, N, H).
        mask: Optional boolean tensor of shape (B, T); `False` marks padding.

    Returns:
        A float32 tensor of shape (B, T, N, H).

    Example:

    >>> vectors = left_singular_vectors(np.zeros((1, 2, 1, 4), "float32"))
    >>> keras.ops.convert_to_numpy(vectors)[0, 0, 0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return masked_softmax(at_least_float32(logits), _column(mask), axis=-1)


@checked(logits=tensor("B S N H"), mask=optional(mask("B S")))
def right_singular_vectors(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """V: the softmax over the tokens that are not padding, for each head and feature.

    Args:
        logits: Tensor of shape (B, S, N, H).
        mask: Optional boolean tensor of shape (B, S); `False` marks padding.

    Returns:
        A float32 tensor of shape (B, S, N, H).

    Example:

    >>> vectors = right_singular_vectors(np.zeros((1, 2, 1, 3), "float32"))
    >>> keras.ops.convert_to_numpy(vectors)[0, :, 0, 0].tolist()
    [0.5, 0.5]
    """
    return masked_softmax(at_least_float32(logits), _column(mask), axis=1)


@checked(logits=tensor("B T N H"), coefficients=tensor("_"), steps=basis_steps)
def singular_value_filter(logits: Tensor, coefficients: Tensor, steps: list[Step]) -> Tensor:
    """g(S): a polynomial of the singular values `sigmoid(logits)`, in float32.

    Args:
        logits: Tensor of shape (B, T, N, H).
        coefficients: Tensor of shape (K + 1,): theta_0 ... theta_K.
        steps: The polynomial basis, from `keras_graphattn.ops.recurrence`.

    Returns:
        A float32 tensor of shape (B, T, N, H).

    Example:

    >>> from keras_graphattn.ops.filters.polynomials import recurrence
    >>> logits, identity = np.zeros((1, 1, 1, 2), "float32"), np.array([0.0, 1.0], "float32")
    >>> g = singular_value_filter(logits, identity, recurrence("monomial", 1))
    >>> keras.ops.convert_to_numpy(g).ravel().tolist()  # sigmoid(0)
    [0.5, 0.5]
    """
    singular_values = ops.sigmoid(at_least_float32(logits))
    return polynomial(singular_values, at_least_float32(coefficients), steps)


@checked(logits=tensor("B S N H"), values=tensor("B S N D"), mask=optional(mask("B S")))
def singular_value_context(logits: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """`V^T values`, where V is the softmax of the logits over tokens.

    It moves heads before tokens, so it costs less than `right_singular_vectors` and a product.

    Args:
        logits: Tensor of shape (B, S, N, H).
        values: Token values, of shape (B, S, N, D).
        mask: Optional boolean tensor of shape (B, S); `False` marks padding.

    Returns:
        A float32 tensor of shape (B, N, H, D): for each head and feature, the mean of the values
        under the softmax. The sum over tokens uses float32, so that long sequences keep their
        small weights in half precision. All zeros if an example has no token.

    Example:

    >>> logits = np.zeros((1, 2, 1, 1), "float32")
    >>> values = np.array([1.0, 3.0], "float32").reshape((1, 2, 1, 1))
    >>> float(keras.ops.sum(singular_value_context(logits, values)))
    2.0
    """
    # (B, N, S, H) and (B, N, S, D)
    logits, values = (ops.transpose(at_least_float32(x), (0, 2, 1, 3)) for x in (logits, values))
    if mask is not None:
        mask = ops.cast(mask, "bool")[:, None, :, None]
    right = masked_softmax(logits, mask, axis=2)
    return ops.einsum("bnsh,bnsd->bnhd", right, zero_where_masked(values, mask))


@checked(left=tensor("B T N H"), context=tensor("B N H D"), dtype=float_dtype)
def attend_to_context(left: Tensor, context: Tensor, dtype: str) -> Tensor:
    """`left @ context`, head by head, in the given dtype.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        context: V^T values, of shape (B, N, H, D).
        dtype: Dtype of the product, usually the caller's compute dtype.

    Returns:
        A tensor of shape (B, T, N, D).

    Source: Wi et al., arXiv 2505.08516, Eq. 7-10.

    Example:

    >>> left, context = keras.random.normal((2, 5, 4, 8)), keras.random.normal((2, 4, 8, 3))
    >>> tuple(attend_to_context(left, context, "float32").shape)
    (2, 5, 4, 3)
    """
    left = ops.transpose(ops.cast(left, dtype), (0, 2, 1, 3))  # (B, N, T, H)
    outputs = ops.einsum("bnth,bnhd->bntd", left, ops.cast(context, dtype))
    return ops.transpose(outputs, (0, 2, 1, 3))  # (B, T, N, D)


@checked(left=tensor("B T N H"), right=tensor("B S N H"), values=tensor("B S N D"))
def singular_value_attention(left: Tensor, right: Tensor, values: Tensor) -> Tensor:
    """`left @ (right^T values)` without a T x S or a T x H x D tensor.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        right: V, of shape (B, S, N, H). If you have its logits, `attend_to_context` with
            `singular_value_context` costs less.
        values: Token values, of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, T, N, D) and the dtype of `values`. The sum over tokens uses
        float32.

    Source: Wi et al., arXiv 2505.08516, Eq. 7-10. Time O(T H D), memory O(T H + H D) per head.

    Example:

    >>> left, right = keras.random.normal((2, 5, 4, 8)), keras.random.normal((2, 7, 4, 8))
    >>> tuple(singular_value_attention(left, right, keras.random.normal((2, 7, 4, 3))).shape)
    (2, 5, 4, 3)
    """
    values = ops.convert_to_tensor(values)
    # (B, N, H, D)
    context = ops.einsum("bsnh,bsnd->bnhd", at_least_float32(right), at_least_float32(values))
    return attend_to_context(left, context, values.dtype)


@checked(left=tensor("B T N H"), right=tensor("B S N H"))
def singular_value_matrix(left: Tensor, right: Tensor) -> Tensor:
    """The matrix H = (U * g(S)) V^T itself, for inspection only: it takes O(T S) memory.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        right: V, of shape (B, S, N, H).

    Returns:
        A tensor of shape (B, N, T, S).

    Example:

    >>> left, right = keras.random.normal((2, 5, 4, 8)), keras.random.normal((2, 7, 4, 8))
    >>> tuple(singular_value_matrix(left, right).shape)
    (2, 4, 5, 7)
    """
    return ops.einsum("btnh,bsnh->bnts", left, right)


@checked(vectors=tensor("B T N H"), mask=optional(mask("B T")), scaling=one_of(*SCALINGS))
def orthogonality_penalty(
    vectors: Tensor, mask: Tensor | None = None, scaling: str = "mean"
) -> Tensor:
    """How far the columns of U or V are from orthonormal.

    Args:
        vectors: U or V, of shape (B, T, N, H), with zero rows at padded tokens.
        mask: Optional boolean tensor of shape (B, T); `False` marks padding.
        scaling: `"mean"`, the mean over heads and entries of |X^T X - I|; or `"squared_length"`,
            the Frobenius norm of X^T X - I over n^2, averaged over heads, where n is the number of
            tokens of the example that are not padding.

    Returns:
        A float32 scalar: the mean over the examples that have a token.

    Raises:
        ValueError: For an unknown scaling.

    Source: Wi et al., arXiv 2505.08516, Eq. 11 (`"squared_length"`), and the scale that the
    released code trains with (`"mean"`).

    Example:

    >>> vectors = np.eye(4, dtype="float32").reshape((1, 4, 1, 4))
    >>> float(orthogonality_penalty(vectors))
    0.0
    """
    if scaling not in SCALINGS:
        raise ValueError(f"`scaling` must be one of {list(SCALINGS)}. Received: {scaling!r}")
    vectors = ops.transpose(at_least_float32(vectors), (0, 2, 1, 3))
    gram = ops.einsum("bnth,bntg->bnhg", vectors, vectors)  # (B, N, H, H)
    excess = gram - ops.eye(gram.shape[-1], dtype=gram.dtype)
    if mask is None:
        lengths = size_tensor(ops.shape(vectors)[2], gram.dtype)
    else:
        lengths = ops.sum(ops.cast(mask, gram.dtype), axis=1)  # (B,)
    if scaling == "mean":
        penalties = ops.mean(ops.abs(excess), axis=(1, 2, 3))
    else:
        squares = ops.sum(ops.square(excess), axis=(2, 3))
        norms = ops.sqrt(larger(squares, 1e-12))  # a finite gradient at 0
        penalties = ops.mean(norms, axis=1) / ops.square(larger(lengths, 1.0))
    if mask is None:
        return ops.mean(penalties)
    kept = ops.cast(lengths > 0.0, gram.dtype)
    return ops.sum(penalties * kept) / larger(ops.sum(kept), 1.0)
