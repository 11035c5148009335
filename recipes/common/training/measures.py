"""The loss and the metrics of a model whose last batch is filled up with rows of weight 0.

The real rows of a batch have weights that add up to its size (`filled_weights`). So the mean over
all rows is the mean over the real ones, also where the rows are shared out over devices that hold
different numbers of real ones. Metrics count every real row once.
"""

from typing import Any

import keras
import numpy as np
from keras import metrics, ops

from recipes.common.data.batches import Buckets


class RealRows:
    """Counts each row of positive weight once, and no other row."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight > 0, "float32")
        return super().update_state(y_true, y_pred, sample_weight)  # type: ignore[misc]


def of_real_rows(metric: type[metrics.Metric], name: str, **arguments: Any) -> metrics.Metric:
    """A metric of Keras, taken over the real rows."""
    return type(metric.__name__, (RealRows, metric), {})(name=name, **arguments)


def loss_and_metrics(from_logits: bool = False) -> dict[str, Any]:
    """Arguments of `compile`: cross-entropy as the loss; accuracy and cross-entropy as metrics.

    With `from_logits`, the outputs are the numbers before the softmax.
    """
    form = {"from_logits": from_logits}
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(**form),
        "weighted_metrics": [
            of_real_rows(metrics.SparseCategoricalAccuracy, "accuracy"),
            of_real_rows(metrics.SparseCategoricalCrossentropy, "cross_entropy", **form),
        ],
    }


def one_hot_loss_and_metrics(classes: int, label_smoothing: float = 0.0) -> dict[str, Any]:
    """Arguments of `compile`, for labels of shape (B, classes) that add up to 1.

    The metrics are those of `loss_and_metrics`, without smoothing, and for more than five classes
    the share of rows whose class is among the five most probable ones.
    """
    wanted = [
        of_real_rows(metrics.CategoricalAccuracy, "accuracy"),
        of_real_rows(metrics.CategoricalCrossentropy, "cross_entropy"),
    ]
    if classes > 5:
        wanted.append(of_real_rows(metrics.TopKCategoricalAccuracy, "accuracy_top_5", k=5))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=label_smoothing)
    return {"loss": loss, "weighted_metrics": wanted}


def absolute_error_and_metrics() -> dict[str, Any]:
    """Arguments of `compile`: the absolute error as the loss; both errors as metrics.

    Labels have the shape (B,), predictions (B, 1).
    """
    return {
        "loss": keras.losses.MeanAbsoluteError(),
        "weighted_metrics": [
            of_real_rows(metrics.MeanAbsoluteError, "mean_absolute_error"),
            of_real_rows(metrics.MeanSquaredError, "squared_error"),
        ],
    }


class Moments(metrics.Metric):
    """Pearson's correlation of labels and predictions, from their moments over real rows.

    For two classes, 0 and 1, it is the Matthews correlation. It is 0 if either is constant. Of
    logits, the class with the highest score counts.
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
    """The F1 score: 2 true positives / (positive labels + positive predictions)."""

    def result(self) -> Any:
        _, true, chosen, _, _, true_chosen = ops.unstack(ops.convert_to_tensor(self.sums), 6)
        return 2.0 * true_chosen / ops.maximum(true + chosen, 1.0)


def outputs(model: keras.Model, batches: Buckets) -> np.ndarray:
    """The model's outputs in the order of the examples, float32 (N, outputs)."""
    predicted = np.asarray(model.predict(batches, verbose=0), "float32")
    places = np.concatenate(
        [np.resize(members, batches.batch_size) for _, members in batches.batches]
    )
    ordered = np.empty((len(batches.labels), predicted.shape[-1]), "float32")
    ordered[places] = predicted
    return ordered
