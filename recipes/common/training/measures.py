"""The loss and the metrics of a model whose last batch is filled up with rows of weight 0.

The real rows of a batch have weights that add up to its size (`filled_weights`). So the mean over
all rows is the mean over the real ones, also where the rows are shared out over devices that hold
different numbers of real ones. Metrics count every real row once.
"""

from typing import Any

import keras
from keras import metrics


class RealRows:
    """Counts each row of positive weight once, and no other row."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            sample_weight = keras.ops.cast(sample_weight > 0, "float32")
        return super().update_state(y_true, y_pred, sample_weight)  # type: ignore[misc]


def of_real_rows(metric: type[metrics.Metric], name: str, **arguments: Any) -> metrics.Metric:
    """A metric of Keras, taken over the real rows."""
    return type(metric.__name__, (RealRows, metric), {})(name=name, **arguments)


def loss_and_metrics() -> dict[str, Any]:
    """Arguments of `compile`: cross-entropy as the loss; accuracy and cross-entropy as metrics."""
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(),
        "weighted_metrics": [
            of_real_rows(metrics.SparseCategoricalAccuracy, "accuracy"),
            of_real_rows(metrics.SparseCategoricalCrossentropy, "cross_entropy"),
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
