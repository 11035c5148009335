"""Graphormer's additions to a transformer: a virtual node, and a bias of the scores.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?",
arXiv 2106.05234 (NeurIPS 2021), Section 3.
"""

from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.numerics.precision import masked_softmax
from recipes.common.training.layers import FirstToken
from recipes.common.training.matrix_attention import MatrixAttention

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class VirtualNode(FirstToken):
    """Puts one learned vector before the nodes: (B, T, d) -> (B, 1 + T, d)."""

    start = keras.initializers.RandomNormal


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class StructuralBias(layers.Layer):
    """The bias of attention scores for pairs of nodes: b_distance + c_path, per head.

    b is a learned number for each distance (Eq. 6), for nodes without a path, and for pairs with
    the virtual node. c is the mean, over the edges of a shortest path, of a learned number for the
    edge's type and its place on the path (Eq. 7, with types as a one-hot vector).

    Args:
        num_heads: Number of heads.
        max_distance: Distances above it count as it.
        hops: Edges of a path that count.
        edge_types: Number of types of edges.
        **kwargs: Those of a Keras layer.

    Call arguments:
        distances: Integers of shape (B, T, T); -1 where there is no path.
        paths: Types of edges, integers of shape (B, T, T, hops); -1 after the end of a path.

    Returns:
        Tensor of shape (B, num_heads, 1 + T, 1 + T), float32; row and column 0 are the virtual
        node's.
    """

    def __init__(
        self, num_heads: int, max_distance: int, hops: int, edge_types: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.max_distance = num_heads, max_distance
        self.hops, self.edge_types = hops, edge_types

    def build(self, distances_shape: Any, paths_shape: Any = None) -> None:
        for name, shape in {
            "of_distance": (self.max_distance + 2,),  # the last one without a path
            "of_edge": (self.hops, self.edge_types),
            "of_virtual_node": (),
        }.items():
            start = keras.initializers.RandomNormal(stddev=0.02)
            shape = (*shape, self.num_heads)
            # float32 in mixed precision, as the scores are
            weight = self.add_weight(shape=shape, initializer=start, name=name, autocast=False)
            setattr(self, name, weight)
        self.built = True

    def call(self, distances: Tensor, paths: Tensor) -> Tensor:
        near = ops.minimum(distances, self.max_distance)
        rows = ops.where(distances < 0, self.max_distance + 1, near)
        bias = ops.take(ops.cast(self.of_distance, "float32"), rows, axis=0)  # (B, T, T, N)
        is_of = ops.cast(ops.equal(paths[..., None], ops.arange(self.edge_types)), "float32")
        sums = ops.einsum("btshk,hkn->btsn", is_of, ops.cast(self.of_edge, "float32"))
        count = ops.sum(ops.cast(paths >= 0, "float32"), axis=-1, keepdims=True)
        bias = ops.transpose(bias + sums / ops.maximum(count, 1.0), (0, 3, 1, 2))  # (B, N, T, T)
        virtual = ops.cast(self.of_virtual_node, "float32")[:, None, None]  # (N, 1, 1)
        column = ops.zeros_like(bias[..., :1]) + virtual
        bias = ops.concatenate([column, bias], axis=-1)  # (B, N, T, 1 + T)
        row = ops.zeros_like(bias[..., :1, :]) + virtual
        return ops.concatenate([row, bias], axis=-2)

    def compute_output_spec(self, distances: Any, paths: Any) -> Any:
        size = None if distances.shape[1] is None else 1 + distances.shape[1]
        return keras.KerasTensor((distances.shape[0], self.num_heads, size, size), "float32")

    def get_config(self) -> dict[str, Any]:
        names = ("num_heads", "max_distance", "hops", "edge_types")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class BiasedAttention(MatrixAttention):
    """Softmax attention with a bias of the scores; optionally a filter of its matrix A.

    A = softmax(Q K^T / sqrt(key_dim) + bias); the output is A V, or H(A) V with a filter.
    The arguments are those of `MatrixAttention`.

    Call arguments:
        tokens: Tensor of shape (B, T, d).
        bias: Tensor of shape (B, num_heads, T, T).
        mask: Booleans of shape (B, T); `False` marks padding, which no token sees.
    """

    def call(
        self, tokens: Tensor, bias: Tensor, mask: Tensor, training: bool | None = None
    ) -> Tensor:
        def matrix(scores: Tensor) -> Tensor:
            return masked_softmax(scores + bias, mask[:, None, None, :])

        return self._attend(tokens, tokens, matrix, training)
