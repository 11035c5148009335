"""The base of all feature maps phi of kernel attention, phi(q) . phi(k) >= 0."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_graphattn.numerics.precision import at_least_float32, largest
from keras_graphattn.serialization import Configured, restored
from keras_graphattn.types import Bool, Float, Tensor


class FeatureMap(Configured):
    """A map phi from queries and keys to non-negative features.

    A subclass implements `__call__`. A map without weights needs nothing else. Register the class
    with `keras.saving.register_keras_serializable`, so that layers with it can be saved.

    A map with random directions also implements `weights`, `query_features` and `key_features`.
    The layer keeps the directions as weights that are not trained, so that they are saved with it.

    Example:

    >>> @keras.saving.register_keras_serializable(package="mine")
    ... class Exponential(FeatureMap):
    ...     def __call__(self, x):
    ...         return keras.ops.exp(x)
    >>> Exponential().num_features(num_heads=2, key_dim=8)
    8
    """

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N m"]:
        """phi(x): non-negative features (B, T, N, m) of queries or keys (B, T, N, H)."""
        raise NotImplementedError(f"{type(self).__name__} must write `__call__`.")

    def num_features(self, num_heads: int, key_dim: int) -> int:
        """Number m of features of each head.

        Args:
            num_heads: Number of heads N.
            key_dim: Size H of a head.
        """
        # found by a trial, so that a subclass need not define it
        return int(self(ops.zeros((1, 1, num_heads, key_dim), "float32")).shape[-1])

    def weights(
        self, num_heads: int, key_dim: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Values that a layer keeps for the map, by name. They are not trained.

        Args:
            num_heads: Number of heads N.
            key_dim: Size H of a head.
            seed: Seed of the random draw.
        """
        return {}

    def query_features(
        self, query: Float[Tensor, "B T N H"], weights: Mapping[str, Float[Tensor, "..."]]
    ) -> Float[Tensor, "B T N m"]:
        """phi of the queries, (B, T, N, m), in at least float32, each with 1 as largest feature.

        A row of attention does not depend on this scale. So huge queries cannot overflow, and
        features of tiny numbers do not underflow in their products with those of keys.

        Args:
            query: Tensor of shape (B, T, N, H).
            weights: The values of the layer's `weights`.
        """
        features = at_least_float32(self(at_least_float32(query)))
        # the scale cancels in the normalised row, so it needs no gradient
        top = ops.stop_gradient(largest(features, axis=-1, keepdims=True))  # (B, T, N, 1)
        return features / (top + ops.cast(top == 0.0, top.dtype))

    def key_features(
        self,
        key: Float[Tensor, "B S N H"],
        weights: Mapping[str, Float[Tensor, "..."]],
        mask: Bool[Tensor, "B S"] | None,
        fixed_scale: bool,
    ) -> Float[Tensor, "B S N m"]:
        """phi of the keys, (B, S, N, m), in at least float32, all on one scale.

        Args:
            key: Tensor of shape (B, S, N, H).
            weights: The values of the layer's `weights`.
            mask: Optional boolean tensor of shape (B, S): the keys that count for the scale.
            fixed_scale: Whether a mask hides keys. The scale must then not depend on the keys.
        """
        return at_least_float32(self(at_least_float32(key)))


@keras.saving.register_keras_serializable(package="keras_graphattn")
class FunctionMap(FeatureMap):
    """A feature map made from your own function.

    Args:
        function: A callable, registered with Keras, from (B, T, N, H) to non-negative features
            (B, T, N, m).

    Raises:
        ValueError: If the function is not registered.

    Example:

    >>> @keras.saving.register_keras_serializable(package="mine")
    ... def squares(x):
    ...     return x * x
    >>> FunctionMap(squares).num_features(num_heads=1, key_dim=4)
    4
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        name = keras.saving.get_registered_name(function)
        if keras.saving.get_registered_object(name) is not function:
            raise ValueError(
                "A function given as `feature_map` must be registered, so that the layer can be "
                "saved. Decorate it with @keras.saving.register_keras_serializable(). Received: "
                f"feature_map={function!r}"
            )
        self.function = function

    def __call__(self, x: Float[Tensor, "B T N H"]) -> Float[Tensor, "B T N m"]:
        return self.function(x)

    def get_config(self) -> dict[str, Any]:
        return {"function": keras.saving.serialize_keras_object(self.function)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(restored("function", config["function"]))
