"""Objects in a layer's configuration, created from a name, an object or a configuration."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import keras

from keras_graphattn.checks import did_you_mean

Found = TypeVar("Found")


def restored(name: str, given: Any) -> Any:
    """Deserialises a configuration dictionary; other values are returned unchanged.

    Args:
        name: The argument's name, for the error message.
        given: Any value.

    Raises:
        ValueError: If the dictionary is not a configuration that Keras can deserialise.
    """
    if not isinstance(given, dict):
        return given
    try:
        return keras.saving.deserialize_keras_object(given)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"`{name}` cannot be restored from its configuration. The cause: "
            f"{type(error).__name__}: {reason}"
        ) from error


def _needed(cls: Any) -> list[str]:
    """The arguments that the constructor of a class needs, without `self`."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [one.name for one in parameters if one.kind is plain and one.default is one.empty]


def _hint(name: str, given: Any, base: type, registry: Mapping[str, Any]) -> str:
    """What was meant by a class, by a name of a class that needs arguments, or by another name."""
    meant = registry.get(given) if isinstance(given, str) else given
    if isinstance(meant, type) and issubclass(meant, base):
        arguments = ", ".join(f"{argument}=..." for argument in _needed(meant))
        return f" Give an object: {name}={meant.__name__}({arguments})."
    return did_you_mean(given, list(registry))


def resolve(
    name: str,
    given: Any,
    base: type[Found],
    registry: Mapping[str, type[Found]],
    **options: Any,
) -> Found:
    """Returns the object for an argument that may be a name, an object or a configuration.

    Args:
        name: The argument's name, for error messages.
        given: A key of `registry`, an instance of `base`, or the configuration of an instance.
        base: The class of the object.
        registry: Maps each name to its class.
        **options: Arguments of the class. They are used only if `given` is a name. Options that
            are `None` are left out.

    Returns:
        An instance of `base`.

    Raises:
        ValueError: If `given` is anything else, such as a name of a class that needs arguments;
            or if it is not a name and options are given.
    """
    options = {key: value for key, value in options.items() if value is not None}
    if isinstance(given, str) and given in registry and not _needed(registry[given]):
        return registry[given](**options)
    found = restored(name, given)
    if not isinstance(found, base):
        raise ValueError(
            f"`{name}` must be one of {[one for one in registry if not _needed(registry[one])]}, "
            f"or a `keras_graphattn.{base.__module__.split('.')[1]}.{base.__name__}`. Received: "
            f"{name}={given!r}.{_hint(name, given, base, registry)}"
        )
    if options:
        received = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ValueError(
            f"{', '.join(f'`{key}`' for key in options)} may only be given if `{name}` is a name. "
            f"Received: {name}={given!r}, {received}. Pass it to the constructor of "
            f"{type(found).__name__} instead."
        )
    return found
