"""The transformer classifier, and the training and the measures of one run.

The model has only core Keras layers and layers of this package: a saved model loads with nothing
but `import keras_graphattn`, under Keras' safe mode. A model with `linformer` or
`nystromformer` loads after `import recipes.common.training.layers`.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_graphattn.analysis import token_similarity
from recipes.common.attentions import Trial
from recipes.common.data.batches import Batches
from recipes.common.training.layers import attend, dropout, masked_mean, probabilities
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import RectifiedLearningRate, with_rates
from recipes.common.training.runs import Training
from recipes.time_series.data import Split, statistics, validation_split

Tensor = Any


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed.

    The optimizer is RAdam, or Adam, with the usual betas, under which filter coefficients have
    their own rate. The metrics leave out the rows that only fill up the last batch.
    """
    problem, options = trial.problem, trial.options
    train, validation = parts(trial)
    model = build(trial)
    rate = options.learning_rate
    optimizer = keras.optimizers.Adam(RectifiedLearningRate(rate) if options.rectified else rate)
    model.compile(optimizer=with_rates(optimizer, model), **loss_and_metrics())
    return Training(
        model,
        Batches(train.inputs, train.labels, options.batch_size, trial.seed),
        *(
            Batches(part.inputs, part.labels, 4 * options.batch_size) if len(part) else None
            for part in (validation, problem.test)
        ),
        measure=lambda: similarities(model, problem.test, trial),
    )


def parts(trial: Trial) -> tuple[Split, Split]:
    """The series for training and for validation, drawn by the seed."""
    train = trial.problem.train
    indices = validation_split(train.labels, trial.options.validation_fraction, trial.seed)
    return train.take(indices[0]), train.take(indices[1])


def build(trial: Trial) -> keras.Model:
    """A Functional classifier of series with the length of the longest in the data.

    Its inputs are `series` (B, L, C), raw values, and `padding_mask` (B, L), `True` at the
    steps of the series. Values at padded steps, NaN included, have no influence; missing
    values (NaN) count as the channel's mean. Its output is `probabilities` (B, classes).
    Mean and variance of the training series standardise the values.
    """
    problem, options = trial.problem, trial.options
    series = keras.Input((problem.length, problem.channels), name="series", dtype="float32")
    mask = keras.Input((problem.length,), name="padding_mask", dtype="bool")
    tokens = _embed(series, mask, statistics(parts(trial)[0]), options)
    for number in range(1, options.layers + 1):
        tokens = _block(trial, tokens, mask, f"block_{number}")
    if options.readout == "flatten":
        kept = dropout(options.dropout, trial.seed, "readout_dropout")(tokens)
        features = layers.Flatten()(ops.where(ops.expand_dims(mask, -1), kept, 0.0))
    else:
        features = masked_mean(tokens, mask)
    outputs = probabilities(features, len(problem.classes))
    inputs = {"series": series, "padding_mask": mask}
    return keras.Model(inputs, outputs, name=f"time_series_{trial.attention}")


def _embed(
    series: Tensor, mask: Tensor, moments: tuple[np.ndarray, np.ndarray], options: Any
) -> Tensor:
    mean, variance = (one.tolist() for one in moments)
    standardise = layers.Normalization(
        mean=mean, variance=variance, dtype="float32", name="standardise"
    )
    values = standardise(series)
    real = ops.logical_and(ops.expand_dims(mask, -1), ops.logical_not(ops.isnan(values)))
    values = ops.where(real, values, 0.0)
    positions = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    width = options.d_model
    embedded = layers.Dense(width, name="values")(values)
    if options.scaled_values:
        embedded = embedded * width**0.5
    placed = layers.Embedding(series.shape[1], width, name="positions")(positions)
    return layers.Add(name="embedding")([embedded, placed])


def _block(trial: Trial, tokens: Tensor, mask: Tensor, name: str) -> Tensor:
    """Attention, then a feed-forward network, each followed by a sum and a normalisation."""
    options = trial.options

    def drop(x: Tensor, part: str) -> Tensor:
        return dropout(options.dropout, trial.seed, f"{name}_{part}_dropout")(x)

    outputs = attend(trial, tokens, mask, f"{name}_attention")
    tokens = tokens + drop(outputs, "attention")
    tokens = layers.LayerNormalization(name=f"{name}_attention_norm")(tokens)
    hidden = layers.Dense(options.feed_forward, activation="gelu", name=f"{name}_hidden")(tokens)
    hidden = layers.Dense(options.d_model, name=f"{name}_output")(drop(hidden, "hidden"))
    return layers.LayerNormalization(name=name)(tokens + drop(hidden, "output"))


def similarities(model: keras.Model, split: Split, trial: Trial) -> list[float]:
    """Mean token similarity over the series of `split`, before the blocks and after each."""
    names = ["embedding", *(f"block_{number}" for number in range(1, trial.options.layers + 1))]
    mask = model.input["padding_mask"]
    tokens = [token_similarity(model.get_layer(name).output, mask) for name in names]
    measure = keras.Model(model.input, tokens)
    values = measure.predict(split.inputs, batch_size=4 * trial.options.batch_size, verbose=0)
    pairs = split.padding_mask.sum(axis=1) > 1
    return [float(np.mean(layer[pairs])) if pairs.any() else 0.0 for layer in values]
