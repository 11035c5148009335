"""Checks dtypes and dtype policies."""

from typing import Any

import keras

from keras_graphattn.checks.known_values import cached
from keras_graphattn.checks.shapes import Sizes

FLOATS = ("float16", "bfloat16", "float32", "float64")


def float_dtype(name: str, value: Any, sizes: Sizes | None = None) -> str:
    """The name of a floating-point type."""
    try:
        found = keras.backend.standardize_dtype(value)
    except (TypeError, ValueError, AttributeError):
        found = None
    if value is None or found not in FLOATS:
        raise ValueError(f"`{name}` must be one of {list(FLOATS)}. Received: {name}={value!r}")
    return str(found)


def check_dtype_policy(dtype: Any) -> None:
    """Raises a `ValueError` for a value that is neither a dtype nor a dtype policy of Keras."""
    kinds = (keras.dtype_policies.DTypePolicy, keras.dtype_policies.DTypePolicyMap)
    message = f"`dtype` must be a dtype or a dtype policy. Received: dtype={dtype!r}"
    try:
        policy = keras.dtype_policies.get(dtype)
    except Exception as error:
        raise ValueError(f"{message}. The cause: {error}") from error
    if not isinstance(policy, kinds):
        raise ValueError(message)


@cached
def dtype_name(dtype: Any) -> str:
    """The name of a dtype of the backend or of NumPy; cached, as every call needs it."""
    try:
        return str(keras.backend.standardize_dtype(dtype))
    except (TypeError, ValueError):
        return str(dtype)
