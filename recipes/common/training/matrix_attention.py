"""Base of attention layers that form their own matrix, with an optional filter of it."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn import filters
from keras_graphattn.coefficient_rate import CoefficientRate, Filtered
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.operators.softmax import MatrixOperator, scores_of
from recipes.common.training.projections import HeadProjections

Tensor = Any


class MatrixAttention(CoefficientRate, Filtered, HeadProjections):
    """Multi-head attention A V, or H(A) V with a filter; a subclass says how scores become A.

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head.
        filter: A filter of `keras_graphattn.filters`, or `None`.
        dropout: Share of the entries of A that are dropped in training, before the filter.
        seed: Seed of the dropout.
        **kwargs: `coefficient_learning_rate_multiplier`, and those of a Keras layer.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        filter: Any = None,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        self.filter = None if filter is None else filters.get(filter)
        self.dropout, self.seed = dropout, seed
        self._drop = layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy)

    def build(self, tokens_shape: Any, *others: Any) -> None:
        if self.filter is not None:
            self.add_filter_weights(self.filter, self.num_heads)
        super().build(tokens_shape)

    def _attend(
        self,
        tokens: Tensor,
        source: Tensor,
        matrix: Callable[[Tensor], Tensor],
        training: bool | None,
    ) -> Tensor:
        """Outputs of tokens (B, T, d) that look at a source (B, S, d): a tensor (B, T, d).

        `matrix` maps scores to A, each (B, N, T, S) and float32.
        """
        scores = scores_of(self.query_dense(tokens), self.key_dense(source))
        weights = matrix(at_least_float32(scores))
        weights = self._drop(ops.cast(weights, self.compute_dtype), training=training)
        operator, values = MatrixOperator(weights), self.value_dense(source)
        if self.filter is None:
            return self.attention_output_dense(operator(values))
        return self.attention_output_dense(self.filtered(self.filter, operator, values))

    def get_config(self) -> dict[str, Any]:
        filter = None if self.filter is None else keras.saving.serialize_keras_object(self.filter)
        dropout = {"dropout": self.dropout, "seed": self.seed}
        return {**super().get_config(), **dropout, "filter": filter}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MatrixAttention":
        filter = config["filter"]
        filter = filter and keras.saving.deserialize_keras_object(filter)
        return cls(**{**config, "filter": filter})
