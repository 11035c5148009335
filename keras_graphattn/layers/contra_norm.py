"""ContraNorm, a remedy against over-smoothing that pushes similar tokens apart.

`ContraNorm` is a layer for tokens; `ContraNormAttention` is attention with it.
"""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import number
from keras_graphattn.layers.base import SoftmaxAttention
from keras_graphattn.layers.token_layer import TokenLayer
from keras_graphattn.numerics.precision import (
    at_least_float32,
    masked_softmax,
    nan_where,
    new_axes,
    zero_where_masked,
)
from keras_graphattn.types import Bool, Float, Num, Tensor


def pushed_apart(
    tokens: Float[Tensor, "B T d"], visible: Bool[Tensor, "B? T? T"] | None, scale: float
) -> Float[Tensor, "B T d"]:
    """(1 + s) x - s softmax(x x^T) x over the visible tokens, in at least float32."""
    tokens = at_least_float32(tokens)
    similarity = tokens @ ops.transpose(tokens, (0, 2, 1))  # (B, T, T)
    average = masked_softmax(similarity, visible) @ tokens  # (B, T, d)
    return (1.0 + scale) * tokens - scale * average


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
        keys = None if mask is None else ops.cast(mask, "bool")[:, None, :]
        outputs = pushed_apart(zero_where_masked(inputs, rows), keys, self.scale)
        return ops.cast(zero_where_masked(outputs, rows), inputs.dtype)

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ContraNormAttention(SoftmaxAttention):
    """Self-attention whose outputs are pushed apart by ContraNorm.

        out = (1 + s) x - s softmax(x x^T) x,   x = concat_h(A V) W_O

    Each output is compared with those of the tokens that its query sees: padding and, with a
    causal mask, later tokens push nothing. Nor does a token that a bias of minus infinity hides.
    Where heads have masks of their own, a token is compared with what any head sees. A token that
    sees nothing stays as it is. There is no weight beside those of plain attention.

    Args:
        *args: The arguments of `keras.layers.MultiHeadAttention`.
        scale: The factor s, a number of at least 0; 0 is plain attention.
        **kwargs: The arguments of `keras.layers.MultiHeadAttention`, and `bias` as for
            `GraphFilterAttention`.

    Call arguments:
        As for `GraphFilterAttention`.

    Returns:
        A tensor of shape (B, T, d); with `return_attention_scores=True` also A, of shape
        (B, num_heads, T, T).

    Raises:
        ValueError: For a negative `scale`, for attention over other axes than the tokens, for
            query and value of different lengths, and for masks of the wrong rank.

    Example:

    >>> layer = ContraNormAttention(num_heads=2, key_dim=8, scale=0.1)
    >>> tuple(layer(keras.random.normal((4, 10, 16))).shape)
    (4, 10, 16)

    Source: Guo et al., "ContraNorm: A Contrastive Learning Perspective on Oversmoothing and
    Beyond", arXiv 2303.06562 (ICLR 2023). Ours: masks.
    """

    max_rank = 3

    def __init__(self, *args: Any, scale: float = 0.1, **kwargs: Any) -> None:
        scale = number(least=0.0)("scale", scale, {})
        super().__init__(*args, **kwargs)
        if self._attention_axes not in (None, (1,), [1]):
            raise ValueError(
                "ContraNorm is defined for tokens along one axis. Received: attention_axes="
                f"{self.attention_axes}. Leave it out, and put the other axes into the batch."
            )
        self.scale = float(scale)

    def _project_out(
        self, outputs: Float[Tensor, "B T N D"], query: Float[Tensor, "B T d"], operator: Any = None
    ) -> Float[Tensor, "B T e"]:
        tokens = super()._project_out(outputs, query)
        visible = operator.visible  # without the keys that a bias hides
        visible = None if visible is None else ops.any(visible, axis=1)  # (B?, T?, T)
        # A token that is not finite must not reach those that do not see it: 0 times NaN is NaN.
        finite = ops.all(ops.isfinite(tokens), axis=-1)  # (B, T)
        numbers = zero_where_masked(tokens, new_axes(finite, (..., None)))
        pushed = pushed_apart(numbers, visible, self.scale)
        wrong = ops.logical_not(finite)[:, None]
        near = ops.any(wrong if visible is None else ops.logical_and(wrong, visible), axis=-1)
        wrong = ops.logical_or(near, ops.logical_not(finite))
        if visible is not None:
            pushed = ops.where(ops.any(visible, axis=-1, keepdims=True), pushed, tokens)
        return ops.cast(nan_where(new_axes(wrong, (..., None)), pushed), tokens.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}
