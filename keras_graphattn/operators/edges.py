"""Softmax attention along the edges of a graph, in time and memory linear in their number.

    A[t, s] = softmax over the edges s -> t of  q_t . k_s * scale

A is never formed. Two functions of edges do all the work, and each is in the gradient of the other:
the scores q_t . k_s of edges, and the sums of weights times x_s over the edges to each node.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_graphattn.numerics.custom_gradient import FunctionWithGradient
from keras_graphattn.numerics.precision import (
    at_least_float32,
    in_one_dtype,
    larger,
    largest,
    masked_softmax,
    nan_where,
    pad,
    positions_of,
    size_tensor,
    take,
    zero_where_masked,
)
from keras_graphattn.numerics.segments import add_rows, largest_rows
from keras_graphattn.operators.operator import Operator, Visibility, all_of
from keras_graphattn.operators.softmax import scaled, score_operands
from keras_graphattn.types import Bool, Float, Int, Tensor

Ends = Int[Tensor, " M"]  # rows of one end of the edges of all examples
Rows = Float[Tensor, "R N D"]  # the nodes of all examples, and a row of zeros for padding of edges
OfEdges = Float[Tensor, "M N"]
Tensors = tuple[Tensor, ...]


class VirtualNodes(NamedTuple):
    """Nodes that see all nodes of an example, and that all of them see.

    Within one application of A, each virtual node takes a mean of all nodes, weighted by a softmax,
    and passes it on. So V of them add a matrix of rank V to A.

    Attributes:
        query: Their queries, (V, N, H).
        key: Their keys, (V, N, H).

    Example:

    >>> VirtualNodes(keras.ops.ones((1, 4, 8)), keras.ops.ones((1, 4, 8))).query.shape[0]
    1
    """

    query: Float[Tensor, "V N H"]
    key: Float[Tensor, "V N H"]


class EdgeOperator(Operator):
    """A[t, s] = softmax of q_t . k_s * scale over the edges s -> t, applied in O(edges).

    An edge that is given several times counts several times. A row without edges is 0.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, T, N, H).
        edges: Integers of shape (B or 1, E, 2): source s and target t of each edge, numbered within
            the example. An edge with a negative number is padding.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        factors: Optional factors of the products, (B or 1, E, N, H). The score of an edge is then
            sum_h q_th k_sh factor_h * scale.
        edge_weights: Optional positive numbers (B or 1, E), by which exp(score) is multiplied.
        virtual: Optional virtual nodes; they take part in the softmax of each node.
        queries: Optional booleans (B, T); `False` marks rows that see nothing.
        keys: Optional booleans (B, T); `False` marks columns that nobody sees.
        dropout: Optional function that drops entries of a tensor. It is applied once.
        wrong: Optional booleans (B,): examples whose rows are NaN.

    Example:

    >>> query, key, x = (keras.random.normal((2, 3, 4, 8)) for _ in range(3))
    >>> operator = EdgeOperator(query, key, np.array([[[0, 1], [1, 0], [2, 1]]]))
    >>> tuple(operator(x).shape)
    (2, 3, 4, 8)

    Source: Shirzad et al., "Exphormer: Sparse Transformers for Graphs", arXiv 2303.06147 (ICML
    2023), Section 3. Ours: virtual nodes that pass on what they see within one application.
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        edges: Int[Tensor, "B? E 2"],
        *,
        scale: float | None = None,
        factors: Float[Tensor, "B? E N H"] | None = None,
        edge_weights: Float[Tensor, "B? E"] | None = None,
        virtual: VirtualNodes | None = None,
        queries: Bool[Tensor, "B T"] | None = None,
        keys: Bool[Tensor, "B T"] | None = None,
        dropout: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]] | None = None,
        wrong: Bool[Tensor, " B"] | None = None,
    ) -> None:
        self.batch, self.length, self.heads = ops.shape(query)[:3]
        self.count, self.wrong = self.batch * self.length, wrong
        self.sources, self.targets = self._ends(ops.cast(edges, "int32"), queries, keys)
        self.is_edge = self.targets < size_tensor(self.count, "int32")  # not padding, not hidden
        query, key = (at_least_float32(x) for x in score_operands(query, key, scale))
        scores = self._scores(self._rows(query), self._rows(key), factors)
        if edge_weights is not None:
            edge_weights = ops.broadcast_to(edge_weights, (self.batch, ops.shape(edge_weights)[-1]))
            edge_weights = ops.reshape(ops.cast(edge_weights, scores.dtype), (-1, 1))
            one = ops.cast(1.0, scores.dtype)
            scores = scores + ops.log(ops.where(self.is_edge[:, None], edge_weights, one))
        top = largest_rows(scores, self.targets, self.count + 1)  # (R, N)
        self.relay: tuple[Tensor, Tensor] | None = None
        if virtual is None:
            is_edge = ops.cast(self.is_edge, "int32")
            rows = add_rows(is_edge[:, None], self.targets, self.count + 1) > 0  # (R, 1)
            self.seeing = ops.reshape(rows[: self.count], (self.batch, self.length, 1))
            self.weights = self._softmax(scores, ops.where(rows, top, ops.cast(0.0, top.dtype)))[0]
        else:
            self.seeing = Visibility(None, queries, keys).rows_with_visible_keys(self.length)
            virtual_query, virtual_key = (ops.cast(x, query.dtype) for x in virtual)
            further = self._rows(ops.einsum("btnh,vnh->btnv", query, virtual_key))
            top = ops.stop_gradient(larger(top, largest(further, axis=-1)))
            self.weights, further = self._softmax(scores, top, further)
            further = zero_where_masked(self._nodes(further), self._seeing_heads())
            seen = None if keys is None else ops.cast(keys, "bool")[:, None, None]
            into = ops.einsum("vnh,bsnh->bnvs", scaled(virtual_query[None], scale)[0], key)
            self.relay = further, masked_softmax(into, seen)
        self.applied, self.applied_relay = self.weights, self.relay
        if dropout is not None:
            self.applied = dropout(self.weights)
            if self.relay is not None:
                self.applied_relay = dropout(self.relay[0]), self.relay[1]

    def _ends(
        self,
        edges: Int[Tensor, "B? E 2"],
        queries: Bool[Tensor, "B T"] | None,
        keys: Bool[Tensor, "B T"] | None,
    ) -> tuple[Ends, Ends]:
        """The rows of the sources and of the targets; for hidden edges, the row of zeros."""
        first = positions_of(self.batch)[:, None] * self.length
        last, is_edge = size_tensor(self.count, "int32"), ops.all(edges >= 0, axis=-1)
        sources, targets = (
            ops.reshape(ops.where(is_edge, edges[..., end] + first, last), (-1,)) for end in (0, 1)
        )
        seen = None
        for ends, visible in ((sources, keys), (targets, queries)):
            if visible is not None:
                rows = pad(ops.reshape(ops.cast(visible, "int32"), (-1,)), ((0, 1),))
                seen = all_of(seen, take(rows, ends, axis=0))
        if seen is None:
            return sources, targets
        return ops.where(seen, sources, last), ops.where(seen, targets, last)

    def _rows(self, x: Float[Tensor, "B T N D"]) -> Rows:
        x = ops.reshape(x, (self.count, self.heads, x.shape[-1]))
        return pad(x, ((0, 1), (0, 0), (0, 0)))

    def _nodes(self, rows: Rows) -> Float[Tensor, "B T N D"]:
        """The inverse of `_rows`."""
        shape = (self.batch, self.length, self.heads, rows.shape[-1])
        return ops.reshape(rows[: self.count], shape)

    def _scores(self, query: Rows, key: Rows, factors: Float[Tensor, "B? E N H"] | None) -> OfEdges:
        if factors is None:
            (scores,) = _SCORES(query, key, self.sources, self.targets)
            return scores
        factors = ops.broadcast_to(factors, (self.batch, *ops.shape(factors)[1:]))
        factors = ops.reshape(ops.cast(factors, query.dtype), (-1, *query.shape[1:]))
        query, key = take(query, self.targets, axis=0), take(key, self.sources, axis=0)
        return ops.sum(query * key * factors, axis=-1)

    def _softmax(
        self, scores: OfEdges, top: Float[Tensor, "R N"], further: Rows | None = None
    ) -> tuple[OfEdges, Rows | None]:
        """The weights of edges, and of `further` scores of each row."""
        weights = ops.exp(scores - take(top, self.targets, axis=0))
        total = add_rows(weights, self.targets, self.count + 1)
        if further is not None:
            further = ops.exp(further - top[..., None])
            total = total + ops.sum(further, axis=-1)
            further = further / total[..., None]
        return weights / take(total, self.targets, axis=0), further

    def _seeing_heads(self) -> Bool[Tensor, "B? T? 1 1"] | None:
        return None if self.seeing is None else self.seeing[..., None]

    def __call__(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        dtype = x.dtype
        weights, x = in_one_dtype(self.applied, at_least_float32(x))
        (sums,) = _SUMS(weights, self._rows(x), self.sources, self.targets)
        outputs = self._nodes(sums)
        if self.applied_relay is not None:
            from_virtual, to_virtual = (ops.cast(part, x.dtype) for part in self.applied_relay)
            means = ops.einsum("bnvs,bsnd->bvnd", to_virtual, x)
            outputs = outputs + ops.einsum("btnv,bvnd->btnd", from_virtual, means)
        return ops.cast(outputs, dtype)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        size = self.count * self.length  # and the place of hidden edges
        places = self.targets * self.length + self.sources % self.length
        places = ops.where(self.is_edge, places, size_tensor(size, "int32"))
        matrix = add_rows(self.weights, places, size + 1)[:size]
        matrix = ops.reshape(matrix, (self.batch, self.length, self.length, self.heads))
        matrix = ops.transpose(matrix, (0, 3, 1, 2))
        if self.relay is not None:
            matrix = matrix + ops.einsum("btnv,bnvs->bnts", *self.relay)
        return self._marked(matrix)

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return self._marked(zero_where_masked(outputs, self._seeing_heads()))

    def _marked(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """`x` with NaN in wrong examples."""
        return x if self.wrong is None else nan_where(self.wrong[:, None, None, None], x)


def _value_of_scores(
    query: Rows, key: Rows, sources: Ends, targets: Ends
) -> tuple[Tensors, Tensors]:
    """q_t . k_s of each edge."""
    products = take(query, targets, axis=0) * take(key, sources, axis=0)
    return (ops.sum(products, axis=-1),), ()


def _gradient_of_scores(tensors: Tensors, kept: Tensors, upstream: Tensors) -> tuple[Tensor, ...]:
    query, key, sources, targets = tensors
    (of_query,) = _SUMS(upstream[0], key, sources, targets)
    (of_key,) = _SUMS(upstream[0], query, targets, sources)
    return of_query, of_key, None, None


def _value_of_sums(
    weights: OfEdges, x: Rows, sources: Ends, targets: Ends
) -> tuple[Tensors, Tensors]:
    """The sums of weights times x_s over the edges to each node."""
    parts = weights[..., None] * take(x, sources, axis=0)
    return (add_rows(parts, targets, ops.shape(x)[0]),), ()


def _gradient_of_sums(tensors: Tensors, kept: Tensors, upstream: Tensors) -> tuple[Tensor, ...]:
    weights, x, sources, targets = tensors
    (of_weights,) = _SCORES(upstream[0], x, sources, targets)
    (of_x,) = _SUMS(weights, upstream[0], targets, sources)
    return of_weights, of_x, None, None


_SCORES = FunctionWithGradient(_value_of_scores, _gradient_of_scores)
_SUMS = FunctionWithGradient(_value_of_sums, _gradient_of_sums)
