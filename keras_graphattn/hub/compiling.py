"""Compiling a converted model: its optimizer gives the coefficients their own rate."""

import functools
from typing import Any

import keras

from keras_graphattn.hub.attentions import is_ours
from keras_graphattn.keras_internals import walk
from keras_graphattn.optimizers import apply_rates, without_coefficient_rates


def compile_methods(plain: Any) -> dict[str, Any]:
    """What a converted subclass of `plain` overrides so that `compile` does it."""
    if not issubclass(plain, keras.Model):
        return {}

    @functools.wraps(plain.compile)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        plain.compile(self, *args, **kwargs)
        if self.optimizer is not None:
            apply_rates(self.optimizer)

    if plain.compile is not keras.Model.compile:
        return {"compile": compile}  # such models Keras loads without compiling them

    @functools.wraps(plain.compile_from_config)
    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    return {"compile": compile, "compile_from_config": compile_from_config}


def settle_optimizer(model: Any) -> None:
    """Brings the optimizer of a compiled model up to date with the layers that it has now."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    if any(is_ours(layer) for layer in walk(model)):
        apply_rates(optimizer)
    else:
        without_coefficient_rates(optimizer)
