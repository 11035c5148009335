"""What is known before the run, and what only while it runs: numbers of tensors, cached results."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def known_value(given: Any) -> Array | None:
    """Returns the numbers of an array or tensor, or None where they are not known yet.

    They are not known while code is traced, built or compiled. A tensor on an accelerator is
    copied to the host, which waits for it.
    """
    if isinstance(given, PLAIN):
        return _as_numpy(given)
    if isinstance(given, keras.Variable):
        given = given.value
    backend = keras.backend.backend()
    if backend == "jax":
        return _of_jax(given)
    if backend == "tensorflow":
        return np.asarray(given.numpy()) if hasattr(given, "numpy") else None
    return _of_torch(given)


def _as_numpy(given: Any) -> Array | None:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # such as a ragged list
        return None


def _of_jax(given: Any) -> Array | None:
    import jax

    known = isinstance(given, jax.Array) and not isinstance(given, jax.core.Tracer)
    return np.asarray(given) if known and given.is_fully_addressable else None


def _of_torch(given: Any) -> Array | None:
    import torch

    # While Keras infers shapes, it fills every tensor with ones: those numbers mean nothing.
    with keras.SymbolicScope() as scope:
        is_traced = scope.original_scope is not None
    is_traced = is_traced or traced_by_torch()
    if is_traced or not isinstance(given, torch.Tensor) or given.device.type == "meta":
        return None
    given = given.detach()
    try:
        given = given.float() if given.dtype == torch.bfloat16 else given  # NumPy has no bfloat16
        return np.asarray(given.cpu().numpy())
    except RuntimeError:  # a batched tensor without numbers, as under `torch.func.vmap`
        return None


def traced_by_torch() -> bool:
    """Whether torch traces code now, to compile or to export it. Then it unrolls loops."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def cached(function: Function) -> Function:
    """`functools.lru_cache`, but torch, which warns of it, compiles the function itself."""
    known: Any = functools.lru_cache(maxsize=256)(function)
    if keras.backend.backend() != "torch":
        return known  # type: ignore[no-any-return]
    import torch

    @functools.wraps(function)
    def found(*arguments: Any) -> Any:
        return (function if torch.compiler.is_compiling() else known)(*arguments)

    return found  # type: ignore[return-value]
