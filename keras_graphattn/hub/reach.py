"""Which classes can be converted, and what their subclasses are registered as."""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import keras

from keras_graphattn.hub.adapters import ADAPTERS, served_names
from keras_graphattn.hub.attentions import attentions_made_by
from keras_graphattn.hub.carriers import (
    PACKAGE,
    PREFIX,
    about,
    carrier,
    is_known,
    named_carrier,
    plain_class,
    register,
    task_carrier,
)
from keras_graphattn.hub.sites import is_backbone_class, is_task_class
from keras_graphattn.keras_internals import subclasses_of

_REACHED: set[type] = set()


def _names(kind: str) -> list[str]:
    """The names that the adapters give of `"backbones"`, `"layers"` or `"inner_layers"`."""
    return [name for adapter in ADAPTERS for name in getattr(adapter, kind)]


def backbone_names() -> list[str]:
    """The names of KerasHub's backbones that `convert` reaches."""
    return _names("backbones")


def reach(plain: Any) -> type:
    """Makes a class of backbones or layers convertible.

    `convert` takes the attention in attributes of such a layer for self-attention, where an
    adapter serves its class. What is in an instance shows when `convert` sees it: an instance
    that holds no such attention is refused then.

    Args:
        plain: A subclass of `keras_hub.models.Backbone`, or of `keras.layers.Layer`, whose
            self-attention is stock or cached multi-head attention, or of another class that an
            adapter serves, kept in attributes.

    Returns:
        The subclass that a converted instance is of. What is saved can be loaded wherever this
        package and the plain class are there, if that class is registered with Keras. Where it
        is not, and for presets of backbones, a program calls `reach` with the class again;
        KerasHub's and KerasCV's own are known.

    Raises:
        ValueError: For what is no class of layers, for attention itself and for other layers of
            Keras, for KerasHub's tasks, and for classes whose code makes attention of a class
            that no attention can take the place of.

    Example:

    >>> @keras.saving.register_keras_serializable()
    ... class Block(keras.layers.Layer):
    ...     def build(self, shape):
    ...         self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    ...         self.attention.build(shape, shape)
    ...     def call(self, x):
    ...         return self.attention(x, x)
    >>> issubclass(reach(Block), Block)
    True
    """
    if not isinstance(plain, type) or not issubclass(plain, keras.Layer):
        raise ValueError(f"`plain` must be a class of Keras layers. Received: plain={plain!r}")
    plain = plain_class(plain)
    if plain not in _REACHED:
        _check_class(plain)
    return _reach(plain)


def _reach(plain: type) -> type:
    _REACHED.add(plain)
    is_named = is_backbone_class(plain) and plain.__name__ not in _names("inner_layers")
    return named_carrier(plain) if is_named else carrier(plain)


def _check_class(plain: type) -> None:
    """Refuses classes that cannot hold attention that `convert` replaces."""
    is_stock = issubclass(plain, keras.layers.MultiHeadAttention)
    if plain.__module__.startswith("keras.") or is_stock or plain.__name__ in served_names():
        raise ValueError(
            "`plain` must be a class whose instances hold multi-head attention in attributes. "
            f"Received: plain={plain!r}, a layer of Keras, or attention itself."
        )
    if is_task_class(plain):
        raise ValueError(
            "`plain` must be a class of backbones or layers: tasks are converted with their "
            f"backbones. Received: plain={plain!r}. Call reach({plain.__name__}.backbone_cls)."
        )
    stock, others = attentions_made_by(plain)
    if others and not stock:
        raise ValueError(
            f"{plain.__name__} makes no attention that convert replaces: its attention is "
            f"of class {', '.join(others)}. It replaces {', '.join(served_names())}. "
            f"Received: plain={plain!r}"
        )


def is_reachable(layer: Any) -> bool:
    """Whether the layer is of a class, plain or converted, that was reached."""
    return plain_class(type(layer)) in _REACHED


def _reach_preprocessing(plain: Any) -> None:
    """Lets `from_preset` find a tokenizer, preprocessor or image converter of a converted backbone.

    KerasHub looks for a class of the backbone's very class. The one that it finds here is never
    made: presets hold the plain one, and that is what is loaded.
    """

    def load_plain(cls: Any, loader: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"loaded": loader.load_preprocessor(plain, **arguments)}

    namespace = {
        "backbone_cls": named_carrier(plain.backbone_cls),
        "__new__": lambda cls, *, loaded: loaded,
        "_add_missing_kwargs": classmethod(load_plain),
    }
    new = type(PREFIX + plain.__name__, (plain,), namespace | about(plain))
    register(plain, keras.saving.register_keras_serializable(PACKAGE)(new))


def reach_keras_hub() -> None:
    """Registers the subclasses for KerasHub; runs when KerasHub is imported."""
    keras_hub = sys.modules["keras_hub"]
    for name in _names("modules"):
        with suppress(ModuleNotFoundError):  # another release may keep its layers elsewhere
            import_module(name)
    for name in backbone_names():
        if hasattr(keras_hub.models, name):
            _reach(getattr(keras_hub.models, name))
    for name in _names("layers"):
        _reach(getattr(keras_hub.layers, name))
    inner = _names("inner_layers")
    for known in subclasses_of(keras.Layer):
        if known.__name__ in inner and known.__module__.startswith("keras_hub."):
            _reach(known)
    registered: set[Any] = set(keras.saving.get_custom_objects().values())
    for known in registered:
        if getattr(known, "backbone_cls", None) not in _REACHED or is_known(known):
            continue
        if issubclass(known, keras_hub.models.Task):
            task_carrier(known)
        else:
            _reach_preprocessing(known)


def reach_keras_cv() -> None:
    """Registers the subclass for KerasCV's encoder; runs when KerasCV is imported."""
    _reach(sys.modules["keras_cv"].layers.TransformerEncoder)


def reached_names() -> list[str]:
    """The public names of the classes that are reached; before KerasHub is imported, of all."""
    names, known = {cls.__name__ for cls in _REACHED}, [*backbone_names(), *_names("layers")]
    return [name for name in known if name in names] or known
