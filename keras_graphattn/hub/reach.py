"""What lasts: registered subclasses of backbones, tasks and layers that convert themselves.

A layer that is swapped in place is lost on save, since a configuration holds the arguments of the
constructor alone. So a converted object becomes one of a registered subclass, whose configuration
carries the conversions and whose constructor makes them.
"""

import functools
import sys
from typing import Any

import keras

from keras_graphattn.hub.compiling import compile_methods
from keras_graphattn.hub.sites import attention_sites, is_backbone
from keras_graphattn.hub.spec import Conversions
from keras_graphattn.hub.surgery import added_variables, align_caches, convert_site

PACKAGE = "keras_graphattn"
PREFIX = "GraphAttention"
KEY = "graph_attention"

BACKBONES = (
    *("BertBackbone", "RobertaBackbone", "XLMRobertaBackbone", "DistilBertBackbone"),
    *("ElectraBackbone", "AlbertBackbone", "BartBackbone", "ViTBackbone", "DeiTBackbone"),
    *("CLIPBackbone", "SigLIPBackbone", "DINOV2Backbone", "GPT2Backbone", "OPTBackbone"),
    "WhisperBackbone",
)
LAYERS = ("TransformerEncoder", "TransformerDecoder")

_CONVERTED: dict[type, type] = {}


def reach(plain: Any) -> type:
    """Makes a class of backbones or layers convertible, and what is converted loadable.

    Args:
        plain: A subclass of `keras_hub.models.Backbone`, or of `keras.layers.Layer`, whose
            self-attention is stock or cached multi-head attention kept in attributes.

    Returns:
        The registered subclass that a converted instance is of. To load what was saved, a program
        calls `reach` with the same class again; KerasHub's and KerasCV's own are known.

    Example:

    >>> @keras.saving.register_keras_serializable()
    ... class Block(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    ...         self.attention.build(shape, shape)
    ...     def call(self, x):
    ...         return self.attention(x, x)
    >>> reach(Block).__name__
    'GraphAttentionBlock'
    """
    if not isinstance(plain, type) or not issubclass(plain, keras.Layer):
        raise ValueError(f"`plain` must be a class of Keras layers. Received: plain={plain!r}")
    if plain not in _CONVERTED:
        new = _subclass(plain)
        _CONVERTED[plain] = keras.saving.register_keras_serializable(PACKAGE)(new)
    return _CONVERTED[plain]


def is_reachable(layer: Any) -> bool:
    """Whether the layer's class, plain or converted, is one that can be saved converted."""
    return type(layer) in _CONVERTED or type(layer) in _CONVERTED.values()


def plain_class(cls: type) -> type:
    """The class that a converted one stands for; any other as it is."""
    return next((plain for plain, new in _CONVERTED.items() if new is cls), cls)


def reach_task(plain: Any) -> type:
    """The registered subclass of a KerasHub task whose backbone is converted."""
    if plain not in _CONVERTED:
        backbone_cls = reach(plain.backbone_cls) if plain.backbone_cls is not None else None
        namespace = {"backbone_cls": backbone_cls} | compile_methods(plain) | _about(plain)
        new = type(PREFIX + plain.__name__, (plain,), namespace)
        _CONVERTED[plain] = keras.saving.register_keras_serializable(PACKAGE)(new)
    return _CONVERTED[plain]


def _reach_preprocessing(plain: Any) -> None:
    """Lets `from_preset` find a tokenizer, preprocessor or image converter of a converted backbone.

    KerasHub looks for a class of the backbone's very class. The one that it finds here is never
    made: presets hold the plain one, and that is what is loaded.
    """

    def load_plain(cls: Any, loader: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"loaded": loader.load_preprocessor(plain, **arguments)}

    namespace = {
        "backbone_cls": _CONVERTED[plain.backbone_cls],
        "__new__": lambda cls, *, loaded: loaded,
        "_add_missing_kwargs": classmethod(load_plain),
    }
    new = type(PREFIX + plain.__name__, (plain,), namespace | _about(plain))
    _CONVERTED[plain] = keras.saving.register_keras_serializable(PACKAGE)(new)


def conversions_of(owner: Any) -> Conversions:
    """The conversions that an owner carries, none at first."""
    found: Conversions | None = getattr(owner, "_graph_attention", None)
    return Conversions([]) if found is None else found


def apply_conversions(owner: Any) -> None:
    """Makes the conversions that a new owner carries, once its attention layers are there."""
    sites = attention_sites(owner)
    for entry in conversions_of(owner).entries:
        for index in entry.sites:
            if index < len(sites) and not sites[index].is_converted:
                convert_site(sites[index], entry.attention, entry.options)
    align_caches(sites)


def _about(plain: type) -> dict[str, Any]:
    return {
        "__module__": __name__,
        "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
    }


def _subclass(plain: Any) -> type:
    """A subclass that takes the conversions as the argument `graph_attention`."""

    # Not `functools.wraps`: Keras reads the signature in two ways, of which one sees through it.
    def __init__(self: Any, *args: Any, graph_attention: Any = (), **kwargs: Any) -> None:
        plain.__init__(self, *args, **kwargs)
        self._graph_attention = Conversions.from_config(graph_attention)
        apply_conversions(self)

    def get_config(self: Any) -> dict[str, Any]:
        return {**plain.get_config(self), KEY: conversions_of(self).get_config()}

    namespace = {"__init__": __init__, "get_config": get_config} | _about(plain)
    namespace |= compile_methods(plain)
    if not issubclass(plain, keras.Model):
        plain_build = plain.build

        @functools.wraps(plain_build)
        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            plain_build(self, *args, **kwargs)
            apply_conversions(self)

        namespace["build"] = build
    if hasattr(plain, "enable_lora"):
        namespace["enable_lora"] = _enable_lora(plain)
    return type(PREFIX + plain.__name__, (plain,), namespace)


def _enable_lora(plain: Any) -> Any:
    @functools.wraps(plain.enable_lora)
    def enable_lora(self: Any, *args: Any, **kwargs: Any) -> Any:
        layers = [site.layer for site in attention_sites(self) if site.is_converted]
        kept = [v for layer in layers for v in added_variables(layer) if v.trainable]
        result = plain.enable_lora(self, *args, **kwargs)
        for variable in kept:
            variable.trainable = True
        return result

    return enable_lora


def reach_keras_hub() -> None:
    """Registers the subclasses for KerasHub; runs when KerasHub is imported."""
    keras_hub = sys.modules["keras_hub"]
    for name in BACKBONES:
        if hasattr(keras_hub.models, name):
            reach(getattr(keras_hub.models, name))
    for name in LAYERS:
        reach(getattr(keras_hub.layers, name))
    registered: set[Any] = set(keras.saving.get_custom_objects().values())
    for known in registered:
        if getattr(known, "backbone_cls", None) not in _CONVERTED or known in _CONVERTED:
            continue
        if issubclass(known, keras_hub.models.Task):
            reach_task(known)
        else:
            _reach_preprocessing(known)


def reach_keras_cv() -> None:
    """Registers the subclass for KerasCV's encoder; runs when KerasCV is imported."""
    reach(sys.modules["keras_cv"].layers.TransformerEncoder)


def refusal(layer: Any) -> str:
    """Why an owner cannot be converted, and what can."""
    reached = [cls.__name__ for cls in _CONVERTED if cls.__name__ in (*BACKBONES, *LAYERS)]
    if is_backbone(layer):
        return (
            f"{type(layer).__name__} is not among the backbones that convert reaches: "
            f"{', '.join(reached)}. Backbones with an attention class of their own need a layer "
            "that stands in for it (keras_graphattn.hub.register_attention); for one with stock "
            "or cached multi-head attention call keras_graphattn.hub.reach(<its class>)."
        )
    return (
        f"{type(layer).__name__} '{layer.name}' holds multi-head attention, but is of no class "
        "that would be saved with it converted. Reached layers and backbones are: "
        f"{', '.join(reached)}. For a layer class of your own call "
        "keras_graphattn.hub.reach(<its class>) first."
    )
