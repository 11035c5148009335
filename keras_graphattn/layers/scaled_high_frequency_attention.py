"""AttnScale, a remedy against over-smoothing that amplifies what plain attention damps."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.layers.parts.dense import attend_densely, check_same_length, with_causal
from keras_graphattn.layers.parts.multi_head import Masks, MultiHeadLayer
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax
from keras_graphattn.ops.softmax.attention import attention_matrix, matrix_operator
from keras_graphattn.ops.softmax.masks import zero_masked_rows

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ScaledHighFrequencyAttention(MultiHeadLayer):
    """Self-attention with its high frequencies amplified (AttnScale).

    A splits into its low-frequency part, uniform attention (1/n), and the rest. Per head,

        A' = 1/n + (1 + l) (A - 1/n),   out = A' V

    where l is learned and starts at 0, so a new layer is plain attention. Under masks the uniform
    part is uniform over the keys that each query may see.

    Args:
        *args, **kwargs: The arguments of `keras.layers.MultiHeadAttention`, and
            `coefficient_learning_rate_multiplier`, 10 by default: `high_frequency_scale` learns
            this many times as fast as other weights, if the optimizer is one of
            `keras_graphattn.optimizers.with_coefficient_rates`. Any other optimizer ignores it.

    Call arguments:
        As for `GraphFilterAttention`.

    Returns:
        A tensor of shape (B, T, d); with `return_attention_scores=True` also A, of shape
        (B, num_heads, T, T). A query position that may see nothing contributes exactly 0 to the
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

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        projected = self._projected(query, value, key, masks)
        return attend_densely(self, query, projected, masks, return_attention_scores, training)

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
        mask = with_causal(self, attention_mask, key, use_causal_mask)
        attention_scores = attention_matrix(query, key, mask, self.score_scale)  # (B, N, T, T)
        uniform = masked_softmax(ops.zeros_like(attention_scores), mask)
        scale = at_least_float32(ops.reshape(self.high_frequency_scale, (-1, 1, 1)))  # (N, 1, 1)
        scaled = (1.0 + scale) * at_least_float32(attention_scores)
        scaled = ops.cast(scaled - scale * at_least_float32(uniform), attention_scores.dtype)
        outputs = matrix_operator(self._dropped(scaled, training))(value)  # (B, T, N, H)
        return zero_masked_rows(outputs, mask), attention_scores

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_same_length(self, query_shape, value_shape)
