"""The encoder of the arena, and what a run trains.

Token and position embeddings, blocks, mean over the tokens, classes. The model has only core Keras
layers and layers of this package: a saved model loads with nothing but `import keras_graphattn`,
under Keras' safe mode. It takes sequences of any length up to the longest in the data; 0 is
padding.
"""

import argparse
from typing import Any

import keras
from keras import layers, ops

from recipes.common.attentions import Trial
from recipes.common.data.batches import Buckets, bucket_lengths
from recipes.common.data.ragged import Problem
from recipes.common.training.layers import attend, block, dropout, masked_mean, probabilities
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training

Tensor = Any


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed.

    The optimizer is Adam, under which filter coefficients have their own rate. The metrics leave
    out the rows that only fill up a batch.
    """
    problem, options = trial.problem, trial.options
    batches = training_batches(problem, options, trial.seed)
    model = build(trial)
    steps = options.epochs * batches.num_batches
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    model.compile(with_rates(keras.optimizers.Adam(rate), model), **loss_and_metrics())
    evaluation = (
        Buckets(split, batches.lengths, options.batch_size)
        for split in (problem.validation, problem.test)
    )
    return Training(model, batches, *evaluation)


def training_batches(problem: Problem, options: argparse.Namespace, seed: int = 0) -> Buckets:
    """The training examples in batches, in an order that depends on the seed and the epoch."""
    lengths = bucket_lengths(problem.train.lengths, problem.length)
    return Buckets(problem.train, lengths, options.batch_size, seed, options.steps_per_epoch)


def build(trial: Trial) -> keras.Model:
    """A Functional classifier.

    Its inputs are `tokens` (B, L), numbers from 1 with 0 for padding, or for pairs of documents
    `tokens_1` and `tokens_2`, which the same encoder reads. Its output is
    `probabilities` (B, classes).
    """
    problem, width = trial.problem, trial.options.feed_forward
    inputs = {name: keras.Input((None,), name=name, dtype="int32") for name in problem.train.tokens}
    if len(inputs) == 1:
        features = _encode(trial, inputs["tokens"])
    else:
        tokens = keras.Input((None,), name="tokens", dtype="int32")
        encoder = keras.Model(tokens, _encode(trial, tokens), name="encoder")
        first, second = (encoder(one) for one in inputs.values())
        features = ops.concatenate([first, second, first * second, first - second], axis=-1)
    hidden = layers.Dense(width, activation="relu", name="head")(features)
    outputs = probabilities(hidden, len(problem.classes))
    return keras.Model(inputs, outputs, name=f"long_range_arena_{trial.attention}")


def _encode(trial: Trial, numbers: Tensor) -> Tensor:
    """The mean over the tokens after all blocks, (B, d)."""
    problem, options = trial.problem, trial.options
    mask = ops.not_equal(numbers, 0)
    positions = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    tokens = layers.Embedding(problem.vocabulary, options.d_model, name="symbols")(numbers)
    tokens += layers.Embedding(problem.length, options.d_model, name="positions")(positions)
    tokens = dropout(options.dropout, trial.seed, "embedding_dropout")(tokens)

    def attended(tokens: Tensor, name: str) -> Tensor:
        return attend(trial, tokens, mask, name)

    for number in range(1, options.layers + 1):
        tokens = block(trial, tokens, attended, f"block_{number}", hidden_dropout=False)
    return masked_mean(layers.LayerNormalization(name="norm")(tokens), mask)
