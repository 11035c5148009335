"""What is said about models that `convert` cannot work on, and what to do instead."""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters import adapter_of, served_names
from keras_graphattn.hub.attentions import (
    attentions_made_by,
    is_attention,
    is_ours,
    is_reached,
)
from keras_graphattn.hub.reach import reached_names
from keras_graphattn.hub.sites import Site, is_backbone
from keras_graphattn.keras_internals import walk

INSTEAD = (
    "In your own model, use a layer of keras_graphattn.layers where the model is built: "
    "GraphFilterAttention takes the arguments of keras.layers.MultiHeadAttention and starts with "
    "its outputs. If a layer class of your own holds keras.layers.MultiHeadAttention in an "
    "attribute, call keras_graphattn.hub.reach(<the class>) first, and then convert."
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
    if is_ours(layer):
        return (
            f"{name} '{layer.name}' is a layer of the model itself and graph attention already: "
            "there is nothing to convert in it or to revert."
        )
    if is_attention(layer):
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
        f"{', '.join(served_names())} in KerasHub's and KerasCV's backbones and layers "
        f"({', '.join(reached_names())}). {INSTEAD}"
    )


def check_selected(sites: Sequence[Site], selected: Sequence[int], where: Any) -> None:
    """Refuses selected layers that no attention can take the place of, all of them in one error.

    Args:
        sites: All sites of the model.
        selected: Indices of those that are to be converted.
        where: What selected them.
    """
    reasons = {index: _reason(sites[index]) for index in selected}
    refused = [index for index in selected if reasons[index] is not None]
    if not refused:
        return
    lines = [f"  {index:3d}  {sites[index].path}: {reasons[index]}" for index in refused]
    plain = [index for index, site in enumerate(sites) if is_reached(site.layer)]
    others = [index for index in plain if _reason(sites[index]) is None]
    hint = (
        f"Select others: where={others}." if others else "There is no other attention to convert."
    )
    listed = "\n".join(["Some of the selected layers cannot be converted.", *lines])
    raise ValueError(f"{listed}\nReceived: where={where!r}. {hint}")


def _reason(site: Site) -> str | None:
    adapter = adapter_of(site.layer)
    return None if adapter is None else adapter.refusal(site.layer)


def check_registered(model: Any) -> None:
    """Refuses layers that have the name of a class that is replaced, but are of another."""
    for layer in walk(model):
        if type(layer).__name__ in served_names() and adapter_of(layer) is None:
            raise ValueError(
                f"'{layer.path or layer.name}' is of class {type(layer).__name__}, which "
                "convert replaces by name, but it is no such class of Keras or KerasHub: its "
                "projections cannot be kept."
            )
