"""Objects in a layer's configuration, created from a name, an object or a configuration."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import keras

from keras_graphattn.checks import did_you_mean

Base = TypeVar("Base")


class Configured:
    """Base of objects that are equal if their configurations are equal."""

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The object that `get_config` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


def by_snake_case(classes: Iterable[type]) -> dict[str, Any]:
    """Classes by name: `low_rank` is `LowRank`."""
    return {re.sub(r"\B([A-Z])", r"_\1", cls.__name__).lower(): cls for cls in classes}


def restored(name: str, value: object) -> Any:
    """Deserialises a configuration dictionary; other values are returned unchanged."""
    if not isinstance(value, dict):
        return value
    try:
        return keras.saving.deserialize_keras_object(value)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"`{name}` cannot be restored from its configuration. The cause: "
            f"{type(error).__name__}: {reason}"
        ) from error


def resolve(
    name: str,
    value: object,
    base: type[Base],
    registry: Mapping[str, type[Base]],
    **options: object,
) -> Base:
    """The instance of `base` for an argument: a key of `registry`, an instance or a configuration.

    If the argument is a name, the options are the arguments of the class; `None` counts as left
    out.
    """
    options = {key: option for key, option in options.items() if option is not None}
    if isinstance(value, str) and value in registry and not _needed(registry[value]):
        return registry[value](**options)
    instance = restored(name, value)
    if not isinstance(instance, base):
        meant = registry.get(value) if isinstance(value, str) else value
        if isinstance(meant, type) and issubclass(meant, base):
            hint = _object_of(meant, name, registry)
        else:
            hint = did_you_mean(value, list(registry))
        raise ValueError(
            f"`{name}` must be one of {[one for one in registry if not _needed(registry[one])]}, "
            f"or a `keras_graphattn.{base.__module__.split('.')[1]}.{base.__name__}`. Received: "
            f"{name}={value!r}.{hint}"
        )
    if options:
        received = ", ".join(f"{key}={option!r}" for key, option in options.items())
        raise ValueError(
            f"{', '.join(f'`{key}`' for key in options)} may only be given if `{name}` is a name. "
            f"Received: {name}={value!r}, {received}. Pass it to the constructor of "
            f"{type(instance).__name__} instead."
        )
    return instance


def _object_of(cls: type, name: str, registry: Mapping[str, type]) -> str:
    """The part of an error message that says which object to give instead of a class."""
    classes = list(registry.values())
    names = ", ".join(dict.fromkeys(c.__name__ for c in classes if issubclass(c, cls)))
    if names and cls not in classes:  # a base, of which there is no object
        return f" {cls.__name__} is a base class. Give an object of a class made of it: {names}."
    arguments = ", ".join(f"{argument}=..." for argument in _needed(cls))
    return f" Give an object: {name}={cls.__name__}({arguments})."


def _needed(cls: type) -> list[str]:
    """The arguments that the constructor of a class needs, without `self`."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [one.name for one in parameters if one.kind is plain and one.default is one.empty]
