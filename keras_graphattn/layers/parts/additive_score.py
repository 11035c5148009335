"""The weights of GAT's additive score, as a part of an attention layer."""

from typing import Any

import keras

from keras_graphattn.ops.softmax.additive import additive_scores

Tensor = Any


class AdditiveScore(keras.layers.Layer):  # type: ignore[misc]
    """Scores of all pairs, LeakyReLU(a . [q_i || k_j]), with one vector a for each head.

    Args:
        options: The options of the attention's projections: `kernel_initializer`,
            `kernel_regularizer`, `kernel_constraint` and `dtype` are used.
        name: Name of the part.

    Weights:
        `query` and `key` of shape (num_heads, key_dim), the two halves of a.
    """

    def __init__(self, options: dict[str, Any], name: str) -> None:
        super().__init__(dtype=options["dtype"], name=name)
        self._options = {
            part: options[f"kernel_{part}"] for part in ("initializer", "regularizer", "constraint")
        }

    def build(self, query_shape: Any, key_shape: Any) -> None:
        """Makes the weights for queries (B, T, N, H) and keys (B, S, N, H)."""
        self.query_vector = self.add_weight(name="query", shape=query_shape[2:], **self._options)
        self.key_vector = self.add_weight(name="key", shape=key_shape[2:], **self._options)

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return additive_scores(query, key, self.query_vector, self.key_vector)
