"""Graphormer and models like it: transformer blocks on the nodes of a graph.

A model with plain attention or GFSA is Graphormer: each node sees all others, the scores get a
learned bias for distances and for bonds on paths, and the prediction is read from a virtual node.
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

from keras_graphattn.graphs import Graph, GraphBatches, precompute
from recipes.common.attentions import Trial, layer_arguments
from recipes.common.data.graphs import batches_of_parts
from recipes.common.training.graphormer import BiasedAttention, StructuralBias, VirtualNode
from recipes.common.training.graphs import NEEDED, attend_nodes, inputs_of, symbolic_inputs
from recipes.common.training.layers import block, masked_mean, named_seed
from recipes.common.training.measures import absolute_error_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training
from recipes.graph_regression.data import BONDS, bonds_on_paths

Tensor = Any


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    options, model, batches = trial.options, build(trial), batches_for(trial)
    steps = options.epochs * batches[0].num_batches
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=options.weight_decay)
    model.compile(optimizer=with_rates(optimizer, model), **absolute_error_and_metrics())
    return Training(model, *batches)


def served(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """The model that is exported: on jax, Graphormer for graphs padded to one size.

    JAX cannot derive that arrays of pairs of nodes are square.
    """
    if keras.backend.backend() != "jax" or "distances" not in model.input:
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

    Its inputs are `nodes` (B, T, F), `node_mask` (B, T) and, for plain attention and GFSA,
    `distances` (B, T, T) and `paths` (B, T, T, hops), as `precompute` and `bonds_on_paths` give
    them. Any other attention has those of `inputs_of`. Values at padded nodes have no influence.
    The F features of a node are its type and its degree, as zeros and ones.
    """
    options = trial.options
    inputs = symbolic_inputs(trial)
    mask = inputs["node_mask"]
    nodes = ops.where(ops.expand_dims(mask, -1), inputs["nodes"], 0.0)
    # a vector for each type plus one for each degree (Eq. 5)
    nodes = layers.Dense(options.heads * options.key_dim, use_bias=False, name="embedding")(nodes)
    if trial.attention in NEEDED:
        tokens = nodes

        def attend(tokens: Tensor, name: str) -> Tensor:
            return attend_nodes(trial, tokens, inputs, name, options.heads)

    else:
        inputs["distances"] = keras.Input((None, None), dtype="int32", name="distances")
        inputs["paths"] = keras.Input((None, None, options.hops), dtype="int32", name="paths")
        tokens = VirtualNode(name="virtual_node")(nodes)
        attend = _attention_on_pairs(trial, inputs)
    for number in range(1, options.layers + 1):  # Eq. 8-9
        tokens = block(trial, tokens, attend, f"block_{number}", hidden_dropout=True)
    tokens = layers.LayerNormalization(name="last_norm")(tokens)
    read = masked_mean(tokens, mask) if trial.attention in NEEDED else tokens[:, 0]
    prediction = layers.Dense(1, dtype="float32", name="prediction")(read)
    return keras.Model(inputs, prediction, name=f"graph_regression_{trial.attention}")


def _attention_on_pairs(
    trial: Trial, inputs: Mapping[str, Tensor]
) -> Callable[[Tensor, str], Tensor]:
    """Attention with one bias for all blocks; the virtual node is never padding."""
    options = trial.options
    make = StructuralBias(options.heads, options.max_distance, options.hops, BONDS, name="bias")
    bias = make(inputs["distances"], inputs["paths"])
    mask = inputs["node_mask"]
    mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)  # (B, 1 + T)

    def attend(tokens: Tensor, name: str) -> Tensor:
        drop = {"dropout": options.dropout, "seed": named_seed(trial.seed, name)}
        arguments = {**drop, **layer_arguments(trial.settings)}
        layer = BiasedAttention(options.heads, options.key_dim, name=name, **arguments)
        return layer(tokens, bias, mask)

    return attend


def batches_for(trial: Trial) -> list[GraphBatches]:
    """Batches with the inputs of Graphormer for pairs of nodes, or those of other attentions."""
    options, inputs = trial.options, inputs_of(trial.attention)
    if trial.attention in NEEDED:
        return batches_of_parts(trial.problem, inputs, options, trial.seed)

    def pairs(graphs: list[Graph]) -> dict[str, Any]:
        kept: dict[str, Any] = {"cache_dir": options.cache_dir.expanduser(), "verbose": False}
        paths = precompute(graphs, "paths", hops=options.hops, **kept)
        bonds = [bonds_on_paths(*both) for both in zip(graphs, paths, strict=True)]
        return {"distances": precompute(graphs, "distances", **kept), "paths": bonds}

    inputs = (*inputs, "distances", "paths")
    return batches_of_parts(trial.problem, inputs, options, trial.seed, pairs=pairs)
