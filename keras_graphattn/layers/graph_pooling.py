"""Pooling of a graph's nodes into one vector: mean, sum and maximum of the nodes that exist."""

import keras
from keras import ops

from keras_graphattn.layers.token_layer import TokenLayer
from keras_graphattn.numerics.precision import (
    at_least_float32,
    largest,
    nan_where,
    zero_where_masked,
)
from keras_graphattn.types import Bool, Num, Tensor


class GraphPooling(TokenLayer):
    """Base of the pooling layers: a vector (B, d) for each graph, without its padded nodes.

    A subclass writes `_pooled`.
    """

    def call(
        self, inputs: Num[Tensor, "B T d"], mask: Num[Tensor, "B T"] | None = None
    ) -> Num[Tensor, "B d"]:
        if mask is None:
            is_node = ops.ones_like(inputs[:, :, :1], dtype="bool")  # (B, T, 1)
        else:
            is_node = ops.cast(mask, "bool")[:, :, None]
        pooled = self._pooled(at_least_float32(zero_where_masked(inputs, is_node)), is_node)
        return ops.cast(pooled, inputs.dtype)

    def _pooled(
        self, nodes: Num[Tensor, "B T d"], is_node: Bool[Tensor, "B T 1"]
    ) -> Num[Tensor, "B d"]:
        """(B, T, d) -> (B, d); `is_node` (B, T, 1) is `False` for padded nodes, which are 0."""
        raise NotImplementedError

    def compute_mask(
        self, inputs: Num[Tensor, "B T d"], previous_mask: Num[Tensor, "B T"] | None = None
    ) -> None:
        """No mask: the output has one vector for each graph, without nodes."""
        return None

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (inputs_shape[0], inputs_shape[2])


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphMeanPooling(GraphPooling):
    """The mean of a graph's nodes.

    `keras.layers.GlobalAveragePooling1D` gives NaN for a graph without nodes, and for padding that
    holds NaN. Here a graph without nodes gives 0, and padding has no influence.

    Args:
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Tensor of shape (B, T, d), one row per node.
        mask: Boolean tensor of shape (B, T); `False` marks padding. By default the inputs' Keras
            mask.

    Returns:
        A tensor of shape (B, d). The sum inside is float32 in half precision.

    Raises:
        ValueError: For inputs whose shape is not (B, T, d), and masks whose shape is not (B, T).

    Example:

    >>> nodes = np.array([[[1.0], [3.0], [9.0]]], "float32")
    >>> pooled = GraphMeanPooling()(nodes, mask=np.array([[True, True, False]]))
    >>> keras.ops.convert_to_numpy(pooled).tolist()
    [[2.0]]

    Source: Xu et al., "How Powerful are Graph Neural Networks?", arXiv 1810.00826 (ICLR 2019),
    Section 5.
    """

    def _pooled(
        self, nodes: Num[Tensor, "B T d"], is_node: Bool[Tensor, "B T 1"]
    ) -> Num[Tensor, "B d"]:
        count = ops.sum(ops.cast(is_node, nodes.dtype), axis=1)  # (B, 1)
        return ops.sum(nodes, axis=1) / ops.maximum(count, 1.0)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphSumPooling(GraphPooling):
    """The sum of a graph's nodes. It distinguishes graphs of different sizes; a mean does not.

    Args:
        **kwargs: As for `GraphMeanPooling`.

    Call arguments:
        As for `GraphMeanPooling`.

    Returns:
        A tensor of shape (B, d); 0 for a graph without nodes. The sum is float32 inside.

    Raises:
        ValueError: As for `GraphMeanPooling`.

    Example:

    >>> nodes = np.array([[[1.0], [3.0], [9.0]]], "float32")
    >>> pooled = GraphSumPooling()(nodes, mask=np.array([[True, True, False]]))
    >>> keras.ops.convert_to_numpy(pooled).tolist()
    [[4.0]]

    Source: Xu et al., "How Powerful are Graph Neural Networks?", arXiv 1810.00826 (ICLR 2019),
    Section 5.
    """

    def _pooled(
        self, nodes: Num[Tensor, "B T d"], is_node: Bool[Tensor, "B T 1"]
    ) -> Num[Tensor, "B d"]:
        return ops.sum(nodes, axis=1)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class GraphMaxPooling(GraphPooling):
    """The largest value of each feature among a graph's nodes.

    `keras.layers.GlobalMaxPooling1D` ignores masks.

    Args:
        **kwargs: As for `GraphMeanPooling`.

    Call arguments:
        As for `GraphMeanPooling`.

    Returns:
        A tensor of shape (B, d); 0 for a graph without nodes, NaN where a node has NaN.

    Raises:
        ValueError: As for `GraphMeanPooling`.

    Example:

    >>> nodes = np.array([[[-1.0], [-3.0], [9.0]]], "float32")
    >>> pooled = GraphMaxPooling()(nodes, mask=np.array([[True, True, False]]))
    >>> keras.ops.convert_to_numpy(pooled).tolist()
    [[-1.0]]

    Source: Xu et al., "How Powerful are Graph Neural Networks?", arXiv 1810.00826 (ICLR 2019),
    Section 5.
    """

    def _pooled(
        self, nodes: Num[Tensor, "B T d"], is_node: Bool[Tensor, "B T 1"]
    ) -> Num[Tensor, "B d"]:
        nodes = ops.where(is_node, nodes, ops.cast(float("-inf"), nodes.dtype))
        top = largest(nodes, axis=1)
        top = ops.where(ops.any(is_node, axis=1), top, ops.cast(0.0, top.dtype))
        return nan_where(ops.any(ops.isnan(nodes), axis=1), top)
