"""The transformer classifier, and what a run trains and measures of it.

Core Keras layers and layers of `keras_graphattn` only: a saved model loads with nothing but
`import keras_graphattn`, under Keras' safe mode.
"""

import argparse
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_graphattn.analysis import token_similarity
from recipes.common.data.batches import Batches
from recipes.common.training.coefficients import coefficient_report, with_rates
from recipes.common.training.kept import Run
from recipes.common.training.layers import attend, dropout, masked_mean
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import radam
from recipes.common.training.runs import Training
from recipes.time_series.data import Problem, Split, statistics, validation_split


def prepare(
    problem: Problem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    training, validation = validation_split(problem.train.labels, options.validation_fraction, seed)
    train = problem.train.take(training)
    model = build(problem, train, attention, settings, options, seed)
    compile_model(model, options)
    return Training(
        model,
        Batches(train.inputs, train.labels, options.batch_size, seed),
        _evaluation_batches(problem.train.take(validation), options),
        _evaluation_batches(problem.test, options),
        lambda: _similarities(model, problem.test, options),
        coefficient_report(model),
    )


def best_model(
    run: Run, settings: dict[str, Any], problem: Problem, options: argparse.Namespace
) -> keras.Model:
    """The model of a run at its chosen epoch, not compiled."""
    training, _ = validation_split(problem.train.labels, options.validation_fraction, run.seed)
    train = problem.train.take(training)
    model = build(problem, train, run.attention, settings, options, run.seed)
    model.load_weights(run.weights)
    return model


def build(
    problem: Problem,
    train: Split,
    attention: str,
    settings: dict[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """A Functional classifier of series of one length, that of the longest in the data.

    Its inputs are `series` (B, L, C), raw values, and `padding_mask` (B, L), `True` at the
    steps of the series. What lies at padded steps, NaN included, has no influence; missing
    values (NaN) count as the channel's mean. Its output is `probabilities` (B, classes).

    Args:
        problem: The data set, for its shapes.
        train: The training examples, whose mean and variance standardise the series.
        attention: Name of the attention.
        settings: Its settings.
        options: The command line's options.
        seed: Seed of the dropout.
    """

    def drop(x: Any, name: str) -> Any:
        return dropout(options.dropout, seed, name)(x)

    series = keras.Input((problem.length, problem.channels), name="series", dtype="float32")
    mask = keras.Input((problem.length,), name="padding_mask", dtype="bool")
    tokens = _embed(series, mask, statistics(train), options.d_model)
    for number in range(1, options.layers + 1):
        attended = attend(
            attention,
            tokens,
            mask,
            name=f"block_{number}_attention",
            num_heads=options.heads,
            key_dim=options.key_dim,
            settings=settings,
        )
        tokens = _rest_of_block(tokens, attended, f"block_{number}", options, drop)
    pooled = masked_mean(tokens, mask)
    probabilities = layers.Dense(
        len(problem.classes), activation="softmax", dtype="float32", name="probabilities"
    )(pooled)
    return keras.Model(
        {"series": series, "padding_mask": mask}, probabilities, name=f"time_series_{attention}"
    )


def compile_model(model: keras.Model, options: argparse.Namespace) -> None:
    """Compiles for RAdam, under which filter coefficients have their own rate.

    The metrics leave out the rows that only fill up the last batch.
    """
    model.compile(
        optimizer=with_rates(radam(options.learning_rate), model),
        **loss_and_metrics(),
    )


def layer_names(options: argparse.Namespace) -> list[str]:
    """The layers whose outputs are the tokens before, between and after the blocks."""
    return ["embedding", *(f"block_{number}" for number in range(1, options.layers + 1))]


def _embed(series: Any, mask: Any, moments: tuple[np.ndarray, np.ndarray], width: int) -> Any:
    mean, variance = moments
    values = layers.Normalization(
        mean=mean.tolist(), variance=variance.tolist(), dtype="float32", name="standardise"
    )(series)
    real = ops.logical_and(ops.expand_dims(mask, -1), ops.logical_not(ops.isnan(values)))
    values = ops.where(real, values, 0.0)
    positions = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    return layers.Add(name="embedding")(
        [
            layers.Dense(width, name="values")(values),
            layers.Embedding(series.shape[1], width, name="positions")(positions),
        ]
    )


def _rest_of_block(
    tokens: Any, attended: Any, name: str, options: argparse.Namespace, drop: Callable[..., Any]
) -> Any:
    """What attention found, then a feed-forward network, each added and normalised after."""
    tokens = layers.LayerNormalization(name=f"{name}_attention_norm")(
        tokens + drop(attended, f"{name}_attention_dropout")
    )
    hidden = layers.Dense(options.feed_forward, activation="gelu", name=f"{name}_hidden")(tokens)
    hidden = drop(hidden, f"{name}_hidden_dropout")
    hidden = layers.Dense(options.d_model, name=f"{name}_output")(hidden)
    return layers.LayerNormalization(name=name)(tokens + drop(hidden, f"{name}_output_dropout"))


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
