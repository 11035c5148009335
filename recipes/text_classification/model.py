"""The classifier: a KerasHub task, from a preset or small and from scratch, converted."""

import argparse
import re
from typing import Any

import keras
import keras_hub

import keras_graphattn
from keras_graphattn.hub.carriers import conversions_of
from keras_graphattn.optimizers import with_coefficient_rates
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.command import UsageError
from recipes.common.measures import CrossEntropy, SquaredError
from recipes.common.optimizers import WarmUpLinearDecay
from recipes.common.served import served_inputs
from recipes.text_classification.arguments import filters
from recipes.text_classification.data import Problem, preset_name, refused_preset


def build(problem: Problem, attention: str, options: argparse.Namespace) -> Any:
    """A text classifier without its preprocessor, its attention converted as asked for.

    The head is drawn before the conversion, which draws nothing: all attentions start with the
    same weights for the same Keras seed.

    Raises:
        UsageError: When the preset is not that of a model whose attention can be converted.
    """
    outputs = problem.task.outputs
    classifier = _from_preset(outputs, options) if options.preset else _small(problem, options)
    if conversions_of(classifier.backbone).entries:
        raise UsageError(
            f"--preset {options.preset} holds converted attention already: give the preset that "
            "it was made of"
        )
    if attention == "softmax":
        return classifier
    verb = ATTENTIONS[attention].convert
    try:
        settings = layer_arguments(filters(options)[attention])
        return keras_graphattn.convert(classifier, verb, where=_where(options.where), **settings)
    except ValueError as error:
        raise UsageError(f"--attention {attention}: {error}") from error


def trained(classifier: Any) -> keras.Model:
    """The same model as a plain Keras one, whose `fit` takes batches of constant shapes."""
    return keras.Model(classifier.input, classifier.output, name="text_classifier")


def compile_model(
    model: keras.Model, problem: Problem, options: argparse.Namespace, steps: int
) -> None:
    """Compiles for AdamW with a warm-up and a linear decay over `steps`.

    Filter coefficients learn at `--coefficient-learning-rate`, under the same schedule.
    """
    from recipes.text_classification.metrics import criterion_metric

    regression = not problem.task.classes
    if regression:
        loss = keras.losses.MeanSquaredError()
        error = SquaredError(name="squared_error")
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        error = CrossEntropy(from_logits=True, name="cross_entropy")
    model.compile(
        optimizer=_adamw(options, steps),
        loss=loss,
        weighted_metrics=[criterion_metric(problem.task), error],
    )


def _adamw(options: argparse.Namespace, steps: int) -> keras.optimizers.Optimizer:
    warm_up = min(round(options.warm_up * steps), steps - 1)
    rate = WarmUpLinearDecay(options.learning_rate, warm_up, steps)
    adamw = keras.optimizers.Adam(rate, weight_decay=options.weight_decay or None)
    multiplier = options.coefficient_learning_rate / options.learning_rate
    return with_coefficient_rates(adamw, multiplier)


def served(classifier: Any, options: argparse.Namespace) -> keras.Model:
    """What the SavedModel is made of, for texts of up to `--max-length` tokens."""
    inputs = served_inputs(classifier, options.max_length)
    return keras.Model(inputs, classifier(inputs))


def _from_preset(outputs: int, options: argparse.Namespace) -> Any:
    try:
        return keras_hub.models.TextClassifier.from_preset(
            preset_name(options.preset), num_classes=outputs, preprocessor=None
        )
    except Exception as error:  # KerasHub raises whatever the network or the disk met
        raise refused_preset(options.preset, error) from error


def _small(problem: Problem, options: argparse.Namespace) -> Any:
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=problem.preprocessor.tokenizer.vocabulary_size(),
        num_layers=options.layers,
        num_heads=options.heads,
        hidden_dim=options.d_model,
        intermediate_dim=options.feed_forward,
        max_sequence_length=options.max_length,
    )
    return keras_hub.models.BertTextClassifier(backbone, problem.task.outputs)


def _where(text: str) -> Any:
    """What `convert` takes: indices for a list of numbers, else the text."""
    return [int(index) for index in text.split(",")] if re.fullmatch(r"[\d,]+", text) else text
