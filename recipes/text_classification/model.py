"""The classifier, and the training and the measures of one run.

A KerasHub task, from a preset or small and from scratch, converted.
"""

import argparse
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import metrics

from recipes.common.attentions import Trial
from recipes.common.data.batches import Buckets
from recipes.common.data.sources import loading_preset, refuse_converted
from recipes.common.training.layers import converted, served_inputs, similarity_by_depth
from recipes.common.training.measures import F1, Moments, of_real_rows, outputs
from recipes.common.training.optimizers import WarmUpLinearDecay, with_rates
from recipes.common.training.runs import Training, load_weights
from recipes.text_classification.data import Encoded, Problem, Task, preset_name, validation_split

MIN_SHARE = 0.02
MEASURED = 256  # texts on which the similarity of tokens is measured, at most


def prepare(trial: Trial) -> Training:
    """The compiled model and the batches of one attention with one seed."""
    problem, options = trial.problem, trial.options
    indices = validation_split(problem, options.validation_fraction, trial.seed)
    train, validation = (problem.train.take(one) for one in indices)
    batches = batches_of(problem, train, options, trial.seed)
    model = trained(build(trial))
    compile_model(model, problem, options, options.epochs * batches.num_batches)
    return Training(
        model,
        batches,
        batches_of(problem, validation, options) if len(validation) else None,
        measure=lambda: similarities(model, problem),
        report=lambda: report(model, problem, options),
    )


def best_model(trial: Trial, weights: Path) -> Any:
    """The classifier of a run at its chosen epoch, not compiled.

    It has its preprocessor: its `predict` takes texts.
    """
    classifier = build(trial)
    load_weights(trained(classifier), weights)
    classifier.preprocessor = trial.problem.preprocessor
    return classifier


def report(model: keras.Model, problem: Problem, options: argparse.Namespace) -> dict[str, float]:
    """The task's metrics on its dev sets, `test_<metric>` and `test_<metric>_<dev set>`."""
    values = {}
    for name, examples in problem.evaluations.items():
        batches = batches_of(problem, examples, options)
        own = measures(problem.task, examples.labels, outputs(model, batches))
        suffix = f"_{name}" if name else ""
        values |= {f"test_{metric}{suffix}": value for metric, value in own.items()}
    return values


def similarities(model: keras.Model, problem: Problem) -> list[float]:
    """Mean token similarity over texts of the dev set, before the first layer and after each."""
    texts = next(iter(problem.evaluations.values()))
    count = min(MEASURED, len(texts))
    length = int(texts.lengths[:count].max())
    return similarity_by_depth(model, texts.inputs(np.arange(count), length))


def batches_of(
    problem: Problem, examples: Encoded, options: argparse.Namespace, seed: int | None = None
) -> Buckets:
    """Examples in batches, padded to `padded_lengths`, shuffled where there is a seed."""
    return Buckets(examples, padded_lengths(problem), options.batch_size, seed)


def padded_lengths(problem: Problem) -> list[int]:
    """The lengths to which batches are padded: 8, 12, 16, 24, 32, 48, ... up to the longest.

    A length is left out if fewer than one in fifty of the training examples would be padded to it.
    """
    steps = [8 * 2**octave + part for octave in range(16) for part in (0, 4 * 2**octave)]
    bounds = [step for step in steps if step < problem.length]
    counts = np.bincount(np.searchsorted(bounds, problem.train.lengths), minlength=len(bounds))
    wanted = MIN_SHARE * len(problem.train)
    kept = [bound for bound, count in zip(bounds, counts, strict=False) if count >= wanted]
    return [*kept, problem.length]


def build(trial: Trial) -> Any:
    """A text classifier without its preprocessor, with its attention converted by the options.

    The head is drawn before the conversion, which draws nothing: all attentions start with the
    same weights for the same Keras seed.

    Raises:
        UsageError: When the preset is not that of a model whose attention can be converted.
    """
    problem, options = trial.problem, trial.options
    if options.preset:
        with loading_preset(options.preset):
            classifier = keras_hub.models.TextClassifier.from_preset(
                preset_name(options.preset), num_classes=problem.task.outputs, preprocessor=None
            )
    else:
        classifier = _small(problem, options)
    refuse_converted(options.preset, classifier.backbone)
    return converted(classifier, trial)


def trained(classifier: Any) -> keras.Model:
    """The same model as a plain Keras one, whose `fit` takes batches of constant shapes."""
    return keras.Model(classifier.input, classifier.output, name="text_classifier")


def compile_model(
    model: keras.Model, problem: Problem, options: argparse.Namespace, steps: int
) -> None:
    """Compiles for AdamW with a warm-up and a linear decay over `steps`.

    Filter coefficients learn at `--coefficient-learning-rate`, under the same schedule.
    """
    if problem.task.classes:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        logits = {"from_logits": True}
        error = of_real_rows(metrics.SparseCategoricalCrossentropy, "cross_entropy", **logits)
    else:
        loss = keras.losses.MeanSquaredError()
        error = of_real_rows(metrics.MeanSquaredError, "squared_error")
    rate = WarmUpLinearDecay(options.learning_rate, round(options.warm_up * steps), steps)
    optimizer = keras.optimizers.Adam(rate, weight_decay=options.weight_decay or None)
    multiplier = options.coefficient_learning_rate / options.learning_rate
    model.compile(
        optimizer=with_rates(optimizer, model, multiplier),
        loss=loss,
        weighted_metrics=[criterion_metric(problem.task), error],
    )


def served(classifier: Any, options: argparse.Namespace) -> keras.Model:
    """The model that is exported, for texts of up to `--max-length` tokens."""
    inputs = served_inputs(classifier, options.max_length)
    return keras.Model(inputs, classifier(inputs))


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


def criterion_metric(task: Task) -> keras.metrics.Metric:
    """The first metric of the task, in batches."""
    name = task.metrics[0]
    if name == "accuracy":
        return of_real_rows(metrics.SparseCategoricalAccuracy, name)
    if name == "f1":
        return F1(True, name)
    return Moments(bool(task.classes), name)


def measures(task: Task, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The task's metrics on a whole dev set, by scikit-learn and SciPy.

    Outputs are scores of the classes (N, classes), or values (N, 1).
    """
    import scipy.stats
    import sklearn.metrics

    chosen = outputs.argmax(axis=-1) if task.classes else outputs[:, 0].astype("float64")
    measure = {
        "matthews_correlation": sklearn.metrics.matthews_corrcoef,
        "accuracy": sklearn.metrics.accuracy_score,
        "f1": sklearn.metrics.f1_score,
        "pearson": lambda *pair: _correlation(scipy.stats.pearsonr, *pair),
        "spearman": lambda *pair: _correlation(scipy.stats.spearmanr, *pair),
    }
    return {name: float(measure[name](labels, chosen)) for name in task.metrics}


def _correlation(correlate: Any, labels: np.ndarray, chosen: np.ndarray) -> float:
    """A correlation; 0 if either side is constant, because it is undefined then."""
    if np.ptp(labels) == 0 or np.ptp(chosen) == 0:
        return 0.0
    return correlate(labels, chosen)[0]
