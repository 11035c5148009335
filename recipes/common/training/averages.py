"""Moving averages of a model's weights, which are validated, tested and kept in their place.

Keras' optimizers make the averages and save them beside the weights; training goes on from the
weights themselves.
"""

from pathlib import Path
from typing import Any

import keras


def averaged(momentum: float) -> dict[str, Any]:
    """Arguments of an optimizer that averages the weights with this momentum; 0: it does not."""
    return {"use_ema": momentum > 0, "ema_momentum": momentum or None}


def has_averages(model: keras.Model) -> bool:
    """Whether the optimizer of a model averages its weights."""
    return bool(getattr(_optimizer(model), "use_ema", False))


def evaluated_by(model: keras.Model) -> list[keras.callbacks.Callback]:
    """The callbacks under which a model is evaluated with its averages, if it has any."""
    return [keras.callbacks.SwapEMAWeights()] if has_averages(model) else []


def take_averages(model: keras.Model) -> None:
    """Sets the weights to their moving averages, if the optimizer has any."""
    if has_averages(model):
        _optimizer(model).finalize_variable_values(model.trainable_variables)


def load_averages(model: keras.Model, file: Path, trained: keras.Model) -> None:
    """Loads the averages that were kept with the weights of an epoch.

    Args:
        model: The model that gets them. It need not be compiled.
        file: The epoch's weights.
        trained: A model of the same weights, compiled as that of the file. It is changed.
    """
    trained.optimizer.build(trained.trainable_variables)
    trained.load_weights(file)
    take_averages(trained)
    model.set_weights(trained.get_weights())


def _optimizer(model: keras.Model) -> Any:
    """The optimizer, without the scale of the loss that mixed precision puts around it."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)
