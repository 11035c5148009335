"""Checks the arguments of public functions before anything is computed.

`checked` gives a rule for each argument. A wrong argument raises an error that names it, with the
expected and the received value, instead of an error from inside the backend:

    @checked(query=tensor("B T N H"), key=tensor("B S N H"), mask=optional(mask("B? N? T? S?")))

The letters are sizes. A letter has the same size in all arguments of a call. "?" allows 1 instead,
"_" is any size, and a leading "..." is any number of axes. Sizes that are not known before the run
fit any size. Arrays, lists and numbers become tensors. For `tensor`, integers become float32.
"""

import functools
import inspect
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import keras
import numpy as np
import scipy.sparse
from keras import ops

from keras_graphattn.checks.dtypes import FLOATS
from keras_graphattn.checks.dtypes import check_dtype_policy as check_dtype_policy
from keras_graphattn.checks.dtypes import dtype_name as dtype_name
from keras_graphattn.checks.dtypes import float_dtype as float_dtype
from keras_graphattn.checks.known_values import known_value
from keras_graphattn.checks.names import did_you_mean
from keras_graphattn.checks.shapes import Sizes as Sizes
from keras_graphattn.checks.shapes import check_broadcast as check_broadcast
from keras_graphattn.checks.shapes import check_shape as check_shape

Rule = Callable[[str, Any, Sizes], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

PLAIN_CONTAINERS = (np.ndarray, list, tuple, dict, set)
PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def checked(**rules: Rule) -> Callable[[Function], Function]:
    """A decorator that checks the arguments named in `rules`, in order, and makes them tensors."""

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        names = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            positional, sizes = list(args), cast("Sizes", {})
            places = {name: place for place, name in enumerate(names[: len(args)])}
            for name, rule in rules.items():
                if name in places:
                    positional[places[name]] = rule(name, positional[places[name]], sizes)
                elif name in kwargs:
                    kwargs[name] = rule(name, kwargs[name], sizes)
            return function(*positional, **kwargs)

        return cast("Function", wrapper)

    return decorate


def optional(rule: Rule) -> Rule:
    """A rule that accepts `None` and all that `rule` accepts."""
    return lambda name, value, sizes: None if value is None else rule(name, value, sizes)


def tensor(*shapes: str) -> Rule:
    """A tensor of numbers, of one of the shapes; of any shape if none is given."""
    return _rule_of_tensor(shapes, "number")


def integers(*shapes: str) -> Rule:
    """A tensor of integers, of one of the shapes."""
    return _rule_of_tensor(shapes, "integer")


def mask(*shapes: str) -> Rule:
    """A tensor of booleans, or of zeros and ones of any dtype, of one of the shapes."""
    return _rule_of_tensor(shapes, "boolean")


def tensors(*shapes: str) -> Rule:
    """A dictionary of tensors of any dtype, each of one of the shapes."""

    def check(name: str, value: Any, sizes: Sizes) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a dictionary of tensors. Received: {value!r}")
        found = {key: as_tensor(f"{name}[{key!r}]", x, "tensor") for key, x in value.items()}
        for key, x in found.items():
            check_shape(f"{name}[{key!r}]", x, shapes, sizes)
        return found

    return check


def length(letter: str) -> Rule:
    """The size of an axis: an integer, or the backend's symbol for an unknown size."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        others = (bool, float, complex, str, bytes, np.inexact, np.datetime64, *PLAIN_CONTAINERS)
        is_wrong_tensor = keras.ops.is_tensor(value) and not _is_integer_scalar(value)
        if value is None or isinstance(value, others) or is_wrong_tensor:
            raise ValueError(f"`{name}` must be an integer. Received: {name}={value!r}")
        if not isinstance(value, (int, np.integer)):
            return whole(0)(name, value, sizes) if not hasattr(value, "__floordiv__") else value
        known, source = sizes.get(letter, (value, ""))
        if value < 0 or value != known:
            reason = f", as in `{source}`" if source else ""
            raise ValueError(f"`{name}` must be {known}{reason}. Received: {name}={value!r}")
        return value

    return check


def whole(least: int = 1, below: int = 2**31) -> Rule:
    """A Python integer of at least `least`, and less than `below`."""

    def check(name: str, value: Any, sizes: Sizes) -> int:
        good = is_whole(value)
        if not good or not least <= value < below:
            limit = f" and less than {below}" if good and value >= below else ""
            raise ValueError(
                f"`{name}` must be an integer of at least {least}{limit}. Received: "
                f"{name}={value!r}"
            )
        return int(value)

    return check


def seed_of(seed: int | None) -> int:
    """The seed, or one that is drawn as Keras' initializers draw theirs.

    `keras.utils.set_random_seed` sets what is drawn.
    """
    return random.randint(1, 10**9) if seed is None else whole(0, 2**63)("seed", seed, {})


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_one_of(value: Any, allowed: Sequence[str | None]) -> bool:
    """Whether a value of any type is one of the allowed names."""
    return (value is None or isinstance(value, str)) and value in allowed


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or another sequence, but not text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_integer_scalar(value: Any) -> bool:
    is_scalar = keras.ops.is_tensor(value) and len(value.shape) == 0
    return is_scalar and "int" in keras.backend.standardize_dtype(value.dtype)


def size(least: int = 1) -> Rule:
    """An integer of at least `least`, or the backend's symbol for an unknown size."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        is_symbol = type(value).__name__ in ("_DimExpr", "SymInt")  # in exports by JAX and torch
        return value if is_symbol or _is_integer_scalar(value) else whole(least)(name, value, sizes)

    return check


def number(above: float | None = None, least: float | None = None, below: float = math.inf) -> Rule:
    """A finite Python number; greater than `above`, at least `least` and less than `below`."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        good = is_number and not isinstance(value, bool) and is_finite(value)
        if not good or (above is not None and value <= above):
            good = False
        if not good or (least is not None and value < least) or not value < below:
            limit = "" if above is None else f" above {above:g}"
            limit = limit if least is None else f" of at least {least:g}"
            limit += "" if below == math.inf else f" and below {below:g}"
            raise ValueError(f"`{name}` must be a finite number{limit}. Received: {name}={value!r}")
        return float(value)

    return check


scale_of_scores = number(least=-3e38, below=3e38)  # about the largest numbers of float32


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float. An integer may be too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def flag(name: str, value: Any, sizes: Sizes | None = None) -> bool:
    """`True` or `False`."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def switch(name: str, value: Any, sizes: Sizes | None = None) -> bool:
    """`True` or `False`, or 1 or 0, which calls of Keras' layers accept as well."""
    return flag(name, bool(value) if is_whole(value) and value in (0, 1) else value)


def function(name: str, value: Any, sizes: Sizes | None = None) -> Any:
    """Anything that can be called."""
    if not callable(value):
        raise ValueError(f"`{name}` must be a function. Received: {name}={value!r}")
    return value


def one_of(*allowed: Any) -> Rule:
    """One of the allowed names."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"`{name}` must be one of {list(allowed)}. Received: {name}={value!r}."
                f"{did_you_mean(value, allowed)}"
            )
        return value

    return check


def text(name: str, value: Any, sizes: Sizes | None = None) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be text that is not empty. Received: {name}={value!r}")
    return value


def folder(name: str, value: Any, sizes: Sizes | None = None) -> Path:
    """A local folder, which need not exist."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path or "://" in path:
        raise ValueError(
            f"`{name}` must be a local folder, as a string or a pathlib.Path. Received: "
            f"{name}={value!r}. Copy remote folders to a local folder first."
        )
    return Path(path)


def scalar(name: str, value: Any, sizes: Sizes) -> Any:
    """A finite number, or a tensor of one."""
    is_tensor = hasattr(value, "shape") and not isinstance(value, PLAIN)
    return tensor("")(name, value, sizes) if is_tensor else number()(name, value, sizes)


def instance(
    kind: Any, made_by: str, letter: str = "", size_of: Callable[[Any], int | None] | None = None
) -> Rule:
    """An object of a class.

    Args:
        kind: The class.
        made_by: The expected object in words, for the error message.
        letter: The letter of the object's size.
        size_of: A function from the object to its size.
    """

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"`{name}` must be {made_by}. Received: {name}={value!r}")
        size = None if size_of is None else size_of(value)
        known, source = sizes.setdefault(letter, (size or 0, name))
        if size is not None and known != size:
            raise ValueError(
                f"`{name}` must have {letter}={known}, as in `{source}`. Received: {letter}={size}"
            )
        return value

    return check


def as_tensor(name: str, value: Any, kind: str = "number") -> Any:
    """Returns the value as a tensor of the kind `"number"`, `"integer"`, `"boolean"` or `"tensor"`.

    Raises:
        TypeError: For a value that is neither a tensor nor an array.
        ValueError: For a dtype of another kind.
    """
    if type(value) is float and kind == "number":
        return ops.convert_to_tensor(
            value, "float32"
        )  # through an array it takes five times longer
    if isinstance(value, PLAIN):
        value = _as_array(name, value)
    elif not hasattr(value, "shape") or not hasattr(value, "dtype") or scipy.sparse.issparse(value):
        raise TypeError(
            f"`{name}` must be a tensor or an array. Received: {name}={value!r} of type "
            f"{type(value).__name__}"
        )
    dtype = dtype_name(value.dtype)
    is_integer = dtype.startswith(("int", "uint"))
    if not (is_integer or (kind != "integer" and (dtype in FLOATS or dtype == "bool"))):
        raise ValueError(f"`{name}` must be a tensor of {kind}s. Received: {name}.dtype={dtype}.")
    if kind == "boolean" and dtype in FLOATS:
        _check_zeros_and_ones(name, value)
        return ops.cast(value, "bool")
    if kind == "number" and dtype not in FLOATS:
        return ops.cast(value, "float32")
    return ops.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _check_zeros_and_ones(name: str, value: Any) -> None:
    """Refuses a floating-point mask with numbers other than 0 and 1, such as a bias of -1e9."""
    known = known_value(value)
    if known is None:
        return
    wrong = np.argwhere((known != 0) & (known != 1))
    if len(wrong):
        place = wrong[0].tolist()
        raise ValueError(
            f"`{name}` must hold 0 and 1 only: 1, or True, marks visible entries. Received: "
            f"{float(known[tuple(place)])} at {name}{place}. Compare it first, as in `mask > 0`."
        )


def numpy_of(value: Any) -> Any:
    """The value as a NumPy array: an array of objects if it does not consist of numbers."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # ragged lists, tensors in use
        return np.asarray(None)


def _as_array(name: str, value: Any) -> Any:
    array = numpy_of(value)
    if array.dtype == object:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers. Received: {value!r}")
    if array.size == 0 and isinstance(value, (list, tuple)):
        return array.astype("float32")
    # as everywhere in Keras, a list of Python numbers has the backend's default dtype
    is_list = not isinstance(value, (np.ndarray, np.generic))
    return array.astype("float32") if is_list and array.dtype == "float64" else array


def _rule_of_tensor(shapes: tuple[str, ...], kind: str) -> Rule:
    def check(name: str, value: Any, sizes: Sizes) -> Any:
        value = as_tensor(name, value, kind)
        check_shape(name, value, shapes, sizes)
        return value

    return check
