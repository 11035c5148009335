"""Other remedies against over-smoothing, to compare graph filters with.

AttnScale amplifies what plain attention damps; ContraNorm pushes similar tokens apart.
"""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks.arguments import (
    Sizes,
    as_tensor,
    check_dtype_policy,
    check_shape,
    number,
)
from keras_graphattn.layers.multi_head import DenseSelfAttention
from keras_graphattn.ops.precision.float32 import (
    at_least_float32,
    masked_softmax,
    zero_where_masked,
)
from keras_graphattn.ops.precision.wide import matmul

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ScaledHighFrequencyAttention(DenseSelfAttention):
    """Self-attention with its high frequencies amplified (AttnScale).

    A splits into its low-frequency part, uniform attention (1/n), and the rest. Per head,

        A' = 1/n + (1 + l) (A - 1/n),   out = A' V

    with l learned, starting at 0: a new layer is plain attention. Under masks the uniform part
    is uniform over the keys that each query may see.

    Args:
        *args, **kwargs: The arguments of `keras.layers.MultiHeadAttention`, and
            `coefficient_learning_rate_multiplier` for `high_frequency_scale`, 1 by default, under
            `keras_graphattn.optimizers.with_coefficient_rates`.

    Call arguments:
        As for `GraphFilterAttention`.

    Returns:
        A tensor of shape (B, T, d); with `return_attention_scores=True` also A, of shape
        (B, num_heads, T, T). A query position that may see nothing gives exactly 0 to the
        output projection.

    Raises:
        ValueError: For query and value of different lengths, and masks of the wrong rank.

    Weights:
        `high_frequency_scale` (l) of shape (num_heads,), kept in the variable dtype.

    Example:

    >>> layer = ScaledHighFrequencyAttention(num_heads=2, key_dim=8)
    >>> tuple(layer(keras.random.normal((4, 10, 16))).shape)
    (4, 10, 16)

    Source: Wang et al., "Anti-Oversmoothing in Deep Vision Transformers via the Fourier Domain
    Analysis: From Theory to Practice", arXiv 2203.05962 (ICLR 2022). Ours: masks.
    """

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        self.high_frequency_scale = self.add_weight(
            name="high_frequency_scale",
            shape=(self.num_heads,),
            initializer="zeros",
            autocast=False,
        )
        super().build(query_shape, value_shape, key_shape)

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Tensor, Tensor]:
        attention_mask = self._with_causal(attention_mask, query, use_causal_mask)
        attention_scores = self._attention_matrix(query, key, attention_mask)
        axes = tuple(range(-len(self.attention_axes), 0))
        axis = axes[0] if len(axes) == 1 else axes  # one axis may be empty
        uniform = masked_softmax(ops.zeros_like(attention_scores), attention_mask, axis=axis)
        scale = ops.reshape(self.high_frequency_scale, (-1, *[1] * (2 * len(axes))))
        scaled = (1.0 + scale) * at_least_float32(attention_scores)
        scaled = ops.cast(scaled - scale * at_least_float32(uniform), attention_scores.dtype)
        outputs = self._apply_matrix(self._dropped(scaled, training), value)
        return self._zero_blind_rows(outputs, attention_mask), attention_scores


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ContraNorm(keras.layers.Layer):  # type: ignore[misc]
    """Pushes the tokens of a sequence apart (ContraNorm), without weights.

        x' = (1 + s) x - s softmax(x x^T) x

    Put it after attention or before a normalisation. Similar tokens are averaged by the softmax
    and subtracted: the step down the gradient of a contrastive uniformity loss.

    Args:
        scale: The factor s, a number of at least 0; 0 is the identity.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Tensor of shape (B, T, d).
        mask: Boolean tensor of shape (B, T); `False` marks padding, which pushes nobody and
            comes out as 0. The inputs' Keras mask when not given.

    Returns:
        A tensor of the shape of `inputs`.

    Raises:
        ValueError: For a negative `scale` and inputs that are not of shape (B, T, d).

    Example:

    >>> tuple(ContraNorm(scale=0.1)(keras.random.normal((4, 10, 16))).shape)
    (4, 10, 16)

    Source: Guo et al., "ContraNorm: A Contrastive Learning Perspective on Oversmoothing and
    Beyond", arXiv 2303.06562 (ICLR 2023). Ours: masks.
    """

    def __init__(self, scale: float = 0.1, **kwargs: Any) -> None:
        check_dtype_policy(kwargs.get("dtype"))
        scale = number(least=0.0)("scale", scale, {})
        super().__init__(**kwargs)
        self.scale = float(scale)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        if len(inputs_shape) != 3:
            raise ValueError(
                "ContraNorm normalises sequences of tokens: `inputs` must have shape (batch, "
                f"length, features). Received: inputs.shape={tuple(inputs_shape)}"
            )

    def __call__(self, inputs: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        sizes: Sizes = {}
        inputs = as_tensor("inputs", inputs)
        check_shape("inputs", inputs, ("B T d",), sizes)
        if mask is not None:
            mask = as_tensor("mask", mask, "boolean")
            check_shape("mask", mask, ("B T",), sizes)
            kwargs["mask"] = mask
        return super().__call__(inputs, **kwargs)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = None if mask is None else ops.cast(mask, "bool")[:, :, None]
        tokens = at_least_float32(zero_where_masked(inputs, rows))
        similarity = matmul(tokens, ops.transpose(tokens, (0, 2, 1)))
        keys = None if mask is None else ops.cast(mask, "bool")[:, None, :]
        average = matmul(masked_softmax(similarity, keys), tokens)
        outputs = (1.0 + self.scale) * tokens - self.scale * average
        return ops.cast(zero_where_masked(outputs, rows), inputs.dtype)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        check_dtype_policy(config.get("dtype"))  # Keras looks into it before `__init__`
        return super().from_config(config)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}
