"""Differential attention: the difference of two softmax attentions."""

import math
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import is_whole, number, optional, whole
from keras_graphattn.filters import Filter
from keras_graphattn.layers.base import Call, Shape, Tokens
from keras_graphattn.layers.graph_filter_attention import GraphFilterAttention
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.operators.cached import Cache, CachedOperator
from keras_graphattn.operators.differential import DifferentialOperator
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.softmax import Logits, MatrixOperator, SoftmaxOperator, scores_of
from keras_graphattn.types import Bool, Float, Int, Tensor

EPSILON = 1e-5  # of the norm, as in the authors' code


@keras.saving.register_keras_serializable(package="keras_graphattn")
class DifferentialAttention(GraphFilterAttention):
    """Multi-head self-attention by the difference of two softmax attentions.

    Each head has two sets of queries. What both of them attend to cancels out:

        A = A_1 - lambda A_2,   out = A V

    with A_1 and A_2 the softmax attention matrices of the two sets. A `filter` makes it H(A) V.

    Version 1 has two sets of keys as well. lambda is one number for the layer,

        lambda = exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_0

    with learned vectors q and k. The outputs of each head go through an RMS norm, times
    1 - lambda_0. Version 2 shares the keys and has no norm. There, each token and head has
    lambda = sigmoid(w . x), from the token x of the query.

    Sizes, as published: version 1 with half the heads of a `keras.layers.MultiHeadAttention`, the
    same `key_dim` and twice the `value_dim` has the same number of parameters, plus
    4 key_dim + value_dim. So `DifferentialAttention(4, 16)` is compared with
    `MultiHeadAttention(8, 16)`. Version 2 keeps the number of heads and all sizes. It has a second
    projection of queries and that of lambda: a quarter more parameters.

    Args:
        num_heads: Number of heads, each with two sets of queries.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; 2 key_dim in version 1 and key_dim in version 2 by
            default.
        dropout: Dropout probability of the matrix that `dropout_on` names.
        version: 1, of the paper, or 2, of the authors' later report.
        layer_index: For version 1: the number of layers before this one in the model, from which
            lambda_0 = 0.8 - 0.6 exp(-0.3 layer_index) follows; 0 by default.
        initial_lambda: For version 1, in place of `layer_index`: lambda_0, at least 0 and below 1.
        filter: `None`, a filter of `keras_graphattn.filters`, or its name in `filters.FILTERS`.
        order: Order of a `filter` given by its name; the filter's own default if `None`.
        dropout_on: `"attention"` drops entries of A, `"filter"` those of H.
        attention_path: `"dense"` forms A. `"blockwise"` forms A_1 and A_2 for `block_size` query
            rows at a time, in both directions. `"fused"` calls `keras.ops.dot_product_attention`
            twice for each application. The last two have no dropout and return no matrix.
            `"dense"` by default, `"fused"` with `flash_attention=True`.
        block_size: Number of query rows at a time on the blockwise path.
        num_key_value_heads: The number of heads for values, and of keys or pairs of keys,
            `num_heads` by default. Each is shared by num_heads / num_key_value_heads heads.
        flash_attention: On the fused path, `True` requires the backend's flash kernel and `False`
            forbids it. `None` follows `keras.config`, and otherwise lets the backend choose.
        bias: Numbers that are added to the scores of both sets, as for `GraphFilterAttention`.
        **kwargs: All further arguments of `keras.layers.MultiHeadAttention`, and
            `coefficient_learning_rate_multiplier`, as for `GraphFilterAttention`.

    Call arguments:
        As for `GraphFilterAttention`.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d. With
        `return_attention_scores=True` also A, with `return_filter_matrix=True` also H, each of
        shape (B, num_heads, T, T). A query position that may see nothing contributes exactly 0 to
        the output projection.

    Weights:
        Those of the filter. The projections `query`, of 2 num_heads heads, `key`, `value` and
        `attention_output`: heads 2 i and 2 i + 1 of the queries, and of the keys of version 1, are
        the two sets of head i. In version 1, `lambda/query` and `lambda/key`, (2, key_dim), and
        `norm/scale`, (value_dim,). In version 2, the projection `lambda`.

    Raises:
        ValueError: For arguments outside the ranges above, for `layer_index` or `initial_lambda`
            in version 2, for inputs whose shape is not (batch, length, features), for query and
            value of different lengths, for masks of the wrong rank, and when the caller asks for a
            matrix that the path never forms.

    Example:

    >>> layer = DifferentialAttention(num_heads=2, key_dim=8, layer_index=3)
    >>> tokens = keras.random.normal((4, 10, 16))
    >>> tuple(layer(tokens).shape)
    (4, 10, 16)

    Source: Ye et al., "Differential Transformer", arXiv 2410.05258 (ICLR 2025), Eq. 1-3, and Ye et
    al., "Differential Transformer V2" (2026), https://huggingface.co/blog/microsoft/diff-attn-v2.
    Ours: filters of A, paths and decoding.
    """

    max_rank = 3

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        version: int = 1,
        layer_index: int | None = None,
        initial_lambda: float | None = None,
        filter: str | Filter | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.version: int = whole(1, below=3)("version", version, {})
        given = {"layer_index": layer_index, "initial_lambda": initial_lambda}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 2 - self.version:
            raise ValueError(
                "Version 1 starts lambda at a number, given by `layer_index` or by "
                "`initial_lambda`. Version 2 computes lambda from the tokens and has no such "
                f"number. Received: version={version}, {given}. Leave out "
                f"{'one of the two' if self.version == 1 else list(given)}."
            )
        self.layer_index: int | None = optional(whole(0))("layer_index", layer_index, {})
        start = optional(number(least=0.0, below=1.0))("initial_lambda", initial_lambda, {})
        self.initial_lambda: float | None = start
        is_wide = value_dim is None and self.version == 1 and is_whole(key_dim)
        value_dim = 2 * key_dim if is_wide else value_dim
        super().__init__(num_heads, key_dim, value_dim, dropout, filter=filter, **kwargs)

    @property
    def projected_heads(self) -> tuple[int, int, int]:
        _, keys, values = super().projected_heads
        return 2 * self.num_heads, (3 - self.version) * keys, values

    @property
    def lambda_start(self) -> float:
        """lambda_0 of version 1."""
        if self.initial_lambda is not None:
            return float(self.initial_lambda)
        return 0.8 - 0.6 * math.exp(-0.3 * (self.layer_index or 0))

    def add_sublayers(self, query_shape: Shape) -> None:
        if self.version == 2:
            self._lambda = self._token_projection("lambda", query_shape, 1)
            return
        self._lambda = LambdaOfVectors(self.key_dim, self.lambda_start, dtype=self.dtype_policy)
        self._norm = NormOfHeads(dtype=self.dtype_policy)
        self._lambda.build(None)
        self._norm.build((None, None, self.num_heads, self.value_dim))

    def build_around(self, source: keras.layers.MultiHeadAttention) -> None:
        raise ValueError(
            f"{type(self).__name__} has two sets of queries, and cannot take the projections of "
            f"another layer. Received: source={source!r}. Build it, and train it from scratch."
        )

    def _in_all_heads(self, x: Float[Tensor, "B S _ H"]) -> Float[Tensor, "B S _ H"]:
        if self.num_key_value_heads is None:
            return x
        (batch, length), (heads, size) = ops.shape(x)[:2], x.shape[2:]
        groups = self.num_key_value_heads  # of one head, or of two
        x = ops.reshape(x, (batch, length, groups, heads // groups * size))
        x = super()._in_all_heads(x)
        return ops.reshape(x, (batch, length, self.num_heads * heads // groups, size))

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        without_dropout, softmax = call._replace(training=False), super().operator
        first, second = (
            softmax(tokens._replace(query=query, key=key), without_dropout)
            for query, key in self._pairs(tokens)
        )
        difference = DifferentialOperator(first, second, self._weight(tokens.inputs))
        if not isinstance(first, SoftmaxOperator):
            return difference
        drop = self._dropout_in(call.training) if self.dropout_on == "attention" else None
        return MatrixOperator(difference.matrix(), first.visible, drop)

    def operator_of_rows(
        self,
        tokens: Tokens,
        visible: Bool[Tensor, "B 1 t L"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        logits: Logits | None = None,
    ) -> CachedOperator:
        first, second = (
            SoftmaxOperator(
                scores_of(query, key, self.score_scale), visible, dtype=query.dtype, logits=logits
            )
            for query, key in self._pairs(tokens)
        )
        rows = DifferentialOperator(first, second, self._weight(tokens.inputs))
        return CachedOperator(rows.matrix(), cache["signals"], index, first.visible)

    def _pairs(
        self, tokens: Tokens
    ) -> list[tuple[Float[Tensor, "B T N H"], Float[Tensor, "B S N H"]]]:
        """The queries and keys of A_1, and those of A_2."""
        queries = self._two_sets(tokens.query)
        keys = [tokens.key] * 2 if self.version == 2 else self._two_sets(tokens.key)
        return list(zip(queries, keys, strict=True))

    def _two_sets(self, x: Float[Tensor, "B T _ H"]) -> list[Float[Tensor, "B T N H"]]:
        x = ops.reshape(x, (*ops.shape(x)[:2], self.num_heads, 2, x.shape[-1]))
        return [x[:, :, :, 0], x[:, :, :, 1]]

    def _weight(self, inputs: Float[Tensor, "B T _"]) -> Float[Tensor, "..."]:
        """lambda, of shape () in version 1 and (B, T, N, 1) in version 2."""
        if self.version == 1:
            return self._lambda.value()
        logits = self._lambda(inputs)
        axes = self._axes_of(inputs)
        logits = logits if axes is None else axes.joined(logits)
        return ops.sigmoid(at_least_float32(logits))

    def attended(
        self, operator: Operator, values: Float[Tensor, "B S N D"], call: Call
    ) -> Float[Tensor, "B T N D"]:
        outputs = super().attended(operator, values, call)
        if self.version == 2:
            return outputs
        outputs = (1.0 - self.lambda_start) * self._norm(outputs)
        return ops.cast(outputs, values.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "version": self.version,
            "layer_index": self.layer_index,
            "initial_lambda": self.initial_lambda,
        }


class LambdaOfVectors(keras.layers.Layer):  # type: ignore[misc]
    """lambda = exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_0, with learned vectors.

    The vectors make lambda learn as fast as the other weights.

    Weights:
        `query` and `key` of shape (2, size).
    """

    def __init__(self, size: int, start: float, **kwargs: Any) -> None:
        super().__init__(name="lambda", **kwargs)
        self.size, self.start = size, start

    def build(self, input_shape: Shape | None) -> None:
        self.query, self.key = (
            self.add_weight(
                name=name,
                shape=(2, self.size),
                initializer=keras.initializers.RandomNormal(0.0, 0.1),
                autocast=False,
            )
            for name in ("query", "key")
        )

    def value(self) -> Float[Tensor, ""]:
        """lambda."""
        query, key = at_least_float32(self.query), at_least_float32(self.key)
        exponentials = ops.exp(ops.sum(query * key, axis=-1))
        return exponentials[0] - exponentials[1] + self.start


class NormOfHeads(keras.layers.Layer):  # type: ignore[misc]
    """x / sqrt(mean(x^2) + 1e-5) over the channels of each head, times a learned scale.

    In at least float32, unlike `keras.layers.RMSNormalization`, whose sums of float64 are float32.

    Weights:
        `scale` of shape (value_dim,).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(name="norm", **kwargs)

    def build(self, input_shape: Shape) -> None:
        self.scale = self.add_weight(
            name="scale", shape=input_shape[-1:], initializer="ones", autocast=False
        )

    def call(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        x = at_least_float32(x)
        mean = ops.sum(x * x, axis=-1, keepdims=True) / x.shape[-1]
        return x * ops.rsqrt(mean + EPSILON) * ops.cast(self.scale, x.dtype)
