"""Checks the arguments of the functions for several devices."""

import re
from typing import Any

import keras

from keras_graphattn.checks import Rule, Sizes, instance, whole

mesh = instance(keras.distribution.DeviceMesh, "a keras.distribution.DeviceMesh")
size_of_matrix = whole(0, below=2**63)


def check_backend(fix: str = "Set KERAS_BACKEND=jax.") -> None:
    """Raises a `ValueError` if the backend is not JAX."""
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Keras distributes weights and tensors over devices on the backend jax only. Received: "
            f"the backend {keras.backend.backend()}. {fix}"
        )


def axis_of(device_mesh: Any) -> Rule:
    """The name of an axis of a mesh."""

    def check(name: str, value: Any, sizes: Sizes) -> str:
        if not isinstance(value, str) or value not in device_mesh.axis_names:
            raise ValueError(
                f"`{name}` must be an axis of the mesh, one of {list(device_mesh.axis_names)}. "
                f"Received: {name}={value!r}"
            )
        return value

    return check


def built(name: str, value: Any, sizes: Sizes) -> Any:
    """A built model or layer."""
    if not isinstance(value, keras.Layer) or not value.built or not value.variables:
        raise ValueError(
            f"`{name}` must be a built Keras model or layer, with weights. Received: "
            f"{name}={value!r}. Call it on data first."
        )
    return value


def paths_in(model: Any) -> Rule:
    """A list of regular expressions; each must match the path of a weight of the model."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        if not isinstance(value, (list, tuple)):
            raise ValueError(
                f"`{name}` must be a list of regular expressions. Received: {name}={value!r}"
            )
        paths = [variable.path for variable in model.variables]
        for pattern in value:
            expression = _compiled(name, pattern)
            if not any(expression.search(path) for path in paths):
                raise ValueError(
                    f"`{name}` names {pattern!r}, which matches no weight of '{model.name}'. Its "
                    f"weights have paths like {paths[:3]}"
                )
        return value

    return check


def rules_on(device_mesh: Any = None) -> Rule:
    """A layout map for the given mesh, or for any mesh. Its rules must be regular expressions."""

    def check(name: str, value: Any, sizes: Sizes) -> Any:
        instance(keras.distribution.LayoutMap, "a keras.distribution.LayoutMap")(name, value, sizes)
        of = value.device_mesh
        mesh(f"{name}.device_mesh", of, sizes)
        if device_mesh is not None and _described(of) != _described(device_mesh):
            raise ValueError(
                f"`{name}` must be for the mesh {device_mesh}. Received: {name} for the mesh {of}"
            )
        for pattern in value:
            _compiled(name, pattern)
        return value

    return check


def _described(device_mesh: Any) -> Any:
    # meshes have no equality of their own
    devices = [str(device) for device in device_mesh.devices.flat]
    return tuple(device_mesh.shape), tuple(device_mesh.axis_names), devices


def _compiled(name: str, pattern: Any) -> "re.Pattern[str]":
    try:
        if isinstance(pattern, str):
            return re.compile(pattern)
        reason = f"it is of type {type(pattern).__name__}"
    except (re.error, OverflowError, RecursionError) as error:
        reason = str(error)
    raise ValueError(
        f"`{name}` must hold regular expressions. Received: {pattern!r}, which is invalid: {reason}"
    )
