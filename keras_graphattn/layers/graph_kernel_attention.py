"""Graph kernel attention (GKAT): softmax attention, each pair weighted by a graph kernel."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import feature_maps, masks
from keras_graphattn.checks import flag, one_of, optional, whole
from keras_graphattn.layers.parts.additive_score import AdditiveScore
from keras_graphattn.layers.parts.dense import check_same_length, joined, mask_of_call
from keras_graphattn.layers.parts.dynamic_walks import check_masks, check_walks, dynamic_factors
from keras_graphattn.layers.parts.feature_layer import FeatureLayer
from keras_graphattn.layers.parts.layer_calls import check_one_axis
from keras_graphattn.layers.parts.layer_options import refuse_options
from keras_graphattn.layers.parts.multi_head import Masks
from keras_graphattn.masks.mask import Mask
from keras_graphattn.masks.random_walk import RandomWalk
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax, nan_where
from keras_graphattn.ops.softmax.attention import matrix_operator, score_operands
from keras_graphattn.ops.softmax.masks import zero_masked_rows
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphKernelAttention(FeatureLayer):
    """Softmax attention over the nodes of a graph, with weights times a graph kernel (GKAT).

    Per head, with M a mask of `keras_graphattn.masks`,

        A = D^-1 [exp(S) o M],    out = A V,    D the row sums

    In the paper, M is the random-walk graph-nodes kernel and S = Q K^T / sqrt(d). There are two
    forms. The dense form forms A at O(n^2), so it is for small graphs. The factored form replaces
    exp(S) by features, phi(Q) phi(K)^T, and M is applied to signals. It never forms an n x n
    matrix, and with `RandomWalk` it takes time and memory linear in n:

        GraphKernelAttention(heads, dim, mask=RandomWalk(graph))                         # dense
        GraphKernelAttention(heads, dim, mask=RandomWalk(graph), feature_map="favor")    # factored

    The factored form is `MaskedKernelAttention` with the same mask. That layer has more options,
    such as paths and filters.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size H of each head for query and key.
        value_dim: Size of each head for value; `key_dim` by default.
        dropout: Dropout probability of A, in the dense form only.
        mask: A mask of `keras_graphattn.masks`, such as `RandomWalk(graph)`. `RandomWalk()`, or
            its name `"random_walk"`, takes walks with each call. The layer builds the mask for its
            number of heads. A mask with weights belongs to one layer.
        score: `"dot_product"`: S = Q K^T / sqrt(H). `"additive"`: the score of graph attention
            networks, S_ij = LeakyReLU(a . [q_i || k_j]) with slope 0.2 below 0 and a learned
            vector a for each head, in the dense form only.
        feature_map: `None` for the dense form. For the factored form, a map of
            `keras_graphattn.feature_maps` or its name: `"favor"` estimates exp(S) without bias;
            `"relu"`, `"squared_relu"` and `"elu"` replace it.
        feature_chunk: Number of features at a time in the factored form. It saves memory and
            keeps the numbers. All features at once by default.
        dynamic_walks: Whether the walks of a `RandomWalk` follow the attention, in the dense form
            only. M is then the kernel of the expected walks, for each head and example. The
            probability of a step from i to j is proportional to exp(S_ij) times the weight of the
            edge. Edges and the number of nodes of a walk are those of the mask. If the mask has
            walks instead of a graph, its edges are the steps of these walks.
        **kwargs: Further arguments of `keras.layers.MultiHeadAttention` except `attention_axes`
            (and `sliding_window` in the factored form), and
            `coefficient_learning_rate_multiplier`, which holds for the mask's weights if the mask
            was given none.

    Call arguments:
        query: Tensor of shape (B, T, d), one row per node.
        value: Tensor of shape (B, T, d'); `query` by default.
        key: Tensor of shape (B, T, d''); `value` by default.
        query_mask, value_mask, key_mask: Boolean tensors of shape (B, T); `False` marks padding.
        attention_mask: Boolean tensor of shape (T, T), (B, T, T) or (B, num_heads, T, T). In the
            factored form, it is best of shape (B, 1, T), a mask of keys: with any other shape and
            with `use_causal_mask`, that form goes through all pairs, some rows at a time. With
            dynamic walks, only a mask of keys.
        return_attention_scores: Whether to return A as well. The factored form forms A for it.
        training: Whether to apply dropout.
        use_causal_mask: Whether position t sees only positions 0 ... t.
        mask_inputs: Dictionary of the tensors that the mask needs at each call. A wrong entry is
            an error if its value is known. In compiled code it makes the outputs of its example
            NaN.
        mask: `query_mask` by the name that wrappers such as `keras.layers.TimeDistributed` use.

    Returns:
        A tensor of shape (B, T, d), or `output_shape` instead of d; with
        `return_attention_scores=True` also A, of shape (B, num_heads, T, T). A node that may see
        nothing contributes exactly 0 to the output projection.

    Weights:
        Those of the mask; the projections `query`, `key`, `value` and `attention_output`; with
        `score="additive"`, `score/query` and `score/key` of shape (num_heads, key_dim), the two
        halves of a; `directions` of random features, not trained.

    Raises:
        ValueError: For an invalid `mask`, `score` or `feature_map`, for an option that the form
            does not have, and for attention masks of the wrong rank.

    Example:

    >>> from keras_graphattn.masks import RandomWalk
    >>> ring = [[0, 1], [1, 2], [2, 3], [3, 0]]
    >>> nodes = keras.random.normal((1, 4, 16))
    >>> layer = GraphKernelAttention(num_heads=2, key_dim=8, mask=RandomWalk(ring))
    >>> tuple(layer(nodes).shape)
    (1, 4, 16)
    >>> layer = GraphKernelAttention(2, 8, mask=RandomWalk(ring), feature_map="favor")
    >>> tuple(layer(nodes).shape)
    (1, 4, 16)

    Source: Choromanski et al., "From block-Toeplitz matrices to differential equations on graphs",
    arXiv 2107.07999 (ICML 2022), Section 4.2. The additive score: Velickovic et al., "Graph
    Attention Networks", arXiv 1710.10903 (ICLR 2018), Eq. 3. Ours: any mask instead of the kernel,
    the expectation over dynamic walks, and separate projections for queries, keys and values under
    the additive score.
    """

    mask: Mask
    attention_path = "auto"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        mask: Any,
        score: str = "dot_product",
        feature_map: Any = None,
        feature_chunk: int | None = None,
        dynamic_walks: bool = False,
        **kwargs: Any,
    ) -> None:
        mask = masks.get(mask)
        refuse_options(self, kwargs, ["attention_axes"], "Leave it out: nodes are on one axis.")
        score = one_of("dot_product", "additive")("score", score, {})
        feature_chunk = optional(whole())("feature_chunk", feature_chunk, {})
        dynamic_walks = flag("dynamic_walks", dynamic_walks)
        feature_map = None if feature_map is None else feature_maps.get(feature_map)
        super().__init__(num_heads, key_dim, value_dim, dropout, feature_map=feature_map, **kwargs)
        self.mask, self.score, self.feature_chunk = mask, score, feature_chunk
        self.dynamic_walks = dynamic_walks
        self._share_multiplier()
        self._check_form()
        if dynamic_walks:
            check_walks(mask, self.sliding_window)

    def _check_form(self) -> None:
        """Raises a `ValueError` for an option that the dense or the factored form does not have."""
        if self.feature_map is None:
            if self.feature_chunk is not None:
                raise ValueError(
                    "`feature_chunk` is an option of the factored form. Received: "
                    f"feature_chunk={self.feature_chunk}, feature_map=None. Set `feature_map`, or "
                    "leave out `feature_chunk`."
                )
            return
        only_dense = {
            "dropout": self.dropout if self.dropout > 0.0 else None,
            "score": self.score if self.score == "additive" else None,
            "dynamic_walks": self.dynamic_walks or None,
            "sliding_window": self.sliding_window,
        }
        for name, given in only_dense.items():
            if given is not None:
                raise ValueError(
                    f"`{name}` needs the attention matrix, and the factored form never forms it. "
                    f"Received: {name}={given!r}, feature_map={self.feature_map!r}. Leave out "
                    f"`{name}`, or use feature_map=None."
                )

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        if self.score == "additive":
            shape = (*query_shape[:2], self.num_heads, self.key_dim)
            self._additive_score = AdditiveScore(self._get_common_kwargs_for_sublayer(), "score")
            self._additive_score.build(shape, shape)

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.feature_map is not None:
            return self._attend_by_features(query, value, key, masks, return_attention_scores)
        queries, keys, values = self._projected(query, value, key, masks)  # (B, T, N, H)
        given = joined(mask_of_call(self, query, masks), keys)
        scores = self._scores(queries, keys)
        factors, broken = self._factors(scores, given, masks)
        seen = ops.logical_or(factors > 0.0, ops.isnan(factors))  # NaN is not hidden
        factors = ops.where(seen, factors, ops.cast(1.0, factors.dtype))
        seen = seen if given is None else ops.logical_and(seen, given)
        # a factor of the exponential is its logarithm in the exponent
        scores = scores + ops.log(ops.cast(factors, scores.dtype))
        weights = ops.cast(masked_softmax(scores, seen), values.dtype)  # (B, N, T, T)
        outputs = matrix_operator(self._dropped(weights, training))(values)
        if given is not None:  # 0 times NaN is not 0
            outputs = zero_masked_rows(outputs, seen)
        if broken is not None:
            # a row that sees a token with NaN or infinity becomes NaN itself
            sees_broken = ops.any(ops.logical_and(seen, broken[:, :, None]), axis=-1)
            sees_broken = ops.logical_or(sees_broken, broken)  # (B, N, T)
            weights = nan_where(sees_broken[..., None], weights)
            outputs = nan_where(ops.transpose(sees_broken, (0, 2, 1))[..., None], outputs)
        return outputs, weights

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """S, (B, N, T, T) in at least float32, of queries and keys (B, T, N, H)."""
        if self.score == "additive":
            return self._additive_score(queries, keys)
        queries, keys = score_operands(queries, keys, self.score_scale)
        return at_least_float32(ops.einsum("btnh,bsnh->bnts", queries, keys))

    def _factors(
        self, scores: Tensor, given: Tensor | None, masks: Masks
    ) -> tuple[Tensor, Tensor | None]:
        """M, (1 or B, 1 or N, T, T), and which nodes are broken, (B, 1 or N, T), or `None`."""
        if isinstance(self.mask, RandomWalk) and self.dynamic_walks:
            check_masks(masks)
            return dynamic_factors(self.mask, scores, given, masks)
        broken = None if masks.broken is None else masks.broken[:, None]
        return self.mask.dense(ops.shape(scores)[-1], **dict(masks.inputs or {})), broken

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        check_one_axis(self, query_shape, value_shape)
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_same_length(self, query_shape, value_shape)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.pop("attention_axes", None)
        mask, feature_map = (
            None if given is None else keras.saving.serialize_keras_object(given)
            for given in (self.mask, self.feature_map)
        )
        return {
            **config,
            "mask": mask,
            "score": self.score,
            "feature_map": feature_map,
            "feature_chunk": self.feature_chunk,
            "dynamic_walks": self.dynamic_walks,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GraphKernelAttention":
        found = {name: restored(name, config.get(name)) for name in ("mask", "feature_map")}
        return cls(**{**config, **found})
