"""Graph kernel attention (GKAT): softmax attention, each pair weighted by a graph kernel."""

from typing import Any

import keras
from keras import ops

from keras_graphattn.layers.mask_call import MaskCall
from keras_graphattn.layers.multi_head import DenseSelfAttention, Masks
from keras_graphattn.masks.mask import Mask
from keras_graphattn.ops.precision.float32 import (
    at_least_float32,
    masked_softmax,
    nan_where,
    zero_where_masked,
)
from keras_graphattn.ops.softmax.attention import score_operands
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphKernelAttention(MaskCall, DenseSelfAttention):
    """Softmax attention over the nodes of a graph, its weights times a graph kernel (GKAT).

    Per head,

        A = D^-1 [exp(Q K^T / sqrt(d)) o M],    out = A V,    D the row sums

    with M the random-walk graph-nodes kernel in the paper, and any mask of
    `keras_graphattn.masks` here. A is formed: O(n^2), for small graphs. For large ones use
    `MaskedKernelAttention(..., mask=RandomWalk(...), feature_map="favor")`, which estimates the
    same attention without the matrix.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of A.
        mask: A mask of `keras_graphattn.masks`, such as `RandomWalk(graph)`; `RandomWalk()` takes
            walks with each call. The layer makes its weights, for its heads.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention`. `attention_axes` is
            refused. And `coefficient_learning_rate_multiplier` for the mask's weights, 1 by
            default, under `keras_graphattn.optimizers.with_coefficient_rates`.

    Call arguments:
        query: Tensor of shape (B, T, d), one row per node.
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks padding.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T).
        return_attention_scores: Whether to return A as well.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees positions 0 ... t alone.
        mask_inputs: Dictionary of the tensors that the mask needs at each call. A wrong entry is an
            error where its value is known; in compiled code the outputs of its example are NaN.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` in place of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). A node that may see
        nothing contributes exactly 0 to the output projection.

    Weights:
        Those of the mask; the projections `query`, `key`, `value` and `attention_output`.

    Raises:
        ValueError: For a `mask` that is none, and masks of the wrong rank.

    Example:

    >>> from keras_graphattn.masks import RandomWalk
    >>> ring = [[0, 1], [1, 2], [2, 3], [3, 0]]
    >>> layer = GraphKernelAttention(num_heads=2, key_dim=8, mask=RandomWalk(ring))
    >>> tuple(layer(keras.random.normal((1, 4, 16))).shape)
    (1, 4, 16)

    Source: Choromanski et al., "From block-Toeplitz matrices to differential equations on graphs",
    arXiv 2107.07999 (ICML 2022), Section 4.2. Ours: any mask in place of the kernel.
    """

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
        if kwargs.get("attention_axes") is not None:
            raise ValueError(
                "Nodes stand along one axis. Received: attention_axes="
                f"{kwargs['attention_axes']!r}. Leave it out."
            )
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        self.mask = mask

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        if not self.mask.built:
            self.mask.build((query_shape[0], query_shape[1], self.num_heads, self.value_dim))
        self._mark(self.mask.weights)
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
        factors = self.mask.dense(ops.shape(query)[1], **dict(masks.inputs or {}))
        seen = ops.logical_or(factors > 0.0, ops.isnan(factors))  # NaN is not hidden
        joined = self._join_masks(query, value, masks)
        queries, keys = score_operands(
            self.query_dense(query), self.key_dense(key), self.score_scale
        )
        scores = ops.einsum("btnh,bsnh->bnts", queries, keys)
        # a factor on the exponential is its logarithm on the exponent
        scores = at_least_float32(scores)
        factors = ops.cast(factors, scores.dtype)
        scores = scores + ops.log(ops.where(seen, factors, ops.cast(1.0, factors.dtype)))
        seen = seen if joined is None else ops.logical_and(seen, joined)
        weights = ops.cast(masked_softmax(scores, seen), self.compute_dtype)
        dropped = self._dropped(weights, training)
        outputs = ops.einsum("bnts,bsnh->btnh", dropped, self.value_dense(value))
        if joined is not None:  # 0 times NaN is not 0
            sees = ops.transpose(ops.any(seen, axis=-1), (0, 2, 1))
            outputs = zero_where_masked(outputs, sees[..., None])
        if masks.broken is not None:
            sees_broken = ops.any(ops.logical_and(seen, masks.broken[:, None, None]), axis=-1)
            sees_broken = ops.logical_or(sees_broken, masks.broken[:, None])  # (B, N, T)
            weights = nan_where(sees_broken[..., None], weights)
            outputs = nan_where(ops.transpose(sees_broken, (0, 2, 1))[..., None], outputs)
        return outputs, weights

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        if len(query_shape) > 3:
            raise ValueError(
                "GraphKernelAttention attends over one axis, the nodes of a graph: inputs must "
                f"have shape (batch, nodes, features). Received: query.shape={tuple(query_shape)}"
            )
        super()._check_shapes(query_shape, value_shape, key_shape)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.pop("attention_axes", None)
        return {**config, "mask": keras.saving.serialize_keras_object(self.mask)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GraphKernelAttention":
        return cls(**{**config, "mask": restored("mask", config.get("mask"))})
