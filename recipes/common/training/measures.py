"""The loss and the metrics of a model whose last batch is filled up with rows of weight 0.

The real rows of a batch have weights that add up to its size (`filled_weights`). So the mean over
all rows is the mean over the real ones, also where the rows are shared out over devices that hold
different numbers of real ones. Metrics count every real row once.
"""

from typing import Any

import keras


def loss_and_metrics() -> dict[str, Any]:
    """Arguments of `compile`: cross-entropy as the loss; accuracy and cross-entropy as metrics."""
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(),
        "weighted_metrics": [Accuracy(name="accuracy"), CrossEntropy(name="cross_entropy")],
    }


def absolute_error_and_metrics() -> dict[str, Any]:
    """Arguments of `compile`: the absolute error as the loss; it and the squared error as metrics.

    Labels have the shape (B,), predictions (B, 1).
    """
    errors = [AbsoluteError(name="mean_absolute_error"), SquaredError(name="squared_error")]
    return {"loss": keras.losses.MeanAbsoluteError(), "weighted_metrics": errors}


class RealRows:
    """Counts rows of positive weight once, the others not at all."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            sample_weight = keras.ops.cast(sample_weight > 0, "float32")
        return super().update_state(y_true, y_pred, sample_weight)  # type: ignore[misc]


class Accuracy(RealRows, keras.metrics.SparseCategoricalAccuracy):
    """The share of real rows whose class is right."""


class CrossEntropy(RealRows, keras.metrics.SparseCategoricalCrossentropy):
    """The mean cross-entropy of real rows."""


class SquaredError(RealRows, keras.metrics.MeanSquaredError):
    """The mean squared error of real rows."""


class AbsoluteError(RealRows, keras.metrics.MeanAbsoluteError):
    """The mean absolute error of real rows."""
