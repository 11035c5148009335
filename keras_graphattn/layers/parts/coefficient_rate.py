"""How fast a layer's coefficients learn: a base of our layers and of converted ones."""

from typing import Any

from keras_graphattn.checks.layer_calls import WeightsAfterBuild
from keras_graphattn.optimizers import MARK, positive


class CoefficientRate(WeightsAfterBuild):
    """The option `coefficient_learning_rate_multiplier` of all attention layers.

    A coefficient is a weight that the layer itself owns, next to its projections, or a weight of
    its mask. The vectors of an additive score count as projections.
    `coefficient_learning_rate_multiplier` sets how fast coefficients learn. Variables
    carry the multiplier, so it holds in any model. The optimizers of
    `keras_graphattn.optimizers` read it.
    """

    weights: Any
    built: bool

    def __init__(
        self, *args: Any, coefficient_learning_rate_multiplier: float = 1.0, **kwargs: Any
    ) -> None:
        name = "coefficient_learning_rate_multiplier"
        multiplier = positive(name, coefficient_learning_rate_multiplier, {})
        super().__init__(*args, **kwargs)
        self._multiplier: float = multiplier

    @property
    def coefficient_learning_rate_multiplier(self) -> float:
        """How many times as fast as other weights the coefficients learn; may be set.

        It takes effect under `keras_graphattn.optimizers.with_coefficient_rates`, when the model
        is compiled.
        """
        return self._multiplier

    @coefficient_learning_rate_multiplier.setter
    def coefficient_learning_rate_multiplier(self, multiplier: float) -> None:
        self._multiplier = positive("coefficient_learning_rate_multiplier", multiplier, {})
        self._mark([variable for variable in self.weights if hasattr(variable, MARK)])

    @property
    def coefficients(self) -> list[Any]:
        """The weights that learn at the coefficients' rate; an `AttributeError` before `build`."""
        if not self.built:
            raise AttributeError("coefficients")  # `__getattr__` says why
        return [variable for variable in self.weights if hasattr(variable, MARK)]

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        variable = super().add_weight(*args, **kwargs)  # type: ignore[misc]
        self._mark([variable])
        return variable

    def _mark(self, variables: list[Any]) -> None:
        for variable in variables:
            setattr(variable, MARK, self._multiplier)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**config, "coefficient_learning_rate_multiplier": self._multiplier}
