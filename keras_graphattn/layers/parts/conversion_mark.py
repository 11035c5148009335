"""A mark in weight files, so that a converted layer's file does not load into the original layer.

A converted layer without weights of its own has the same weights as the layer that it replaced,
but computes something else with them. Its file of weights therefore holds a mark, and Keras
refuses to load the file into a layer that does not know the mark. Files of the original layer
have no mark and load into both layers.
"""

from typing import Any

import numpy as np


def mark_of(layer: Any) -> str:
    """The name of the mark: that of the layer's class, the same with and without a cache."""
    return type(layer).__name__.removeprefix("Cached")


def add_mark(layer: Any, store: Any) -> None:
    """Adds the mark to the stored variables of a converted layer that has no weights of its own."""
    if hasattr(layer, "converted_from") and not list(store.keys()):
        store[mark_of(layer)] = np.ones((1,), "float32")


def without_mark(layer: Any, store: Any) -> dict[str, Any]:
    """The stored variables of a layer, without the mark."""
    return {name: store[name] for name in store.keys() if name != mark_of(layer)}  # noqa: SIM118
