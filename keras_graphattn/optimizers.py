"""A separate learning rate for filter coefficients, under any Keras optimizer.

A coefficient is a number of the order of 1. At 5e-5, the usual rate of fine-tuning, Adam moves a
weight by about 5e-5 in a step. So hundreds of steps hardly change a filter. Each layer of this
package therefore has a `coefficient_learning_rate_multiplier`: how many times as fast as other
weights its coefficients learn. The optimizers of this module apply it.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_graphattn.checks import optional
from keras_graphattn.coefficient_rate import MARK, NAME, positive
from keras_graphattn.types import Float, Tensor

__all__ = [
    "CoefficientRates",
    "applies_coefficient_rates",
    "learning_rate_multiplier",
    "with_coefficient_rates",
    "without_coefficient_rates",
]


def learning_rate_multiplier(variable: keras.Variable) -> float:
    """How many times as fast as other weights a variable learns; 1.0 if it is not a coefficient.

    Example:

    >>> learning_rate_multiplier(keras.Variable(1.0))
    1.0
    """
    return float(getattr(variable, MARK, 1.0))


@keras.saving.register_keras_serializable(package="keras_graphattn")
class CoefficientRates:
    """The part of an optimizer that gives coefficients their own rate.

    It is mixed into the class of any Keras optimizer. Each update step of a coefficient gets the
    learning rate times the coefficient's multiplier. All other features of the optimizer stay the
    same for all weights: clipping (the multiplier does not change the global norm), weight decay
    (at the model's rate), moving averages, gradient accumulation, constraints, saved state.
    """

    coefficient_learning_rate_multiplier: float | None = None
    warns_without_effect = False  # the user asked for the rates
    optimizers: Sequence[keras.optimizers.Optimizer]
    built: bool
    _trainable_variables: Sequence[keras.Variable]
    _get_variable_index: Callable[[object], int]

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.warns_without_effect and not self.built:
            _warn_without_effect(variables, self.coefficient_learning_rate_multiplier)
        super().build(variables)  # type: ignore[misc]
        apply_rates(self, self.coefficient_learning_rate_multiplier)

    def update_step(
        self,
        gradient: Float[Tensor, "..."],
        variable: object,
        learning_rate: Float[Tensor, ""] | float,
    ) -> None:
        factor = self._factor(variable)
        if factor != 1.0:
            learning_rate = learning_rate * factor
        super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]

    def _parallel_update_step(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[object],
        learning_rate: Float[Tensor, ""] | float,
    ) -> None:
        """Updates variables: those with the most frequent rate at once, the others one by one.

        Keras calls it on torch, once for each step: Nadam counts the calls.
        """
        factors = [self._factor(variable) for variable in variables]
        usual = max(set(factors), key=lambda factor: (factors.count(factor), -factor))
        together = [index for index, factor in enumerate(factors) if factor == usual]
        super()._parallel_update_step(  # type: ignore[misc]
            [gradients[index] for index in together],
            [variables[index] for index in together],
            learning_rate if usual == 1.0 else learning_rate * usual,
        )
        for index, factor in enumerate(factors):
            if factor != usual:
                self.update_step(gradients[index], variables[index], learning_rate)

    def _factor(self, variable: object) -> float:
        # on tensorflow, `variable` may be the backend's variable inside the Keras variable
        own = self._trainable_variables[self._get_variable_index(variable)]
        multiplier = self.coefficient_learning_rate_multiplier
        if multiplier is not None and hasattr(own, MARK):
            return multiplier
        return learning_rate_multiplier(own)

    def get_config(self) -> dict[str, Any]:
        optimizer = _plain_class(self).from_config(super().get_config())  # type: ignore[misc]
        return {
            "optimizer": keras.optimizers.serialize(optimizer),
            NAME: self.coefficient_learning_rate_multiplier,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, object] | None = None
    ) -> keras.optimizers.Optimizer:
        optimizer = keras.optimizers.deserialize(dict(config["optimizer"]), custom_objects)
        return apply_rates(optimizer, config[NAME])


def with_coefficient_rates(
    optimizer: keras.optimizers.Optimizer | str | dict[str, Any], *, multiplier: float | None = None
) -> keras.optimizers.Optimizer:
    """Makes an optimizer give filter coefficients their own learning rate.

    Models and layers made by `keras_graphattn.convert` call this function in `compile`. Call it
    yourself for all other models: a model composed of a converted backbone's tensors, a model with
    layers of this package, or your own training loop.

        model.compile(keras_graphattn.optimizers.with_coefficient_rates("adam"), ...)

    An update step of a coefficient gets the current learning rate, with any schedule or callback,
    times the multiplier. Weight decay keeps the model's rate, and clipping sees the unchanged
    gradients. The optimizer keeps its state, which is the state of a plain optimizer. So
    checkpoints fit both.

    Args:
        optimizer: A Keras optimizer, its name, or its configuration. An optimizer is changed in
            place. For a `LossScaleOptimizer` or `MultiOptimizer`, the inner optimizers are changed.
        multiplier: The factor of the rate, a positive number, for all coefficients. By default
            each coefficient has the `coefficient_learning_rate_multiplier` of its layer or mask:
            10 in a layer made by its constructor, 30 in a mask, 1 in a bias, 100 in a layer made by
            `convert`.

    Returns:
        The optimizer; still an instance of its class. It warns when it is built for variables that
        it would all give one rate: those of a model without trained coefficients, or of one whose
        coefficients all have the multiplier 1.

    Raises:
        ValueError: For an invalid optimizer, and for a multiplier that is not positive.

    Example:

    >>> optimizer = with_coefficient_rates(keras.optimizers.AdamW(5e-5))
    >>> isinstance(optimizer, keras.optimizers.AdamW)
    True
    """
    multiplier = optional(positive)("multiplier", multiplier, {})
    if optimizer is None:
        raise ValueError(
            "`optimizer` must be a Keras optimizer, its name or its configuration. Received: "
            "optimizer=None"
        )
    changed = apply_rates(keras.optimizers.get(optimizer), multiplier)
    _inner(changed).warns_without_effect = True
    return changed


def apply_rates(
    optimizer: keras.optimizers.Optimizer, multiplier: float | None = None
) -> keras.optimizers.Optimizer:
    """Changes an optimizer in place as `with_coefficient_rates` does, without the warning."""
    inner = _inner(optimizer)
    if not isinstance(inner, CoefficientRates):
        plain: Any = type(inner)
        object.__setattr__(inner, "__class__", _class_with_rates(plain))
    if multiplier is not None:
        inner.coefficient_learning_rate_multiplier = float(multiplier)
    for member in getattr(inner, "optimizers", ()):  # a `MultiOptimizer` makes some in its `build`
        apply_rates(member, multiplier)
    return optimizer


def without_coefficient_rates(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Undoes `with_coefficient_rates` in place: all weights have one rate again, as in Keras.

    Example:

    >>> optimizer = without_coefficient_rates(with_coefficient_rates("adamw"))
    >>> applies_coefficient_rates(optimizer)
    False
    """
    inner = _inner(optimizer)
    for member in getattr(inner, "optimizers", ()):
        without_coefficient_rates(member)
    if isinstance(inner, CoefficientRates):
        object.__setattr__(inner, "__class__", _plain_class(inner))
        inner.coefficient_learning_rate_multiplier = None
    return optimizer


def applies_coefficient_rates(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer gives filter coefficients their own learning rate.

    Example:

    >>> applies_coefficient_rates(keras.optimizers.Adam())
    False
    """
    return isinstance(_inner(optimizer), CoefficientRates)


def _inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that takes the steps: the inner one of a `LossScaleOptimizer`."""
    is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return optimizer.inner_optimizer if is_scaling else optimizer


def _warn_without_effect(variables: Sequence[keras.Variable], multiplier: float | None) -> None:
    coefficients = [variable for variable in variables if hasattr(variable, MARK)]
    if coefficients and (multiplier or any(learning_rate_multiplier(x) != 1 for x in coefficients)):
        return
    received = (
        f"{len(coefficients)} coefficients, each of which has the multiplier 1. Set "
        f"`{NAME}` of their layers and masks, or give `multiplier` here."
        if coefficients
        else "none among the trained weights. Use the optimizer as it is, or check that the model "
        "has a filter or a mask with weights, and that they are trainable."
    )
    warnings.warn(
        "`with_coefficient_rates` has no effect in this model: it gives another learning rate to "
        f"coefficients of filters and masks. Received: {received}",
        stacklevel=3,
    )


@functools.cache
def _class_with_rates(plain: type) -> type:
    new = type(
        f"{plain.__name__}WithCoefficientRates",
        (CoefficientRates, plain),
        {"__module__": __name__, "__doc__": f"`{plain.__name__}` with coefficient rates."},
    )
    # All such classes are saved under one name: `CoefficientRates.from_config` makes them.
    for cls in (new, CoefficientRates):
        keras.saving.register_keras_serializable("keras_graphattn", "CoefficientRates")(cls)
    return new


def _plain_class(optimizer: CoefficientRates) -> type[keras.optimizers.Optimizer]:
    classes = type(optimizer).__mro__
    return classes[classes.index(CoefficientRates) + 1]
