"""Checks the options that our layers share with `keras.layers.MultiHeadAttention`."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_graphattn.checks import (
    check_dtype_policy,
    flag,
    is_list,
    is_whole,
    number,
    optional,
    whole,
)

MAKERS = {
    "kernel_initializer": keras.initializers.get,
    "bias_initializer": keras.initializers.get,
    "kernel_regularizer": keras.regularizers.get,
    "bias_regularizer": keras.regularizers.get,
    "activity_regularizer": keras.regularizers.get,
    "kernel_constraint": keras.constraints.get,
    "bias_constraint": keras.constraints.get,
}


def check_options(options: dict[str, Any]) -> None:
    """Raises a `ValueError` for the first invalid option.

    Args:
        options: Arguments of `keras.layers.MultiHeadAttention`, by name.
    """
    window = options.get("sliding_window")
    if window is not None and not (is_whole(window) and 0 < window < 2**31):
        raise ValueError(
            "`sliding_window` must be `None` or a positive integer. Received: "
            f"sliding_window={window!r}"
        )
    _check_axes(options.get("attention_axes"))
    for name in ("num_heads", "key_dim", "value_dim"):
        size = options.get(name)  # Keras itself refuses other types
        if isinstance(size, bool) or (isinstance(size, int) and size >= 2**31):
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={size!r}")
    if "dropout" in options:
        number()("dropout", options["dropout"], {})
    check_dtype_policy(options.get("dtype"))
    for name in ("use_bias", "use_gate"):
        if name in options:
            flag(name, options[name])
    seed = options.get("seed")
    if not isinstance(seed, keras.random.SeedGenerator):
        optional(whole(0))("seed", seed, {})
    shape = options.get("output_shape")
    if shape is not None and not (is_list(shape) or is_whole(shape)):
        raise ValueError(
            f"Invalid `output_shape`: {shape!r}. When specified, the `output_shape` should be of "
            "type tuple, list, or int."
        )
    if shape is not None:
        for size in shape if is_list(shape) and len(shape) else [shape]:
            whole()("output_shape", size, {})
    for name, make in MAKERS.items():
        given = options.get(name)
        # `None` is valid for a regularizer or a constraint, but not for an initializer
        if given is None and (name not in options or not name.endswith("initializer")):
            continue
        if given is None:
            raise ValueError(f"`{name}` must be an initializer. Received: {name}=None")
        try:
            make(options[name])
        except Exception as error:
            raise ValueError(
                f"`{name}` cannot be used. Received: {name}={options[name]!r}. The cause: {error}"
            ) from error


def refuse_options(layer: Any, given: dict[str, Any], names: Sequence[str], fix: str) -> None:
    """Raises a `ValueError` for the first of the named options that is given.

    Args:
        layer: The layer that cannot use the options.
        given: The options given to the layer, by name; `None` counts as not given.
        names: The options to refuse.
        fix: What the caller can do instead, one or more sentences.
    """
    for name in names:
        if given.get(name) is not None:
            raise ValueError(
                f"{type(layer).__name__} does not support `{name}`. Received: "
                f"{name}={given[name]!r}. {fix}"
            )


def _check_axes(axes: Any) -> None:
    given = axes if is_list(axes) else [] if axes is None else [axes]
    if (axes is not None and not given) or not all(
        is_whole(axis) and -(2**31) < axis < 2**31 for axis in given
    ):
        raise ValueError(
            "`attention_axes` must be an int, list, or tuple of at least one axis. Received: "
            f"attention_axes={axes!r}"
        )
