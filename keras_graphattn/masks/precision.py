"""One dtype for all tensors of a mask: float64 if one of them is float64, else float32."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

Tensor = Any
Tensors = dict[str, Tensor]


def has_float64() -> bool:
    """Whether the backend has float64. JAX has it only with `jax_enable_x64`."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return bool(jax.config.jax_enable_x64)


def widest_dtype(tensors: Iterable[Tensor], policy: str = "float32") -> str:
    """`"float64"` if one of the tensors or the policy's dtype is float64, else `"float32"`."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in tensors} | {policy}
    return "float64" if "float64" in dtypes and has_float64() else "float32"


def in_one_dtype(
    signals: tuple[Tensor, ...], parameters: Tensors, inputs: Tensors
) -> tuple[tuple[Tensor, ...], Tensors, Tensors]:
    """Casts signals, weights and floating-point inputs of a call to float32, or all to float64."""
    floating = {name: x for name, x in inputs.items() if _is_floating(x)}
    dtype = widest_dtype((*signals, *parameters.values(), *floating.values()))
    return (
        tuple(ops.cast(x, dtype) for x in signals),
        {name: ops.cast(x, dtype) for name, x in parameters.items()},
        {name: ops.cast(x, dtype) if name in floating else x for name, x in inputs.items()},
    )


def _is_floating(x: Tensor) -> bool:
    return "float" in keras.backend.standardize_dtype(x.dtype)
