"""The classifier of graphs, and what a run trains: each seed has its fold."""

import argparse
from typing import Any

from recipes.common.training.graph_runs import build, training_of
from recipes.common.training.runs import Training
from recipes.graph_classification.data import Folds, fold

__all__ = ["build", "prepare"]


def prepare(
    problem: Folds,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed, on the seed's fold."""
    part = fold(problem, seed, options.validation_fraction, options.search)
    return training_of(part, attention, settings, seed, options)
