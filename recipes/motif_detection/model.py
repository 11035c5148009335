"""The classifier of graphs, and what a run trains."""

import argparse
from typing import Any

import keras

from recipes.common.data.graphs import GraphProblem
from recipes.common.training.graph_runs import build, training_of
from recipes.common.training.kept import Run
from recipes.common.training.runs import Training


def prepare(
    problem: GraphProblem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    return training_of(problem, attention, settings, seed, options)


def best_model(
    run: Run, settings: dict[str, Any], problem: GraphProblem, options: argparse.Namespace
) -> keras.Model:
    """The model of a run at its chosen epoch, not compiled."""
    model = build(problem, run.attention, settings, options, run.seed)
    model.load_weights(run.weights)
    return model
