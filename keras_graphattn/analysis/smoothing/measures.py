"""What the smoothing report measures: each figure with its formula and its source.

Tokens are arrays (n, d) of one sequence without its padding, but for their similarity. A matrix
(..., n, n) is an attention operator: it maps the values of n tokens to the outputs of n tokens.
"""

import numpy as np
from keras import ops

from keras_graphattn.checks import Array, checked, mask, optional, tensor, whole
from keras_graphattn.numerics.precision import at_least_float32, largest
from keras_graphattn.types import Bool, Float, Tensor


@checked(tokens=tensor("B T d"), mask=optional(mask("B T")))
def token_similarity(
    tokens: Float[Tensor, "B T d"], mask: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, " B"]:
    """Returns each sequence's mean cosine similarity over all pairs of different tokens.

    A value of 1 means that all tokens have the same direction. This is over-smoothing, which graph
    filters reduce. Time and memory are linear in the length: if u_t are the tokens scaled to unit
    length, the mean is `(|sum_t u_t|^2 - sum_t |u_t|^2) / (n (n - 1))`.

    Args:
        tokens: Tensor of shape (B, T, d).
        mask: Optional boolean tensor of shape (B, T). `False` marks padding, which is ignored.

    Returns:
        A float32 tensor of shape (B,), with values between -1 and 1. The value is 0 for a sequence
        of fewer than two tokens, which has no pairs. A token of zeros has similarity 0 to all
        others.

    Example:

    >>> similarity = token_similarity(np.array([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]]))
    >>> round(float(similarity[0]), 4)
    0.3333

    Source: Choi et al., arXiv 2312.04234, who plot it for each layer.
    """
    tokens = at_least_float32(tokens)
    if mask is None:
        mask = ops.ones_like(tokens[..., 0], dtype="bool")
    mask = ops.cast(mask, "bool")
    tokens = ops.where(mask[..., None], tokens, 0.0)
    scale = largest(ops.abs(tokens), axis=-1, keepdims=True)  # no square over- or underflows
    tokens = tokens / ops.where(scale > 0, scale, 1.0)
    norm = ops.sqrt(ops.sum(ops.square(tokens), axis=-1, keepdims=True))  # (B, T, 1)
    unit = tokens / ops.where(norm > 0, norm, 1.0)  # (B, T, d); a token of zeros stays 0
    count = ops.sum(ops.cast(mask, unit.dtype), axis=-1)  # (B,)
    all_pairs = ops.sum(ops.square(ops.sum(unit, axis=1)), axis=-1)
    with_itself = ops.sum(ops.square(unit), axis=(1, 2))
    return (all_pairs - with_itself) / ops.maximum(count * (count - 1.0), 1.0)


def dc_share(tokens: Float[Array, "n d"]) -> float:
    """The share of the constant (direct-current) component in the energy of the tokens.

        |DC X|^2 / |X|^2,    DC X = (1 / n) 1 1^T X,    |.| the Frobenius norm

    The rest is the share of all higher frequencies. A value of 1 means that all tokens are equal.
    It is NaN for tokens that are all zeros.

    Example:

    >>> dc_share(np.array([[1.0], [3.0]]))  # 2 * 2^2 of 1^2 + 3^2
    0.8

    Source: Wang et al., arXiv 2203.05962 (the direct-current component).
    """
    tokens = np.asarray(tokens, "float64")
    energy = np.sum(tokens**2)
    constant = len(tokens) * np.sum(tokens.mean(axis=0) ** 2)
    return float(constant / energy) if energy > 0.0 else float("nan")


def effective_rank(tokens: Float[Array, "n d"]) -> float:
    """The effective rank of the tokens: how many of their singular values s count.

        exp(- sum_i p_i log p_i),    p_i = s_i / sum_j s_j

    It is 1 where one direction holds all tokens, and r where r singular values are equal. It is NaN
    for tokens that are all zeros.

    Example:

    >>> round(effective_rank(np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])), 6)
    2.0

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality",
    EUSIPCO 2007, Definition 1.
    """
    values = np.linalg.svd(np.asarray(tokens, "float64"), compute_uv=False)
    if not values.sum() > 0.0:
        return float("nan")
    shares = values[values > 0.0] / values.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def fourier_response(matrix: Float[Array, "... n n"]) -> Float[Array, "... F"]:
    """How much a matrix M amplifies a wave over the positions, for each frequency.

        gain(k) = |M f_k|,    f_k(t) = exp(2 pi i k t / n) / sqrt(n),    k = 0 ... n // 2

    These are the lengths of the columns of the operator in the Fourier basis, F M F^-1. A low-pass
    filter has gains below gain(0) at all higher frequencies; for plain attention, gain(0) is 1.
    M is real, so the frequencies above n / 2 repeat those below: the result has the shape
    (..., n // 2 + 1). Frequency k means k / n periods for each token. Tokens are in the order of
    their positions; those of images row by row.

    Example:

    >>> fourier_response(np.full((2, 2), 0.5)).round(6).tolist()  # averages: only the constant
    [1.0, 0.0]

    Source: Wang et al., arXiv 2203.05962, who view attention in the Fourier basis. To measure
    it by the lengths of columns is our choice.
    """
    matrix = np.asarray(matrix, "float64")
    waves = np.fft.rfft(matrix, axis=-1) / np.sqrt(matrix.shape[-1])  # (..., n, n // 2 + 1)
    gains: Array = np.linalg.norm(waves, axis=-2)
    return gains


@checked(matrix=tensor("... n n"), order=whole())
def first_order_error(matrix: Float[Array, "... n n"], order: int) -> Float[Array, "..."]:
    """How far the approximation of `FirstOrder` is from the power A^K that it stands for.

        E_K = max_i sum_j |A^K - (A + (K-1) (A^2 - A))|_ij <= 2 K

    The error is 0 for the orders 1 and 2. It is small where A^2 is near A, as for tokens that
    attend to all others alike.

    Args:
        matrix: A, of shape (..., n, n), whose rows sum to 1 (or to 0, where a row sees nothing).
        order: K, at least 1.

    Returns:
        A float64 NumPy array of shape (...): one error for each matrix.

    Raises:
        ValueError: For an order below 1, and for matrices that are not square.

    Example:

    >>> permutation = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> [float(first_order_error(permutation, order)) for order in (2, 3, 4)]
    [0.0, 4.0, 4.0]

    Source: Choi et al., arXiv 2312.04234, Theorem 3.1 and Eq. 6.
    """
    matrix = np.asarray(ops.convert_to_numpy(matrix), "float64")
    square = matrix @ matrix
    approximation = matrix + (order - 1) * (square - matrix)
    power = np.linalg.matrix_power(matrix, order)
    errors: Array = np.abs(power - approximation).sum(axis=-1).max(axis=-1)
    return errors
