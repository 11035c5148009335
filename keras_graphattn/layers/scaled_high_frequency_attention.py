"""AttnScale, a remedy against over-smoothing that amplifies what plain attention damps."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_graphattn.layers.base import Call, Shape, SoftmaxAttention, Tokens
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax
from keras_graphattn.operators.operator import Operator


@keras.saving.register_keras_serializable(package="keras_graphattn")
class ScaledHighFrequencyAttention(SoftmaxAttention):
    """Self-attention with its high frequencies amplified (AttnScale).

    A splits into its low-frequency part, uniform attention (1/n), and the rest. Per head,

        A' = 1/n + (1 + l) (A - 1/n),   out = A' V

    where l is learned and starts at 0, so a new layer is plain attention. Under masks the uniform
    part is uniform over the keys that each query may see.

    Args:
        *args, **kwargs: The arguments of `keras.layers.MultiHeadAttention`, `bias` as for
            `GraphFilterAttention`, and `coefficient_learning_rate_multiplier` of
            `high_frequency_scale`, as there.

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

    def add_coefficients(self, query_shape: Shape) -> None:
        super().add_coefficients(query_shape)
        start = np.zeros(self.num_heads)
        self.high_frequency_scale = self.add_array("high_frequency_scale", start)

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        operator: Any = super().operator(tokens, call._replace(training=False))
        attention = operator.scores  # A, (B, N, T, T)
        uniform = at_least_float32(masked_softmax(ops.zeros_like(attention), operator.visible))
        scale = at_least_float32(ops.reshape(self.high_frequency_scale, (-1, 1, 1)))  # (N, 1, 1)
        scaled = (1.0 + scale) * at_least_float32(attention) - scale * uniform
        drop = self._dropout_in(call.training)
        scaled = ops.cast(scaled, attention.dtype)
        operator.applied = scaled if drop is None else drop(scaled)
        return operator  # type: ignore[no-any-return]
