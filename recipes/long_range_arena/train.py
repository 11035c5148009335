"""What a run of this recipe trains."""

import argparse

import keras

from recipes.common.buckets import Buckets, bucket_lengths
from recipes.common.coefficients import coefficient_report
from recipes.common.ragged import Problem
from recipes.common.resume import weights_file
from recipes.common.runs import Run, Training, best_run
from recipes.long_range_arena.model import build, compile_model
from recipes.long_range_arena.tasks import STEPS


def prepare(problem: Problem, attention: str, seed: int, options: argparse.Namespace) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    batches = training_batches(problem, options, seed)
    model = build(problem, attention, options, seed)
    compile_model(model, options, epochs(batches, options) * batches.num_batches)
    evaluation = (
        Buckets(split, batches.lengths, options.batch_size)
        for split in (problem.validation, problem.test)
    )
    return Training(model, batches, *evaluation, report=coefficient_report(model))


def training_batches(problem: Problem, options: argparse.Namespace, seed: int = 0) -> Buckets:
    """The training examples in batches, in an order that the seed and the epoch set."""
    lengths = bucket_lengths(problem.train.lengths, problem.length)
    return Buckets(problem.train, lengths, options.batch_size, seed)


def epochs(batches: Buckets, options: argparse.Namespace) -> int:
    """The number of epochs: as given, else as many as hold the published number of steps."""
    return options.epochs or published_epochs(batches)


def published_epochs(batches: Buckets) -> int:
    """As many as hold the published number of steps."""
    return -(-STEPS // batches.num_batches)


def best_model(runs: list[Run], problem: Problem, options: argparse.Namespace) -> keras.Model:
    """The model of the run best on validation data, at its chosen epoch, not compiled."""
    run = best_run(runs)
    model = build(problem, run.attention, options, run.seed)
    model.load_weights(weights_file(run.folder, run.state.best_epoch))
    return model
