"""Where attention is in a model: the sites that `convert` can select, owner by owner.

An owner is what is saved as one object with its configuration: a KerasHub backbone, or a layer
such as `TransformerEncoder` in a model of one's own. Its sites are the self-attention layers in
it. Cross-attention is no site: the filter of a matrix that is not square is undefined.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras

from keras_graphattn.hub.attentions import is_reached
from keras_graphattn.hub.internals import layer_attributes, sublayers
from keras_graphattn.layers.parts.multi_head import MultiHeadLayer

# Layers whose stock attention looks at other tokens than it answers for (learned probes).
POOLING = ("SigLIPMultiHeadAttentionPooling",)


class Site(NamedTuple):
    """One self-attention layer: an attribute of its parent layer."""

    parent: Any
    attribute: str

    @property
    def layer(self) -> Any:
        """The attention layer that is there now."""
        return getattr(self.parent, self.attribute)

    @property
    def path(self) -> str:
        """The path of the layer, as its variables have it."""
        return str(self.layer.path or f"{self.parent.path or self.parent.name}/{self.layer.name}")

    @property
    def is_converted(self) -> bool:
        """Whether the layer there is one of ours."""
        return hasattr(self.layer, "converted_from")

    @property
    def is_causal(self) -> bool:
        """Whether the parent lets tokens see only themselves and tokens before them."""
        if any(base.__name__ == "TransformerDecoder" for base in type(self.parent).__mro__):
            return True
        return bool(getattr(self.parent, "use_causal_mask", False))


def direct_sites(layer: Any) -> list[Site]:
    """The sites that are attributes of this very layer."""
    if type(layer).__name__ in POOLING or isinstance(layer, keras.layers.MultiHeadAttention):
        return []
    return [
        Site(layer, name)
        for name, child in layer_attributes(layer).items()
        if "cross" not in name and (is_reached(child) or isinstance(child, MultiHeadLayer))
    ]


def attention_sites(owner: Any) -> list[Site]:
    """All sites in an owner, in the order of its graph."""
    found: dict[int, Site] = {}
    for layer in walk(owner):
        for site in direct_sites(layer):
            found.setdefault(id(site.layer), site)
    return list(found.values())


def walk(layer: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The layer and all layers in it, depth first, each once."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield layer
    for child in sublayers(layer):
        yield from walk(child, seen)


def is_backbone_class(cls: type) -> bool:
    """Whether this is a class of KerasHub backbones; `False` where KerasHub is not imported."""
    keras_hub = sys.modules.get("keras_hub")
    return keras_hub is not None and issubclass(cls, keras_hub.models.Backbone)


def is_task_class(cls: type) -> bool:
    """Whether this is a class of KerasHub tasks; `False` where KerasHub is not imported."""
    keras_hub = sys.modules.get("keras_hub")
    return keras_hub is not None and issubclass(cls, keras_hub.models.Task)


def is_backbone(layer: Any) -> bool:
    """Whether this is a KerasHub backbone."""
    return is_backbone_class(type(layer))


def is_task(layer: Any) -> bool:
    """Whether this is a KerasHub task."""
    return is_task_class(type(layer))
