"""Attention in a learned singular-value domain, linear in the sequence length (AGF).

    A = (U * g(S)) V^T,    g(S) = sum_k theta_k P_k(S)

U is a softmax over features, V is a softmax over tokens, and S is a sigmoid. They are learned from
the tokens, and replace the singular vectors and values of an attention matrix. That matrix is
never formed. Source: Wi et al., arXiv 2505.08516, Eq. 7-11. U and V by other functions are the
paper's ablation of rho.
"""

from collections.abc import Callable

from keras import ops

from keras_graphattn.checks import checked, mask, one_of, optional
from keras_graphattn.numerics.precision import (
    ALL,
    at_least_float32,
    larger,
    masked_softmax,
    new_axes,
    size_tensor,
    tanh,
    without_padding,
    zero_where_masked,
)
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.singular_causal import RunningSum, causal_product
from keras_graphattn.types import Bool, Float, Num, Tensor

SCALINGS = ("mean", "squared_length")


def _entry_by_entry(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function of logits, with zeros for padding, that is called as `masked_softmax` is."""

    def activated(logits: Tensor, visible: Tensor | None = None, axis: int = -1) -> Tensor:
        return zero_where_masked(function(logits), visible)

    return activated


ACTIVATIONS = {  # what makes U and V: rho
    "softmax": masked_softmax,
    "sigmoid": _entry_by_entry(ops.sigmoid),
    "tanh": _entry_by_entry(tanh),
    "linear": _entry_by_entry(lambda logits: logits),
}


class SingularOperator(Operator):
    """`x -> (U * g(S)) (V^T x)`: time O(n d^2), memory O(n d + d^2).

    The causal form normalises V at each token over this token and those before it.

    Args:
        left: U * g(S), of shape (B, T, N, H).
        logits: The logits of V, of shape (B, S, N, H).
        queries: Optional booleans (B, T); `False` marks padding, whose rows are 0.
        keys: Optional booleans (B, S); `False` marks tokens that nobody sees.
        causal: Whether each token sees only itself and those before it.
        state: Sums over earlier tokens, for the causal form.
        dropout: Optional function that drops entries of U * g(S).
        activation: What makes V of its logits, one of `ACTIVATIONS`; a softmax if causal.

    Attributes:
        following: In the causal form, after a call: the sums over all tokens so far.

    Example:

    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> operator = SingularOperator(left_singular_vectors(query), key)
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)
    """

    def __init__(
        self,
        left: Float[Tensor, "B T N H"],
        logits: Float[Tensor, "B S N H"],
        queries: Bool[Tensor, "B T"] | None = None,
        keys: Bool[Tensor, "B S"] | None = None,
        *,
        causal: bool = False,
        state: RunningSum | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
        activation: str = "softmax",
    ) -> None:
        self.left, self.logits, self.queries, self.keys = left, logits, queries, keys
        self.causal, self.state, self.activation = causal, state, activation
        self.following: RunningSum | None = None
        self.applied = left if dropout is None else dropout(left)

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        if self.causal:
            outputs, self.following = causal_product(
                self.applied, self.logits, x, self.keys, self.state
            )
            return outputs
        context = singular_value_context(self.logits, x, self.keys, self.activation)
        return attend_to_context(self.applied, context, x.dtype)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        if not self.causal:
            right = right_singular_vectors(self.logits, self.keys, self.activation)
            return ops.einsum("btnh,bsnh->bnts", self.left, right)
        # apply the operator to the identity: (1, T, 1, T), broadcast to (B, T, N, T)
        eye = ops.eye(ops.shape(self.logits)[1], dtype=self.left.dtype)[None, :, None, :]
        eye = eye * ops.ones_like(self.left[:, :, :, :1])
        matrix, _ = causal_product(self.left, self.logits, eye, self.keys)
        return ops.transpose(matrix, (0, 2, 1, 3))

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return without_padding(outputs, self.queries)  # 0 times NaN is not 0


class SingularValues(Operator):
    """The diagonal operator x -> S * x; a filter of it is g(S) x."""

    def __init__(self, values: Float[Tensor, "B T N H"]) -> None:
        self.values = values

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N H"]:
        return self.values * x


def left_singular_vectors(
    logits: Float[Tensor, "B T N H"],
    visible: Bool[Tensor, "B T"] | None = None,
    activation: str = "softmax",
) -> Float[Tensor, "B T N H"]:
    """U: the softmax over the head's features, float32, with zero rows for padded tokens.

    With another of `ACTIVATIONS`, that function of each logit.
    """
    return ACTIVATIONS[activation](at_least_float32(logits), _column(visible), axis=-1)


def right_singular_vectors(
    logits: Float[Tensor, "B S N H"],
    visible: Bool[Tensor, "B S"] | None = None,
    activation: str = "softmax",
) -> Float[Tensor, "B S N H"]:
    """V: the softmax over the tokens that are not padding, float32, for each head and feature.

    With another of `ACTIVATIONS`, that function of each logit.
    """
    return ACTIVATIONS[activation](at_least_float32(logits), _column(visible), axis=1)


def singular_value_context(
    logits: Float[Tensor, "B S N H"],
    x: Float[Tensor, "B S N D"],
    visible: Bool[Tensor, "B S"] | None = None,
    activation: str = "softmax",
) -> Float[Tensor, "B N H D"]:
    """V^T x, where V is the softmax of the logits over tokens; sums in float32.

    It moves heads before tokens, so it costs less than `right_singular_vectors` and a product. All
    zeros if an example has no token.
    """
    logits = ops.transpose(at_least_float32(logits), (0, 2, 3, 1))  # (B, N, H, S)
    x = ops.transpose(at_least_float32(x), (0, 2, 1, 3))  # (B, N, S, D)
    if visible is not None:
        x = zero_where_masked(x, new_axes(visible, (ALL, None, ALL, None)))
        visible = new_axes(visible, (ALL, None, None))
    return ACTIVATIONS[activation](logits, visible) @ x


def attend_to_context(
    left: Float[Tensor, "B T N H"], context: Float[Tensor, "B N H D"], dtype: str
) -> Float[Tensor, "B T N D"]:
    """`left @ context`, head by head, in the given dtype."""
    if not left.dtype == context.dtype == dtype:
        left, context = ops.cast(left, dtype), ops.cast(context, dtype)
    return ops.transpose(ops.transpose(left, (0, 2, 1, 3)) @ context, (0, 2, 1, 3))


@checked(mask=optional(mask("B T")), scaling=one_of(*SCALINGS))
def orthogonality_penalty(
    vectors: Float[Tensor, "B T N H"], mask: Num[Tensor, "B T"] | None = None, scaling: str = "mean"
) -> Float[Tensor, ""]:
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
    present = ops.cast(lengths > 0.0, gram.dtype)
    return ops.sum(penalties * present) / larger(ops.sum(present), 1.0)


def _column(visible: Bool[Tensor, "B T"] | None) -> Bool[Tensor, "B T 1 1"] | None:
    return None if visible is None else new_axes(visible, (ALL, ALL, None, None))
