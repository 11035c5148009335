"""What is said about models that `convert` cannot work on, and what to do instead."""

from typing import Any

import keras

from keras_graphattn.hub.attentions import attentions_made_by, replaced_names
from keras_graphattn.hub.reach import reached_names
from keras_graphattn.hub.sites import is_backbone, walk
from keras_graphattn.layers.parts.multi_head import MultiHeadLayer

INSTEAD = (
    "In a model of one's own, use a layer of keras_graphattn.layers where the model is built: "
    "GraphFilterAttention takes the arguments of keras.layers.MultiHeadAttention and starts with "
    "its outputs."
)


def refusal(layer: Any) -> str:
    """Why a layer cannot be converted, and what can."""
    name, reached = type(layer).__name__, ", ".join(reached_names())
    if is_backbone(layer):
        _, others = attentions_made_by(type(layer))
        own = f" It makes attention of class {', '.join(others)}." if others else ""
        return (
            f"{name} is not among the backbones that convert reaches: {reached}.{own} For a "
            "backbone with stock or cached multi-head attention call "
            "keras_graphattn.hub.reach(<its class>)."
        )
    if isinstance(layer, MultiHeadLayer):
        return (
            f"{name} '{layer.name}' is a layer of the model itself and graph attention already: "
            "there is nothing to convert in it or to revert."
        )
    if isinstance(layer, keras.layers.MultiHeadAttention):
        return (
            f"{name} '{layer.name}' is a layer of the model itself. convert replaces attention "
            f"inside of KerasHub's and KerasCV's backbones and layers: {reached}. {INSTEAD}"
        )
    return (
        f"{name} '{layer.name}' holds multi-head attention, but is of no class that convert "
        f"knows. Reached layers and backbones are: {reached}. For a layer class of your own call "
        "keras_graphattn.hub.reach(<its class>) first."
    )


def nothing_to_convert(model: Any) -> str:
    """That there is no self-attention in a model, and what to do instead."""
    name = f"{type(model).__name__} '{model.name}'"
    if not model.built or any(not layer.built for layer in walk(model)):
        return (
            f"{name} has no self-attention yet: it is not built, or a layer in it is not. Build "
            "it, or call it on data once, and then convert it."
        )
    return (
        f"{name} has no self-attention that convert reaches: it replaces "
        f"{', '.join(replaced_names())} in KerasHub's and KerasCV's backbones and layers "
        f"({', '.join(reached_names())}). {INSTEAD}"
    )


def check_registered(model: Any) -> None:
    """Refuses layers that were registered as replaced by name, but lack the projections."""
    for layer in walk(model):
        is_stock = isinstance(layer, keras.layers.MultiHeadAttention)
        if type(layer).__name__ in replaced_names() and not is_stock:
            raise ValueError(
                f"'{layer.path or layer.name}' is of class {type(layer).__name__}, which "
                "register_attention names as replaced, but it is no subclass of "
                "keras.layers.MultiHeadAttention: its projections cannot be kept."
            )
