"""The difference of two attention operators: A = A1 - lambda A2."""

from keras import ops

from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.operators.operator import Operator
from keras_graphattn.types import Float, Tensor


class DifferentialOperator(Operator):
    """`x -> A1 x - lambda (A2 x)`: what both operators attend to cancels out.

    Args:
        first: The operator A1.
        second: The operator A2. Each of its rows sees the same keys as that of A1.
        weight: lambda: one number, of shape (); one for each head, (N,); or one for each row and
            head, (B, T, N, 1).

    Example:

    >>> from keras_graphattn.operators import FusedOperator
    >>> query, key, x = (keras.random.normal((2, 10, 4, 8)) for _ in range(3))
    >>> first, second = FusedOperator(query, key), FusedOperator(key, query)
    >>> operator = DifferentialOperator(first, second, keras.ops.full((4,), 0.5))
    >>> tuple(operator(x).shape)
    (2, 10, 4, 8)

    Source: Ye et al., "Differential Transformer", arXiv 2410.05258 (ICLR 2025), Eq. 1.
    """

    def __init__(
        self, first: Operator, second: Operator, weight: Float[Tensor, "..."] | float
    ) -> None:
        self.first, self.second = first, second
        self.weight = at_least_float32(weight)

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        weight = self.weight[:, None] if len(self.weight.shape) == 1 else self.weight
        outputs = at_least_float32(self.first(x)) - weight * at_least_float32(self.second(x))
        return ops.cast(outputs, x.dtype)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        first, weight = self.first.matrix(), self.weight
        if len(weight.shape) == 1:
            weight = weight[:, None, None]
        elif len(weight.shape) == 4:
            weight = ops.transpose(weight, (0, 2, 1, 3))  # (B, N, T, 1)
        second = at_least_float32(self.second.matrix())
        return ops.cast(at_least_float32(first) - weight * second, first.dtype)

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return self.first.finished(outputs)
