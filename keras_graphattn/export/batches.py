"""Checks batches against a signature, and casts them to its types."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_graphattn.export.signature import Specs

Array = Any


def checked_batch(inputs: Any, specs: Specs, owner: str) -> dict[str, Array]:
    """Returns one batch as arrays of the types in `specs`.

    Args:
        inputs: Mapping from names to arrays. If there is only one input, it may be the array
            itself.
        specs: Mapping from each name to its (shape, dtype).
        owner: Name of the model or signature, for error messages.

    Raises:
        ValueError: If names, shapes, types or batch sizes do not match.

    Example:

    >>> checked_batch([[1.5]], {"x": ((None, 1), "float32")}, "The model")
    {'x': array([[1.5]], dtype=float32)}
    """
    if not isinstance(inputs, Mapping) and len(specs) == 1:
        inputs = {next(iter(specs)): inputs}
    if not isinstance(inputs, Mapping) or set(inputs) != set(specs):
        given = sorted(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(f"{owner} takes a dictionary of {sorted(specs)}. Received: {given}")
    arrays = {}
    for name, (shape, dtype) in specs.items():
        array = _cast(_array(inputs[name], name, dtype), dtype, name, owner)
        if len(array.shape) != len(shape) or any(
            wanted not in (None, size) for size, wanted in zip(array.shape, shape, strict=True)
        ):
            raise ValueError(
                f"{owner} takes '{name}' of shape {shape}. Received: shape={array.shape}"
            )
        arrays[name] = array
    sizes = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(
            f"{owner} takes inputs of one batch size of at least 1. Received sizes: {sizes}"
        )
    return arrays


def _array(value: Any, name: str, dtype: str) -> Array:
    if keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value)
    try:
        # NumPy's string types drop zero bytes at the end, so text is kept as Python objects.
        is_text = dtype == "string" and isinstance(value, (list, tuple, str, bytes))
        return np.asarray(value, object if is_text else None)
    except Exception as error:
        is_list = isinstance(value, (list, tuple))
        reason = "rows of different lengths: pad them" if is_list else f"a {type(value).__name__}"
        raise ValueError(
            f"The input '{name}' must be an array, a tensor or a nested list. Received {reason}. "
            f"({error})"
        ) from error


def _cast(array: Array, dtype: str, name: str, owner: str) -> Array:
    """Casts an array. Floats may lose digits and integers may change width, nothing else."""
    cast = array
    if dtype == "string":
        cast = array.astype(object)
        fits = all(isinstance(value, (str, bytes)) for value in cast.flat)
    elif fits := _may_fit(array.dtype, np.dtype(dtype)):
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        is_whole = cast.dtype.kind in "iu"
        same = cast == array if is_whole else np.isfinite(cast) == np.isfinite(array)
        fits = bool(np.all(same))
    if not fits:
        raise ValueError(
            f"{owner} takes '{name}' as {dtype}. The given values cannot be cast to it without "
            f"loss. Received: dtype={array.dtype}"
        )
    return cast


def _may_fit(given: Any, served: Any) -> bool:
    """Returns whether at least some values of type `given` are also values of type `served`."""
    if given.kind in "biu" and served.kind in "iu":
        return True
    if given.kind in "cSU" and served.kind != "c":
        return False
    return bool(np.can_cast(given, served, "same_kind"))
