"""Checks the shapes that annotations of the package name, in every call while the tests run.

`install` makes Python read the package's files with a decorator on each function and method that is
not nested in another. Where annotations hold shapes (`keras_graphattn.types`), a call checks
arguments and results: the number of axes, sizes of equal letters, and the kind of numbers. Sizes
that are not known yet fit any size. `None` needs an annotation that allows it. A function may
refuse arguments that do not fit, by a `ValueError` that says what it received.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

PACKAGE = "keras_graphattn"
DECORATOR = "__checks_shapes__"
wrong: list[str] = []  # what calls since the last test did wrong, even if somebody caught the error


class WrongShape(AssertionError):
    """An argument or a result whose shape or kind is not that of its annotation."""


class Place(NamedTuple):
    """What an annotation allows: tensors of some shapes, tuples of such places, other values."""

    shapes: tuple[Any, ...] = ()  # of `keras_graphattn.types.Shape`
    parts: tuple["Place", ...] = ()  # of a tuple
    repeats: bool = False  # a tuple of any length
    has_other: bool = False  # None, or a value that is no tensor


def place_of(annotation: Any) -> Place:
    """What an annotation says about shapes."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        shapes = tuple(x for x in annotation.__metadata__ if type(x).__name__ == "Shape")
        return Place(shapes, has_other=not shapes)
    if origin in (typing.Union, types.UnionType):
        places = [place_of(argument) for argument in arguments]
        return Place(
            tuple(shape for place in places for shape in place.shapes),
            next((place.parts for place in places if place.parts), ()),
            any(place.repeats for place in places),
            any(place.has_other for place in places),
        )
    if origin is tuple and arguments:
        repeats = arguments[-1] is Ellipsis
        parts = tuple(place_of(argument) for argument in arguments if argument is not Ellipsis)
        if any(part.shapes or part.parts for part in parts):
            return Place((), parts, repeats)
    return Place(has_other=True)


def kind_of(value: Any) -> str:
    """ "float", "int" or "bool"."""
    name = str(value.dtype).rpartition(".")[2]
    if "bool" in name:
        return "bool"
    return "float" if "float" in name else "int"


def fits(shape: tuple[Any, ...], pattern: str, sizes: dict[str, int]) -> dict[str, int] | None:
    """The sizes of new letters, or `None` if the shape is not that of the pattern."""
    from keras_graphattn.checks import _letters, _matched

    return _matched(
        shape, _letters(pattern), {letter: (size, "") for letter, size in sizes.items()}
    )


def check(what: str, value: Any, place: Place, sizes: dict[str, int]) -> None:
    """Raises a `WrongShape` for a value that does not fit. Adds the sizes of new letters."""
    if place.parts and isinstance(value, tuple):
        parts = place.parts * len(value) if place.repeats else place.parts
        if len(parts) != len(value) and not place.has_other:
            fail(f"{what} has {len(value)} parts, but its annotation has {len(parts)}")
        for index, (part, one) in enumerate(zip(parts, value, strict=False)):
            check(f"{what}[{index}]", one, part, sizes)
        return
    if not place.shapes:
        return
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        if not place.has_other:
            fail(f"{what} is {value!r}, but its annotation is of a tensor")
        return
    if getattr(value.shape, "rank", 0) is None:  # of TensorFlow, not known yet
        return
    shape = tuple(value.shape)
    for wanted in place.shapes:
        new = fits(shape, wanted.sizes, sizes)
        if new is not None and wanted.kind in ("any", kind_of(value)):
            sizes.update(new)
            return
    known = {letter: size for letter, size in sizes.items() if letter != "_"}
    expected = " or ".join(f"{wanted.kind} ({wanted.sizes.strip()})" for wanted in place.shapes)
    fail(f"{what} is {kind_of(value)} {shape}, but its annotation is {expected} with {known}")


def fail(message: str) -> None:
    wrong.append(message)
    raise WrongShape(message)


_places: dict[types.CodeType, tuple[list[tuple[int, str, Place]], Place]] = {}


def places_of(function: Callable[..., Any]) -> tuple[list[tuple[int, str, Place]], Place]:
    """The arguments of a function that have shapes, with where they stand, and its result."""
    if function.__code__ not in _places:
        found = []
        for index, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            place = place_of(parameter.annotation)
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if (place.shapes or place.parts) and not several:
                keyword = parameter.kind is parameter.KEYWORD_ONLY
                found.append((sys.maxsize if keyword else index, name, place))
        result = place_of(function.__annotations__.get("return"))
        _places[function.__code__] = found, result
    return _places[function.__code__]


def checks_shapes(function: Any) -> Any:
    """The function with checks, if its annotations hold shapes."""
    arguments, result = places_of(function)
    if not arguments and not result.shapes and not result.parts:
        return function
    import torch

    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        sizes: dict[str, int] = {}
        try:
            for index, argument, place in arguments:
                if index < len(args):
                    check(f"{name}: `{argument}`", args[index], place, sizes)
                elif argument in kwargs:
                    check(f"{name}: `{argument}`", kwargs[argument], place, sizes)
        except WrongShape as error:
            try:
                function(*args, **kwargs)
            except ValueError as refusal:
                if "Received: " in str(refusal):  # it refuses the arguments in words
                    wrong.remove(str(error))
                    raise
            except Exception:
                raise error from None
            raise error from None
        value = function(*args, **kwargs)
        check(f"{name}: the result", value, result, sizes)
        return value

    return checking


class _Decorated(ast.NodeTransformer):
    """Puts the decorator on each function of a module or a class, under all others.

    Not on nested ones: they may be made while torch traces.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        decorator = ast.Name(DECORATOR, ast.Load())
        node.decorator_list.append(ast.copy_location(decorator, node))
        return node


class CheckingLoader(importlib.machinery.SourceFileLoader):
    """Reads a file of the package with the decorator, past the cache of compiled files."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if b"[Tensor," not in source:
            return super().get_code(fullname)
        tree = _Decorated().visit(ast.parse(source, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)[DECORATOR] = checks_shapes
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the package's modules where Python does, and loads them with checks."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = CheckingLoader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Checks what is imported from now on."""
    sys.meta_path.insert(0, Finder())


def taken() -> Iterator[str]:
    """What calls did wrong since this was asked last."""
    while wrong:
        yield wrong.pop(0)
