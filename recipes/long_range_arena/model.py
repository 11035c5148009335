"""The encoder of the arena, and what a run trains.

Token and position embeddings, blocks, mean over the tokens, classes. Core Keras layers and layers
of `keras_graphattn` only: a saved model loads with nothing but
`import keras_graphattn`, under Keras' safe mode. It takes sequences of any length up to the
longest in the data; 0 is padding.
"""

import argparse
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from recipes.common.data.batches import Buckets, bucket_lengths
from recipes.common.data.ragged import Problem
from recipes.common.training.coefficients import coefficient_report, with_rates
from recipes.common.training.layers import attend, dropout, masked_mean
from recipes.common.training.measures import loss_and_metrics
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.common.training.runs import Training

Tensor = Any
STEPS = 50_000  # of the published training


def prepare(
    problem: Problem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    batches = training_batches(problem, options, seed)
    model = build(problem, attention, settings, options, seed)
    compile_model(model, options, options.epochs * batches.num_batches)
    evaluation = (
        Buckets(split, batches.lengths, options.batch_size)
        for split in (problem.validation, problem.test)
    )
    return Training(model, batches, *evaluation, report=coefficient_report(model))


def training_batches(problem: Problem, options: argparse.Namespace, seed: int = 0) -> Buckets:
    """The training examples in batches, in an order that the seed and the epoch set."""
    lengths = bucket_lengths(problem.train.lengths, problem.length)
    return Buckets(problem.train, lengths, options.batch_size, seed)


def published_epochs(batches: Buckets) -> int:
    """As many as hold the published number of steps."""
    return -(-STEPS // batches.num_batches)


def build(
    problem: Problem,
    attention: str,
    settings: dict[str, Any],
    options: argparse.Namespace,
    seed: int = 0,
) -> keras.Model:
    """A Functional classifier.

    Its inputs are `tokens` (B, L), numbers from 1 with 0 for padding, or for pairs of documents
    `tokens_1` and `tokens_2`, which one and the same encoder reads. Its output is
    `probabilities` (B, classes).

    Args:
        problem: The task's data, for its sizes.
        attention: Name of the attention.
        settings: Its settings.
        options: The command line's options.
        seed: Seed of the dropout.
    """

    def drop(x: Tensor, name: str) -> Tensor:
        return dropout(options.dropout, seed, name)(x)

    def attended(tokens: Tensor, mask: Tensor, name: str) -> Tensor:
        sizes = {"num_heads": options.heads, "key_dim": options.key_dim}
        return attend(attention, tokens, mask, name=name, settings=settings, **sizes)

    inputs = {name: keras.Input((None,), name=name, dtype="int32") for name in problem.train.tokens}
    if len(inputs) == 1:
        features = _encode(inputs["tokens"], problem, attended, options, drop)
    else:
        tokens = keras.Input((None,), name="tokens", dtype="int32")
        encoder = keras.Model(
            tokens, _encode(tokens, problem, attended, options, drop), name="encoder"
        )
        first, second = (encoder(one) for one in inputs.values())
        features = ops.concatenate([first, second, first * second, first - second], axis=-1)
    hidden = layers.Dense(options.feed_forward, activation="relu", name="head")(features)
    probabilities = layers.Dense(
        len(problem.classes), activation="softmax", dtype="float32", name="probabilities"
    )(hidden)
    return keras.Model(inputs, probabilities, name=f"long_range_arena_{attention}")


def compile_model(model: keras.Model, options: argparse.Namespace, steps: int) -> None:
    """Compiles for Adam, under which filter coefficients have their own rate.

    The metrics leave out the rows that only fill up a batch.
    """
    schedule = WarmUpLinearDecay(options.learning_rate, min(options.warm_up, steps - 1), steps)
    model.compile(
        optimizer=with_rates(keras.optimizers.Adam(schedule), model),
        **loss_and_metrics(),
    )


def _encode(
    numbers: Tensor, problem: Problem, attended: Callable, options: Any, drop: Callable
) -> Tensor:
    """The mean over the tokens after all blocks, (B, d)."""
    mask = ops.not_equal(numbers, 0)
    positions = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    tokens = layers.Embedding(problem.vocabulary, options.d_model, name="symbols")(numbers)
    tokens += layers.Embedding(problem.length, options.d_model, name="positions")(positions)
    tokens = drop(tokens, "embedding_dropout")
    for number in range(1, options.layers + 1):
        tokens = _block(tokens, mask, f"block_{number}", attended, options, drop)
    return masked_mean(layers.LayerNormalization(name="norm")(tokens), mask)


def _block(
    tokens: Tensor, mask: Tensor, name: str, attended: Callable, options: Any, drop: Callable
) -> Tensor:
    """Attention, then a feed-forward network, each on normalised input and added to its input."""
    normalised = layers.LayerNormalization(name=f"{name}_attention_norm")(tokens)
    tokens += drop(attended(normalised, mask, f"{name}_attention"), f"{name}_attention_dropout")
    hidden = layers.LayerNormalization(name=f"{name}_norm")(tokens)
    hidden = layers.Dense(options.feed_forward, activation="gelu", name=f"{name}_hidden")(hidden)
    hidden = layers.Dense(options.d_model, name=f"{name}_output")(hidden)
    return tokens + drop(hidden, f"{name}_output_dropout")
