"""What a run of this recipe trains, and what is measured of it."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from sklearn.model_selection import train_test_split

from recipes.common.buckets import Buckets
from recipes.common.coefficients import coefficient_report
from recipes.common.command import UsageError
from recipes.common.resume import weights_file
from recipes.common.runs import Run, Training, best_run
from recipes.text_classification.data import Encoded, Problem
from recipes.text_classification.metrics import measures
from recipes.text_classification.model import build, compile_model, trained

MIN_SHARE = 0.02


def prepare(problem: Problem, attention: str, seed: int, options: argparse.Namespace) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    training, validation = validation_split(problem, options.validation_fraction, seed)
    lengths = padded_lengths(problem)
    batches = Buckets(problem.train.take(training), lengths, options.batch_size, seed)
    model = trained(build(problem, attention, options))
    compile_model(model, problem, options, options.epochs * batches.num_batches)
    return Training(
        model,
        batches,
        Buckets(problem.train.take(validation), lengths, options.batch_size),
        test_batches=None,
        report=functools.partial(report, model, problem, options, coefficient_report(model)),
    )


def best_model(runs: list[Run], problem: Problem, options: argparse.Namespace) -> Any:
    """The classifier of the run best on validation data, at its chosen epoch, not compiled.

    It has its preprocessor: its `predict` takes texts.
    """
    run = best_run(runs)
    classifier = build(problem, run.attention, options)
    trained(classifier).load_weights(weights_file(run.folder, run.state.best_epoch))
    classifier.preprocessor = problem.preprocessor
    return classifier


def report(
    model: keras.Model,
    problem: Problem,
    options: argparse.Namespace,
    coefficients: Callable[[], dict[str, float]],
) -> dict[str, float]:
    """The task's metrics on its dev sets, `test_<metric>` and `test_<metric>_<dev set>`.

    And what `coefficients` tells.
    """
    found = coefficients()
    for name, examples in problem.evaluations.items():
        batches = Buckets(examples, padded_lengths(problem), options.batch_size)
        values = measures(problem.task, examples.labels, outputs(model, batches))
        suffix = f"_{name}" if name else ""
        found.update({f"test_{metric}{suffix}": value for metric, value in values.items()})
    return found


def outputs(model: keras.Model, batches: Buckets) -> np.ndarray:
    """The model's outputs in the order of the examples, float32 (N, outputs)."""
    predicted = np.asarray(model.predict(batches, verbose=0), "float32")
    places = np.concatenate(
        [np.resize(members, batches.batch_size) for _, members in batches.batches]
    )
    ordered = np.empty((len(batches.labels), predicted.shape[-1]), "float32")
    ordered[places] = predicted
    return ordered


def padded_lengths(problem: Problem) -> list[int]:
    """The lengths that batches are padded to: 8, 12, 16, 24, 32, 48, ... up to the longest.

    Those that fewer than one in fifty of the training examples would be padded to are left out.
    """
    steps = [8 * 2**octave + part for octave in range(16) for part in (0, 4 * 2**octave)]
    bounds = [step for step in steps if step < problem.length]
    counts = np.bincount(np.searchsorted(bounds, problem.train.lengths), minlength=len(bounds))
    wanted = MIN_SHARE * len(problem.train)
    kept = [bound for bound, count in zip(bounds, counts, strict=False) if count >= wanted]
    return [*kept, problem.length]


def validation_split(problem: Problem, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and to validate on, drawn by the seed, classes in equal parts."""
    labels = problem.train.labels
    try:
        parts = train_test_split(
            np.arange(len(labels)),
            test_size=fraction,
            random_state=seed,
            stratify=labels if problem.task.classes else None,
        )
    except ValueError as error:
        raise UsageError(
            f"{len(labels)} training examples cannot be split by --validation-fraction "
            f"{fraction}: {error}"
        ) from error
    return parts[0], parts[1]


def examples_per_split(problem: Problem) -> dict[str, int]:
    """How many examples there are, by split."""
    dev: dict[str, Encoded] = {name or "dev": one for name, one in problem.evaluations.items()}
    return {"train": len(problem.train), **{name: len(one) for name, one in dev.items()}}
