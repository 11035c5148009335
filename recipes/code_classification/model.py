"""The classifier of functions or of pairs of functions, and the training of one run.

A KerasHub encoder, from a preset or small and from scratch, reads each function. Of one function,
the vector of the first token is classified; of two, both vectors together, after a hidden layer.
"""

import argparse
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import layers, ops

from recipes.code_classification.data import Examples, Problem, input_names
from recipes.common.attentions import Trial
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Buckets, bucket_lengths
from recipes.common.data.sources import loading_preset, refuse_converted
from recipes.common.training.layers import (
    converted,
    probabilities,
    served_inputs,
    similarity_by_depth,
)
from recipes.common.training.measures import F1, loss_and_metrics, outputs
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training

Tensor = Any
MEASURED = 256  # functions on which the similarity of tokens is measured, at most
ENCODER = "encoder"


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    batches = batches_of(problem, problem.train, options, trial.seed)
    model = build(trial)
    steps = options.epochs * batches.num_batches
    rate = WarmUpLinearDecay(options.learning_rate, options.warm_up, steps)
    optimizer = keras.optimizers.Adam(rate, weight_decay=options.weight_decay or None)
    multiplier = options.coefficient_learning_rate / options.learning_rate
    arguments = loss_and_metrics()
    if problem.functions == 2:
        arguments["weighted_metrics"].append(F1(True, "f1"))
    model.compile(with_rates(optimizer, model, multiplier), **arguments)
    test = batches_of(problem, problem.test, options)
    return Training(
        model,
        batches,
        batches_of(problem, problem.validation, options),
        measure=lambda: similarities(model, problem),
        report=lambda: measures(problem, outputs(model, test).argmax(axis=-1)),
    )


def batches_of(
    problem: Problem, examples: Examples, options: argparse.Namespace, seed: int | None = None
) -> Buckets:
    """Examples in batches of about the same length, shuffled where there is a seed."""
    lengths = bucket_lengths(problem.train.lengths, problem.length)
    return Buckets(examples, lengths, options.batch_size, seed)


def build(trial: Trial) -> keras.Model:
    """A Functional classifier, with its attention converted by the options.

    Its inputs are `token_ids` (B, L), or for pairs `token_ids_1` and `token_ids_2`, which the same
    encoder reads. Its output is `probabilities` (B, 2). All weights are drawn before the
    conversion, which draws nothing: all attentions start with the same ones for one Keras seed.

    Raises:
        UsageError: When the preset is not that of an encoder whose attention can be converted.
    """
    problem, options = trial.problem, trial.options
    encoder = _encoder(problem, options)
    padding = problem.preprocessor.tokenizer.pad_token_id
    names = input_names(problem.functions)
    inputs = {name: keras.Input((None,), name=name, dtype="int32") for name in names}
    vectors = [_first_token(encoder, tokens, padding) for tokens in inputs.values()]
    features = vectors[0]
    if len(vectors) > 1:
        together = layers.Concatenate(name="both")(vectors)
        features = layers.Dense(features.shape[-1], activation="tanh", name="hidden")(together)
    classes = probabilities(features, len(problem.classes))
    return converted(keras.Model(inputs, classes, name="code_classifier"), trial)


def _encoder(problem: Problem, options: argparse.Namespace) -> Any:
    if options.preset is None:
        return keras_hub.models.RobertaBackbone(
            vocabulary_size=problem.preprocessor.tokenizer.vocabulary_size(),
            num_layers=options.layers,
            num_heads=options.heads,
            hidden_dim=options.d_model,
            intermediate_dim=options.feed_forward,
            max_sequence_length=options.max_length,
            name=ENCODER,
        )
    with loading_preset(options.preset):
        encoder = keras_hub.models.Backbone.from_preset(options.preset, name=ENCODER)
    refuse_converted(options.preset, encoder)
    if "token_ids" not in encoder.input:
        raise UsageError(
            f"--preset {options.preset} is a {type(encoder).__name__}, whose inputs are "
            f"{', '.join(encoder.input)}; give an encoder such as RoBERTa, CodeBERT or BERT, whose "
            "input is token_ids"
        )
    return encoder


def encoder_of(model: keras.Model) -> Any:
    """The encoder of KerasHub in a classifier."""
    return model.get_layer(ENCODER)


def encoder_inputs(encoder: Any, tokens: Tensor, padding: int) -> dict[str, Tensor]:
    """The inputs of an encoder of KerasHub for tokens (B, L)."""
    inputs = {
        "token_ids": tokens,
        "padding_mask": ops.cast(ops.not_equal(tokens, padding), "int32"),
        "segment_ids": ops.zeros_like(tokens),
    }
    return {name: inputs[name] for name in encoder.input}


def _first_token(encoder: Any, tokens: Tensor, padding: int) -> Tensor:
    """The vector of the first token of each row, (B, d)."""
    encoded = encoder(encoder_inputs(encoder, tokens, padding))
    states = encoded["sequence_output"] if isinstance(encoded, dict) else encoded
    return states[:, 0]


def similarities(model: keras.Model, problem: Problem) -> list[float]:
    """Mean token similarity over test functions, before the first layer and after each."""
    count, test = min(MEASURED, len(problem.test)), problem.test
    tokens = next(iter(test.inputs(np.arange(count), int(test.lengths[:count].max())).values()))
    encoder = encoder_of(model)
    inputs = encoder_inputs(encoder, tokens, test.padding)
    return similarity_by_depth(encoder, {name: np.asarray(one) for name, one in inputs.items()})


def served(model: keras.Model, options: argparse.Namespace) -> keras.Model:
    """The model that is exported, for functions of up to `--max-length` tokens."""
    inputs = served_inputs(model, options.max_length)
    return keras.Model(inputs, model(inputs))


def measures(problem: Problem, chosen: np.ndarray) -> dict[str, float]:
    """Accuracy on the test data, and for pairs F1, precision and recall, by scikit-learn.

    `chosen` (N,) are the answers, 0 or 1.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    labels = problem.test.labels
    accuracy = {"test_accuracy": float(accuracy_score(labels, chosen))}
    if problem.functions == 1:
        return accuracy
    values = precision_recall_fscore_support(labels, chosen, average="binary", zero_division=0.0)
    named = zip(("test_precision", "test_recall", "test_f1"), map(float, values[:3]), strict=True)
    return {**dict(named), **accuracy}
