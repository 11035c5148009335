"""What the smoothing report measures: each figure with its formula and its source, in NumPy.

Tokens are arrays (n, d) of one sequence without its padding; their similarity is
`keras_graphattn.analysis.token_similarity`. A matrix (..., n, n) is an attention operator: it maps
the values of n tokens to the outputs of n tokens.
"""

import numpy as np

from keras_graphattn.checks import Array
from keras_graphattn.types import Float


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
