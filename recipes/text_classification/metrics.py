"""What the tasks are measured by: in batches to choose an epoch, and on a whole dev set."""

from typing import Any

import keras
import numpy as np
from keras import ops

from recipes.common.resume import Criterion
from recipes.text_classification.tasks import Task


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


def criterion(task: Task) -> Criterion:
    """What chooses an epoch: the first metric of the task, ties by the loss."""
    return Criterion(task.metrics[0], ties="cross_entropy" if task.classes else "squared_error")


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
