"""Graphormer and its likes: transformer blocks on the nodes of a graph, and what a run trains.

A model with plain attention or GFSA is Graphormer: each node sees all others, the scores get a
learned bias for distances and for bonds on paths, and a virtual node reads the graph out. GCN, GAT
and the attentions with a graph kernel stand in the same blocks, see the graph in their own way, and
the mean over the nodes reads it out.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?",
arXiv 2106.05234 (NeurIPS 2021).
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.graphs import Graph, GraphBatches, precompute
from recipes.common.attentions import layer_arguments
from recipes.common.data.graphs import GraphProblem, batches_of
from recipes.common.training.graph_runs import training_on
from recipes.common.training.graphormer import BiasedAttention, StructuralBias, VirtualNode
from recipes.common.training.graphs import NEEDED, attend_nodes, inputs_of, symbolic_inputs
from recipes.common.training.layers import dropout, masked_mean, named_seed
from recipes.common.training.measures import absolute_error_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.common.training.runs import Training
from recipes.graph_regression.data import BONDS, bonds_on_paths

Tensor = Any


def prepare(
    problem: GraphProblem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    model = build(problem, attention, settings, options, seed)
    batches = [
        _batches(problem, graphs, attention, options, own_seed)
        for graphs, own_seed in zip(problem.splits.values(), (seed, None, None), strict=True)
    ]
    steps = options.epochs * batches[0].num_batches
    rate = WarmUpLinearDecay(options.learning_rate, min(options.warm_up, steps - 1), steps)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=options.weight_decay)
    return training_on(model, optimizer, batches, **absolute_error_and_metrics())


def served(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """What the SavedModel is made of: on jax, Graphormer for graphs padded to one size.

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


def build(
    problem: GraphProblem,
    attention: str,
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """A Functional model that predicts a number for each graph, (B, 1).

    Its inputs are `nodes` (B, T, F), `node_mask` (B, T) and, for plain attention and GFSA,
    `distances` (B, T, T) and `paths` (B, T, T, hops), as `precompute` and `bonds_on_paths` give
    them. Any other attention has those of `inputs_of`. What lies at padded nodes has no influence.

    Args:
        problem: The graphs. The F features of a node are its type and its degree, as zeros and
            ones.
        attention: Name of the attention.
        settings: The attention's settings.
        options: The command line's options.
        seed: Seed of the dropout.
    """

    def drop(x: Tensor, name: str) -> Tensor:
        return dropout(options.dropout, seed, name)(x)

    inputs = symbolic_inputs(attention, problem.features, options)
    mask = inputs["node_mask"]
    nodes = ops.where(ops.expand_dims(mask, -1), inputs["nodes"], 0.0)
    # a vector for each type plus one for each degree (Eq. 5)
    nodes = layers.Dense(options.heads * options.key_dim, use_bias=False, name="embedding")(nodes)
    if attention in NEEDED:
        tokens, attend = nodes, _attention_on_edges(attention, inputs, settings, options)
    else:
        inputs["distances"] = keras.Input((None, None), dtype="int32", name="distances")
        inputs["paths"] = keras.Input((None, None, options.hops), dtype="int32", name="paths")
        tokens = VirtualNode(name="virtual_node")(nodes)
        attend = _attention_on_pairs(inputs, settings, options, seed)
    for number in range(1, options.layers + 1):
        tokens = _block(tokens, attend, f"block_{number}", options, drop)
    tokens = layers.LayerNormalization(name="last_norm")(tokens)
    read = masked_mean(tokens, mask) if attention in NEEDED else tokens[:, 0]
    prediction = layers.Dense(1, dtype="float32", name="prediction")(read)
    return keras.Model(inputs, prediction, name=f"graph_regression_{attention}")


def _block(
    tokens: Tensor,
    attend: Callable[[Tensor, str], Tensor],
    name: str,
    options: argparse.Namespace,
    drop: Callable[[Tensor, str], Tensor],
) -> Tensor:
    """Attention, then a feed-forward network, each on normalised tokens and added (Eq. 8-9)."""
    normed = layers.LayerNormalization(name=f"{name}_attention_norm")(tokens)
    found = drop(attend(normed, f"{name}_attention"), f"{name}_attention_dropout")
    tokens = layers.Add(name=f"{name}_attended")([tokens, found])
    normed = layers.LayerNormalization(name=f"{name}_norm")(tokens)
    hidden = layers.Dense(options.feed_forward, activation="gelu", name=f"{name}_hidden")(normed)
    hidden = drop(hidden, f"{name}_hidden_dropout")
    found = layers.Dense(tokens.shape[-1], name=f"{name}_output")(hidden)
    return layers.Add(name=name)([tokens, drop(found, f"{name}_output_dropout")])


def _attention_on_edges(
    attention: str,
    inputs: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    options: argparse.Namespace,
) -> Callable[[Tensor, str], Tensor]:
    """An attention of its own way to see the graph, for the block of a name."""

    def attend(tokens: Tensor, name: str) -> Tensor:
        sizes = {"num_heads": options.heads, "key_dim": options.key_dim}
        return attend_nodes(attention, tokens, inputs, name=name, settings=settings, **sizes)

    return attend


def _attention_on_pairs(
    inputs: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    options: argparse.Namespace,
    seed: int,
) -> Callable[[Tensor, str], Tensor]:
    """Attention with one bias for all blocks; the virtual node is never padding."""
    make = StructuralBias(options.heads, options.max_distance, options.hops, BONDS, name="bias")
    bias = make(inputs["distances"], inputs["paths"])
    mask = inputs["node_mask"]
    mask = ops.concatenate([ops.ones_like(mask[:, :1]), mask], axis=1)  # (B, 1 + T)

    def attend(tokens: Tensor, name: str) -> Tensor:
        layer = BiasedAttention(
            options.heads,
            options.key_dim,
            dropout=options.dropout,
            seed=named_seed(seed, name),
            name=name,
            **layer_arguments(settings),
        )
        return layer(tokens, bias, mask)

    return attend


def _batches(
    problem: GraphProblem,
    graphs: list[Graph],
    attention: str,
    options: argparse.Namespace,
    seed: int | None,
) -> GraphBatches:
    """Batches with what Graphormer sees of pairs of nodes, or what the other attentions see."""
    inputs, pairs = list(inputs_of(attention)), None
    if attention not in NEEDED:
        kept: dict[str, Any] = {"cache_dir": options.cache_dir.expanduser(), "verbose": False}
        distances = precompute(graphs, "distances", **kept)
        paths = precompute(graphs, "paths", hops=options.hops, **kept)
        bonds = [bonds_on_paths(*both) for both in zip(graphs, paths, strict=True)]
        pairs = {"distances": distances, "paths": bonds}
        inputs += pairs
    sizes = problem.sizes()
    shared = {"pair_arrays": pairs, "edge_sizes": problem.edge_sizes(sizes)}
    return batches_of(graphs, inputs, sizes, options, seed, **shared)
