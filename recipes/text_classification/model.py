"""The classifier, and what a run trains and measures of it.

A KerasHub task, from a preset or small and from scratch, converted.
"""

import argparse
import functools
import re
from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops

import keras_graphattn
from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.command.parsing import UsageError
from recipes.common.data.batches import Buckets
from recipes.common.data.presets import refuse_converted, refused_preset
from recipes.common.training.coefficients import coefficient_report, with_rates
from recipes.common.training.kept import Run
from recipes.common.training.layers import served_inputs
from recipes.common.training.measures import CrossEntropy, SquaredError
from recipes.common.training.optimizers import WarmUpLinearDecay
from recipes.common.training.runs import Training
from recipes.common.training.similarity import similarity_by_depth
from recipes.text_classification.data import (
    Encoded,
    Problem,
    Task,
    preset_name,
    validation_split,
)

MIN_SHARE = 0.02
MEASURED = 256  # texts on which the similarity of tokens is measured, at most


def prepare(
    problem: Problem,
    attention: str,
    settings: dict[str, Any],
    seed: int,
    options: argparse.Namespace,
) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    training, validation = validation_split(problem, options.validation_fraction, seed)
    batches = batches_of(problem, problem.train.take(training), options, seed)
    model = trained(build(problem, attention, settings, options))
    compile_model(model, problem, options, options.epochs * batches.num_batches)
    return Training(
        model,
        batches,
        batches_of(problem, problem.train.take(validation), options),
        test_batches=None,
        measure=functools.partial(similarities, model, problem),
        report=functools.partial(report, model, problem, options, coefficient_report(model)),
    )


def best_model(
    run: Run, settings: dict[str, Any], problem: Problem, options: argparse.Namespace
) -> Any:
    """The classifier of a run at its chosen epoch, not compiled.

    It has its preprocessor: its `predict` takes texts.
    """
    classifier = build(problem, run.attention, settings, options)
    trained(classifier).load_weights(run.weights)
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
        batches = batches_of(problem, examples, options)
        values = measures(problem.task, examples.labels, outputs(model, batches))
        suffix = f"_{name}" if name else ""
        found.update({f"test_{metric}{suffix}": value for metric, value in values.items()})
    return found


def similarities(model: keras.Model, problem: Problem) -> list[float]:
    """Mean token similarity over texts of the dev set, before the first layer and after each."""
    texts = next(iter(problem.evaluations.values()))
    count = min(MEASURED, len(texts))
    length = int(texts.lengths[:count].max())
    return similarity_by_depth(model, texts.inputs(np.arange(count), length))


def outputs(model: keras.Model, batches: Buckets) -> np.ndarray:
    """The model's outputs in the order of the examples, float32 (N, outputs)."""
    predicted = np.asarray(model.predict(batches, verbose=0), "float32")
    places = np.concatenate(
        [np.resize(members, batches.batch_size) for _, members in batches.batches]
    )
    ordered = np.empty((len(batches.labels), predicted.shape[-1]), "float32")
    ordered[places] = predicted
    return ordered


def batches_of(
    problem: Problem, examples: Encoded, options: argparse.Namespace, seed: int | None = None
) -> Buckets:
    """Examples in batches, padded to `padded_lengths`, shuffled where there is a seed."""
    return Buckets(examples, padded_lengths(problem), options.batch_size, seed)


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


def build(
    problem: Problem, attention: str, settings: dict[str, Any], options: argparse.Namespace
) -> Any:
    """A text classifier without its preprocessor, its attention converted as asked for.

    The head is drawn before the conversion, which draws nothing: all attentions start with the
    same weights for the same Keras seed.

    Raises:
        UsageError: When the preset is not that of a model whose attention can be converted.
    """
    outputs = problem.task.outputs
    classifier = _from_preset(outputs, options) if options.preset else _small(problem, options)
    refuse_converted(options.preset, classifier.backbone)
    if attention == "softmax":
        return classifier
    verb = ATTENTIONS[attention].convert
    try:
        return keras_graphattn.convert(
            classifier, verb, where=_where(options.where), **layer_arguments(settings)
        )
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
    regression = not problem.task.classes
    if regression:
        loss = keras.losses.MeanSquaredError()
        error = SquaredError(name="squared_error")
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        error = CrossEntropy(from_logits=True, name="cross_entropy")
    multiplier = options.coefficient_learning_rate / options.learning_rate
    model.compile(
        optimizer=with_rates(_adamw(options, steps), model, multiplier),
        loss=loss,
        weighted_metrics=[criterion_metric(problem.task), error],
    )


def _adamw(options: argparse.Namespace, steps: int) -> keras.optimizers.Optimizer:
    warm_up = min(round(options.warm_up * steps), steps - 1)
    rate = WarmUpLinearDecay(options.learning_rate, warm_up, steps)
    return keras.optimizers.Adam(rate, weight_decay=options.weight_decay or None)


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


class Moments(keras.metrics.Metric):
    """Pearson's correlation of labels and predictions, from their moments over real rows.

    Of two classes, 0 and 1, it is the correlation of Matthews. 0 where either is constant.

    Args:
        from_logits: Whether predictions are scores of classes, of which the highest counts.
        name: Name of the metric.
    """

    def __init__(self, from_logits: bool, name: str, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.from_logits = from_logits
        self.sums = self.add_variable((6,), "zeros", name="sums")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch: labels (B,), predictions (B, classes) or (B, 1), weights (B,), 0 or not."""
        true = ops.cast(ops.reshape(y_true, (-1,)), "float32")
        chosen = ops.argmax(y_pred, axis=-1) if self.from_logits else y_pred
        chosen = ops.cast(ops.reshape(chosen, (-1,)), "float32")
        weight = ops.ones_like(true) if sample_weight is None else sample_weight
        weight = ops.cast(ops.reshape(weight, (-1,)) > 0, "float32")
        terms = ops.stack(
            [ops.ones_like(true), true, chosen, true * true, chosen * chosen, true * chosen]
        )
        self.sums.assign_add(ops.sum(weight * terms, axis=1))

    def result(self) -> Any:
        count, true, chosen, true_true, chosen_chosen, true_chosen = ops.unstack(
            ops.convert_to_tensor(self.sums), 6
        )
        shared = count * true_chosen - true * chosen
        spread = (count * true_true - true**2) * (count * chosen_chosen - chosen**2)
        return ops.where(spread > 0, shared / ops.sqrt(ops.where(spread > 0, spread, 1.0)), 0.0)


class F1(Moments):
    """Twice the true positives, over the positives of the labels and those of the predictions."""

    def result(self) -> Any:
        _, true, chosen, _, _, true_chosen = ops.unstack(ops.convert_to_tensor(self.sums), 6)
        return 2.0 * true_chosen / ops.maximum(true + chosen, 1.0)


def criterion_metric(task: Task) -> keras.metrics.Metric:
    """The first metric of the task, in batches."""
    name = task.metrics[0]
    if name == "accuracy":
        return keras.metrics.SparseCategoricalAccuracy(name=name)
    if name == "f1":
        return F1(True, name)
    return Moments(bool(task.classes), name)


def measures(task: Task, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The task's metrics on a whole dev set, by scikit-learn and SciPy.

    Args:
        task: The task.
        labels: Labels, (N,).
        outputs: The model's outputs: scores of the classes (N, classes), or values (N, 1).
    """
    import scipy.stats
    import sklearn.metrics

    chosen = outputs.argmax(axis=-1) if task.classes else outputs[:, 0].astype("float64")
    found = {
        "matthews_correlation": sklearn.metrics.matthews_corrcoef,
        "accuracy": sklearn.metrics.accuracy_score,
        "f1": sklearn.metrics.f1_score,
        "pearson": lambda *pair: _correlation(scipy.stats.pearsonr, *pair),
        "spearman": lambda *pair: _correlation(scipy.stats.spearmanr, *pair),
    }
    return {name: float(found[name](labels, chosen)) for name in task.metrics}


def _correlation(correlate: Any, labels: np.ndarray, chosen: np.ndarray) -> float:
    """A correlation; 0 where either side is constant, where it is not defined."""
    if np.ptp(labels) == 0 or np.ptp(chosen) == 0:
        return 0.0
    return correlate(labels, chosen)[0]
