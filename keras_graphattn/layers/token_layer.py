"""The base of layers on tokens (B, T, d) that take a mask and have no projections."""

from typing import Any, cast

import keras

from keras_graphattn.checks import Sizes, as_tensor, check_dtype_policy, check_shape
from keras_graphattn.types import Num, Tensor


class TokenLayer(keras.layers.Layer):  # type: ignore[misc]
    """Base of layers with one input (B, T, d) and a boolean mask (B, T), both checked."""

    def __init__(self, **kwargs: Any) -> None:
        check_dtype_policy(kwargs.get("dtype"))
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, inputs_shape: tuple[int | None, ...]) -> None:
        if len(inputs_shape) != 3:
            raise ValueError(
                f"{type(self).__name__} works on sequences of tokens: `inputs` must have shape "
                f"(batch, length, features). Received: inputs.shape={tuple(inputs_shape)}"
            )

    def __call__(self, inputs: object, mask: object = None, **kwargs: Any) -> Num[Tensor, "..."]:
        sizes: Sizes = {}
        inputs = as_tensor("inputs", inputs)
        check_shape("inputs", inputs, ("B T d",), sizes)
        if mask is not None:
            mask = as_tensor("mask", mask, "boolean")
            check_shape("mask", mask, ("B T",), sizes)
            kwargs["mask"] = mask
        return super().__call__(inputs, **kwargs)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TokenLayer":
        check_dtype_policy(config.get("dtype"))  # Keras reads it before `__init__` can check it
        return cast("TokenLayer", super().from_config(config))
