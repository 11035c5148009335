"""The common part of the recipes on graphs: the attentions, the encoder, the model of a graph.

Everything except the attention is the same. Each attention gets the nodes, their mask, and what it
needs of the graph: edges, or walks.
"""

import argparse
import functools
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.layers import (
    EdgeAttention,
    GraphKernelAttention,
    GraphMaxPooling,
    GraphMeanPooling,
    GraphSumPooling,
    MaskedKernelAttention,
)
from keras_graphattn.masks import RandomWalk
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.command.options import OF_WALKS, WITHOUT_STRUCTURE
from recipes.common.data.graphs import batches_of_parts
from recipes.common.training.graph_layers import (
    GraphAttention,
    GraphConvolution,
    GraphIsomorphism,
    ReleasedGraphKernelAttention,
    SpectralGraphConvolution,
)
from recipes.common.training.layers import attend, dropout, named_seed, probabilities
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay, averaged, with_rates
from recipes.common.training.runs import Training

Tensor = Any

NEEDED = {
    **dict.fromkeys(("gcn", "sgc", "gat", "gin", "edges"), ("edges",)),
    **dict.fromkeys(OF_WALKS, ("walks",)),
    **dict.fromkeys(WITHOUT_STRUCTURE, ()),
}
POOLINGS = {"mean": GraphMeanPooling, "sum": GraphSumPooling, "max": GraphMaxPooling}
MOMENTUM = 0.9  # of the means that normalisation takes outside of training, at least


def prepare(trial: Trial) -> Training:
    """The compiled classifier of graphs and its batches: Adam, whose rate falls with `--decay`.

    `options.penalty` is that of `penalise`, with biases, as the weight decay of torch's Adam. With
    `options.relu_head`, it is trained on the numbers before the softmax. The sums over a large
    graph saturate it, and Keras' loss of saturated probabilities has no gradient.
    """
    options, inputs = trial.options, inputs_of(trial.attention)
    model = build(trial)
    batches = batches_of_parts(trial.problem, inputs, options, trial.seed, options.buckets)
    rate = options.learning_rate
    if options.decay:
        rate = WarmUpLinearDecay(rate, 0, options.epochs * batches[0].num_batches)
    optimizer = keras.optimizers.Adam(rate, **averaged(options.ema))
    if getattr(options, "penalty", 0.0):
        penalise(model, options.penalty, biases=True)
    from_logits = getattr(options, "relu_head", False)
    if from_logits:
        model.get_layer("probabilities").activation = keras.activations.linear
    model.compile(optimizer=with_rates(optimizer, model), **loss_and_metrics(from_logits))
    return Training(model, *batches)


def penalise(model: keras.Model, penalty: float, *, biases: bool) -> None:
    """Adds penalty / 2 times the sum of the squares of all weight matrices to the loss.

    Its gradient is penalty times the weight, as in the published experiments. With `biases`, their
    squares are in the sum, too.
    """
    for variable in model.trainable_variables:
        if biases or (len(variable.shape) > 1 and variable.name != "bias"):
            variable.regularizer = keras.regularizers.L2(penalty / 2)


def build(trial: Trial) -> keras.Model:
    """A Functional classifier of graphs: layers, one vector for each graph, two dense layers.

    The vector is the pooled nodes before the first layer and after each, side by side; with
    `options.graph_size`, log(1 + n) of the n nodes, too. With `options.linear_head`, it is the
    pooled nodes of the last layer, and there is one dense layer. With `options.relu_head`, it is
    the same vector, and the first of two dense layers has ReLU in place of ELU. With
    `options.normalise`, each number is normalised over the graphs of a batch. Its inputs are those
    of `inputs_of`; its output is `probabilities` (B, classes).

    Source: Xu et al., arXiv 1810.00826, Section 5: the sum as pooling, and that of all layers.
    """
    options, classes = trial.options, len(trial.problem.classes)
    relu_head = getattr(options, "relu_head", False)
    inputs = symbolic_inputs(trial)
    mask, make = inputs["node_mask"], POOLINGS[options.pooling]
    encoded = list(enumerate(encodings(trial, inputs)))
    pooled = [
        make(name=f"pooling_{number}")(nodes, mask=mask)
        for number, nodes in (encoded[-1:] if options.linear_head or relu_head else encoded)
    ]
    if options.graph_size:
        pooled.append(ops.log1p(ops.sum(ops.cast(mask, "float32"), axis=-1, keepdims=True)))
    pooled = layers.Concatenate(name="readout")(pooled) if len(pooled) > 1 else pooled[0]
    if options.normalise:
        pooled = _normalise(options, "readout")(pooled)
    hidden = pooled
    if not options.linear_head:
        activation = "relu" if relu_head else "elu"
        hidden = layers.Dense(options.feed_forward, activation=activation, name="head")(pooled)
    hidden = dropout(options.head_dropout, trial.seed, "head_dropout")(hidden)
    return keras.Model(inputs, probabilities(hidden, classes), name=f"graphs_{trial.attention}")


def inputs_of(attention: str) -> tuple[str, ...]:
    """The inputs of a model with this attention, by the names of `GraphBatches`."""
    return ("nodes", "node_mask", *NEEDED.get(attention, ()))


def symbolic_inputs(trial: Trial, inputs: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The inputs of a Functional model, with open numbers of nodes and edges.

    They are those of `inputs_of`, if `inputs` does not name others.
    """
    shapes = {
        "nodes": ((None, trial.problem.features), "float32"),
        "node_mask": ((None,), "bool"),
        "edges": ((None, 2), "int32"),
        "edge_weights": ((None,), "float32"),
        "walks": ((None, trial.options.walks, trial.options.walk_length), "int32"),
    }
    return {
        name: keras.Input(shapes[name][0], dtype=shapes[name][1], name=name)
        for name in inputs or inputs_of(trial.attention)
    }


def encodings(
    trial: Trial, inputs: Mapping[str, Tensor], classes: int | None = None
) -> list[Tensor]:
    """The nodes before the first layer and after each, (B, T, d); d may differ before the first.

    With `options.embedding`, a dense layer brings the features to the width of the model before
    the first layer. Each layer is the attention, then ELU. With `options.skip`, a dense layer of
    the nodes is added to the output of the attention; with `options.normalise`, or where the
    attention has `normalise` in its settings, the sum is normalised over the nodes of a batch. All
    layers but the last one have `options.heads` heads; the last one has `options.last_heads`, one
    by default, of the same width together. There is dropout on the features and between the layers.
    A model without structure has none of this: the nodes are what `deep_multisets` or
    `molecular_fingerprint` makes of their features.

    With `classes`, the last layer has one head as wide as their number, and no ELU: its output is
    logits.
    """
    options = trial.options
    width = options.heads * options.key_dim
    if trial.attention in WITHOUT_STRUCTURE:
        return [attend_nodes(trial, inputs["nodes"], inputs, "layer_1", options.heads, width)]
    outputs = [inputs["nodes"]]
    for number in range(1, options.layers + 1):
        name = f"layer_{number}"
        nodes = dropout(options.dropout, trial.seed, f"{name}_dropout")(outputs[-1])
        if number == 1 and options.embedding:
            nodes = layers.Dense(width, name="embedding")(nodes)
            outputs = [nodes]
        heads, gives_logits = options.heads, number == options.layers and classes is not None
        if gives_logits:
            heads, width = 1, classes
            settings = {name: one for name, one in trial.settings.items() if name != "units"}
            trial = trial._replace(settings=settings)
        elif number == options.layers > 1:
            heads = getattr(options, "last_heads", 1)
        sums = attend_nodes(trial, nodes, inputs, f"{name}_attention", heads, width)
        if options.skip:
            sums = layers.Add(name=f"{name}_sum")(
                [sums, layers.Dense(width, name=f"{name}_skip")(nodes)]
            )
        if options.normalise or trial.settings.get("normalise", False):
            sums = _normalise(options, name)(sums, mask=inputs["node_mask"])
        outputs.append(sums if gives_logits else layers.Activation("elu", name=name)(sums))
    return outputs


def _normalise(options: argparse.Namespace, name: str) -> layers.Layer:
    """Normalises over a batch; its moving averages are over as many steps as those of weights."""
    momentum = max(MOMENTUM, getattr(options, "ema", 0.0))
    return layers.BatchNormalization(momentum=momentum, name=f"{name}_normalisation")


def attend_nodes(
    trial: Trial, nodes: Tensor, graph: Mapping[str, Tensor], name: str, heads: int, width: int
) -> Tensor:
    """An attention on nodes (B, T, any), as a tensor (B, T, width); the heads share the width.

    The graph is `node_mask` (B, T), and `edges` (B, E, 2), with `edge_weights` (B, E) if they are
    the pairs that walks join, or `walks` (B, T, walks, length).
    """
    sizes = {"num_heads": heads, "key_dim": width // heads}
    if trial.attention not in NEEDED:  # it sees all nodes of the graph, and no edge
        return attend(trial, nodes, graph["node_mask"], name, **sizes, output_shape=width)
    arguments = {"name": name, **sizes, **layer_arguments(trial.settings)}
    if "dropout" in arguments:
        arguments["seed"] = named_seed(trial.seed, name)
    make = pkgutil.resolve_name(ATTENTIONS[trial.attention].layer)
    return make(nodes, graph, arguments)


def gcn(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph convolution; its weights are one matrix without heads."""
    units = arguments.get("units", _width(arguments))
    return GraphConvolution(units, name=arguments["name"])(nodes, graph["edges"])


def sgc(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Spectral graph convolution: a polynomial of the Laplacian of degree 2."""
    units = arguments.get("units", _width(arguments))
    return SpectralGraphConvolution(units, name=arguments["name"])(nodes, graph["edges"])


def gat(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph attention with additive scores; the outputs of the heads are concatenated."""
    return GraphAttention(**arguments)(nodes, graph["edges"])


def gin(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Graph isomorphism network; its weights are matrices without heads."""
    return GraphIsomorphism(_width(arguments), name=arguments["name"])(nodes, graph["edges"])


def deep_multisets(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """A hidden ReLU layer of each node, which sees no other: pooled, it is a set of nodes.

    Source: Errica et al., arXiv 1912.09893, Section 4, after Zaheer et al., arXiv 1703.06114.
    """
    units = arguments.get("units", _width(arguments))
    return layers.Dense(units, activation="relu", name=arguments["name"])(nodes)


def molecular_fingerprint(
    nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]
) -> Tensor:
    """The features themselves: pooled by a sum, one-hot tags count the atoms of a molecule.

    Source: Errica et al., arXiv 1912.09893, Section 4.
    """
    return nodes


def edges(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """Softmax attention along edges; the random cycles of each layer are its own."""
    mask, seed = graph["node_mask"], named_seed(0, arguments["name"])
    layer = EdgeAttention(output_shape=_width(arguments), seed=seed, **arguments)
    given = {"edges": graph["edges"]}
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs=given)


def _with_walks(
    make: type[layers.Layer],
    nodes: Tensor,
    graph: Mapping[str, Tensor],
    arguments: dict[str, Any],
    **more: Any,
) -> Tensor:
    """A layer whose matrix is multiplied by the kernel of the walks."""
    width, mask = _width(arguments), graph["node_mask"]
    layer = make(mask=RandomWalk(), output_shape=width, **arguments, **more)
    return layer(nodes, query_mask=mask, value_mask=mask, mask_inputs={"walks": graph["walks"]})


def graph_kernel(nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]) -> Tensor:
    """GKAT; with options of `ReleasedGraphKernelAttention` in the form of its authors' code."""
    if not {"value_dropout", "separate_values"} & set(arguments):
        return _with_walks(GraphKernelAttention, nodes, graph, arguments)
    released = ReleasedGraphKernelAttention(**arguments)
    return released(**{**graph, "nodes": nodes})


def factored_graph_kernel(
    nodes: Tensor, graph: Mapping[str, Tensor], arguments: dict[str, Any]
) -> Tensor:
    """GKAT with random features for exp(S): the walks are applied to signals."""
    factored = {"feature_map": "favor", **arguments}
    return _with_walks(GraphKernelAttention, nodes, graph, factored)


dynamic_graph_kernel = functools.partial(_with_walks, GraphKernelAttention, dynamic_walks=True)
graph_masked_kernel = functools.partial(_with_walks, MaskedKernelAttention, path="dense")


def _width(arguments: Mapping[str, Any]) -> int:
    return int(arguments["num_heads"] * arguments["key_dim"])
