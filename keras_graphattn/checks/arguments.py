"""Arguments of public functions, checked in one place before anything is computed.

`checked` says what each argument has to be. A wrong one gets an error that names it, with what was
expected and what was received, and not an error of the backend from somewhere within:

    @checked(query=tensor("B T N H"), key=tensor("B S N H"), mask=optional(mask("B? N? T? S?")))

The letters are sizes. One letter stands for the same size in all arguments of a call; "?" allows 1
in its place, "_" is any size, and a leading "..." any number of axes. Sizes that are not known
before the run agree with all. Numbers that are not tensors yet become tensors, integers among them
float32 where numbers are computed with.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import keras
import numpy as np
import scipy.sparse
from keras import ops

Sizes = dict[str, tuple[int, str]]  # letter -> size, and the argument that it is known from
Rule = Callable[[str, Any, Sizes], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

FLOATS = ("float16", "bfloat16", "float32", "float64")
PLAIN_CONTAINERS = (np.ndarray, list, tuple, dict, set)
PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def checked(**rules: Rule) -> Callable[[Function], Function]:
    """A decorator that checks, and makes tensors of, the arguments named in `rules`, in order."""

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
    """What `rule` accepts, or None."""
    return lambda name, value, sizes: None if value is None else rule(name, value, sizes)


def tensor(*shapes: str) -> Rule:
    """A tensor of numbers, of one of the shapes; of any without shapes."""
    return functools.partial(_checked_tensor, shapes, "number")


def integers(*shapes: str) -> Rule:
    """A tensor of integers, of one of the shapes."""
    return functools.partial(_checked_tensor, shapes, "integer")


def mask(*shapes: str) -> Rule:
    """A tensor of booleans, or of zeros and ones of any dtype, of one of the shapes."""
    return functools.partial(_checked_tensor, shapes, "boolean")


def tensors(*shapes: str) -> Rule:
    """A dictionary of tensors, all of one of the shapes, of any type that a tensor can have."""

    def check(name: str, value: Any, sizes: Sizes) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a dictionary of tensors. Received: {value!r}")
        found = {key: as_tensor(f"{name}[{key!r}]", x, "tensor") for key, x in value.items()}
        for key, x in found.items():
            check_shape(f"{name}[{key!r}]", x, shapes, sizes)
        return found

    return check


def length(letter: str) -> Rule:
    """The size of an axis: an integer, or whatever stands for one that is not known yet."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        others = (bool, float, complex, str, bytes, np.inexact, np.datetime64, *PLAIN_CONTAINERS)
        is_wrong_tensor = keras.ops.is_tensor(value) and not _is_integer_scalar(value)
        if value is None or isinstance(value, others) or is_wrong_tensor:
            raise ValueError(f"`{name}` must be an integer. Received: {name}={value!r}")
        if not isinstance(value, (int, np.integer)):
            return whole(0)(name, value, sizes) if not hasattr(value, "__floordiv__") else value
        known, source = sizes.get(letter, (value, ""))
        if value < 0 or value != known:
            beside = f", as `{source}` has it" if source else ""
            raise ValueError(f"`{name}` must be {known}{beside}. Received: {name}={value!r}")
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


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_one_of(value: Any, allowed: Sequence[str | None]) -> bool:
    """Whether a value, of whatever type, is one of some names."""
    return (value is None or isinstance(value, str)) and value in allowed


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or another sequence; text and bytes are none."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_integer_scalar(value: Any) -> bool:
    is_scalar = keras.ops.is_tensor(value) and len(value.shape) == 0
    return is_scalar and "int" in keras.backend.standardize_dtype(value.dtype)


def size(least: int = 1) -> Rule:
    """An integer of at least `least`, or whatever stands for a size not known before the run."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        is_symbol = "DimExpr" in type(value).__name__  # of JAX, where an export leaves it open
        return value if is_symbol or _is_integer_scalar(value) else whole(least)(name, value, sizes)

    return check


def number(above: float | None = None, least: float | None = None, below: float = math.inf) -> Rule:
    """A finite Python number, above, at least or below a limit where one is given."""

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
    """Whether a number is finite as a float: an integer may be too large for one."""
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
    """`True` or `False`, or 1 or 0 in their place, as calls of Keras' layers take them."""
    return flag(name, bool(value) if is_whole(value) and value in (0, 1) else value)


def function(name: str, value: Any, sizes: Sizes | None = None) -> Any:
    """Anything that can be called."""
    if not callable(value):
        raise ValueError(f"`{name}` must be a function. Received: {name}={value!r}")
    return value


def one_of(*allowed: Any) -> Rule:
    """One of some names."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"`{name}` must be one of {list(allowed)}. Received: {name}={value!r}")
        return value

    return check


def text(name: str, value: Any, sizes: Sizes | None = None) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be text, and not empty. Received: {name}={value!r}")
    return value


def folder(name: str, value: Any, sizes: Sizes | None = None) -> Path:
    """A folder of this machine, there or not."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path or "://" in path:
        raise ValueError(
            f"`{name}` must be a local folder, as a string or a pathlib.Path. Received: "
            f"{name}={value!r}. Copy folders from and to remote places."
        )
    return Path(path)


def scalar(name: str, value: Any, sizes: Sizes) -> Any:
    """A finite number, or a tensor of one."""
    is_tensor = hasattr(value, "shape") and not isinstance(value, PLAIN)
    return tensor("")(name, value, sizes) if is_tensor else number()(name, value, sizes)


def instance(
    kind: Any, made_by: str, letter: str = "", size_of: Callable[[Any], int | None] | None = None
) -> Rule:
    """An object of a class, with a word on where it comes from, and the size that it has."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"`{name}` must be {made_by}. Received: {name}={value!r}")
        size = None if size_of is None else size_of(value)
        known, source = sizes.setdefault(letter, (size or 0, name))
        if size is not None and known != size:
            raise ValueError(
                f"`{name}` must be of {letter}={known}, as `{source}` is. Received: one of {size}"
            )
        return value

    return check


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
    """Raises a `ValueError` for what is no dtype and no dtype policy of Keras."""
    kinds = (keras.dtype_policies.DTypePolicy, keras.dtype_policies.DTypePolicyMap)
    try:
        is_policy = isinstance(keras.dtype_policies.get(dtype), kinds)
    except Exception:
        is_policy = False
    if not is_policy:
        raise ValueError(f"`dtype` must be a dtype or a dtype policy. Received: dtype={dtype!r}")


@functools.cache
def dtype_name(dtype: Any) -> str:
    """The name of a dtype of the backend or of NumPy, looked up once: calls ask for it often."""
    try:
        return str(keras.backend.standardize_dtype(dtype))
    except (TypeError, ValueError):
        return str(dtype)


def as_tensor(name: str, value: Any, kind: str = "number") -> Any:
    """A tensor, its dtype checked: `"number"`, `"integer"` or `"boolean"`.

    Raises:
        TypeError: For what is no tensor and no array.
        ValueError: For another dtype.
    """
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


def known_values(value: Any) -> np.ndarray | None:
    """The numbers of an array or tensor, or None while a program is traced, built or compiled.

    On an accelerator this waits for the tensor and copies it.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, keras.KerasTensor) or _is_compiling():
        return None
    try:
        return np.asarray(ops.convert_to_numpy(value))
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # a tensor without numbers
        return None


def _is_compiling() -> bool:
    if keras.backend.backend() != "torch":
        return False
    import torch

    return bool(torch.compiler.is_compiling())


def _check_zeros_and_ones(name: str, value: Any) -> None:
    """Refuses a mask of floating-point numbers that says something else, such as a bias of -1e9."""
    known = known_values(value)
    if known is None:
        return
    wrong = np.argwhere((known != 0) & (known != 1))
    if len(wrong):
        place = wrong[0].tolist()
        raise ValueError(
            f"`{name}` must hold 0 and 1 only: 1, or True, marks what may be seen. Received: "
            f"{float(known[tuple(place)])} at {name}{place}. Compare it first, as in `mask > 0`."
        )


def numpy_of(value: Any) -> Any:
    """What NumPy makes of a value: an array of objects where it can make no numbers of it."""
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
    # a list of Python numbers is of the backend's default type, as everywhere in Keras
    is_list = not isinstance(value, (np.ndarray, np.generic))
    return array.astype("float32") if is_list and array.dtype == "float64" else array


def _checked_tensor(shapes: tuple[str, ...], kind: str, name: str, value: Any, sizes: Sizes) -> Any:
    value = as_tensor(name, value, kind)
    check_shape(name, value, shapes, sizes)
    return value


def check_shape(name: str, value: Any, shapes: tuple[str, ...], sizes: Sizes) -> None:
    """Raises a `ValueError` for a tensor of none of the shapes; notes the sizes of its axes."""
    if not shapes or getattr(value.shape, "rank", 0) is None:
        return
    shape = tuple(value.shape)
    for pattern in shapes:
        found = _matched(shape, _letters(pattern), sizes)
        if found is not None:
            for letter, size in found.items():
                sizes.setdefault(letter, (size, name))
            return
    wanted = " or ".join(f"({', '.join(p.replace('?', '').split())})" for p in shapes)
    letters = {letter.rstrip("?") for pattern in shapes for letter in pattern.split()}
    known = [f"{x}={sizes[x][0]} as in `{sizes[x][1]}`" for x in sorted(letters & set(sizes))]
    known_as = f" with {', '.join(known)}" if known else ""
    broadcast = ", or sizes of 1 that broadcast" if any("?" in p for p in shapes) else ""
    raise ValueError(
        f"`{name}` must have shape {wanted}{broadcast}{known_as}. Received: {name}.shape={shape}"
    )


def check_broadcast(name: str, value: Any, of: str, whole_tensor: Any) -> None:
    """Raises a `ValueError` for a tensor that does not broadcast to another one's shape."""
    shape, wanted = tuple(value.shape), tuple(whole_tensor.shape)
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    wrong = (isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs)
    if len(shape) > len(wanted) or any(wrong):
        raise ValueError(
            f"`{name}` must broadcast to the shape of `{of}`, {wanted}. Received: "
            f"{name}.shape={shape}"
        )


@functools.cache
def _letters(pattern: str) -> list[tuple[str, str]]:
    """The letters of a pattern, each as it stands and without its mark."""
    return [(letter, letter.rstrip("?")) for letter in pattern.split()]


def _matched(
    shape: tuple[Any, ...], letters: list[tuple[str, str]], sizes: Sizes
) -> dict[str, int] | None:
    """The new sizes that a shape brings, or None where it does not fit."""
    if letters and letters[-1][0] == "...":
        letters, shape = letters[:-1], shape[: len(letters) - 1]
    elif letters and letters[0][0] == "...":
        letters = letters[1:]
        shape = shape[len(shape) - len(letters) :] if len(shape) >= len(letters) else ()
    if len(shape) != len(letters):
        return None
    found: dict[str, int] = {}
    for size, (letter, name) in zip(shape, letters, strict=True):
        if not isinstance(size, int) or name == "_" or (size == 1 and name != letter):
            continue
        wanted = int(name) if name.isdigit() else found.get(name, sizes.get(name, (size,))[0])
        if size != wanted:
            return None
        if not name.isdigit():
            found[name] = size
    return found
