"""The classifier of graphs, and what a run trains: each seed has its fold."""

import argparse
from typing import Any

import keras

from recipes.common.training.graph_runs import build, training_of
from recipes.common.training.kept import Run
from recipes.common.training.runs import Training
from recipes.graph_classification.data import Folds, fold


def prepare(
    problem: Folds,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed, on the seed's fold."""
    part = fold(problem, seed, options.validation_fraction)
    return training_of(part, attention, settings, seed, options)


def best_model(
    run: Run, settings: dict[str, Any], problem: Folds, options: argparse.Namespace
) -> keras.Model:
    """The model of a run at its chosen epoch, not compiled."""
    part = fold(problem, run.seed, options.validation_fraction)
    model = build(part, run.attention, settings, options, run.seed)
    model.load_weights(run.weights)
    return model
