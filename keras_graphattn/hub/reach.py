"""Registers the classes of layers that `convert` can change, and their subclasses."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import keras

from keras_graphattn.hub.families import Config, names_of, served_names
from keras_graphattn.hub.saving import (
    PREFIX,
    REACHED,
    about,
    carrier,
    is_known,
    plain_class,
    register,
    task_carrier,
)
from keras_graphattn.hub.slots import is_backbone_class, is_task_class
from keras_graphattn.keras_internals import subclasses_of


def reach(plain: type) -> type:
    """Makes a class of backbones or layers convertible, or of preprocessing loadable with one.

    `convert` treats the attention in attributes of such a layer as self-attention, if it knows its
    family and "cross" is in no name of its attributes or keys. Only `convert` can see the layers of
    an instance: it refuses an instance without such attention.

    Args:
        plain: A subclass of `keras_hub.models.Backbone`, or of `keras.layers.Layer`, whose
            self-attention is stock or cached multi-head attention, or of another class of a family
            that is known, kept in attributes, or in lists and dictionaries there. Or a class of
            tokenizers, preprocessors or image converters of your own, whose `backbone_cls` is
            reached: then `from_preset` finds it in presets of converted backbones, too.

    Returns:
        The subclass that a converted instance is of, or that stands for the class in presets. What
        is saved can be loaded wherever this package and the plain class are there, if that class is
        registered with Keras. Where it is not, and for presets of backbones, a program calls
        `reach` with the class again; KerasHub's and KerasCV's own are known.

    Raises:
        ValueError: For what is no class of layers, for attention itself and for other layers of
            Keras, and for KerasHub's tasks.

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
    if plain in REACHED:
        return _reach(plain)
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
    if getattr(plain, "backbone_cls", None) in REACHED:
        return _reach_preprocessing(plain)
    return _reach(plain)


def _reach(plain: type) -> type:
    REACHED.add(plain)
    is_named = is_backbone_class(plain) and plain.__name__ not in names_of("inner_layers")
    return carrier(plain, is_named)


def reached_names() -> list[str]:
    """The public names of the classes that are reached; before KerasHub is imported, of all."""
    reached = {cls.__name__ for cls in REACHED}
    names = [*names_of("backbones"), *names_of("layers")]
    return [name for name in names if name in reached] or names


def _reach_preprocessing(plain: type[keras.Layer]) -> type:
    """Lets `from_preset` find a tokenizer, preprocessor or image converter of a converted backbone.

    KerasHub looks for one that names exactly the class of the backbone. The class that it finds
    here is never instantiated: presets contain the plain class, which is loaded.
    """

    def load_plain(cls: type, /, loader: Any, arguments: Config) -> dict[str, object]:
        return {"loaded": loader.load_preprocessor(plain, **arguments)}

    namespace = {
        "backbone_cls": carrier(plain.backbone_cls, is_named=True),
        "__new__": lambda cls, *, loaded: loaded,
        "_add_missing_kwargs": classmethod(load_plain),
    }
    if not is_known(plain):
        register(plain, type(PREFIX + plain.__name__, (plain,), namespace | about(plain)))
    return carrier(plain)


def _reach_keras_hub() -> None:
    keras_hub = sys.modules["keras_hub"]
    for name in names_of("modules"):
        with suppress(ModuleNotFoundError):  # another release may keep its layers elsewhere
            import_module(name)
    for name in names_of("backbones"):
        if hasattr(keras_hub.models, name):
            _reach(getattr(keras_hub.models, name))
    for name in names_of("layers"):
        _reach(getattr(keras_hub.layers, name))
    inner = names_of("inner_layers")
    for cls in subclasses_of(keras.Layer):
        if cls.__name__ in inner and cls.__module__.startswith("keras_hub."):
            _reach(cls)
    for cls in set(keras.saving.get_custom_objects().values()):
        if getattr(cls, "backbone_cls", None) not in REACHED or is_known(cls):
            continue
        if is_task_class(cls):
            task_carrier(cls)
        else:
            _reach_preprocessing(cls)


_LIBRARIES: dict[str, Callable[[], object]] = {
    "keras_hub": _reach_keras_hub,
    "keras_cv": lambda: _reach(sys.modules["keras_cv"].layers.TransformerEncoder),
}


class _Arrival(importlib.abc.MetaPathFinder):
    """Registers the subclasses of a library's classes as soon as the library is imported.

    Presets name the subclasses, and KerasHub looks for them among those that exist, before any code
    of this package runs. This package does not import KerasHub itself, and scripts import the two
    in either order. tests/hub/test_lasting.py shows that this is needed: it loads presets in a
    fresh process.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _LIBRARIES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_reach(module: ModuleType) -> None:
                execute(module)
                _LIBRARIES[name]()

            spec.loader.exec_module = execute_and_reach  # type: ignore[method-assign]
        return spec


def reach_libraries() -> None:
    """Registers the subclasses for KerasHub and KerasCV, now or when they are imported."""
    for name, action in _LIBRARIES.items():
        if name in sys.modules:
            action()
    sys.meta_path.insert(0, _Arrival())
