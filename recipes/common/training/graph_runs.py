"""What a run on graphs trains."""

import argparse
from typing import Any

import keras

from recipes.common.data.graphs import GraphProblem, batches_of
from recipes.common.training.averages import averaged
from recipes.common.training.coefficients import coefficient_report, with_rates
from recipes.common.training.graphs import classifier, inputs_of
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.common.training.resume import ACCURACY, Criterion
from recipes.common.training.runs import Training


def training_on(model: keras.Model, optimizer: Any, batches: Any, **compiled: Any) -> Training:
    """The model, compiled, and its training, validation and test batches.

    `compiled` are arguments of `compile` in place of those of `loss_and_metrics`.
    """
    compiled = {**loss_and_metrics(), **compiled}
    model.compile(optimizer=with_rates(optimizer, model), **compiled)
    return Training(model, *batches, report=coefficient_report(model))


def training_of(
    problem: GraphProblem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    model = build(problem, attention, settings, options, seed)
    sizes = problem.sizes(options.buckets)
    shared = {"sizes": sizes, "edge_sizes": problem.edge_sizes(sizes), "options": options}
    batches = [
        batches_of(graphs, inputs_of(attention), seed=own_seed, **shared)
        for graphs, own_seed in zip(problem.splits.values(), (seed, None, None), strict=True)
    ]
    steps = batches[0].num_batches
    return training_on(model, _optimizer(steps, options), batches)


def criterion(options: argparse.Namespace) -> Criterion:
    """Accuracy in the table, and what `--choose-by` names to choose the epoch."""
    return ACCURACY._replace(choose_by=options.choose_by)


def build(
    problem: GraphProblem,
    attention: str,
    settings: dict[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """The classifier for the features and the classes of the data."""
    return classifier(attention, problem.features, len(problem.classes), settings, options, seed)


def _optimizer(steps: int, options: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Adam; with `--decay` its rate falls over all epochs of `steps` batches."""
    rate = options.learning_rate
    if options.decay:
        rate = WarmUpLinearDecay(rate, 0, options.epochs * steps)
    return keras.optimizers.Adam(rate, **averaged(options.ema))
