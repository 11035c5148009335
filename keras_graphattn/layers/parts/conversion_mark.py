"""A mark in files of weights: they cannot be loaded into the attention that was replaced."""

from typing import Any

import numpy as np


class ConversionMark:
    """For layers that `convert` puts in the place of others, and that may add no weights.

    The weights of a converted layer without weights of its own would fit the original layer,
    which computes something else with them. So a file of them has a mark in the place of the
    layer's weights, and Keras refuses to load it into a layer that does not know the mark. Files
    of the original layer have none, and load into both.
    """

    def _conversion_mark(self) -> str:
        return type(self).__name__.removeprefix("Cached")

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        if hasattr(self, "converted_from") and not list(store.keys()):
            store[self._conversion_mark()] = np.ones((1,), "float32")

    def load_own_variables(self, store: Any) -> None:
        names = [name for name in store.keys() if name != self._conversion_mark()]  # noqa: SIM118
        super().load_own_variables({name: store[name] for name in names})  # type: ignore[misc]
