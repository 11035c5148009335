"""The living layers and models that hold a layer: Keras does not keep the way upwards.

A converted layer may be part of a model that `convert` was not given. That model must carry the
conversion when it is saved or cloned, and must not go on with functions that it compiled before.
"""

import gc
from typing import Any

import keras

from keras_graphattn.hub.sites import attention_sites
from keras_graphattn.keras_internals import sublayers, walk


def holders_of(model: Any) -> list[Any]:
    """All layers of this process that hold attention of a model, but are no part of the model.

    Args:
        model: A Keras layer or model.

    Returns:
        A list of layers, the nearest first: those that hold the model, and those that were
        composed of its layers.
    """
    inside = {id(layer) for layer in walk(model)}
    # `type`: an object that stands in for another may load a module when asked for its class
    others = [
        x for x in gc.get_objects() if issubclass(type(x), keras.Layer) and id(x) not in inside
    ]
    children = {id(layer): {id(child) for child in _children(layer)} for layer in others}
    held = {id(model), *(id(site.parent) for site in attention_sites(model))}
    found: list[Any] = []
    while new := [x for x in others if id(x) not in held and children[id(x)] & held]:
        found += new
        held |= {id(layer) for layer in new}
    return found


def _children(layer: Any) -> list[Any]:
    try:
        return sublayers(layer)
    except AttributeError:  # its constructor has not run to its end
        return []
