"""The reference: every public name of the package, and the page where it is."""

import functools
import importlib
import inspect
import types
from typing import NamedTuple

import keras_graphattn

# A page for each name of these, and one page for all names of each of the others.
PAGE_EACH = ("layers", "masks")
PACKAGES = {
    "layers": "Layers",
    "masks": "Masks",
    "biases": "Biases of scores",
    "filters": "Filters",
    "feature_maps": "Feature maps",
    "hub": "KerasHub models",
    "graphs": "Graphs as data",
    "optimizers": "Optimizers",
    "analysis": "Analysis",
    "distribution": "Several devices",
    "export": "Export for serving",
    "operators": "Operators of attention",
    "ops": "Operations on tensors",
}


class Place(NamedTuple):
    """A page of the site, and an object on it."""

    page: str
    identifier: str  # of the object on the page, or empty: the page as a whole


def names_of(package: str) -> list[str]:
    """The public names of a package, or of a module that has no `__all__`."""
    module = importlib.import_module(f"keras_graphattn.{package}")
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = inspect.getmembers(module, lambda x: getattr(x, "__module__", "") == module.__name__)
    return [name for name, _ in own if not name.startswith("_")]


@functools.cache
def places() -> dict[str, Place]:
    """The place of each public name, such as "keras_graphattn.layers.ContraNorm"."""
    public_places = {}
    for package in PACKAGES:
        for name in names_of(package):
            identifier = f"keras_graphattn.{package}.{name}"
            page = f"{package}/{name}.md" if package in PAGE_EACH else f"api/{package}.md"
            public_places[identifier] = Place(page, identifier)
    objects = {
        id(_object(name)): place for name, place in public_places.items() if callable(_object(name))
    }
    for name in keras_graphattn.__all__:
        public = getattr(keras_graphattn, name)
        if isinstance(public, types.ModuleType):
            page = f"{name}/index.md" if name in PAGE_EACH else f"api/{name}.md"
            public_places[f"keras_graphattn.{name}"] = Place(page, "")
        elif name == "__version__":
            public_places["keras_graphattn.__version__"] = Place("changelog.md", "")
        else:
            public_places[f"keras_graphattn.{name}"] = objects[id(public)]
    return public_places


def _object(identifier: str) -> object:
    module, _, name = identifier.rpartition(".")
    return getattr(importlib.import_module(module), name)


@functools.cache
def class_identifiers() -> dict[str, str]:
    """The identifiers of public classes by their names, but for names that stand for several."""
    identifiers: dict[str, set[str]] = {}
    for name, place in places().items():
        if place.identifier and inspect.isclass(_object(name)):
            identifiers.setdefault(name.rpartition(".")[2], set()).add(place.identifier)
    return {name: next(iter(which)) for name, which in identifiers.items() if len(which) == 1}


def summary(identifier: str) -> str:
    """The first sentence of an object's docstring, on one line."""
    public = _object(identifier)
    has_text = callable(public) or isinstance(public, types.ModuleType)
    text = inspect.getdoc(public) if has_text else None
    return " ".join((text or f"`{_value(public)}`").split("\n\n")[0].split())


def _value(constant: object) -> str:
    names = [str(name) for name in constant] if isinstance(constant, (dict, tuple, list)) else None
    return ", ".join(names) if names is not None else repr(constant)


def page_of_package(package: str) -> str:
    """The page of all names of a package."""
    blocks = [f"::: keras_graphattn.{package}.{name}" for name in names_of(package)]
    return "\n\n".join([_about(package), *blocks]) + "\n"


def list_of_package(package: str) -> str:
    """The page that leads to the page of each name of a package."""
    rows = [_row(f"keras_graphattn.{package}.{name}", f"{name}.md") for name in names_of(package)]
    return "\n\n".join([_about(package), _table(rows)]) + "\n"


def _about(package: str) -> str:
    """A title, and what a package's docstring says to its users, not to contributors."""
    text = inspect.getdoc(importlib.import_module(f"keras_graphattn.{package}")) or ""
    text = text.split("\n\nA new ")[0].split(" One file\n")[0]
    return f"# {PACKAGES[package]}\n\n`keras_graphattn.{package}`: {text}"


def _row(identifier: str, target: str) -> str:
    text = summary(identifier).replace("|", "\\|")
    return f"| [`{identifier.rpartition('.')[2]}`]({target}) | {text} |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| name | what it is |", "| --- | --- |", *rows])


def index() -> str:
    """The page of all public names."""
    rows: dict[str, list[str]] = {}
    for name, place in places().items():
        package = name.removeprefix("keras_graphattn").rpartition(".")[0].removeprefix(".")
        anchor = f"#{place.identifier}" if place.identifier else ""
        rows.setdefault(package, []).append(_row(name, f"../{place.page}{anchor}"))
    parts = ["# Every public name", "The names of `keras_graphattn` and of its packages."]
    for package in ("", *PACKAGES):
        title = f"keras_graphattn.{package}".rstrip(".")
        parts.append(f"## `{title}`\n\n{_table(rows[package])}")
    return "\n\n".join(parts) + "\n"
