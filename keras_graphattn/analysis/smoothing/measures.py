"""What the smoothing report measures: each figure with its formula and its source.

Tokens are arrays (n, d) of one sequence without its padding, but for their similarity. A matrix
(..., n, n) is an attention operator: it maps the values of n tokens to the outputs of n tokens.
"""

import numpy as np
from keras import ops
from scipy.spatial.distance import cdist

from keras_graphattn.checks import Array, checked, mask, number, optional, tensor, whole
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
        A tensor of shape (B,), float32 or float64, with values between -1 and 1. The value is 0
        for a sequence of fewer than two tokens, which has no pairs. A token of zeros has
        similarity 0 to all others.

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
    matrix = _float64(matrix)
    square = matrix @ matrix
    approximation = matrix + (order - 1) * (square - matrix)
    power = np.linalg.matrix_power(matrix, order)
    errors: Array = np.abs(power - approximation).sum(axis=-1).max(axis=-1)
    return errors


@checked(matrix=tensor("... n n"), tokens=tensor("... n d"), steps=whole())
def frequency_parts(
    matrix: Float[Array, "... n n"], tokens: Float[Array, "... n d"], steps: int = 10
) -> tuple[Float[Array, "... steps"], Float[Array, "... steps"]]:
    """The low and the high part of the tokens after each of several applications of an operator.

        low(t) = |DC M^t z|,    high(t) = |M^t z - DC M^t z|,    DC = (1 / n) 1 1^T

    |.| is the Frobenius norm. For attention whose rows sum to 1 and whose entries are all positive,
    high(t) / low(t) goes to 0 as t grows: the operator is a low-pass filter.

    Args:
        matrix: M, of shape (..., n, n): attention A, its filter H, or its re-weighting of p-LaT.
        tokens: z, of shape (..., n, d).
        steps: How many steps are measured, t = 0 ... steps - 1.

    Returns:
        Two float64 NumPy arrays of shape (..., steps): low and high.

    Raises:
        ValueError: For shapes that do not fit, and for `steps` below 1.

    Example:

    >>> swap = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> low, high = frequency_parts(swap, np.array([[2.0], [0.0]]), steps=3)
    >>> (high / low).round(6).tolist()
    [1.0, 0.5, 0.25]

    Source: Wang et al., arXiv 2203.05962, Section 2 and Theorem 1; Nguyen et al., arXiv 2311.03235.
    """
    matrix, tokens = _float64(matrix), _float64(tokens)
    tokens = np.broadcast_to(tokens, _leading(matrix=matrix, tokens=tokens) + tokens.shape[-2:])
    low, high = [], []
    for step in range(steps):
        tokens = matrix @ tokens if step else tokens
        constant = np.broadcast_to(tokens.mean(axis=-2, keepdims=True), tokens.shape)
        low.append(np.linalg.norm(constant, axis=(-2, -1)))
        high.append(np.linalg.norm(tokens - constant, axis=(-2, -1)))
    return np.stack(low, axis=-1), np.stack(high, axis=-1)


@checked(
    weights=tensor("... n n"),
    values=tensor("... n d"),
    p=number(least=1.0),
    start=optional(tensor("... n d")),
    mu=number(least=0.0),
)
def p_laplacian_energy(
    weights: Float[Array, "... n n"],
    values: Float[Array, "... n d"],
    p: float = 2.0,
    *,
    start: Float[Array, "... n d"] | None = None,
    mu: float = 0.0,
) -> Float[Array, "..."]:
    """The energy whose gradient p-LaT is derived from.

        J(u) = (1 / p) sum_i sum_j k_ij |u_i - u_j|^p + (mu / 2) sum_i |u_i - f_i|^2

    With symmetric weights, as in attention with W_Q = W_K before its rows are divided by their
    sums, the gradient is 2 sum_j k_ij |u_i - u_j|^(p - 2) (u_i - u_j) + mu (u_i - f_i). Weights
    that are not symmetric have the energy of (k + k^T) / 2.

    A low energy means that tokens which attend to each other are alike. A layer of p-LaT need not
    decrease it: the layer does not divide by the sum of its weights again.

    Args:
        weights: k, of shape (..., n, n), such as the attention of each head.
        values: u, of shape (..., n, d).
        p: The exponent, a number of at least 1; 2 gives the Dirichlet energy.
        start: f, of shape (..., n, d): the tokens that `mu` holds u near to.
        mu: The weight of the distance from `start`, at least 0.

    Returns:
        A float64 NumPy array of shape (...): one energy for each matrix.

    Raises:
        ValueError: For shapes that do not fit, numbers out of range, and `mu` without `start` or
            `start` without `mu`.

    Example:

    >>> float(p_laplacian_energy(np.ones((2, 2)), np.array([[0.0], [2.0]])))  # 1/2 (2^2 + 2^2)
    4.0

    Source: Nguyen et al., arXiv 2311.03235, Section 3. The factor 1 / p is our choice.
    """
    if (start is None) != (mu == 0.0):
        raise ValueError(
            "`mu` weighs the distance from `start`: give both or none of them. Received: "
            f"mu={mu}, start={'None' if start is None else 'an array'}."
        )
    weights, values = _float64(weights), _float64(values)
    _leading(weights=weights, values=values)
    energy: Array = np.sum(weights * _distances(values) ** p, axis=(-2, -1)) / p
    if start is not None:
        energy = energy + mu / 2.0 * np.sum((values - _float64(start)) ** 2, axis=(-2, -1))
    return energy


@checked(weights=tensor("... n n"), values=tensor("... n d"))
def homophily(
    weights: Float[Array, "... n n"], values: Float[Array, "... n d"]
) -> Float[Array, "..."]:
    """The share of the attention between tokens whose values are nearer than 1 to each other.

        sum_(i != j) A_ij [|v_i - v_j| < 1] / sum_(i != j) A_ij

    Heads of p-LaT with p < 2 increase the weights of these pairs, heads with p > 2 those of the
    others. A token's attention to itself does not count.

    Args:
        weights: A, of shape (..., n, n).
        values: v, the values of each head, of shape (..., n, d).

    Returns:
        A float64 NumPy array of shape (...), from 0 to 1 for weights of at least 0; NaN where no
        token attends to another one.

    Raises:
        ValueError: For shapes that do not fit.

    Example:

    >>> values = np.array([[0.0], [0.5], [2.0]])
    >>> round(float(homophily(np.full((3, 3), 1 / 3), values)), 6)
    0.333333

    Source: Nguyen et al., arXiv 2311.03235. To weigh the pairs by attention is our choice.
    """
    weights, values = _float64(weights), _float64(values)
    _leading(weights=weights, values=values)
    weights = weights * (1.0 - np.eye(weights.shape[-1]))
    near = np.sum(weights * (_distances(values) < 1.0), axis=(-2, -1))
    total = np.sum(weights, axis=(-2, -1))
    with np.errstate(invalid="ignore"):
        share: Array = near / total
    return share


def _leading(**arrays: Float[Array, "... _ _"]) -> tuple[int, ...]:
    """The joint shape of all axes but the last two."""
    shapes = {name: array.shape for name, array in arrays.items()}
    try:
        return np.broadcast_shapes(*(shape[:-2] for shape in shapes.values()))
    except ValueError as error:
        raise ValueError(
            f"The axes before the last two of {' and '.join(map('`{}`'.format, shapes))} must be "
            f"the same, or 1. Received: shapes {' and '.join(map(str, shapes.values()))}"
        ) from error


def _float64(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """An array or a tensor of any backend in float64."""
    return np.asarray(ops.convert_to_numpy(x), "float64")


def _distances(values: Float[Array, "... n d"]) -> Float[Array, "... n n"]:
    """|v_i - v_j| of all pairs, without cancellation."""
    length = values.shape[-2]
    distances = [cdist(one, one) for one in values.reshape(-1, *values.shape[-2:])]
    return np.reshape(distances, (*values.shape[:-1], length))
