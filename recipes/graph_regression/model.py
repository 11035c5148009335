"""Graphormer and models like it: transformer blocks on the nodes of a graph.

A model with plain attention or GFSA is Graphormer: each node sees all others, the scores get a
learned bias for distances and for bonds on paths, and the prediction is read from a virtual node.
`--bias` chooses another bias: GRIT's probabilities of walks, or a decay with the distance.
GCN, GAT and the attentions with a graph kernel are in the same blocks and see the graph in their
own way. Their prediction is read from the mean over the nodes.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?",
arXiv 2106.05234 (NeurIPS 2021).
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn import biases
from keras_graphattn.graphs import Graph, GraphBatches, precompute
from keras_graphattn.layers import GraphFilterAttention
from recipes.common.attentions import Trial, layer_arguments
from recipes.common.command.options import ON_PAIRS
from recipes.common.data.graphs import batches_of_parts
from recipes.common.training.graphormer import VirtualNode
from recipes.common.training.graphs import attend_nodes, inputs_of, symbolic_inputs
from recipes.common.training.layers import block, masked_mean, named_seed
from recipes.common.training.measures import absolute_error_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training
from recipes.graph_regression.data import bond_types, bonds_on_paths

Tensor = Any


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    options, model, batches = trial.options, build(trial), batches_for(trial)
    steps = options.epochs * batches[0].num_batches
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    decay, clip = options.weight_decay, options.clip
    optimizer = keras.optimizers.AdamW(rate, weight_decay=decay, global_clipnorm=clip)
    model.compile(optimizer=with_rates(optimizer, model), **absolute_error_and_metrics())
    return Training(model, *batches)


def served(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """The model that is exported: on jax, Graphormer for graphs padded to one size.

    JAX cannot derive that arrays of pairs of nodes are square.
    """
    pairs = {"distances", "walk_probabilities"} & set(model.input)
    if keras.backend.backend() != "jax" or not pairs:
        return model
    inputs = {
        name: keras.Input(
            [options.nodes if size is None else size for size in tensor.shape[1:]],
            dtype=tensor.dtype,
            name=name,
        )
        for name, tensor in model.input.items()
    }
    prediction = layers.Activation("linear", dtype="float32", name="prediction")(model(inputs))
    return keras.Model(inputs, prediction, name=model.name)


def build(trial: Trial) -> keras.Model:
    """A Functional model that predicts a number for each graph, (B, 1).

    Its inputs are `nodes` (B, T, F), `node_mask` (B, T) and, for plain attention and GFSA, those of
    the bias: `distances` (B, T, T) and `paths` (B, T, T, hops), or `walk_probabilities`
    (B, T, T, steps), as `precompute` and `bonds_on_paths` give them. Any other attention has those
    of `inputs_of`. Values at padded nodes have no influence.
    The F features of a node are its type and its degree, as zeros and ones.
    """
    options = trial.options
    inputs = symbolic_inputs(trial)
    mask = inputs["node_mask"]
    nodes = ops.where(ops.expand_dims(mask, -1), inputs["nodes"], 0.0)
    # a vector for each type plus one for each degree (Eq. 5)
    nodes = layers.Dense(options.heads * options.key_dim, use_bias=False, name="embedding")(nodes)
    sees_pairs = trial.attention in ON_PAIRS
    if not sees_pairs:
        tokens = nodes

        def attend(tokens: Tensor, name: str) -> Tensor:
            width = options.heads * options.key_dim
            return attend_nodes(trial, tokens, inputs, name, options.heads, width)

    else:
        inputs |= _pair_inputs(options)
        tokens = VirtualNode(name="virtual_node")(nodes)
        attend = _attention_on_pairs(trial, inputs)
    for number in range(1, options.layers + 1):  # Eq. 8-9
        tokens = block(trial, tokens, attend, f"block_{number}", hidden_dropout=True)
    tokens = layers.LayerNormalization(name="last_norm")(tokens)
    read = tokens[:, 0] if sees_pairs else masked_mean(tokens, mask)
    prediction = layers.Dense(1, dtype="float32", name="prediction")(read)
    return keras.Model(inputs, prediction, name=f"graph_regression_{trial.attention}")


# The inputs of each `--bias`, with the fill of pairs with the virtual node
PAIRS = {
    "graphormer": {"distances": -2, "paths": -1},
    "grit": {"walk_probabilities": 0},
    "decay": {"distances": -2},
    "none": {},
}


def _bias(options: argparse.Namespace) -> biases.Bias:
    """The bias of `--bias`, built for the heads."""
    distances = biases.ShortestPath(options.max_distance, name="distance")
    bias: biases.Bias
    if options.bias == "graphormer":
        edges = biases.EdgePath(bond_types(options), options.hops, name="edge")
        bias = biases.Sum([distances, edges], name="bias")
    elif options.bias == "grit":
        bias = biases.WalkProbabilities(options.bias_steps, name="bias")
    else:
        bias = biases.HopDecay(name="bias")
    bias.build((None, None, options.heads, None))
    return bias


def _pair_inputs(options: argparse.Namespace) -> dict[str, Tensor]:
    """The symbolic inputs of pairs of nodes."""
    shapes = {
        "distances": ((None, None), "int32"),
        "paths": ((None, None, options.hops), "int32"),
        "walk_probabilities": ((None, None, options.bias_steps), "float32"),
    }
    return {
        name: keras.Input(shapes[name][0], dtype=shapes[name][1], name=name)
        for name in PAIRS[options.bias]
    }


def _attention_on_pairs(
    trial: Trial, inputs: Mapping[str, Tensor]
) -> Callable[[Tensor, str], Tensor]:
    """Attention with one bias for all blocks; the virtual node is never padding."""
    options, mask = trial.options, inputs["node_mask"]
    given = {
        name: ops.pad(
            inputs[name],
            [[0, 0], *[[1, 0]] * 2, *[[0, 0]] * (len(inputs[name].shape) - 3)],
            constant_values=fill,
        )
        for name, fill in PAIRS[options.bias].items()
    }
    matrix = _bias(options)(**given) if given else None
    mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)  # (B, 1 + T)

    def attend(tokens: Tensor, name: str) -> Tensor:
        drop = {"dropout": options.dropout, "seed": named_seed(trial.seed, name)}
        arguments = {"filter": None, **drop, **layer_arguments(trial.settings)}
        layer = GraphFilterAttention(options.heads, options.key_dim, name=name, **arguments)
        return layer(tokens, value_mask=mask, attention_bias=matrix)

    return attend


def batches_for(trial: Trial) -> list[GraphBatches]:
    """Batches with the inputs of Graphormer for pairs of nodes, or those of other attentions."""
    options, inputs = trial.options, inputs_of(trial.attention)
    if trial.attention not in ON_PAIRS or not PAIRS[options.bias]:
        return batches_of_parts(trial.problem, inputs, options, trial.seed)
    names = tuple(PAIRS[options.bias])

    def pairs(graphs: list[Graph]) -> dict[str, Any]:
        kept: dict[str, Any] = {"cache_dir": options.cache_dir.expanduser(), "verbose": False}
        arrays: dict[str, Any] = {}
        if "distances" in names:
            arrays["distances"] = precompute(graphs, "distances", **kept)
        if "paths" in names:
            paths = precompute(graphs, "paths", hops=options.hops, **kept)
            arrays["paths"] = [bonds_on_paths(*both) for both in zip(graphs, paths, strict=True)]
        if "walk_probabilities" in names:
            steps = options.bias_steps
            walks = precompute(graphs, "walk_probabilities", num_steps=steps, **kept)
            arrays["walk_probabilities"] = walks
        return arrays

    return batches_of_parts(trial.problem, (*inputs, *names), options, trial.seed, pairs=pairs)
