"""Carriers: the subclasses that let a converted layer be saved, cloned, copied and pickled.

A configuration in Keras holds the arguments of the constructor. A layer that makes its attention
by itself would come back from it with its original attention. So `convert` changes the class of
every layer that has a converted attention layer in it, in place, to a subclass of its class, its
carrier: `get_config` tells the conversions, and `from_config` makes them again. Keras' own models
and wrappers save the layers in them as objects, and need no carrier.
"""

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras

from keras_graphattn.hub.adapters import holder_config
from keras_graphattn.hub.attentions import is_attention
from keras_graphattn.hub.compiling import compile_methods
from keras_graphattn.hub.lora_files import lora_file_methods
from keras_graphattn.hub.preset_tasks import name_task_carrier
from keras_graphattn.hub.sites import attention_sites, is_task
from keras_graphattn.hub.spec import KEY, Conversion, Conversions, Request, joined
from keras_graphattn.hub.surgery import added_variables, align_caches, convert_sites
from keras_graphattn.hub.weight_files import weight_methods
from keras_graphattn.keras_internals import change_class, remove_attribute, walk

PACKAGE = "keras_graphattn"
PREFIX = "GraphAttention"
SHARED_NAME = "Carrier"

_CARRIERS: dict[type, type] = {}
_PLAIN: dict[type, type] = {}


def carrier(plain: type) -> type:
    """The subclass of a class of layers that carries conversions.

    All carriers share one registered name, and their configuration names the plain class: to
    load one, a program needs no more than that class and this package. They also share the
    name of their plain class, since the paths in a file of weights are made of the names of
    classes: the files of plain and of converted layers then fit each other.

    Args:
        plain: A class of Keras layers.
    """
    if plain not in _CARRIERS:
        new = _subclass(plain, plain.__name__)
        register(plain, keras.saving.register_keras_serializable(PACKAGE, SHARED_NAME)(new))
    return _CARRIERS[plain]


def named_carrier(plain: type) -> type:
    """A carrier with a name of its own: KerasHub's presets look for classes by their names."""
    if plain not in _CARRIERS:
        new = _subclass(plain, PREFIX + plain.__name__)
        register(plain, keras.saving.register_keras_serializable(PACKAGE)(new))
    return _CARRIERS[plain]


def register(plain: type, new: type) -> None:
    """Makes a class the one that instances of `plain` become while they are converted."""
    _CARRIERS[plain] = new
    _PLAIN[new] = plain


def is_known(plain: type) -> bool:
    """Whether there is a carrier for this class, or whether it is one."""
    return plain in _CARRIERS or plain in _PLAIN


def plain_class(cls: type) -> type:
    """The class that a carrier stands for; any other as it is."""
    return _PLAIN.get(cls, cls)


def conversions_of(owner: Any) -> Conversions:
    """The conversions in a layer: those that are made, or those that wait until it is built."""
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    if waiting is not None:
        return waiting
    sites = attention_sites(owner)
    found: dict[int, tuple[Request, list[int]]] = {}
    for index, site in enumerate(sites):
        if site.is_converted:
            request = site.layer.converted_from.request
            found.setdefault(id(request), (request, []))[1].append(index)
    return Conversions(joined([Conversion(*entry) for entry in found.values()]), len(sites))


def task_carrier(plain: Any) -> type:
    """The class of a KerasHub task whose backbone is converted.

    Its configuration has the backbone in it, which tells the conversions.
    """
    if plain not in _CARRIERS:
        name = PREFIX + plain.__name__
        cls = plain.backbone_cls
        namespace = {
            "backbone_cls": None if cls is None else named_carrier(cls),
            "__reduce__": reducer(plain),
            **compile_methods(plain),
            **about(plain),
        }
        new = type(name, (plain,), namespace)
        register(plain, keras.saving.register_keras_serializable(PACKAGE)(new))
    return _CARRIERS[plain]


def class_now(layer: Any) -> type:
    """The class that a layer must have now: a carrier if converted attention is in it.

    Keras' own containers save the layers in them as objects and stay as they are.
    """
    plain = plain_class(type(layer))
    if _is_container_of_keras(plain) or is_attention(layer):
        return type(layer)
    if not conversions_of(layer).entries:
        return plain
    return task_carrier(plain) if is_task(layer) else carrier(plain)


def make_carriers(layers: Iterable[Any]) -> None:
    """Makes the subclasses that `class_now` needs, so that it cannot fail later."""
    for layer in layers:
        plain = plain_class(type(layer))
        if attention_sites(layer) and not _is_container_of_keras(plain):
            task_carrier(plain) if is_task(layer) else carrier(plain)


def forget_conversions(model: Any) -> None:
    """Drops conversions that wait until a layer is built."""
    for layer in walk(model):
        if getattr(layer, "_graph_attention", None) is not None:
            remove_attribute(layer, "_graph_attention")


def _is_container_of_keras(plain: type) -> bool:
    """Whether the layers in such a layer are in its configuration as objects."""
    return plain.__module__.startswith("keras.")


def apply_conversions(owner: Any) -> None:
    """Makes the conversions that wait in a layer, once all its attention layers are there."""
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    sites = [] if waiting is None else attention_sites(owner)
    if waiting is None or len(sites) < waiting.num_sites:
        return
    if not all(site.is_ready for site in sites):
        return
    for entry in waiting.entries:
        plain = [sites[index] for index in entry.sites if not sites[index].is_converted]
        convert_sites(plain, [entry.request] * len(plain))
    remove_attribute(owner, "_graph_attention")
    align_caches(owner, sites)
    for layer in walk(owner):
        change_class(layer, class_now(layer))


def _subclass(plain: Any, name: str) -> type:
    """A subclass that carries conversions in its configuration."""

    # Keras looks at a mark on the method to tell whether a class has its own: `wraps` keeps it.
    @functools.wraps(plain.get_config)
    def get_config(self: Any) -> dict[str, Any]:
        carried = {"of": _identity(plain), **conversions_of(self).get_config()}
        return {**holder_config(plain, self), KEY: carried}

    def from_config(cls: Any, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        config = dict(config)
        carried = config.pop(KEY, None)
        owner: Any = cls if carried is None else _carrier_named(carried["of"])
        layer = super(owner, owner).from_config(config, *args, **kwargs)
        if carried is not None:
            layer._graph_attention = Conversions.from_config(carried)
            apply_conversions(layer)
        return layer

    @functools.wraps(plain.build)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        plain.build(self, *args, **kwargs)
        apply_conversions(self)

    @functools.wraps(plain.build_from_config)
    def build_from_config(self: Any, config: dict[str, Any]) -> None:
        plain.build_from_config(self, config)
        apply_conversions(self)

    @functools.wraps(plain.__call__)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = plain.__call__(self, *args, **kwargs)
        if getattr(self, "_graph_attention", None) is None:
            return outputs
        # The sublayers have been built by this very call, with their original attention.
        apply_conversions(self)
        _check_applied(self)
        is_symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(outputs))
        return outputs if is_symbolic else plain.__call__(self, *args, **kwargs)

    namespace = {
        "get_config": get_config,
        "from_config": classmethod(from_config),
        "build": build,
        "build_from_config": build_from_config,
        "__call__": __call__,
        "__reduce__": reducer(plain),
        **compile_methods(plain),
        **weight_methods(plain),
        **lora_file_methods(plain),
        **about(plain),
    }
    if hasattr(plain, "enable_lora"):
        namespace["enable_lora"] = _enable_lora(plain)
    if hasattr(plain, "save_to_preset"):
        namespace["save_to_preset"] = _save_to_preset(plain)
    return type(name, (plain,), namespace)


def about(plain: type) -> dict[str, Any]:
    """Module and docstring of a class that stands in for `plain`."""
    return {
        "__module__": __name__,
        "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
    }


def reducer(plain: Any) -> Any:
    """The `__reduce__` of a class made here, which pickle cannot find by its name.

    Keras pickles a layer as the bytes of its file and the class that reads them. Any class of
    Keras layers reads them alike, so the plain one stands in.
    """

    def __reduce__(self: Any) -> Any:
        function, arguments, *rest = plain.__reduce__(self)
        if getattr(function, "__self__", None) is not type(self):
            return (function, arguments, *rest)  # the plain class pickles in a way of its own
        return (_call_of_class, (plain, function.__name__, *arguments), *rest)

    return __reduce__


def _call_of_class(plain: Any, name: str, *arguments: Any) -> Any:
    """Calls a class method; to unpickle this function is to import this package."""
    return getattr(plain, name)(*arguments)


def _identity(plain: type) -> dict[str, str]:
    return {"module": plain.__module__, "name": keras.saving.get_registered_name(plain)}


def _carrier_named(identity: dict[str, str]) -> type:
    """The carrier of the class that a configuration names."""
    plain = keras.saving.get_registered_object(identity["name"])
    if plain is None:
        plain = next((known for known in _CARRIERS if _identity(known) == identity), None)
    if not isinstance(plain, type) or not issubclass(plain, keras.Layer):
        raise ValueError(
            f"A converted layer of class {identity['name']} (module {identity['module']}) is to be "
            "loaded, and Keras does not know the class. Import its module and register it with "
            "keras.saving.register_keras_serializable; or pass it in `custom_objects`; or call "
            "keras_graphattn.hub.reach(<the class>)."
        )
    return carrier(plain)


def _check_applied(owner: Any) -> None:
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    if waiting is not None:
        raise ValueError(
            f"{type(owner).__name__} '{owner.name}' was saved with {waiting.num_sites} "
            f"self-attention layers, some of them converted. It has {len(attention_sites(owner))} "
            "now that it has been called, so the conversion cannot be made again."
        )


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


def _save_to_preset(plain: Any) -> Any:
    @functools.wraps(plain.save_to_preset)
    def save_to_preset(self: Any, preset_dir: Any, *args: Any, **kwargs: Any) -> None:
        plain.save_to_preset(self, preset_dir, *args, **kwargs)
        name_task_carrier(Path(preset_dir) / "task.json", type(self), task_carrier)

    return save_to_preset


carrier(keras.layers.Layer)  # the shared name is known from the start, whatever is imported later
