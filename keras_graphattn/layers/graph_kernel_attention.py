"""Graph kernel attention (GKAT): softmax attention, each pair weighted by a graph kernel."""

from typing import Any

import keras
from keras import ops

from keras_graphattn import feature_maps, masks
from keras_graphattn.checks import flag, one_of, optional, whole
from keras_graphattn.layers.base import (
    AttentionLayer,
    Call,
    Shape,
    SoftmaxAttention,
    Tokens,
    Vectors,
    inputs_of,
    is_key_mask,
)
from keras_graphattn.layers.kernel_base import KernelLayer
from keras_graphattn.masks.graphs.walks import RandomWalk, kernel_of_steps
from keras_graphattn.masks.mask import Mask
from keras_graphattn.numerics.precision import at_least_float32, masked_softmax
from keras_graphattn.operators.operator import Operator
from keras_graphattn.operators.softmax import WeightedSoftmaxOperator, additive_scores, scores_of
from keras_graphattn.types import Bool, Float, Tensor

SMALLEST = 2.0**-126  # smallest normal float32: the inverse of a smaller number may overflow


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphKernelAttention(SoftmaxAttention, KernelLayer):
    """Softmax attention over the nodes of a graph, with weights times a graph kernel (GKAT).

    Per head, with M a mask of `keras_graphattn.masks`,

        A = D^-1 [exp(S) o M],    out = A V,    D the row sums

    In the paper, M is the random-walk graph-nodes kernel and S = Q K^T / sqrt(d). There are two
    forms. The dense form forms A at O(n^2), so it is for small graphs. The factored form replaces
    exp(S) by features, phi(Q) phi(K)^T, and M is applied to signals. For many nodes it forms no
    n x n matrix, if the mask has another path than "dense", and with `RandomWalk` it takes time and
    memory linear in n:

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
            others, such as `"relu"`, replace it.
        feature_chunk: Number of features at a time in the factored form. It saves memory and
            keeps the numbers. All features at once by default.
        dynamic_walks: Whether the walks of a `RandomWalk` follow the attention, in the dense form
            only. M is then the kernel of the expected walks, for each head and example. The
            probability of a step from i to j is proportional to exp(S_ij) times the weight of the
            edge. Edges and the number of nodes of a walk are those of the mask. If the mask has
            walks instead of a graph, its edges are the steps of these walks.
        bias: Numbers that are added to S in the dense form, without `dynamic_walks`: a bias of
            `keras_graphattn.biases`, or the name of one that needs no argument.
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
        attention_bias: Numbers that are added to S in the dense form, of shape (T, T), (B, T, T) or
            (B, num_heads, T, T). Minus infinity hides the node.
        bias_inputs: Dictionary of the tensors that the layer's `bias` needs at each call.
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
    refused = ("attention_axes",)
    instead = "Leave it out: nodes are on one axis."

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
            self._check_walks()

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
            "bias": self.bias,
        }
        for name, option in only_dense.items():
            if option is not None:
                raise ValueError(
                    f"`{name}` needs the attention matrix, and the factored form never forms it. "
                    f"Received: {name}={option!r}, feature_map={self.feature_map!r}. Leave out "
                    f"`{name}`, or use feature_map=None."
                )

    def _check_walks(self) -> None:
        """Raises a `ValueError` for options that dynamic walks cannot honour."""
        if not isinstance(self.mask, RandomWalk):
            raise ValueError(
                "`dynamic_walks=True` needs the edges of a masks.RandomWalk. Received: "
                f"mask={type(self.mask).__name__}. Use RandomWalk, or leave out `dynamic_walks`."
            )
        if self.bias is not None:
            raise ValueError(
                "`dynamic_walks=True` and `bias` cannot be combined: the steps of the walks follow "
                f"the scores without it. Received: bias={self.bias!r}. Leave out one of them."
            )
        if self.sliding_window is not None:
            raise ValueError(
                "`dynamic_walks=True` and `sliding_window` cannot be combined: a walk would leave "
                f"the window. Received: sliding_window={self.sliding_window}. Leave out one of "
                "them."
            )

    def add_sublayers(self, query_shape: Shape) -> None:
        if self.score == "additive":
            options = self._get_common_kwargs_for_sublayer()
            self._additive_score = Vectors("score", (self.num_heads, self.key_dim), **options)
            self._additive_score.build()

    def operator(self, tokens: Tokens, call: Call) -> Operator:
        if self.feature_map is not None:
            return self.kernel_operator(tokens, call)
        query, key, value = tokens[1:]
        visible = call.visibility.joined(ops.shape(key)[1])
        if self.score == "additive":
            vectors = self._additive_score.query, self._additive_score.key
            scores = additive_scores(query, key, *vectors)  # S, (B, N, T, T)
        else:
            scores = at_least_float32(scores_of(query, key, self.score_scale))
        factors, non_finite = self._factors(tokens, scores, visible, call)
        return WeightedSoftmaxOperator(
            scores,
            factors,
            visible,
            dtype=value.dtype,
            logits=self.logits(tokens, call),
            dropout=self._dropout_in(call.training),
            non_finite=non_finite,
        )

    def _factors(
        self,
        tokens: Tokens,
        scores: Float[Tensor, "B N T T"],
        visible: Bool[Tensor, "B? N? T? T?"] | None,
        call: Call,
    ) -> tuple[Float[Tensor, "B? N? T T"], Bool[Tensor, "B N? T"] | None]:
        """M, and which nodes depend on a non-finite token, or `None` if no node can."""
        inputs = dict(call.mask_inputs or {})
        if self.mask.reads_tokens:
            inputs = inputs_of(self.mask, tokens.inputs, call)
        non_finite = None if call.non_finite is None else call.non_finite[:, None]  # (B, 1, T)
        if not self.dynamic_walks:
            return self.mask.dense(ops.shape(scores)[-1], **inputs), non_finite
        entries = call.visibility.entries
        if entries is not None and not is_key_mask(entries.shape):
            raise ValueError(
                "With `dynamic_walks=True`, a walk from a visible node may reach nodes that an "
                "`attention_mask` of pairs hides. Received: "
                f"attention_mask.shape={tuple(entries.shape)}. Use `query_mask` and `value_mask`, "
                "or a mask of keys of shape (B, 1, T)."
            )
        # the kernel of the expected walks whose steps are a softmax of the scores over edges
        walk: Any = self.mask
        edges = ops.cast(walk.edge_matrix(ops.shape(scores)[-1], **inputs), scores.dtype)
        seen = ops.logical_or(edges > 0.0, ops.isnan(edges))  # (1 or B, 1, T, T)
        # the weight of an edge is a factor in the probability of its step
        logits = scores + ops.log(ops.where(seen, edges, ops.cast(1.0, edges.dtype)))
        seen = seen if visible is None else ops.logical_and(seen, visible)
        steps, length = masked_softmax(logits, seen), walk.length_of_walks(inputs)
        decay = walk.going_on * walk.parameters()["decay"]
        kernel = kernel_of_steps(steps, decay, length, walk.normalization)
        # a number that is too small to invert counts as 0
        is_large = ops.logical_or(kernel >= SMALLEST, ops.isnan(kernel))
        kernel = ops.where(is_large, kernel, ops.cast(0.0, kernel.dtype))
        if non_finite is not None:
            for _ in range(length - 1):
                near = ops.any(ops.logical_and(seen, non_finite[:, :, None]), axis=-1)
                non_finite = ops.logical_or(non_finite, near)
        return kernel, non_finite

    def _check_scores(self, attention_bias: object, bias_inputs: object) -> None:
        if self.feature_map is not None:
            AttentionLayer._check_scores(self, attention_bias, bias_inputs)
        super()._check_scores(attention_bias, bias_inputs)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        for name in ("mask", "feature_map"):
            config[name] = keras.saving.serialize_keras_object(getattr(self, name))
        names = ("score", "feature_chunk", "dynamic_walks")
        return config | {name: getattr(self, name) for name in names}
