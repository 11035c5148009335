"""What the recipes on graphs share: graph convolution, graph attention, the model of a graph.

Everything but the attention is the same for all attentions. Each sees the nodes, their mask, and of
the graph what it needs: edges, or walks.
"""

import argparse
import pkgutil
import zlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.layers import (
    GraphKernelAttention,
    GraphMaxPooling,
    GraphMeanPooling,
    GraphSumPooling,
    MaskedKernelAttention,
)
from keras_graphattn.masks import RandomWalk
from keras_graphattn.ops.graphs.sparse import sum_rows
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.training.layers import attend

Tensor = Any

NEEDED = {
    "gcn": ("edges",),
    "gat": ("edges",),
    "graph_kernel": ("walks",),
    "graph_masked_kernel": ("walks",),
}


POOLINGS = {"mean": GraphMeanPooling, "sum": GraphSumPooling, "max": GraphMaxPooling}
MOMENTUM = 0.9  # of the means that normalisation takes outside of training


def inputs_of(attention: str) -> tuple[str, ...]:
    """The inputs of a model with this attention, by the names of `GraphBatches`."""
    return ("nodes", "node_mask", *NEEDED.get(attention, ()))


def symbolic_inputs(attention: str, features: int, options: argparse.Namespace) -> dict[str, Any]:
    """The inputs of a Functional model, of open numbers of nodes and edges."""
    shapes = {
        "nodes": ((None, features), "float32"),
        "node_mask": ((None,), "bool"),
        "edges": ((None, 2), "int32"),
        "walks": ((None, options.walks, options.walk_length), "int32"),
    }
    return {
        name: keras.Input(shapes[name][0], dtype=shapes[name][1], name=name)
        for name in inputs_of(attention)
    }


def encode(
    attention: str,
    inputs: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int,
) -> Tensor:
    """The nodes after all layers, (B, T, d): the last of `encodings`."""
    return encodings(attention, inputs, settings, options, seed)[-1]


def encodings(
    attention: str,
    inputs: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int,
) -> list[Tensor]:
    """The nodes before the first layer and after each, (B, T, d).

    A dense layer brings the features to the width of the model. Each layer is the attention, then
    ELU. With `options.skip`, a dense layer of the nodes is added to what the attention finds; with
    `options.normalise`, the sum is normalised over the nodes of a batch. All layers but the last
    one have `options.heads` heads; the last one has one head of the same width. There is dropout
    on the features and between the layers.
    """
    width = options.heads * options.key_dim
    found: list[Tensor] = []
    for number in range(1, options.layers + 1):
        name = f"layer_{number}"
        own_seed = zlib.crc32(f"{seed} {name}".encode()) & 0x7FFFFFFF
        nodes = found[-1] if found else inputs["nodes"]
        nodes = layers.Dropout(options.dropout, seed=own_seed, name=f"{name}_dropout")(nodes)
        if not found:
            nodes = layers.Dense(width, name="embedding")(nodes)
            found.append(nodes)
        heads = options.heads if number < options.layers or options.layers == 1 else 1
        sums = attend_nodes(
            attention,
            nodes,
            inputs,
            name=f"{name}_attention",
            num_heads=heads,
            key_dim=width // heads,
            settings=settings,
        )
        if options.skip:
            sums = layers.Add(name=f"{name}_sum")(
                [sums, layers.Dense(width, name=f"{name}_skip")(nodes)]
            )
        if options.normalise:
            normalise = layers.BatchNormalization(momentum=MOMENTUM, name=f"{name}_normalisation")
            sums = normalise(sums, mask=inputs["node_mask"])
        found.append(layers.Activation("elu", name=name)(sums))
    return found


def classifier(
    attention: str,
    features: int,
    classes: int,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """A Functional classifier of graphs: layers, one vector for each graph, two dense layers.

    The vector is the pooled nodes before the first layer and after each, side by side; with
    `options.normalise`, each is normalised over the graphs of a batch. Its inputs are those of
    `inputs_of`; its output is `probabilities` (B, classes).

    Source: Xu et al., arXiv 1810.00826, Section 5: the sum as pooling, and that of all layers.

    Args:
        attention: Name of the attention.
        features: Features of each node.
        classes: Number of classes.
        settings: The attention's settings.
        options: The command line's options.
        seed: Seed of the dropout.
    """
    inputs = symbolic_inputs(attention, features, options)
    found = encodings(attention, inputs, settings, options, seed)
    make = POOLINGS[options.pooling]
    pooled = layers.Concatenate(name="readout")(
        [
            make(name=f"pooling_{number}")(nodes, mask=inputs["node_mask"])
            for number, nodes in enumerate(found)
        ]
    )
    if options.normalise:
        pooled = layers.BatchNormalization(momentum=MOMENTUM, name="readout_normalisation")(pooled)
    hidden = layers.Dense(options.feed_forward, activation="elu", name="head")(pooled)
    own_seed = zlib.crc32(f"{seed} head".encode()) & 0x7FFFFFFF
    hidden = layers.Dropout(options.head_dropout, seed=own_seed, name="head_dropout")(hidden)
    probabilities = layers.Dense(
        classes, activation="softmax", dtype="float32", name="probabilities"
    )(hidden)
    return keras.Model(inputs, probabilities, name=f"graphs_{attention}")


def attend_nodes(
    attention: str,
    nodes: Tensor,
    graph: Mapping[str, Tensor],
    *,
    name: str,
    num_heads: int,
    key_dim: int,
    settings: Mapping[str, Any],
) -> Tensor:
    """An attention of one kind on the nodes of graphs, within a Functional model.

    Args:
        attention: A name out of `ATTENTIONS`.
        nodes: Tensor of shape (B, T, d).
        graph: `node_mask` (B, T), and `edges` (B, E, 2) or `walks` (B, T, walks, length).
        name: Name of the layer.
        num_heads: Number of heads.
        key_dim: Width of each head; d is the product of the two.
        settings: The attention's settings, as `settings_of` gives them.

    Returns:
        Tensor of shape (B, T, d).
    """
    given = {"name": name, "num_heads": num_heads, "key_dim": key_dim}
    if attention not in NEEDED:  # it sees all nodes of the graph, and no edge
        return attend(attention, nodes, graph["node_mask"], settings=settings, **given)
    make = pkgutil.resolve_name(ATTENTIONS[attention].layer)
    return make(nodes, graph, {**given, **layer_arguments(settings)})


def gcn(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph convolution; its weights are one matrix, so heads have no meaning."""
    units = arguments["num_heads"] * arguments["key_dim"]
    return GraphConvolution(units, name=arguments["name"])(nodes, graph["edges"])


def gat(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph attention with additive scores; the heads stand side by side."""
    return GraphAttention(**arguments)(nodes, graph["edges"])


def graph_kernel(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """GKAT: softmax attention, its weights times the kernel of the walks."""
    layer = GraphKernelAttention(mask=RandomWalk(), **arguments)
    mask = graph["node_mask"]
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs={"walks": graph["walks"]})


def graph_masked_kernel(
    nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]
) -> Tensor:
    """Kernel attention, its matrix times the kernel of the walks."""
    layer = MaskedKernelAttention(mask=RandomWalk(), path="dense", **arguments)
    mask = graph["node_mask"]
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs={"walks": graph["walks"]})


class _OnEdges(layers.Layer):
    """A layer on nodes (B, T, d) and undirected edges (B, E, 2); (-1, -1) is padding."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # nodes stay where they are

    def _directed(self, edges: Tensor, count: Any) -> tuple[Tensor, Tensor]:
        """Both directions of each edge as (source, target), numbers of rows of all B T nodes.

        A target of B T, one too many, marks padding.
        """
        batch = ops.shape(edges)[0]
        first = ops.arange(batch, dtype="int32")[:, None] * count
        ends = ops.cast(edges, "int32")
        source = ops.concatenate([ends[..., 0], ends[..., 1]], axis=1)  # (B, 2 E)
        target = ops.concatenate([ends[..., 1], ends[..., 0]], axis=1)
        known = source >= 0
        source = ops.where(known, source + first, 0)
        target = ops.where(known, target + first, batch * count)
        return ops.reshape(source, (-1,)), ops.reshape(target, (-1,))


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

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.dense = layers.Dense(units, use_bias=False, dtype=self.dtype_policy, name="dense")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        self.dense.build(nodes_shape)
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")
        self.built = True

    def call(self, nodes: Tensor, edges: Tensor) -> Tensor:
        shape = ops.shape(nodes)
        count = shape[0] * shape[1]
        source, target = self._directed(edges, shape[1])
        x = ops.reshape(ops.cast(self.dense(nodes), "float32"), (-1, self.units))
        ones = ops.ones_like(source, dtype="float32")[:, None]
        degrees = 1.0 + sum_rows(ones, target, count + 1)[:count]  # (B T, 1)
        x = x * ops.rsqrt(degrees)
        sums = sum_rows(ops.take(x, source, axis=0), target, count + 1)[:count]
        found = ops.reshape((x + sums) * ops.rsqrt(degrees), (shape[0], shape[1], self.units))
        return ops.cast(found, self.compute_dtype) + self.bias

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any = None) -> Any:
        return (*nodes_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class GraphAttention(_OnEdges):
    """Softmax over a node's neighbours and itself, with additive scores (GAT).

    Per head, e_ij = leaky_relu(a . [W x_i, W x_j]) with slope 0.2, and

        out_i = sum_j softmax_j(e_ij) W x_j + b

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head. The heads stand side by side in the result.
        **kwargs: Those of a Keras layer.

    Call arguments:
        nodes: Tensor of shape (B, T, d).
        edges: Integers of shape (B, E, 2), each edge once; (-1, -1) is padding.

    Source: Velickovic et al., arXiv 1710.10903, Eq. 3-5.
    """

    def __init__(self, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim
        units = num_heads * key_dim
        self.dense = layers.Dense(units, use_bias=False, dtype=self.dtype_policy, name="dense")

    def build(self, nodes_shape: Any, edges_shape: Any = None) -> None:
        self.dense.build(nodes_shape)
        shape = (self.num_heads, self.key_dim)
        self.of_target = self.add_weight(shape=shape, name="of_target")
        self.of_source = self.add_weight(shape=shape, name="of_source")
        units = (self.num_heads * self.key_dim,)
        self.bias = self.add_weight(shape=units, initializer="zeros", name="bias")
        self.built = True

    def call(self, nodes: Tensor, edges: Tensor) -> Tensor:
        shape = ops.shape(nodes)
        count = shape[0] * shape[1]
        source, target = self._directed(edges, shape[1])
        heads = (-1, self.num_heads, self.key_dim)
        x = ops.reshape(ops.cast(self.dense(nodes), "float32"), heads)  # (B T, N, H)
        of_target = ops.sum(x * ops.cast(self.of_target, "float32"), axis=-1)  # (B T, N)
        of_source = ops.sum(x * ops.cast(self.of_source, "float32"), axis=-1)
        at_target = ops.minimum(target, count - 1)  # padding reads any row, and is added nowhere
        scores = ops.take(of_target, at_target, axis=0) + ops.take(of_source, source, axis=0)
        scores, own = _leaky(scores), _leaky(of_target + of_source)
        most = ops.segment_max(scores, target, count + 1)[:count]
        most = ops.stop_gradient(ops.maximum(most, own))
        weights = ops.exp(scores - ops.take(most, at_target, axis=0))[..., None]  # (2 B E, N, 1)
        own = ops.exp(own - most)[..., None]
        total = own + sum_rows(weights, target, count + 1)[:count]
        sums = sum_rows(weights * ops.take(x, source, axis=0), target, count + 1)[:count]
        found = (own * x + sums) / total
        found = ops.reshape(found, (shape[0], shape[1], self.num_heads * self.key_dim))
        return ops.cast(found, self.compute_dtype) + self.bias

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any = None) -> Any:
        return (*nodes_shape[:-1], self.num_heads * self.key_dim)

    def get_config(self) -> dict[str, Any]:
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        return {**super().get_config(), **sizes}


def _leaky(x: Tensor) -> Tensor:
    return ops.leaky_relu(x, negative_slope=0.2)
