"""Where attention is in a model: the sites that `convert` can select, owner by owner.

An owner is what is saved as one object with its configuration: a KerasHub backbone, or a layer
such as `TransformerEncoder` in your own model. Its sites are the self-attention layers in
it. Cross-attention is no site: the filter of a matrix that is not square is undefined.
"""

import sys
from typing import Any, NamedTuple

from keras_graphattn.hub.adapters import AttentionAdapter, adapter_of
from keras_graphattn.hub.attentions import is_attention, is_ours, is_reached
from keras_graphattn.keras_internals import layer_attributes, walk

# Layers whose attention looks at other tokens than it answers for. Its matrix may be square, but
# row i and column i are not the same token, so that its powers mean nothing.
# SigLIP, VideoPrism, PaliGemma's tower: learned probes. PARSeq: positions to be read, which look at
# the characters before them. There the square of the matrix would even show a position its own
# character in training.
OTHER_TOKENS = (
    *("SigLIPMultiHeadAttentionPooling", "VideoPrismAttenTokenPoolingLayer"),
    *("MultiHeadAttentionPooling", "PARSeqDecoderBlock"),
)


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
    def adapter(self) -> AttentionAdapter:
        """What knows how the layer there is converted, or was."""
        found = adapter_of(self.layer)
        if found is None:
            raise ValueError(f"No adapter serves {type(self.layer).__name__}: '{self.path}'.")
        return found

    @property
    def is_ready(self) -> bool:
        """Whether the layer there is converted, or can be now."""
        return self.is_converted or self.adapter.is_ready(self.layer)


def direct_sites(layer: Any) -> list[Site]:
    """The sites that are attributes of this very layer."""
    # BLIP-2 keeps its cross-attention in a layer around it, of this name.
    looks_elsewhere = type(layer).__name__ in OTHER_TOKENS or layer.name.startswith(
        "cross_attention"
    )
    if looks_elsewhere or is_attention(layer):
        return []
    return [
        Site(layer, name)
        for name, child in layer_attributes(layer).items()
        if "cross" not in name and (is_reached(child) or is_ours(child))
    ]


def attention_sites(owner: Any) -> list[Site]:
    """All sites in an owner, in the order of its graph."""
    found: dict[int, Site] = {}
    for layer in walk(owner):
        for site in direct_sites(layer):
            found.setdefault(id(site.layer), site)
    return list(found.values())


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
