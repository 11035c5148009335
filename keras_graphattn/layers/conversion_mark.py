"""A mark in weight files, so that a converted layer's file does not load into the original layer.

A converted layer without weights of its own has the same weights as the layer that it replaced,
but computes something else with them. Its file of weights therefore holds a mark, and Keras
refuses to load the file into a layer that does not know the mark. Files of the original layer
have no mark and load into both layers.
"""

from typing import Any

import numpy as np


class ConversionMark:
    """A base of layers that `convert` puts into models."""

    def _conversion_mark(self) -> str:
        """The name of the mark: that of the layer's class, the same with and without a cache."""
        return type(self).__name__.removeprefix("Cached")

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        if hasattr(self, "converted_from"):
            store[self._conversion_mark()] = np.ones((1,), "float32")

    def load_own_variables(self, store: Any) -> None:
        names = [name for name in store.keys() if name != self._conversion_mark()]  # noqa: SIM118
        super().load_own_variables({name: store[name] for name in names})  # type: ignore[misc]
