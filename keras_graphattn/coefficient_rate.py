"""The learning rate of coefficients: a base of layers, converted layers and masks."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_graphattn.checks import number, optional
from keras_graphattn.types import Float, Tensor

NAME = "coefficient_learning_rate_multiplier"
MARK = "learning_rate_multiplier"  # an attribute of variables; their layer or mask sets it

# At 1e-3, the usual rate of training from scratch, Adam moves a weight by about 1e-3 in a step.
# The search behind these numbers: docs/pages/filters.md
FILTER_MULTIPLIER = 10.0
MASK_MULTIPLIER = 30.0
FINE_TUNING_MULTIPLIER = 100.0  # of layers made by `convert`: 5e-3 if other weights have 5e-5

positive = number(above=0.0)


class CoefficientRate:
    """The option `coefficient_learning_rate_multiplier` of all attention layers and masks.

    A coefficient is a weight that the layer itself owns, next to its projections, or a weight of
    a mask or bias. The vectors of an additive score count as projections.
    `coefficient_learning_rate_multiplier` sets how fast coefficients learn. Variables
    carry the multiplier, so it holds in any model. The optimizers of
    `keras_graphattn.optimizers` read it.
    """

    default_multiplier: ClassVar[float] = FILTER_MULTIPLIER
    weights: list[keras.Variable]
    built: bool
    _flatten_layers: Callable[[], Iterable[keras.Layer]]

    def __init__(
        self, *args: Any, coefficient_learning_rate_multiplier: float | None = None, **kwargs: Any
    ) -> None:
        multiplier: float | None = optional(positive)(
            NAME, coefficient_learning_rate_multiplier, {}
        )
        super().__init__(*args, **kwargs)
        self._multiplier = multiplier

    @property
    def coefficient_learning_rate_multiplier(self) -> float:
        """How many times as fast as other weights the coefficients learn; may be set.

        For a mask or bias, its weights are the coefficients. Setting it on a layer sets it on the
        layer's mask or bias too. An optimizer of
        `keras_graphattn.optimizers.with_coefficient_rates` applies it; any other optimizer ignores
        it.
        """
        return self.default_multiplier if self._multiplier is None else self._multiplier

    @coefficient_learning_rate_multiplier.setter
    def coefficient_learning_rate_multiplier(self, multiplier: float) -> None:
        multiplier = positive(NAME, multiplier, {})
        for part in self._parts():
            part._multiplier = multiplier
        self._mark()

    @property
    def coefficients(self) -> list[keras.Variable]:
        """The weights that learn at the coefficients' rate; an `AttributeError` before `build`."""
        if not self.built:
            raise AttributeError("coefficients")  # `__getattr__` says why
        return [variable for variable in self.weights if hasattr(variable, MARK)]

    def __getattr__(self, name: str) -> Any:
        """Raises a "build first" error for a missing weight. torch keeps sublayers there."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            message = f"'{type(self).__name__}' object has no attribute '{name}'"
            if not name.startswith("_") and not vars(self).get("built", True):
                message += (
                    ". The layer is not built and has no weights yet. If this is one of them, "
                    "build it first, or call it on data once."
                )
            raise AttributeError(message, name=name, obj=self) from None

    def add_weight(self, *args: object, **kwargs: object) -> keras.Variable:
        variable = super().add_weight(*args, **kwargs)  # type: ignore[misc]
        setattr(variable, MARK, self.coefficient_learning_rate_multiplier)
        return variable

    def add_array(self, name: str, start: Any, trainable: bool = True) -> keras.Variable:
        """A weight that starts as an array and keeps the variable dtype in mixed precision."""
        return self.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(start, dtype),
            trainable=trainable,
            autocast=False,
        )

    def _parts(self) -> list["CoefficientRate"]:
        """The layer itself, then its mask or bias, then the parts of that."""
        return [part for part in self._flatten_layers() if isinstance(part, CoefficientRate)]

    def _share_multiplier(self) -> None:
        """Gives the layer's multiplier, if it has one of its own, to each part that has none."""
        if self._multiplier is not None:
            for part in self._parts():
                part._multiplier = part._multiplier or self._multiplier
            self._mark()

    def _mark(self) -> None:
        for part in self._parts():
            for variable in part.weights:
                if hasattr(variable, MARK):
                    setattr(variable, MARK, part.coefficient_learning_rate_multiplier)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        # A file of weights keeps the number. Before that, a mask may still get it from its layer.
        rate = self.coefficient_learning_rate_multiplier if self.built else self._multiplier
        return {**config, NAME: rate}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)  # `__init__` checks the dtype, which Keras would read before it


class Filtered:
    """Base of layers with a filter: the filter's coefficients are weights of the layer."""

    add_array: Callable[..., keras.Variable]
    _coefficient_names: tuple[str, ...]

    def add_filter_weights(self, filter: Any, num_heads: int) -> None:
        """Makes the weights of a filter's coefficients. Each becomes an attribute of the layer."""
        coefficients = filter.coefficients(num_heads)
        self._coefficient_names = tuple(coefficients)
        for name, coefficient in coefficients.items():
            setattr(self, name, self.add_array(name, coefficient.start, coefficient.trainable))

    def filtered(
        self,
        filter: Callable[..., Float[Tensor, "..."]],
        apply: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]],
        values: Float[Tensor, "..."],
        trailing_axes: int = 1,
    ) -> Float[Tensor, "..."]:
        """H(A) values, with the layer's coefficients.

        `trailing_axes` is the number of axes of `values` after that of the heads: 1 for signals
        (..., N, D), 2 for matrices (..., N, T, S).
        """
        axes = (..., *[None] * trailing_axes)
        coefficients = {name: getattr(self, name)[axes] for name in self._coefficient_names}
        return filter(apply, values, coefficients)
