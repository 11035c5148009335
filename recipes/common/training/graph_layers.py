"""GCN, GIN, ChebNet and GAT as Keras layers on the edges of graphs, for comparison.

And GKAT in the form of its authors' code, which has fewer weights than `GraphKernelAttention`.
"""

import math
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.masks import RandomWalk
from keras_graphattn.numerics.segments import add_rows
from keras_graphattn.operators import EdgeOperator, Operator, WeightedSoftmaxOperator

Tensor = Any


def flat_edges(nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Sources and targets (2 B E,) of undirected edges (B, E, 2), and the number of nodes.

    All B T nodes are in one row. The target of padding, (-1, -1), is an extra row.
    """
    batch, length = ops.shape(nodes)[:2]
    count = batch * length
    first = ops.arange(batch, dtype="int32")[:, None] * length
    ends = ops.cast(edges, "int32")
    source = ops.concatenate([ends[..., 0], ends[..., 1]], axis=1)  # (B, 2 E)
    target = ops.concatenate([ends[..., 1], ends[..., 0]], axis=1)
    is_real = source >= 0
    source = ops.reshape(ops.where(is_real, source + first, 0), (-1,))
    target = ops.reshape(ops.where(is_real, target + first, count), (-1,))
    return source, target, count


class _OnEdges(layers.Layer):
    """A layer on nodes (B, T, d) and undirected edges (B, E, 2); (-1, -1) is padding.

    All B T nodes are in one row. The target of padding is an extra row, which is not used.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = units  # of the result
        self.supports_masking = True  # nodes stay where they are
        self.dense = layers.Dense(units, use_bias=False, dtype=self.dtype_policy, name="dense")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        self.dense.build(nodes_shape)
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")
        self.built = True

    def call(self, nodes: Tensor, edges: Tensor, training: bool | None = None) -> Tensor:
        source, target, count = flat_edges(nodes, edges)
        batch, length = ops.shape(nodes)[:2]
        x = ops.reshape(ops.cast(self.dense(nodes), "float32"), (count, self.width))
        outputs = self.passed(x, source, target, count, training)
        outputs = ops.reshape(outputs, (batch, length, self.width))
        return ops.cast(outputs, self.compute_dtype) + self.bias

    def passed(
        self, x: Tensor, source: Tensor, target: Tensor, count: Any, training: bool | None
    ) -> Tensor:
        """Weighted sums over neighbours of nodes x (B T, width), along edges (2 B E,); float32."""
        raise NotImplementedError

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any = None) -> Any:
        return (*nodes_shape[:-1], self.width)


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class GraphConvolution(_OnEdges):
    """D^-1/2 (A + I) D^-1/2 X W + b, with D the row sums of A + I (GCN).

    Args:
        units: Width of the result.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        edges: Integers of shape (B, E, 2), each edge once; (-1, -1) is padding.

    Source: Kipf and Welling, arXiv 1609.02907, Eq. 2.
    """

    def passed(
        self, x: Tensor, source: Tensor, target: Tensor, count: Any, training: bool | None
    ) -> Tensor:
        ones = ops.ones_like(source, dtype="float32")[:, None]
        degrees = 1.0 + add_rows(ones, target, count + 1)[:count]  # (B T, 1)
        x = x * ops.rsqrt(degrees)
        sums = add_rows(ops.take(x, source, axis=0), target, count + 1)[:count]
        return (x + sums) * ops.rsqrt(degrees)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.width}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class GraphIsomorphism(_OnEdges):
    """relu(((1 + eps) x_i + sum_j x_j) W + b) W_2 + b_2, over the neighbours j of i (GIN).

    eps is learned, from 0 on. W comes before the sum here, which is the same and narrower.

    Args:
        units: Width of the result, and of the hidden layer.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        edges: Integers of shape (B, E, 2), each edge once; (-1, -1) is padding.

    Source: Xu et al., arXiv 1810.00826, Eq. 4.1, with a network of two layers.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.second = layers.Dense(units, dtype=self.dtype_policy, name="second")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        self.epsilon = self.add_weight(shape=(), initializer="zeros", name="epsilon")
        self.second.build((*nodes_shape[:-1], self.width))
        super().build(nodes_shape)

    def call(self, nodes: Tensor, edges: Tensor, training: bool | None = None) -> Tensor:
        return self.second(ops.relu(super().call(nodes, edges, training)))

    def passed(
        self, x: Tensor, source: Tensor, target: Tensor, count: Any, training: bool | None
    ) -> Tensor:
        sums = add_rows(ops.take(x, source, axis=0), target, count + 1)[:count]
        return (1.0 + ops.cast(self.epsilon, "float32")) * x + sums

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.width}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class SpectralGraphConvolution(layers.Layer):
    """Chebyshev polynomials of the scaled Laplacian up to a degree K (ChebNet).

        sum_k T_k(S) X W_k + b,    S = 2 L / 2 - I = -D^-1/2 A D^-1/2

    L is the normalised Laplacian, whose eigenvalues are at most 2: this bound stands for the
    largest one of each graph.

    Args:
        units: Width of the result.
        order: K, at least 1.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        edges: Integers of shape (B, E, 2), each edge once; (-1, -1) is padding.

    Source: Defferrard et al., arXiv 1606.09375, Section 2.1, with K as in arXiv 1609.02907, Eq. 5.
    """

    def __init__(self, units: int, order: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.order = units, order
        self.supports_masking = True
        self.dense = layers.Dense(units, dtype=self.dtype_policy, name="dense")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        self.dense.build((*nodes_shape[:-1], (self.order + 1) * nodes_shape[-1]))
        self.built = True

    def call(self, nodes: Tensor, edges: Tensor) -> Tensor:
        nodes = ops.cast(nodes, "float32")
        source, target, count = flat_edges(nodes, edges)
        ones = ops.ones_like(source, dtype="float32")[:, None]
        degrees = add_rows(ones, target, count + 1)[:count]  # (B T, 1)
        scale = ops.where(degrees > 0, ops.rsqrt(ops.maximum(degrees, 1.0)), 0.0)

        def scaled(x: Tensor) -> Tensor:
            sums = add_rows(ops.take(x * scale, source, axis=0), target, count + 1)[:count]
            return -scale * sums

        x = ops.reshape(nodes, (count, nodes.shape[-1]))
        terms = [x, scaled(x)]
        while len(terms) <= self.order:
            terms.append(2.0 * scaled(terms[-1]) - terms[-2])
        terms = ops.concatenate(terms, axis=-1)
        shape = (*ops.shape(nodes)[:2], (self.order + 1) * nodes.shape[-1])
        return self.dense(ops.cast(ops.reshape(terms, shape), self.compute_dtype))

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any = None) -> Any:
        return (*nodes_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "order": self.order}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class GraphAttention(_OnEdges):
    """Softmax over a node's neighbours and itself, with additive scores (GAT).

    Per head, e_ij = leaky_relu(a . [W x_i, W x_j]) with slope 0.2, and

        out_i = sum_j softmax_j(e_ij) W x_j + b

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head. The heads stand side by side in the result.
        dropout: Share of the coefficients softmax_j(e_ij) that are dropped in training.
        seed: Of the dropout.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        edges: Integers of shape (B, E, 2), each edge once; (-1, -1) is padding.
        training: Whether to apply dropout.

    Source: Velickovic et al., arXiv 1710.10903, Eq. 3-5; the dropout: Section 3.3.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads * key_dim, **kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim
        self.drop = layers.Dropout(dropout, seed=seed, dtype="float32", name="coefficients")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        shape = (self.num_heads, self.key_dim)
        self.of_target = self.add_weight(shape=shape, name="of_target")
        self.of_source = self.add_weight(shape=shape, name="of_source")
        super().build(nodes_shape)

    def passed(
        self, x: Tensor, source: Tensor, target: Tensor, count: Any, training: bool | None
    ) -> Tensor:
        x = ops.reshape(x, (-1, self.num_heads, self.key_dim))  # (B T, N, H)
        of_target = ops.sum(x * ops.cast(self.of_target, "float32"), axis=-1)  # (B T, N)
        of_source = ops.sum(x * ops.cast(self.of_source, "float32"), axis=-1)
        at_target = ops.minimum(target, count - 1)  # padding reads any row, and is added nowhere
        is_edge = (target < count)[:, None]
        scores = ops.take(of_target, at_target, axis=0) + ops.take(of_source, source, axis=0)
        scores, own = _leaky(scores), _leaky(of_target + of_source)
        most = ops.segment_max(scores, target, count + 1)[:count]
        most = ops.stop_gradient(ops.maximum(most, own))
        # no maximum bounds the scores of padding, and a gradient of 0 times infinity is NaN
        below = ops.where(is_edge, scores - ops.take(most, at_target, axis=0), 0.0)
        weights = ops.exp(below)[..., None]  # (2 B E, N, 1)
        own = ops.exp(own - most)[..., None]
        total = own + add_rows(weights, target, count + 1)[:count]
        # the rows of coefficients are divided by `total` below: dropout before it is the same
        own, weights = (self.drop(part, training=training) for part in (own, weights))
        sums = add_rows(weights * ops.take(x, source, axis=0), target, count + 1)[:count]
        return (own * x + sums) / total

    def get_config(self) -> dict[str, Any]:
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        dropout = {"dropout": self.drop.rate, "seed": self.drop.seed}
        return {**super().get_config(), **sizes, **dropout}


def _leaky(x: Tensor) -> Tensor:
    return ops.leaky_relu(x, negative_slope=0.2)


def _matrix_of_pairs(pairs: Tensor, weights: Tensor, length: Any) -> Tensor:
    """The matrices (B, T, T) of directed pairs (B, E, 2); negative numbers are padding."""
    batch = ops.shape(pairs)[0]
    first = ops.arange(batch, dtype="int32")[:, None] * length
    size = batch * length * length  # and the place of padding
    places = (first + pairs[..., 0]) * length + pairs[..., 1]
    places = ops.where(ops.all(pairs >= 0, axis=-1), places, ops.cast(size, "int32"))
    matrix = add_rows(ops.reshape(weights, (-1, 1)), ops.reshape(places, (-1,)), size + 1)
    return ops.reshape(matrix[:size], (batch, length, length))


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class ReleasedGraphKernelAttention(layers.Layer):
    """GKAT as its authors' code has it: nothing is projected behind the attention.

    Per head, with M the cosine of the walks, Q = x W and K = x W',

        out = drop(A) drop(Q) + b,    A = D^-1 [exp(Q K^T / sqrt(H)) o M]

    in the code for citations, where each head has the Glorot start of a matrix of its own. In that
    for motifs, values V = x W'' stand in the place of drop(Q) + b, and all start as torch's Linear.

    M comes from walks, or from the pairs of nodes that walks join. Then nothing is computed for
    other pairs, or with `dense` for all.

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head. The heads stand side by side in the result.
        dropout: Share of the entries of A that are dropped in training.
        value_dropout: Share of the numbers of Q that are dropped in training, as values.
        separate_values: Whether the form is that for motifs.
        dense: Whether A is computed for all pairs. On a CPU this is faster on Cora, where walks
            join a quarter of the pairs.
        seed: Of the dropout.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        node_mask: Booleans (B, T); `False` marks padding.
        walks: Integers of shape (B, T, walks, length), the nodes of each walk.
        edges: In place of `walks`, integers of shape (B, E, 2), each pair of two nodes with M > 0
            once; (-1, -1) is padding. M is 1 between a node and itself.
        edge_weights: M of these pairs, (B, E).
        training: Whether to apply dropout.

    Source: the code of Choromanski et al., arXiv 2107.07999: https://github.com/HL-hanlin/GKAT.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        value_dropout: float = 0.0,
        separate_values: bool = False,
        dense: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim
        self.separate_values, self.dense = separate_values, dense
        self.mask = RandomWalk()
        options = {"seed": seed, "dtype": self.dtype_policy}
        self.drop = layers.Dropout(dropout, name="coefficients", **options)
        self.drop_values = layers.Dropout(value_dropout, name="values", **options)

    def build(self, nodes_shape: Any) -> None:
        width, heads, size = nodes_shape[-1], self.num_heads, self.key_dim
        limit = math.sqrt(1.0 / width if self.separate_values else 6.0 / (width + size))
        start = keras.initializers.RandomUniform(-limit, limit)
        for name in ("query", "key", "value")[: 2 + self.separate_values]:
            setattr(self, name, self.add_weight((width, heads, size), start, name=name))
        if not self.separate_values:
            self.bias = self.add_weight((heads * size,), "zeros", name="bias")
        self.mask.build((None, None, heads, size))
        self.built = True

    def call(
        self,
        nodes: Tensor,
        node_mask: Tensor,
        walks: Tensor = None,
        edges: Tensor = None,
        edge_weights: Tensor = None,
        training: bool | None = None,
    ) -> Tensor:
        query, key = (_in_heads(nodes, weight) for weight in (self.query, self.key))
        values = _in_heads(nodes, self.value) if self.separate_values else query

        def drop(weights: Tensor) -> Tensor:
            return self.drop(weights, training=training)

        length = ops.shape(nodes)[1]
        if edges is not None:
            own = ops.stack([ops.arange(length, dtype="int32")] * 2, axis=-1)[None]
            own = own + ops.zeros_like(edges[:, :1])  # (B, T, 2)
            ones = ops.ones_like(own[..., 0], dtype="float32")
            edges = ops.concatenate([edges, ops.flip(edges, axis=-1), own], axis=1)
            edge_weights = ops.concatenate([edge_weights, edge_weights, ones], axis=1)
        operator: Operator
        if edges is None or self.dense:
            scores = ops.cast(ops.einsum("btnh,bsnh->bnts", query, key), "float32")
            operator = WeightedSoftmaxOperator(
                scores / math.sqrt(self.key_dim),
                self.mask.dense(length, walks=walks)
                if edges is None
                else _matrix_of_pairs(edges, edge_weights, length)[:, None],
                node_mask[:, None, None],
                dtype=query.dtype,
                dropout=drop,
            )
        else:
            operator = EdgeOperator(
                *(query, key, edges), edge_weights=edge_weights, keys=node_mask, dropout=drop
            )
        outputs = operator.finished(operator(self.drop_values(values, training=training)))
        outputs = ops.reshape(outputs, (*ops.shape(nodes)[:2], -1))
        return outputs if self.separate_values else outputs + self.bias

    def get_config(self) -> dict[str, Any]:
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        dropout = {"dropout": self.drop.rate, "value_dropout": self.drop_values.rate}
        form = {"separate_values": self.separate_values, "dense": self.dense}
        return {**super().get_config(), **sizes, **dropout, **form, "seed": self.drop.seed}


def _in_heads(nodes: Tensor, weight: Tensor) -> Tensor:
    return ops.einsum("btd,dnh->btnh", nodes, weight)
