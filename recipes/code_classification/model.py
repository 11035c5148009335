"""The classifier of functions or of pairs of functions, and the training of one run.

A KerasHub encoder, from a preset or small and from scratch, reads each function. Of one function,
the vector of the first token is classified; of two, both vectors together, after a hidden layer.
An encoder-decoder, such as CodeT5 and BART, reads the function twice. Its decoder gets the tokens
one place later, and its vector of the last token is the one that is classified.
"""

import argparse
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import layers, ops

from recipes.code_classification.data import Examples, Problem, input_names
from recipes.code_classification.encoder_decoders import backbone_of
from recipes.common.attentions import Trial
from recipes.common.data.batches import Buckets, bucket_lengths
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
        UsageError: When the preset is not that of a model whose attention can be converted.
    """
    problem, options = trial.problem, trial.options
    encoder = _encoder(problem, options)
    names = input_names(problem.functions)
    inputs = {name: keras.Input((None,), name=name, dtype="int32") for name in names}
    vectors = [_vector(encoder, tokens, problem) for tokens in inputs.values()]
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
    return backbone_of(options.preset, ENCODER)


def encoder_of(model: keras.Model) -> Any:
    """The encoder of KerasHub in a classifier."""
    return model.get_layer(ENCODER)


def encoder_inputs(encoder: Any, tokens: Tensor, problem: Problem) -> dict[str, Tensor]:
    """The inputs of an encoder or encoder-decoder of KerasHub for tokens (B, L).

    A decoder begins with T5's padding token, or with BART's last token. Then it gets the tokens of
    the function but the last one.
    """
    tokenizer = problem.preprocessor.tokenizer
    mask = ops.cast(ops.not_equal(tokens, tokenizer.pad_token_id), "int32")
    if not is_encoder_decoder(encoder):
        segment = ops.zeros_like(tokens)
        inputs = {"token_ids": tokens, "padding_mask": mask, "segment_ids": segment}
        return {name: inputs[name] for name in encoder.input}
    is_t5 = isinstance(encoder, keras_hub.models.T5Backbone)
    start = tokenizer.pad_token_id if is_t5 else tokenizer.end_token_id
    later = ops.concatenate([ops.full_like(tokens[:, :1], start), tokens[:, :-1]], axis=1)
    return {
        "encoder_token_ids": tokens,
        "encoder_padding_mask": mask,
        "decoder_token_ids": later,
        "decoder_padding_mask": mask,
    }


def is_encoder_decoder(encoder: Any) -> bool:
    """Whether a model of KerasHub has a decoder too."""
    return "decoder_token_ids" in encoder.input


def _vector(encoder: Any, tokens: Tensor, problem: Problem) -> Tensor:
    """The vector of each row that is classified, (B, d).

    It is that of the first token, or that of the decoder at the place of the last token: the ways
    of the released code of CodeBERT and of CodeT5.
    """
    inputs = encoder_inputs(encoder, tokens, problem)
    encoded = encoder(inputs)
    if not is_encoder_decoder(encoder):
        states = encoded["sequence_output"] if isinstance(encoded, dict) else encoded
        return states[:, 0]
    mask = inputs["decoder_padding_mask"]
    is_last = mask - ops.pad(mask[:, 1:], ((0, 0), (0, 1)))
    states = encoded["decoder_sequence_output"]
    return ops.einsum("btd,bt->bd", states, ops.cast(is_last, states.dtype))


def similarities(model: keras.Model, problem: Problem) -> list[float]:
    """Mean token similarity over test functions, before the first layer and after each.

    The layers of a decoder come after those of the encoder. Each has two: its attention to its own
    tokens, and to those of the encoder.
    """
    count, test = min(MEASURED, len(problem.test)), problem.test
    tokens = next(iter(test.inputs(np.arange(count), int(test.lengths[:count].max())).values()))
    encoder = encoder_of(model)
    inputs = encoder_inputs(encoder, tokens, problem)
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
