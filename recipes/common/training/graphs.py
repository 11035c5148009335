"""What the recipes on graphs share: the attentions on graphs, the encoder, the model of a graph.

Everything but the attention is the same for all attentions. Each sees the nodes, their mask, and of
the graph what it needs: edges, or walks.
"""

import argparse
import pkgutil
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
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.training.graph_layers import GraphAttention, GraphConvolution
from recipes.common.training.layers import attend, dropout

Tensor = Any

NEEDED = {
    "gcn": ("edges",),
    "gat": ("edges",),
    "graph_kernel": ("walks",),
    "graph_masked_kernel": ("walks",),
}


POOLINGS = {"mean": GraphMeanPooling, "sum": GraphSumPooling, "max": GraphMaxPooling}
MOMENTUM = 0.9  # of the means that normalisation takes outside of training, at least


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
    """The nodes before the first layer and after each, (B, T, d); d may be other before the first.

    With `options.embedding`, a dense layer brings the features to the width of the model before
    the first layer. Each layer is the attention, then ELU. With `options.skip`, a dense layer of
    the nodes is added to what the attention finds; with `options.normalise`, the sum is normalised
    over the nodes of a batch. All layers but the last one have `options.heads` heads; the last one
    has one head of the same width. There is dropout on the features and between the layers.
    """
    width = options.heads * options.key_dim
    found = [inputs["nodes"]]
    for number in range(1, options.layers + 1):
        name = f"layer_{number}"
        nodes = dropout(options.dropout, seed, f"{name}_dropout")(found[-1])
        if number == 1 and options.embedding:
            nodes = layers.Dense(width, name="embedding")(nodes)
            found = [nodes]
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
            sums = _normalise(options, name)(sums, mask=inputs["node_mask"])
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
    `options.graph_size`, log(1 + n) of the n nodes, too. With `options.normalise`, each number is
    normalised over the graphs of a batch. Its inputs are those of `inputs_of`; its output is
    `probabilities` (B, classes).

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
    mask = inputs["node_mask"]
    pooled = [
        make(name=f"pooling_{number}")(nodes, mask=mask) for number, nodes in enumerate(found)
    ]
    if options.graph_size:
        pooled.append(ops.log1p(ops.sum(ops.cast(mask, "float32"), axis=-1, keepdims=True)))
    pooled = layers.Concatenate(name="readout")(pooled)
    if options.normalise:
        pooled = _normalise(options, "readout")(pooled)
    hidden = layers.Dense(options.feed_forward, activation="elu", name="head")(pooled)
    hidden = dropout(options.head_dropout, seed, "head_dropout")(hidden)
    probabilities = layers.Dense(
        classes, activation="softmax", dtype="float32", name="probabilities"
    )(hidden)
    return keras.Model(inputs, probabilities, name=f"graphs_{attention}")


def _normalise(options: argparse.Namespace, name: str) -> layers.Layer:
    """Normalises over a batch; where weights are averaged, its means are, over as many steps."""
    momentum = max(MOMENTUM, getattr(options, "ema", 0.0))
    return layers.BatchNormalization(momentum=momentum, name=f"{name}_normalisation")


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
        nodes: Tensor of shape (B, T, any).
        graph: `node_mask` (B, T), and `edges` (B, E, 2) or `walks` (B, T, walks, length).
        name: Name of the layer.
        num_heads: Number of heads.
        key_dim: Width of each head.
        settings: The attention's settings, as `settings_of` gives them.

    Returns:
        Tensor of shape (B, T, num_heads * key_dim).
    """
    given: dict[str, Any] = {"name": name, "num_heads": num_heads, "key_dim": key_dim}
    if attention not in NEEDED:  # it sees all nodes of the graph, and no edge
        given["output_shape"] = num_heads * key_dim
        return attend(attention, nodes, graph["node_mask"], settings=settings, **given)
    make = pkgutil.resolve_name(ATTENTIONS[attention].layer)
    return make(nodes, graph, {**given, **layer_arguments(settings)})


def gcn(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph convolution; its weights are one matrix, so heads have no meaning."""
    return GraphConvolution(_width(arguments), name=arguments["name"])(nodes, graph["edges"])


def gat(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph attention with additive scores; the heads stand side by side."""
    return GraphAttention(**arguments)(nodes, graph["edges"])


def graph_kernel(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """GKAT: softmax attention, its weights times the kernel of the walks."""
    layer = GraphKernelAttention(mask=RandomWalk(), output_shape=_width(arguments), **arguments)
    mask = graph["node_mask"]
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs={"walks": graph["walks"]})


def graph_masked_kernel(
    nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]
) -> Tensor:
    """Kernel attention, its matrix times the kernel of the walks."""
    layer = MaskedKernelAttention(
        mask=RandomWalk(), path="dense", output_shape=_width(arguments), **arguments
    )
    mask = graph["node_mask"]
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs={"walks": graph["walks"]})


def _width(arguments: Mapping[str, Any]) -> int:
    return int(arguments["num_heads"] * arguments["key_dim"])
