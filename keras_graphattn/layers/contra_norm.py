"""ContraNorm, a remedy against over-smoothing that pushes similar tokens apart."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import number
from keras_graphattn.layers.token_layer import TokenLayer
from keras_graphattn.numerics.precision import (
    at_least_float32,
    masked_softmax,
    matmul,
    zero_where_masked,
)
from keras_graphattn.types import Num, Tensor


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ContraNorm(TokenLayer):
    """Pushes the tokens of a sequence apart (ContraNorm), without weights.

        x' = (1 + s) x - s softmax(x x^T) x

    Put it after attention or before a normalisation. The softmax averages similar tokens, and
    the layer subtracts the average. This is a step down the gradient of a contrastive uniformity
    loss.

    Args:
        scale: The factor s, a number of at least 0; 0 is the identity.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Tensor of shape (B, T, d).
        mask: Boolean tensor of shape (B, T); `False` marks padding, which pushes no token and
            comes out as 0. By default the inputs' Keras mask.

    Returns:
        A tensor of the shape of `inputs`.

    Raises:
        ValueError: For a negative `scale`, and for inputs whose shape is not (B, T, d).

    Example:

    >>> tuple(ContraNorm(scale=0.1)(keras.random.normal((4, 10, 16))).shape)
    (4, 10, 16)

    Source: Guo et al., "ContraNorm: A Contrastive Learning Perspective on Oversmoothing and
    Beyond", arXiv 2303.06562 (ICLR 2023). Ours: masks.
    """

    def __init__(self, scale: float = 0.1, **kwargs: Any) -> None:
        scale = number(least=0.0)("scale", scale, {})
        super().__init__(**kwargs)
        self.scale = float(scale)

    def call(
        self, inputs: Num[Tensor, "B T d"], mask: Num[Tensor, "B T"] | None = None
    ) -> Num[Tensor, "B T d"]:
        # padding is left out of both sides of the similarity: as rows and as keys
        rows = None if mask is None else ops.cast(mask, "bool")[:, :, None]
        tokens = at_least_float32(zero_where_masked(inputs, rows))
        similarity = matmul(tokens, ops.transpose(tokens, (0, 2, 1)))  # (B, T, T)
        keys = None if mask is None else ops.cast(mask, "bool")[:, None, :]
        average = matmul(masked_softmax(similarity, keys), tokens)  # (B, T, d)
        outputs = (1.0 + self.scale) * tokens - self.scale * average
        return ops.cast(zero_where_masked(outputs, rows), inputs.dtype)

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}
