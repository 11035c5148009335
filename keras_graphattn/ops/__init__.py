"""The papers' formulas as functions of tensors, on any Keras backend. They have no weights.

Each checks its arguments, and calls the code that the layers use: `keras_graphattn.operators`,
`filters`, `feature_maps` and `masks`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_graphattn.checks import (
    Sizes,
    check_broadcast,
    check_shape,
    checked,
    flag,
    function,
    mask,
    number,
    optional,
    scale_of_scores,
    tensor,
    whole,
)
from keras_graphattn.filters import FirstOrder, Step
from keras_graphattn.filters import polynomial as polynomials
from keras_graphattn.filters.polynomial import recurrence
from keras_graphattn.masks.chunked import Decay, chunked_attention
from keras_graphattn.masks.graphs.random_features import graph_random_features
from keras_graphattn.masks.graphs.walks import kernel_of_steps, random_walks
from keras_graphattn.masks.hypercube import hypercube_product
from keras_graphattn.masks.toeplitz import toeplitz_product
from keras_graphattn.masks.trees.forest import Forest, forest_from_graph, forest_from_parents
from keras_graphattn.masks.trees.sweeps import exponential_tree_product
from keras_graphattn.masks.trees.tables import table_tree_product
from keras_graphattn.numerics import precision
from keras_graphattn.operators import Visibility, p_laplacian, singular, singular_causal, softmax
from keras_graphattn.operators import kernel as of_features
from keras_graphattn.operators.p_laplacian import MOST_EPSILON
from keras_graphattn.operators.singular import orthogonality_penalty
from keras_graphattn.operators.singular_causal import RunningSum
from keras_graphattn.types import Float, Num, Tensor

CHUNK = singular_causal.CHUNK
Operator = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]


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


def basis_steps(name: str, value: Any, sizes: Sizes) -> list[Step]:
    """The rule of a basis: a list of steps, made by `recurrence`."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if not is_list or not all(isinstance(step, Step) for step in value):
        raise ValueError(
            f"`{name}` must be a list of steps, made by `recurrence`. Received: {name}={value!r}"
        )
    return list(value)


def running_sum(name: str, value: object, sizes: Sizes) -> RunningSum:
    """The rule of a state: a `RunningSum` that fits the logits and the values."""
    if not isinstance(value, RunningSum):
        raise ValueError(
            f"`{name}` must be a RunningSum, which an earlier call returned. "
            f"Received: {name}={value!r}"
        )
    shapes = {"maximum": "B N H", "normaliser": "B N H", "context": "B N H D"}
    parts = value._asdict()
    return RunningSum(
        *(tensor(shapes[part])(f"{name}.{part}", x, sizes) for part, x in parts.items())
    )


@checked(mask=optional(mask("B? N? T? S?")), scale=optional(scale_of_scores))
def attention_matrix(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    mask: Num[Tensor, "B? N? T? S?"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B N T S"]:
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

    Source: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, Eq. 1.
    """
    scores = softmax.scores_of(query, key, scale)
    return softmax.SoftmaxOperator(scores, mask, dtype=query.dtype).matrix()


@checked(negative_slope=number())
def additive_scores(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B S N H"],
    query_vector: Float[Tensor, "N H"],
    key_vector: Float[Tensor, "N H"],
    negative_slope: float = 0.2,
) -> Float[Tensor, "B N T S"]:
    """LeakyReLU(a . [q_i || k_j]) for each pair, where a = [query_vector || key_vector].

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, S, N, H).
        query_vector: Tensor of shape (N, H), the first half of a for each head.
        key_vector: Tensor of shape (N, H), the second half.
        negative_slope: The slope of LeakyReLU below 0.

    Returns:
        A tensor of shape (B, N, T, S), in at least float32.

    Example:

    >>> query = np.array([1.0, -6.0], "float32").reshape((1, 2, 1, 1))
    >>> key = np.array([1.0, 2.0], "float32").reshape((1, 2, 1, 1))
    >>> one = np.ones((1, 1), "float32")
    >>> scores = additive_scores(query, key, one, one, negative_slope=0.5)
    >>> keras.ops.convert_to_numpy(scores)[0, 0].tolist()
    [[2.0, 3.0], [-2.5, -2.0]]

    Source: Velickovic et al., "Graph Attention Networks", arXiv 1710.10903 (ICLR 2018), Eq. 3.
    """
    return softmax.additive_scores(query, key, query_vector, key_vector, negative_slope)


@checked(
    p=exponents,
    mask=optional(Visibility.rule("T", "T")),
    epsilon=number(above=0.0, below=MOST_EPSILON),
    drop_diagonal=flag,
    scale=optional(scale_of_scores),
    block_size=whole(),
)
def p_laplacian_attention(
    query: Float[Tensor, "B T N H"],
    key: Float[Tensor, "B T N H"],
    values: Float[Tensor, "B T N D"],
    p: Sequence[float],
    mask: Visibility | None = None,
    *,
    epsilon: float = 0.1,
    drop_diagonal: bool = False,
    scale: float | None = None,
    block_size: int = 512,
) -> Float[Tensor, "B T N D"]:
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
    mask = Visibility() if mask is None else mask
    query = precision.without_padding(query, mask.queries)
    key, values = (precision.without_padding(x, mask.keys) for x in (key, values))
    numbers = p_laplacian.PLaplacian(tuple(p), epsilon, drop_diagonal)
    operator = p_laplacian.PLaplacianOperator(
        query, key, values, numbers, mask, scale=scale, block_size=block_size
    )
    return operator.finished(operator(values))


@checked(apply=function)
def first_order_filter(
    apply: Operator,
    values: Float[Tensor, "..."],
    identity: Float[Tensor, "..."],
    linear: Float[Tensor, "..."],
    power: Float[Tensor, "..."],
    order: int,
) -> Float[Tensor, "..."]:
    """Graph-filter self-attention: identity, first power, and an approximate K-th power.

        H = identity I + linear A + power (A + (K - 1)(A^2 - A)),    result = H values

    evaluated as `identity V + (linear + power (2 - K)) U + power (K - 1) A U` with U = A V:
    two applications of the operator, and not the product A A. An operator that can apply itself
    twice in a row for less than twice the cost has a method `apply.twice(x)`, which returns both
    results.

    Args:
        apply: Callable that maps a tensor of the shape of `values` to A times it.
        values: Tensor of token values; the coefficients must broadcast to it.
        identity: Coefficient w_0 of the identity.
        linear: Coefficient w_1 of A.
        power: Coefficient w_K of the K-th power's first-order approximation.
        order: The power K, an integer of at least 1. K = 1 is A itself, K = 2 exactly A^2.

    Returns:
        A tensor of the shape and dtype of `values`; sums are taken in float32.

    Raises:
        ValueError: If `order` is not an integer of at least 1.

    Source: Choi et al., arXiv 2312.04234, Eq. 4-6.

    Example:

    >>> values = np.ones((1, 2, 1, 1), "float32")
    >>> no, one = np.zeros(1, "float32"), np.ones(1, "float32")
    >>> outputs = first_order_filter(lambda x: 0.5 * x, values, no, no, one, order=2)
    >>> float(outputs[0, 0, 0, 0])  # A A
    0.25
    """
    values = ops.convert_to_tensor(values)
    for name, weight in (("identity", identity), ("linear", linear), ("power", power)):
        check_broadcast(name, weight, "values", values)
    coefficients = {
        "identity_coefficient": identity,
        "linear_coefficient": linear,
        "power_coefficient": power,
    }
    return FirstOrder(order)(apply, values, coefficients)


@checked(apply=function, steps=basis_steps)
def polynomial_filter(
    apply: Operator,
    values: Float[Tensor, "..."],
    coefficients: Float[Tensor, "..."],
    steps: list[Step],
) -> Float[Tensor, "..."]:
    """An exact polynomial of the operator, `sum_k coefficients[k] P_k(A) values`.

    The three-term recurrence works on the signal: P_k(A) V = (a_k A + b_k) P_{k-1}(A) V -
    c_k P_{k-2}(A) V. It takes K applications of the operator, and no product of matrices.

    Args:
        apply: Callable that maps a tensor of the shape of `values` to A times it.
        values: Tensor of token values V.
        coefficients: Tensor of K + 1 coefficients; `coefficients[k]` must broadcast to `values`.
            For values of shape (B, T, N, H) and one coefficient per head, the shape is
            (K + 1, N, 1).
        steps: The basis, from `keras_graphattn.ops.recurrence(basis, K, ...)`.

    Returns:
        A tensor of the shape and dtype of `values`; the recurrence and the sum use float32.

    Raises:
        ValueError: If the number of coefficients is not `len(steps) + 1`.

    Example:

    >>> steps = [Step(1.0, 0.0, 0.0)] * 3  # recurrence("monomial", 3)
    >>> values, coefficients = np.ones((1, 5, 2, 4)), np.ones((4, 2, 1))
    >>> outputs = polynomial_filter(lambda x: 0.5 * x, values, coefficients, steps)
    >>> float(outputs[0, 0, 0, 0])  # 1 + 1/2 + 1/4 + 1/8
    1.875

    Source: the exact filters that Choi et al., arXiv 2312.04234, approximate in Eq. 5; the
    bases of Wi et al., arXiv 2505.08516, Eq. 22-26.
    """
    values, coefficients = ops.convert_to_tensor(values), ops.convert_to_tensor(coefficients)
    check_shape("coefficients", coefficients, ("k", "k ..."), {})
    if coefficients.shape[0] != len(steps) + 1:
        raise ValueError(
            f"A polynomial of degree {len(steps)} has {len(steps) + 1} coefficients. Received: "
            f"coefficients.shape={tuple(coefficients.shape)}"
        )
    check_broadcast("coefficients[k]", coefficients[0], "values", values)
    return polynomials.polynomial_filter(apply, values, coefficients, steps)


@checked()
def singular_value_attention(
    left: Float[Tensor, "B T N H"],
    right: Float[Tensor, "B S N H"],
    values: Float[Tensor, "B S N D"],
) -> Float[Tensor, "B T N D"]:
    """`left @ (right^T values)` without a T x S or a T x H x D tensor.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        right: V, of shape (B, S, N, H).
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
    left, right = precision.at_least_float32(left), precision.at_least_float32(right)
    context = ops.einsum("bsnh,bsnd->bnhd", right, precision.at_least_float32(values))
    return singular.attend_to_context(left, context, values.dtype)


@checked(mask=optional(mask("B T")), state=optional(running_sum), chunk_size=whole())
def causal_singular_value_attention(
    left: Float[Tensor, "B T N H"],
    logits: Float[Tensor, "B T N H"],
    values: Float[Tensor, "B T N D"],
    mask: Num[Tensor, "B T"] | None = None,
    state: RunningSum | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Float[Tensor, "B T N D"], RunningSum]:
    """`left_t @ (V_t^T values)`, where V_t is the softmax of the logits over the tokens up to t.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        logits: Logits of V, of shape (B, T, N, H).
        values: Token values, of shape (B, T, N, D).
        mask: Optional boolean tensor of shape (B, T); `False` marks padding, which no token sees.
        state: Sums over earlier tokens, from an earlier call.
        chunk_size: Number of tokens in a chunk, at least 1. It is rounded up to a power of two.

    Returns:
        A tensor of shape (B, T, N, D) and the dtype of `values`, and the sums over all tokens so
        far. Sums use float32, or float64 if an argument is float64. A query that sees no token
        gives exactly 0. No bit of an output depends on later tokens, as long as those are finite.
        NaN and inf spread to earlier tokens, as in `keras.layers.MultiHeadAttention`.

    Raises:
        ValueError: If `chunk_size` is not an integer of at least 1.

    Time O(T H D), memory O(T (H + D)) per head.

    Source: ours. V of Wi et al., arXiv 2505.08516, is normalised over the whole sequence.

    Example:

    >>> left = logits = np.zeros((1, 3, 1, 1), "float32")
    >>> values = np.array([1.0, 3.0, 5.0], "float32").reshape((1, 3, 1, 1))
    >>> means, _ = causal_singular_value_attention(left + 1, logits, values)
    >>> keras.ops.convert_to_numpy(means).ravel().round(3).tolist()
    [1.0, 2.0, 3.0]
    """
    left, logits, values = (ops.convert_to_tensor(x) for x in (left, logits, values))
    return singular_causal.causal_product(left, logits, values, mask, state, chunk_size)


@checked()
def unmasked_attention(
    query: Float[Tensor, "B T N m"], key: Float[Tensor, "B S N m"], x: Float[Tensor, "B S N D"]
) -> Float[Tensor, "B T N D"]:
    """Returns phi(Q) (phi(K)^T x), in linear time: every query sees every key.

    The rows are not normalised: divide by the result for a column of ones.

    Args:
        query: Features of the queries, (B, T, N, m).
        key: Features of the keys, (B, S, N, m).
        x: Signal of shape (B, S, N, D).

    Returns:
        A tensor of shape (B, T, N, D).

    Example:

    >>> from keras_graphattn.feature_maps import Relu
    >>> query, key = (Relu()(np.ones((1, 5, 1, 3), "float32")) for _ in range(2))
    >>> x = np.ones((1, 5, 1, 2), "float32")
    >>> outputs, sums = (unmasked_attention(query, key, signal) for signal in (x, x[..., :1]))
    >>> keras.ops.convert_to_numpy(outputs / sums)[0, 0, 0].tolist()
    [1.0, 1.0]

    Source: Katharopoulos et al., "Transformers are RNNs", arXiv 2006.16236, Section 3.2.
    """
    return of_features.unmasked_attention(query, key, x)


__all__ = [
    "Decay",
    "Forest",
    "Visibility",
    "additive_scores",
    "attention_matrix",
    "causal_singular_value_attention",
    "chunked_attention",
    "exponential_tree_product",
    "first_order_filter",
    "forest_from_graph",
    "forest_from_parents",
    "graph_random_features",
    "hypercube_product",
    "kernel_of_steps",
    "orthogonality_penalty",
    "p_laplacian_attention",
    "polynomial_filter",
    "random_walks",
    "recurrence",
    "singular_value_attention",
    "table_tree_product",
    "toeplitz_product",
    "unmasked_attention",
]
