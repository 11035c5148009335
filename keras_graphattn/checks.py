"""Checks the arguments of public functions before anything is computed.

`checked` gives a rule for each argument; an argument whose annotation is a tensor of floats has its
rule from there. A wrong argument raises an error that names it, with the expected and the received
value, instead of an error from inside the backend:

    @checked(mask=optional(mask("B? N? T? S?")))
    def attend(query: Float[Tensor, "B T N H"], key: Float[Tensor, "B S N H"], mask=None):

The letters are sizes. A letter has the same size in all arguments of a call. "?" allows 1 instead,
"_" is any size, and a leading "..." is any number of axes. Sizes that are not known before the run
fit any size. Arrays, lists and numbers become tensors. For `tensor`, integers become float32;
`floats` refuses them.
"""

import difflib
import functools
import inspect
import math
import os
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, cast

import keras
import numpy as np
import scipy.sparse
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.types import Num, Shape, Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

BACKENDS = ("tensorflow", "jax", "torch")
if keras.backend.backend() not in BACKENDS:
    raise ImportError(
        f"keras_graphattn needs a Keras backend with gradients: {', '.join(BACKENDS)}. Received: "
        f"{keras.backend.backend()!r}. Set the environment variable KERAS_BACKEND to one of them "
        "before `import keras`."
    )

PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def known_value(value: Num[Tensor, "..."] | ArrayLike) -> Array | None:
    """Returns the numbers of an array or tensor, or None where they are not known yet.

    They are not known while code is traced, built or compiled. A tensor on an accelerator is
    copied to the host, which waits for it.
    """
    if isinstance(value, PLAIN):
        return numpy_of(value)
    if isinstance(value, keras.Variable):
        value = value.value
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
            return None
        return np.asarray(value) if value.is_fully_addressable else None
    if backend == "tensorflow":
        return np.asarray(value.numpy()) if hasattr(value, "numpy") else None
    import torch

    # While Keras infers shapes, it fills every tensor with ones: those numbers mean nothing.
    with keras.SymbolicScope() as scope:
        is_traced = scope.original_scope is not None or traced_by_torch()
    if is_traced or not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return None
    value = value.detach()
    try:
        value = value.float() if value.dtype == torch.bfloat16 else value  # NumPy has no bfloat16
        return np.asarray(value.cpu().numpy())
    except RuntimeError:  # a batched tensor without numbers, as under `torch.func.vmap`
        return None


def traced_by_torch() -> bool:
    """Whether torch traces code now, to compile or to export it. Then it unrolls loops."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def cached(function: Function) -> Function:
    """`functools.lru_cache`; under torch.compile, which warns of it, the function itself."""
    kept: Any = functools.lru_cache(maxsize=256)(function)
    if keras.backend.backend() != "torch":
        return cast("Function", kept)
    import torch

    @functools.wraps(function)
    def cached_but_compiled(*arguments: Hashable) -> object:
        return (function if torch.compiler.is_compiling() else kept)(*arguments)

    return cast("Function", cached_but_compiled)


Sizes = dict[str, tuple[int, str]]  # letter -> size, and the argument that has it


def check_shape(
    name: str, value: Num[Tensor, "..."], shapes: tuple[str, ...], sizes: Sizes
) -> None:
    """Raises a `ValueError` if the tensor has none of the shapes; else records its sizes."""
    if not shapes or getattr(value.shape, "rank", 0) is None:
        return
    shape = tuple(value.shape)
    for pattern in shapes:
        new_sizes = _matched(shape, _letters(pattern), sizes)
        if new_sizes is not None:
            for letter, size in new_sizes.items():
                sizes.setdefault(letter, (size, name))
            return
    wanted = " or ".join(f"({', '.join(p.replace('?', '').split())})" for p in shapes)
    letters = {letter.rstrip("?") for pattern in shapes for letter in pattern.split()}
    others = [f"{x}={sizes[x][0]} as in `{sizes[x][1]}`" for x in sorted(letters & set(sizes))]
    given_sizes = f" with {', '.join(others)}" if others else ""
    broadcast = ", or sizes of 1 that broadcast" if any("?" in p for p in shapes) else ""
    raise ValueError(
        f"`{name}` must have shape {wanted}{broadcast}{given_sizes}. Received: {name}.shape={shape}"
    )


def check_broadcast(
    name: str, value: Num[Tensor, "..."], of: str, whole_tensor: Num[Tensor, "..."]
) -> None:
    """Raises a `ValueError` if a tensor does not broadcast to the shape of another."""
    shape, wanted = tuple(value.shape), tuple(whole_tensor.shape)
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    wrong = (isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs)
    if len(shape) > len(wanted) or any(wrong):
        raise ValueError(
            f"`{name}` must broadcast to the shape of `{of}`, {wanted}. Received: "
            f"{name}.shape={shape}"
        )


@cached
def _letters(pattern: str) -> list[tuple[str, str]]:
    """The letters of a pattern, each with and without its question mark."""
    return [(letter, letter.rstrip("?")) for letter in pattern.split()]


def _matched(
    shape: tuple[object, ...], letters: list[tuple[str, str]], sizes: Sizes
) -> dict[str, int] | None:
    """The sizes that a shape gives to new letters, or `None` if it does not fit."""
    if letters and letters[-1][0] == "...":
        letters, shape = letters[:-1], shape[: len(letters) - 1]
    elif letters and letters[0][0] == "...":
        letters = letters[1:]
        shape = shape[len(shape) - len(letters) :] if len(shape) >= len(letters) else ()
    if len(shape) != len(letters):
        return None
    new: dict[str, int] = {}
    for size, (letter, name) in zip(shape, letters, strict=True):
        if not isinstance(size, int) or name == "_" or (size == 1 and name != letter):
            continue
        wanted = int(name) if name.isdigit() else new.get(name, sizes.get(name, (size,))[0])
        if size != wanted:
            return None
        if not name.isdigit():
            new[name] = size
    return new


def plain_name(name: str) -> str:
    """A name in lower case, without spaces, hyphens and underscores."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


def did_you_mean(value: object, names: Iterable[object] | Mapping[str, str]) -> str:
    """Returns " Did you mean 'causal'?" if text, or a class's name, is close to a name.

    The names may be a dictionary from further names to the right ones.
    """
    pairs = names.items() if isinstance(names, Mapping) else ((name, name) for name in names)
    right = {plain_name(other): name for other, name in pairs if isinstance(other, str)}
    text = value.__name__ if isinstance(value, type) else value
    close = difflib.get_close_matches(plain_name(text), right, 1) if isinstance(text, str) else []
    return f" Did you mean {right[close[0]]!r}?" if close else ""


FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_dtype_policy(dtype: object) -> None:
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
def dtype_name(dtype: object) -> str:
    """The name of a dtype of the backend or of NumPy; cached, as every call needs it."""
    try:
        return str(keras.backend.standardize_dtype(dtype))
    except (TypeError, ValueError):
        return str(dtype)


Rule = Callable[[str, Any, Sizes], Any]  # from a name and a value to the checked value


def checked(**special: Rule) -> Callable[[Function], Function]:
    """A decorator that checks arguments, in order, and makes tensors of those that must be.

    `special` are the rules of arguments whose annotation is not a tensor of floats.
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        names = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        floats = {name: _shapes_of(p.annotation) for name, p in parameters.items()}
        rules = {name: tensor(*shapes) for name, shapes in floats.items() if shapes} | special

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


def _shapes_of(annotation: object) -> list[str]:
    """The shapes of `Float[Tensor, ...]`; none for other annotations."""
    notes = getattr(annotation, "__metadata__", ())
    return [note.sizes for note in notes if isinstance(note, Shape) and note.kind == "float"]


def optional(rule: Rule) -> Rule:
    """A rule that accepts `None` and all that `rule` accepts."""
    return lambda name, value, sizes: None if value is None else rule(name, value, sizes)


def tensor(*shapes: str, kind: str = "number") -> Rule:
    """A tensor of one of the shapes; of any shape if none is given."""

    def check(name: str, value: object, sizes: Sizes) -> Tensor:
        tensor = as_tensor(name, value, kind)
        check_shape(name, tensor, shapes, sizes)
        return tensor

    return check


floats = functools.partial(tensor, kind="float")  # tokens: integers are ids, or a mistake
integers = functools.partial(tensor, kind="integer")
mask = functools.partial(tensor, kind="boolean")  # or of zeros and ones of any dtype


def whole(least: int = 1, below: int = 2**31) -> Rule:
    """A Python integer of at least `least`, and less than `below`."""

    def check(name: str, value: object, sizes: Sizes) -> int:
        if is_whole(value) and least <= value < below:
            return int(value)
        limit = f" and less than {below}" if is_whole(value) and value >= below else ""
        raise ValueError(
            f"`{name}` must be an integer of at least {least}{limit}. Received: {name}={value!r}"
        )

    return check


def seed_of(seed: int | None) -> int:
    """The seed, or a random one if it is `None`, which `keras.utils.set_random_seed` fixes."""
    return random.randint(1, 10**9) if seed is None else whole(0, 2**63)("seed", seed, {})


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list or another sequence, but not text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def plain(value: object) -> Any:
    """Scalars, arrays of one axis and ranges, also in a list, as Python's numbers and lists."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return value.tolist()
    if isinstance(value, (list, range)):
        return [plain(part) for part in value]
    return tuple([plain(part) for part in value]) if isinstance(value, tuple) else value


def size(least: int = 1) -> Rule:
    """An integer of at least `least`, or the backend's symbol for an unknown size."""

    def check(name: str, value: Any, sizes: Sizes) -> object:
        is_symbol = type(value).__name__ in ("_DimExpr", "SymInt")  # in exports by JAX and torch
        is_scalar = keras.ops.is_tensor(value) and len(value.shape) == 0
        if is_symbol or (is_scalar and "int" in keras.backend.standardize_dtype(value.dtype)):
            return value
        return whole(least)(name, value, sizes)

    return check


def number(above: float | None = None, least: float | None = None, below: float = math.inf) -> Rule:
    """A finite Python number; greater than `above`, at least `least` and less than `below`."""

    def check(name: str, value: Any, sizes: Sizes) -> float:
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        if is_number and not isinstance(value, bool) and is_finite(value):
            is_low = (above is not None and value <= above) or (least is not None and value < least)
            if not is_low and value < below:
                return float(value)
        limit = "" if above is None else f" above {above:g}"
        limit = limit if least is None else f" of at least {least:g}"
        limit += "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"`{name}` must be a finite number{limit}. Received: {name}={value!r}")

    return check


scale_of_scores = number(least=-3e38, below=3e38)  # about the largest numbers of float32


def is_finite(value: float) -> bool:
    """Whether a number is finite as a float. An integer may be too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def flag(name: str, value: object, sizes: Sizes | None = None) -> bool:
    """`True` or `False`."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def switch(name: str, value: object, sizes: Sizes | None = None) -> bool:
    """`True` or `False`, or 1 or 0, which calls of Keras' layers accept as well."""
    return flag(name, bool(value) if is_whole(value) and value in (0, 1) else value)


def function(name: str, value: object, sizes: Sizes) -> Callable[..., object]:
    """Anything that can be called."""
    if not callable(value):
        raise ValueError(f"`{name}` must be a function. Received: {name}={value!r}")
    return value


def one_of(*allowed: str) -> Rule:
    """One of the allowed names."""

    def check(name: str, value: object, sizes: Sizes) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(
                f"`{name}` must be one of {list(allowed)}. Received: {name}={value!r}."
                f"{did_you_mean(value, allowed)}"
            )
        return value

    return check


def text(name: str, value: object, sizes: Sizes | None = None) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be text that is not empty. Received: {name}={value!r}")
    return value


def folder(name: str, value: object, sizes: Sizes | None = None) -> Path:
    """A local folder, which need not exist."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path or "://" in path:
        raise ValueError(
            f"`{name}` must be a local folder, as a string or a pathlib.Path. Received: "
            f"{name}={value!r}. Copy remote folders to a local folder first."
        )
    return Path(path)


def instance(
    kind: type, made_by: str, letter: str = "", size_of: Callable[[Any], int | None] | None = None
) -> Rule:
    """An object of a class, described in words; `size_of` gives its size for a letter."""

    def check(name: str, value: object, sizes: Sizes) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"`{name}` must be {made_by}. Received: {name}={value!r}")
        size = None if size_of is None else size_of(value)
        first, source = sizes.setdefault(letter, (size or 0, name))
        if size is not None and first != size:
            raise ValueError(
                f"`{name}` must have {letter}={first}, as in `{source}`. Received: {letter}={size}"
            )
        return value

    return check


def as_tensor(name: str, value: Any, kind: str = "number") -> Num[Tensor, "..."]:
    """Returns the value as a tensor of the kind `"number"`, `"float"`, `"integer"` or `"boolean"`.

    Integers and booleans become numbers, but are refused as floats. Integers become booleans.
    """
    if type(value) is float and kind == "number":  # through an array it takes five times longer
        return ops.convert_to_tensor(value, "float32")
    if isinstance(value, PLAIN):
        value = _as_array(name, value)
    elif not hasattr(value, "shape") or not hasattr(value, "dtype") or scipy.sparse.issparse(value):
        raise TypeError(
            f"`{name}` must be a tensor or an array. Received: {name}={value!r} of type "
            f"{type(value).__name__}"
        )
    dtype = dtype_name(value.dtype)
    is_integer = dtype.startswith(("int", "uint"))
    if kind == "float" and (is_integer or dtype == "bool"):
        raise ValueError(
            f"`{name}` must be a tensor of floats. Received: {name}.dtype={dtype}. Embed ids with "
            "keras.layers.Embedding, or cast numbers with keras.ops.cast."
        )
    if not (is_integer or (kind != "integer" and (dtype in FLOATS or dtype == "bool"))):
        raise ValueError(f"`{name}` must be a tensor of {kind}s. Received: {name}.dtype={dtype}.")
    if kind == "boolean" and dtype != "bool":
        if dtype in FLOATS:
            _check_zeros_and_ones(name, value)
        return ops.cast(value, "bool")
    if kind == "number" and dtype not in FLOATS:
        return ops.cast(value, "float32")
    return ops.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _check_zeros_and_ones(name: str, value: Num[Tensor, "..."]) -> None:
    """Refuses a floating-point mask with numbers other than 0 and 1, such as a bias of -1e9."""
    numbers = known_value(value)
    if numbers is None:
        return
    wrong = np.argwhere((numbers != 0) & (numbers != 1))
    if len(wrong):
        place = wrong[0].tolist()
        added = " Numbers that are added to the scores are an `attention_bias`."
        raise ValueError(
            f"`{name}` must hold 0 and 1 only: 1, or True, marks visible entries. Received: "
            f"{float(numbers[tuple(place)])} at {name}{place}. Compare it first, as in `mask > 0`."
            f"{added if name == 'attention_mask' else ''}"
        )


def numpy_of(value: object) -> Array:
    """The value as a NumPy array: an array of objects if it does not consist of numbers."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # ragged lists, tensors in use
        return np.asarray(None)


def _as_array(name: str, value: object) -> Array:
    array = numpy_of(value)
    if array.dtype == object:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers. Received: {value!r}")
    if array.size == 0 and isinstance(value, (list, tuple)):
        return array.astype("float32")
    # as everywhere in Keras, a list of Python numbers has the backend's default dtype
    is_list = not isinstance(value, (np.ndarray, np.generic))
    return array.astype("float32") if is_list and array.dtype == "float64" else array
