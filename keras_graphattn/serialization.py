"""Objects inside a layer's configuration: made from a name, an object or a configuration."""

from collections.abc import Mapping
from typing import Any, TypeVar

import keras

Found = TypeVar("Found")


def restored(name: str, given: Any) -> Any:
    """Deserialises a configuration dictionary; other values are returned unchanged.

    Args:
        name: The argument's name, for the error.
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


def resolve(
    name: str,
    given: Any,
    base: type[Found],
    registry: Mapping[str, type[Found]],
    **options: Any,
) -> Found:
    """The object that an argument means: a name of a registry, an object, or a configuration.

    Args:
        name: The argument's name, for errors.
        given: A key of `registry`, an instance of `base`, or its configuration.
        base: The class of the objects.
        registry: The classes that have names.
        **options: Arguments of the class, for a `given` that is a name. Those that are `None` are
            left out.

    Returns:
        An instance of `base`.

    Raises:
        ValueError: For anything else, and for options beside an object.
    """
    options = {key: value for key, value in options.items() if value is not None}
    if isinstance(given, str) and given in registry:
        return registry[given](**options)
    found = restored(name, given)
    if not isinstance(found, base):
        raise ValueError(
            f"`{name}` must be one of {list(registry)}, or a "
            f"`keras_graphattn.{base.__module__.split('.')[1]}.{base.__name__}`. Received: "
            f"{name}={given!r}"
        )
    if options:
        received = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ValueError(
            f"{', '.join(f'`{key}`' for key in options)} belongs to a `{name}` given by its name. "
            f"Received: {name}={given!r}, {received}. Give it to the constructor of "
            f"{type(found).__name__} instead."
        )
    return found
