"""Finds and changes attention layers in a model: the slots that `convert` can select.

A slot is a self-attention layer in an attribute of its parent, or in a list or dictionary that is
one. Cross-attention is in no slot: the filter of a matrix that is not square is undefined. In every
case the projections stay the very same sublayers with their variables, paths, quantisation and LoRA
factors: no weight is copied.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import keras

from keras_graphattn.hub.converted import CacheSlots, Options
from keras_graphattn.hub.families import Row, is_attention, is_ours, is_reached, row_of, view
from keras_graphattn.hub.stock import widened
from keras_graphattn.keras_internals import (
    change_class,
    is_distributed,
    layer_attributes,
    living_layers_above,
    makes_distributed,
    walk,
)

# Layers whose queries are not the tokens that they attend to. The matrix may be square, but
# row i and column i are not the same token, so that its powers mean nothing.
# SigLIP, VideoPrism, PaliGemma's tower: learned probes. PARSeq: positions that look at the
# characters before them. There the square of the matrix would even show a position its own
# character in training.
OTHER_TOKENS = (
    *("SigLIPMultiHeadAttentionPooling", "VideoPrismAttenTokenPoolingLayer"),
    *("MultiHeadAttentionPooling", "PARSeqDecoderBlock"),
)


CROSS = re.compile(r"(?<![a-z])cross")  # in the name of an attribute with cross-attention


class Request(NamedTuple):
    """The options of one call of `convert`."""

    attention: str
    options: Options

    def own_options(self) -> Options:
        """A copy of the options, so that layers do not share a mask with weights."""
        config = _unshared(keras.saving.serialize_keras_object(dict(self.options)))
        return keras.saving.deserialize_keras_object(config)  # type: ignore[no-any-return]


def _unshared(config: object) -> object:
    """A configuration without the marks of objects that Keras shares within a file."""
    if isinstance(config, dict):
        return {key: _unshared(x) for key, x in config.items() if key != "shared_object_id"}
    return [_unshared(x) for x in config] if isinstance(config, list) else config


@dataclass(frozen=True, eq=False)
class ConversionRecord:
    """Data that a converted layer keeps for `revert` and for files. Keras does not track it."""

    row: Row
    request: Request
    take_back: Callable[[keras.Layer], None]


class AttentionSlot(NamedTuple):
    """One self-attention layer: an attribute of its parent layer, or in a list that is one."""

    parent: keras.Layer
    layer: keras.Layer

    @property
    def path(self) -> str:
        """The path of the layer, as its variables have it."""
        return str(self.layer.path or f"{self.parent.path or self.parent.name}/{self.layer.name}")

    @property
    def is_converted(self) -> bool:
        """Whether this layer is attention of this package."""
        return hasattr(self.layer, "converted_from")

    @property
    def refusal_reason(self) -> str | None:
        """Why the layer cannot be converted; `None` if it can be, or already is."""
        return None if is_ours(self.layer) else view(self.layer).refusal_reason()

    def prepared(self, request: Request) -> Callable[[], None]:
        """A function that converts the layer. All errors are raised here."""
        layer, shown = self.layer, view(self.layer)
        row = cast("Row", row_of(layer))
        replacement = row.replacement(request.attention)
        if not layer.built:
            raise ValueError(
                f"'{self.path}' is not built, and {type(layer).__name__} can be converted only "
                "once it is. Build the model, or call it on data once."
            )
        _check_devices(self.path, shown.projection_layers()["query"])
        change = shown.prepared_change(replacement, self.parent, request.own_options())

        def convert() -> None:
            take_back = change(layer)
            layer.converted_from = ConversionRecord(row, request, take_back)

        return convert

    def revert(self) -> None:
        """Undoes the conversion; all weights except the added ones stay as they are."""
        self.layer.converted_from.take_back(self.layer)


def _check_devices(path: str, query: keras.Layer) -> None:
    """Refuses a layer whose new weights would be on other devices than those it has."""
    weight = query.variables[0]  # `kernel` is a sum under LoRA
    if is_distributed(weight) and not makes_distributed():
        raise ValueError(
            f"'{path}' was built under a distribution over devices, and none is set now: new "
            "weights would be on one device, and training would fail. Convert within the scope "
            "of that distribution (keras.distribution, or a tf.distribute strategy)."
        )
    if makes_distributed() and not is_distributed(weight):
        raise ValueError(
            f"'{path}' was built on one device, and a distribution over devices is set now: "
            "new weights would be on all of them, and training would fail. Build the model within "
            "the distribution's scope; or convert it before the distribution is set, and then "
            "call keras_graphattn.distribution.distribute(model) (jax)."
        )


def convert_slots(slots: Sequence[AttentionSlot], request: Request) -> None:
    """Converts the attention layers of all slots, or of none."""
    prepared = [slot.prepared(request) for slot in slots]
    done: list[AttentionSlot] = []
    try:
        for slot, convert in zip(slots, prepared, strict=True):
            convert()
            done.append(slot)
    except BaseException:
        for slot in done:
            slot.revert()
        raise


def direct_slots(layer: keras.Layer) -> list[AttentionSlot]:
    """The slots that are attributes of this layer itself, or in lists and dictionaries there."""
    if type(layer).__name__ in OTHER_TOKENS or is_attention(layer):
        return []
    if layer.name.startswith("cross_attention"):  # BLIP-2 keeps its cross-attention in such a layer
        return []
    attributes = layer_attributes(layer)
    cross = {id(child) for name, child in attributes.items() if CROSS.search(name)}
    children = {id(x): x for x in attributes.values() if is_reached(x) or is_ours(x)}
    return [AttentionSlot(layer, x) for key, x in children.items() if key not in cross]


def attention_slots(owner: keras.Layer) -> list[AttentionSlot]:
    """All slots in a layer or model, in the order of its graph."""
    slots: dict[int, AttentionSlot] = {}
    for layer in walk(owner):
        for slot in direct_slots(layer):
            slots.setdefault(id(slot.layer), slot)
    return list(slots.values())


def added_variables(layer: keras.Layer) -> list[keras.Variable]:
    """The weights of a converted layer that the replaced one did not have."""
    return view(layer).added_variables() if layer.built else []


def align_caches(owner: keras.Layer, slots: Sequence[AttentionSlot]) -> None:
    """Gives all decoder layers in a model the same number of cache slots, converted or not."""
    layers = [(slot.layer, row_of(slot.layer)) for slot in slots]
    converted = [layer for layer, _ in layers if isinstance(layer, CacheSlots)]
    count = max((layer.needed_slots for layer in converted), default=2)
    for layer in converted:
        layer.cache_slots = count
    for layer, row in layers:
        if isinstance(layer, CacheSlots) or row is None:
            continue
        if row.has_cache or row.family.stacks_caches:
            plain: type = getattr(type(layer), "plain_class", type(layer))
            _pass_on(layer, widened(plain, row.cache_argument) if count > 2 else plain, count)
    besides = {row.class_beside for _, row in layers if row is not None and row.class_beside}
    for layer in walk(owner) if besides else ():
        for class_beside in besides:
            new = class_beside(layer, count)
            if new is not None:
                _pass_on(layer, new, count)


def _pass_on(layer: keras.Layer, new: type, count: int) -> None:
    """Changes the class of a layer that is not converted to one that passes on the cache slots."""
    change_class(layer, new)
    if count > 2:
        layer.cache_slots = count


def parents_of(model: keras.Layer) -> list[keras.Layer]:
    """All layers of this process that contain attention of a model, but do not belong to it.

    A model that was composed of the same layers must carry the conversion when it is saved or
    cloned, and must drop the functions that it compiled before. Keras does not know which layers
    contain a layer. The nearest come first: those that hold the model, then those that hold them.
    """
    held = {id(model), *(id(slot.parent) for slot in attention_slots(model))}
    return living_layers_above(held, {id(layer) for layer in walk(model)})


def is_backbone_class(cls: type) -> bool:
    """Whether this is a class of KerasHub backbones; `False` where KerasHub is not imported."""
    keras_hub = sys.modules.get("keras_hub")
    return keras_hub is not None and issubclass(cls, keras_hub.models.Backbone)


def is_task_class(cls: type) -> bool:
    """Whether this is a class of KerasHub tasks; `False` where KerasHub is not imported."""
    keras_hub = sys.modules.get("keras_hub")
    return keras_hub is not None and issubclass(cls, keras_hub.models.Task)
