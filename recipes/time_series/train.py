"""What a run of this recipe trains, and what is measured of it."""

import argparse

import keras
import numpy as np

from keras_graphattn.analysis import token_similarity
from recipes.common.batches import Batches
from recipes.common.coefficients import coefficient_report
from recipes.common.resume import weights_file
from recipes.common.runs import Run, Training, best_run
from recipes.time_series.data import Problem, Split, validation_split
from recipes.time_series.model import build, compile_model, layer_names


def prepare(problem: Problem, attention: str, seed: int, options: argparse.Namespace) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    training, validation = validation_split(problem.train.labels, options.validation_fraction, seed)
    train = problem.train.take(training)
    model = build(problem, train, attention, options, seed)
    compile_model(model, options)
    return Training(
        model,
        Batches(train.inputs, train.labels, options.batch_size, seed),
        _evaluation_batches(problem.train.take(validation), options),
        _evaluation_batches(problem.test, options),
        lambda: _similarities(model, problem.test, options),
        coefficient_report(model),
    )


def best_model(runs: list[Run], problem: Problem, options: argparse.Namespace) -> keras.Model:
    """The model of the run best on validation data, at its chosen epoch, not compiled."""
    run = best_run(runs)
    training, _ = validation_split(problem.train.labels, options.validation_fraction, run.seed)
    model = build(problem, problem.train.take(training), run.attention, options, run.seed)
    model.load_weights(weights_file(run.folder, run.state.best_epoch))
    return model


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
