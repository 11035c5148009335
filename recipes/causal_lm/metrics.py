"""Perplexity: the exponential of the mean cross-entropy over all tokens that are counted."""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class Perplexity(keras.metrics.SparseCategoricalCrossentropy):
    """exp of the mean of -log p(token | tokens before it), from logits, by token weights."""

    def __init__(self, name: str = "perplexity", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype, from_logits=True)

    def result(self) -> Any:
        """The perplexity of all tokens seen so far."""
        return ops.exp(super().result())

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def per_word(cross_entropy: float, predictions: int, words: int) -> float:
    """The perplexity per word of a text whose tokens are pieces of words.

    Args:
        cross_entropy: Mean over the predicted tokens, in nats.
        predictions: Number of predicted tokens.
        words: Number of words of the same text, ends of lines among them.
    """
    return math.exp(cross_entropy * predictions / words)
