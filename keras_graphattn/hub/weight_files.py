"""Files of weights of converted models: the original model refuses to read them.

Keras reports a layer whose weights do not fit, unless it meets the layer a second time, at a place
that the file has nothing for. In many backbones it does, and so the original read the file of a
converted one without the coefficients, and said nothing. Keras meets a model itself only once. So
a converted model saves one number more, which only a converted one takes.
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_graphattn.hub.spec import KEY


def weight_methods(plain: Any) -> dict[str, Any]:
    """What a converted subclass of `plain` overrides so that the original cannot read its file."""
    if not issubclass(plain, keras.Model):
        return {}

    @functools.wraps(plain.save_own_variables)
    def save_own_variables(self: Any, store: Any) -> None:
        plain.save_own_variables(self, store)
        store[KEY] = np.ones((), "int32")

    @functools.wraps(plain.load_own_variables)
    def load_own_variables(self: Any, store: Mapping[str, Any]) -> None:
        plain.load_own_variables(self, {key: store[key] for key in set(store.keys()) - {KEY}})

    return {"save_own_variables": save_own_variables, "load_own_variables": load_own_variables}
