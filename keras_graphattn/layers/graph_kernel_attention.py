"""Graph kernel attention (GKAT): softmax attention, each pair weighted by a graph kernel."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.checks.layer_calls import check_one_axis
from keras_graphattn.checks.layer_options import refuse_options
from keras_graphattn.layers.parts.dense import check_same_length, joined, mask_of_call
from keras_graphattn.layers.parts.mask_layer import MaskLayer
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.masks.mask import Mask
from keras_graphattn.ops.precision.float32 import at_least_float32, masked_softmax, nan_where
from keras_graphattn.ops.softmax.attention import matrix_operator, score_operands
from keras_graphattn.ops.softmax.masks import zero_masked_rows
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphKernelAttention(MaskLayer):
    """Softmax attention over the nodes of a graph, with weights times a graph kernel (GKAT).

    Per head,

        A = D^-1 [exp(Q K^T / sqrt(d)) o M],    out = A V,    D the row sums

    In the paper, M is the random-walk graph-nodes kernel. Here it is any mask of
    `keras_graphattn.masks`. The layer forms A at O(n^2), so it is for small graphs. For large
    graphs use `MaskedKernelAttention(..., mask=RandomWalk(...), feature_map="favor")`, which
    estimates the same attention without the matrix.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of A.
        mask: A mask of `keras_graphattn.masks`, such as `RandomWalk(graph)`. `RandomWalk()` takes
            walks with each call. The layer builds the mask for its number of heads.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` except `attention_axes`,
            and `coefficient_learning_rate_multiplier`, 1 by default: under
            `keras_graphattn.optimizers.with_coefficient_rates`, the mask's weights learn this
            many times as fast as other weights.

    Call arguments:
        query: Tensor of shape (B, T, d), one row per node.
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks padding.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T).
        return_attention_scores: Whether to return A as well.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees only positions 0 ... t.
        mask_inputs: Dictionary of the tensors that the mask needs at each call. A wrong entry is
            an error if its value is known. In compiled code it makes the outputs of its example
            NaN.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). A node that may see
        nothing contributes exactly 0 to the output projection.

    Weights:
        Those of the mask; the projections `query`, `key`, `value` and `attention_output`.

    Raises:
        ValueError: For an invalid `mask`, and for attention masks of the wrong rank.

    Example:

    >>> from keras_graphattn.masks import RandomWalk
    >>> ring = [[0, 1], [1, 2], [2, 3], [3, 0]]
    >>> layer = GraphKernelAttention(num_heads=2, key_dim=8, mask=RandomWalk(ring))
    >>> tuple(layer(keras.random.normal((1, 4, 16))).shape)
    (1, 4, 16)

    Source: Choromanski et al., "From block-Toeplitz matrices to differential equations on graphs",
    arXiv 2107.07999 (ICML 2022), Section 4.2. Ours: any mask instead of the kernel.
    """

    mask: Mask

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        mask: Any,
        **kwargs: Any,
    ) -> None:
        if not isinstance(mask, Mask):
            raise ValueError(
                "`mask` must be a mask of keras_graphattn.masks, such as RandomWalk(graph). "
                f"Received: mask={mask!r}"
            )
        refuse_options(self, kwargs, ["attention_axes"], "Leave it out: nodes are on one axis.")
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        self.mask = mask

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        queries, keys = self.query_dense(query), self.key_dense(key)  # (B, T, N, H)
        given = joined(mask_of_call(self, query, masks), keys)
        factors, seen = self._factors(ops.shape(query)[1], masks.inputs, given)
        queries, keys = score_operands(queries, keys, self.score_scale)
        scores = at_least_float32(ops.einsum("btnh,bsnh->bnts", queries, keys))
        # a factor of the exponential is its logarithm in the exponent
        scores = scores + ops.log(ops.cast(factors, scores.dtype))
        weights = ops.cast(masked_softmax(scores, seen), self.compute_dtype)  # (B, N, T, T)
        outputs = matrix_operator(self._dropped(weights, training))(self.value_dense(value))
        if given is not None:  # 0 times NaN is not 0
            outputs = zero_masked_rows(outputs, seen)
        if masks.broken is not None:
            # a row that sees a token with NaN or infinity becomes NaN itself
            sees_broken = ops.any(ops.logical_and(seen, masks.broken[:, None, None]), axis=-1)
            sees_broken = ops.logical_or(sees_broken, masks.broken[:, None])  # (B, N, T)
            weights = nan_where(sees_broken[..., None], weights)
            outputs = nan_where(ops.transpose(sees_broken, (0, 2, 1))[..., None], outputs)
        return outputs, weights

    def _factors(
        self, length: Any, inputs: dict[str, Tensor] | None, given: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The mask's factors, with 1 for 0, and which pairs are seen: (B, N, T, T) both."""
        factors = self.mask.dense(length, **dict(inputs or {}))
        seen = ops.logical_or(factors > 0.0, ops.isnan(factors))  # NaN is not hidden
        factors = ops.where(seen, factors, ops.cast(1.0, factors.dtype))
        return factors, seen if given is None else ops.logical_and(seen, given)

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        check_one_axis(self, query_shape, value_shape)
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_same_length(self, query_shape, value_shape)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.pop("attention_axes", None)
        return {**config, "mask": keras.saving.serialize_keras_object(self.mask)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GraphKernelAttention":
        return cls(**{**config, "mask": restored("mask", config.get("mask"))})
