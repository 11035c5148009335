"""The classifier of nodes, and the training of one run."""

import dataclasses

import keras
from keras import layers

from keras_graphattn.graphs import Graph, GraphBatches
from recipes.common.attentions import Trial
from recipes.common.data.graphs import batches_of, joined_by_walks
from recipes.common.training.graphs import encodings, inputs_of, penalise, symbolic_inputs
from recipes.common.training.layers import dropout, probabilities
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import with_rates
from recipes.common.training.runs import Training


def prepare(trial: Trial) -> Training:
    """The compiled model and the graph of one attention with one seed."""
    model = build(trial)
    penalise(model, trial.options.penalty, biases=trial.options.penalise_biases)
    optimizer = keras.optimizers.Adam(trial.options.learning_rate)
    # the mean over the nodes that have a label in this part: the penalty is added to it
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    model.compile(optimizer=with_rates(optimizer, model), **{**loss_and_metrics(), "loss": loss})
    problem, parts = trial.problem, {"train": trial.seed, "validation": None, "test": None}
    if "edge_weights" in _inputs(trial):
        graph = joined_by_walks(problem.graph, trial.options)
        problem = dataclasses.replace(problem, graph=graph)
    batches = (_batch(trial, problem.only(part), seed) for part, seed in parts.items())
    return Training(model, *batches)


def build(trial: Trial) -> keras.Model:
    """A Functional classifier of the nodes of a graph.

    Its inputs are those of `_inputs`; its output is `probabilities` (B, T, classes). Without
    `options.head`, the last attention gives the logits.
    """
    inputs, classes = symbolic_inputs(trial, _inputs(trial)), len(trial.problem.classes)
    if trial.options.head:
        nodes = encodings(trial, inputs)[-1]
        nodes = dropout(trial.options.dropout, trial.seed, "head_dropout")(nodes)
        outputs = probabilities(nodes, classes)
    else:
        logits = encodings(trial, inputs, classes)[-1]
        outputs = layers.Softmax(dtype="float32", name="probabilities")(logits)
    return keras.Model(inputs, outputs, name=f"nodes_{trial.attention}")


def _batch(trial: Trial, graph: Graph, seed: int | None) -> GraphBatches:
    """The graph as a batch of one, in which only the labels of a part have a weight."""
    more = {"sizes": [graph.num_nodes], "seed": seed, "node_labels": True}
    return batches_of([graph], _inputs(trial), trial.options, **more)


def _inputs(trial: Trial) -> tuple[str, ...]:
    """Those of `inputs_of`; for GKAT in its authors' form, the pairs that walks join.

    With large graphs, most pairs of nodes have the kernel 0.
    """
    if trial.attention == "graph_kernel" and "value_dropout" in trial.settings:
        return ("nodes", "node_mask", "edges", "edge_weights")
    return inputs_of(trial.attention)
