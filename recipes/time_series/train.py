"""Trains every attention with every seed, each run kept in its own folder."""

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_graphattn.analysis import token_similarity
from recipes.common.batches import Batches
from recipes.common.files import read_json, write_json
from recipes.common.resume import RunState, fit_resumably, score, weights_file
from recipes.time_series.data import Problem, Split, validation_split
from recipes.time_series.model import build, compile_model, layer_names


@dataclasses.dataclass
class Run:
    """One finished training: an attention with a seed. Kept as `run.json` in its folder."""

    attention: str
    seed: int
    folder: Path
    state: RunState
    parameters: int
    similarity: list[float]  # mean token similarity before the blocks and after each

    def summary(self) -> dict[str, Any]:
        """What `results.json` says of this run."""
        best = self.state.best
        return {
            "attention": self.attention,
            "seed": self.seed,
            "parameters": self.parameters,
            "epochs": self.state.epoch,
            "chosen_epoch": self.state.best_epoch,
            "validation_accuracy": best["val_accuracy"],
            "validation_cross_entropy": best["val_cross_entropy"],
            "test_accuracy": best["test_accuracy"],
            "test_accuracy_at_best_test_epoch": max(
                row["test_accuracy"] for row in self.state.history
            ),
            "token_similarity": self.similarity,
        }


def train_one(
    problem: Problem, attention: str, seed: int, options: argparse.Namespace, output: Path
) -> Run:
    """Trains one attention with one seed, or goes on with it, or finds it finished."""
    name = f"{attention}-seed{seed}"
    folder = output / "runs" / name
    known = read_json(folder / "run.json")
    if known is not None:
        print(f"{name}: finished before")
        return Run(attention, seed, folder, RunState.read(folder), **known)
    training, validation = validation_split(problem.train.labels, options.validation_fraction, seed)
    train = problem.train.take(training)
    keras.utils.set_random_seed(seed)
    model = build(problem, train, attention, options, seed)
    compile_model(model, options)
    callbacks = []
    if options.tensorboard:
        logs = str(output / "tensorboard" / name)
        callbacks.append(keras.callbacks.TensorBoard(logs, write_graph=False))
    print(f"{name}: {len(train)} training, {len(validation)} validation series", flush=True)
    state = fit_resumably(
        model,
        Batches(train.inputs, train.labels, options.batch_size, seed),
        _evaluation_batches(problem.train.take(validation), options),
        _evaluation_batches(problem.test, options),
        folder=folder,
        history_file=output / "histories" / f"{name}.csv",
        epochs=options.epochs,
        patience=options.patience,
        callbacks=callbacks,
        verbose=options.verbose,
    )
    found = {
        "parameters": model.count_params(),
        "similarity": _similarities(model, problem.test, options),
    }
    write_json(folder / "run.json", found)
    return Run(attention, seed, folder, state, **found)


def best_model(runs: list[Run], problem: Problem, options: argparse.Namespace) -> keras.Model:
    """The model of the run best on validation data, at its chosen epoch, not compiled."""
    run = best_run(runs)
    training, _ = validation_split(problem.train.labels, options.validation_fraction, run.seed)
    model = build(problem, problem.train.take(training), run.attention, options, run.seed)
    model.load_weights(weights_file(run.folder, run.state.best_epoch))
    return model


def best_run(runs: list[Run]) -> Run:
    """The run of the highest validation accuracy, ties by validation cross-entropy."""
    return max(runs, key=lambda run: score(run.state.best))


def table(runs: list[Run]) -> list[dict[str, Any]]:
    """One row per attention: test accuracy over its seeds, at the epochs chosen."""
    rows = []
    for attention in dict.fromkeys(run.attention for run in runs):
        summaries = [run.summary() for run in runs if run.attention == attention]
        chosen = [one["test_accuracy"] for one in summaries]
        peaks = [one["test_accuracy_at_best_test_epoch"] for one in summaries]
        rows.append(
            {
                "attention": attention,
                "seeds": len(summaries),
                "parameters": summaries[0]["parameters"],
                "test_accuracy_mean": statistics.fmean(chosen),
                "test_accuracy_standard_deviation": _spread(chosen),
                "best_test_epoch_accuracy_mean": statistics.fmean(peaks),
                "best_test_epoch_accuracy_standard_deviation": _spread(peaks),
            }
        )
    return rows


def _spread(values: list[float]) -> float | None:
    """The sample standard deviation; none for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _evaluation_batches(split: Split, options: argparse.Namespace) -> Batches:
    return Batches(split.inputs, split.labels, 4 * options.batch_size)


def _similarities(model: keras.Model, split: Split, options: argparse.Namespace) -> list[float]:
    """Mean token similarity over the series of `split`, before the blocks and after each."""
    tokens = [model.get_layer(name).output for name in layer_names(options)]
    mask = model.input["padding_mask"]
    measure = keras.Model(model.input, [token_similarity(x, mask) for x in tokens])
    values = measure.predict(split.inputs, batch_size=4 * options.batch_size, verbose=0)
    pairs = split.padding_mask.sum(axis=1) > 1
    return [float(np.mean(layer[pairs])) if pairs.any() else 0.0 for layer in values]
