"""What a converted model saves, and how it comes back: the carriers of conversions.

A configuration in Keras holds the arguments of the constructor. A layer that makes its attention
by itself would come back from it with its original attention. So `convert` changes the class of
every layer that has a converted attention layer in it, in place, to a subclass of its class, its
carrier: `get_config` tells the conversions, and `from_config` makes them again. Keras' own models
and wrappers save the layers in them as objects, and need no carrier.

A carrier also writes the coefficients into files of LoRA weights, marks its files of weights, names
itself in the presets of tasks, and compiles with the coefficients' own learning rates.
"""

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_graphattn.files import whole_file
from keras_graphattn.hub.families import is_attention, is_ours, parent_config
from keras_graphattn.hub.slots import (
    Request,
    added_variables,
    align_caches,
    attention_slots,
    convert_slots,
    direct_slots,
    is_task_class,
)
from keras_graphattn.keras_internals import change_class, remove_attribute, sublayers, walk
from keras_graphattn.optimizers import apply_rates, without_coefficient_rates

PACKAGE = "keras_graphattn"
PREFIX = "GraphAttention"
SHARED_NAME = "Carrier"
KEY = "graph_attention"  # what is kept of conversions in configurations and files

Namespace = dict[str, Any]


class Conversion(NamedTuple):
    """A request, and the indices of the attention slots that it was made for."""

    request: Request
    indices: list[int]

    def get_config(self) -> dict[str, Any]:
        """The conversion as JSON can hold it."""
        return {
            "attention": self.request.attention,
            "sites": list(self.indices),  # the name in older files
            "options": keras.saving.serialize_keras_object(self.request.options),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Conversion":
        """The conversion that `get_config` described."""
        options = keras.saving.deserialize_keras_object(config["options"])
        return cls(Request(config["attention"], options), list(config["sites"]))


class Conversions:
    """The conversions in one layer, one for all slots whose requests are equal.

    Keras does not track it, since it is not a list to Keras.
    """

    def __init__(self, entries: Iterable[Conversion], num_slots: int) -> None:
        self.entries = list(entries)
        self.num_slots = num_slots

    def get_config(self) -> dict[str, Any]:
        """The conversions as JSON can hold them."""
        configs: dict[str, dict[str, Any]] = {}
        for entry in self.entries:
            config = entry.get_config()
            same = configs.setdefault(repr({**config, "sites": None}), {**config, "sites": []})
            same["sites"] = sorted([*same["sites"], *config["sites"]])
        return {"num_sites": self.num_slots, "conversions": list(configs.values())}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Conversions":
        """The conversions that `get_config` described."""
        entries = [Conversion.from_config(entry) for entry in config["conversions"]]
        return cls(entries, config["num_sites"])


def conversions_of(owner: keras.Layer) -> Conversions:
    """The conversions in a layer: those that are made, or those that wait until it is built."""
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    if waiting is not None:
        return waiting
    slots = attention_slots(owner)
    entries: dict[int, Conversion] = {}
    for index, slot in enumerate(slots):
        if slot.is_converted:
            request = slot.layer.converted_from.request
            entries.setdefault(id(request), Conversion(request, [])).indices.append(index)
    return Conversions(entries.values(), len(slots))


def forget_conversions(model: keras.Layer) -> None:
    """Drops conversions that wait until a layer is built."""
    for layer in walk(model):
        if getattr(layer, "_graph_attention", None) is not None:
            remove_attribute(layer, "_graph_attention")


def apply_conversions(owner: keras.Layer) -> None:
    """Makes the conversions that wait in a layer, once all its attention layers are built."""
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    slots = [] if waiting is None else attention_slots(owner)
    if waiting is None or len(slots) < waiting.num_slots:
        return
    if not all(slot.is_converted or slot.layer.built for slot in slots):
        return
    for entry in waiting.entries:
        plain = [slots[index] for index in entry.indices if not slots[index].is_converted]
        convert_slots(plain, entry.request)
    remove_attribute(owner, "_graph_attention")
    align_caches(owner, slots)
    settle_classes(walk(owner))


REACHED: set[type] = set()  # the plain classes in whose instances `convert` looks for attention
_CARRIERS: dict[type, type] = {}
_PLAIN: dict[type, type] = {}


def carrier(plain: type[keras.Layer]) -> type:
    """The subclass of a class of layers that carries conversions.

    All carriers share one registered name, and their configuration names the plain class: to
    load one, a program needs no more than that class and this package. They also share the
    name of their plain class, since the paths in a file of weights are made of the names of
    classes: the files of plain and of converted layers then fit each other.
    """
    if plain not in _CARRIERS:
        register(plain, _subclass(plain, plain.__name__), SHARED_NAME)
    return _CARRIERS[plain]


def named_carrier(plain: type[keras.Layer]) -> type:
    """A carrier with a name of its own: KerasHub's presets look for classes by their names."""
    if plain not in _CARRIERS:
        register(plain, _subclass(plain, PREFIX + plain.__name__))
    return _CARRIERS[plain]


def task_carrier(plain: type[keras.Layer]) -> type:
    """The class of a KerasHub task whose backbone is converted, and tells so."""
    if plain not in _CARRIERS:
        cls = plain.backbone_cls
        namespace = {
            "backbone_cls": None if cls is None else named_carrier(cls),
            "__reduce__": reducer(plain),
            **compile_methods(plain),
        }
        register(plain, type(PREFIX + plain.__name__, (plain,), namespace | about(plain)))
    return _CARRIERS[plain]


def register(plain: type[keras.Layer], new: type, name: str | None = None) -> None:
    """Makes a class, registered with Keras, the one of instances of `plain` while converted."""
    _CARRIERS[plain] = keras.saving.register_keras_serializable(PACKAGE, name)(new)
    _PLAIN[new] = plain


def is_known(plain: type[keras.Layer]) -> bool:
    """Whether there is a carrier for this class, or whether it is one."""
    return plain in _CARRIERS or plain in _PLAIN


def plain_class(cls: type) -> type:
    """The class that a carrier stands for; any other as it is."""
    return _PLAIN.get(cls, cls)


def is_reachable(layer: keras.Layer) -> bool:
    """Whether the layer is of a class, plain or converted, that was reached."""
    return plain_class(type(layer)) in REACHED


def settle_classes(layers: Iterable[keras.Layer]) -> None:
    """Makes carriers of the layers that have converted attention in them, and plain ones of others.

    Keras' own containers save the layers in them as objects and stay as they are.
    """
    layers = [layer for layer in layers if not is_attention(layer)]
    converted = _ids_above(layers, lambda layer: "converted_from" in vars(layer))
    for layer in layers:
        plain = plain_class(type(layer))
        waiting: Conversions | None = getattr(layer, "_graph_attention", None)
        if waiting is not None and waiting.entries:
            converted.add(id(layer))
        if not _is_container_of_keras(plain):
            change_class(layer, _carrier_of(plain) if id(layer) in converted else plain)


def make_carriers(layers: Iterable[keras.Layer]) -> None:
    """Makes the subclasses that `settle_classes` needs, so that it cannot fail later."""
    layers = [layer for layer in layers if not is_attention(layer)]
    holding = _ids_above(layers, lambda layer: bool(direct_slots(layer)))
    for layer in layers:
        plain = plain_class(type(layer))
        if id(layer) in holding and not _is_container_of_keras(plain):
            _carrier_of(plain)


def _carrier_of(plain: type[keras.Layer]) -> type:
    return task_carrier(plain) if is_task_class(plain) else carrier(plain)


def _ids_above(layers: Iterable[keras.Layer], is_wanted: Callable[[keras.Layer], bool]) -> set[int]:
    """The ids of the layers that are wanted, or have one that is in them."""
    above: dict[int, bool] = {}

    def holds(layer: keras.Layer) -> bool:
        if id(layer) not in above:
            above[id(layer)] = is_wanted(layer) or any(holds(x) for x in sublayers(layer))
        return above[id(layer)]

    return {id(layer) for layer in layers if holds(layer)}


def _is_container_of_keras(plain: type[keras.Layer]) -> bool:
    return plain.__module__.startswith("keras.")


def _subclass(plain: type[keras.Layer], name: str) -> type:
    """A subclass that carries conversions in its configuration."""

    # Keras looks at a mark on the method to tell whether a class has its own: `wraps` keeps it.
    @functools.wraps(plain.get_config)
    def get_config(self: keras.Layer) -> dict[str, Any]:
        carried = {"of": _identity(plain), **conversions_of(self).get_config()}
        return {**parent_config(plain, self), KEY: carried}

    def from_config(cls: Any, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        config = dict(config)
        carried = config.pop(KEY, None)
        owner: keras.Layer = cls if carried is None else _carrier_named(carried["of"])
        layer = super(owner, owner).from_config(config, *args, **kwargs)
        if carried is not None:
            layer._graph_attention = Conversions.from_config(carried)
            apply_conversions(layer)
        return layer

    @functools.wraps(plain.build)
    def build(self: keras.Layer, *args: Any, **kwargs: Any) -> None:
        plain.build(self, *args, **kwargs)
        apply_conversions(self)

    @functools.wraps(plain.build_from_config)
    def build_from_config(self: keras.Layer, config: dict[str, Any]) -> None:
        plain.build_from_config(self, config)
        apply_conversions(self)

    @functools.wraps(plain.__call__)
    def __call__(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
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
        **lora_methods(plain),
        **preset_methods(plain),
        **about(plain),
    }
    return type(name, (plain,), namespace)


def about(plain: type[keras.Layer]) -> Namespace:
    """Module and docstring of a class that stands in for `plain`."""
    return {
        "__module__": __name__,
        "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
    }


def reducer(plain: Any) -> Callable[[Any], Any]:
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


def _call_of_class(plain: type[keras.Layer], name: str, *arguments: Any) -> Any:
    """Calls a class method; to unpickle this function is to import this package."""
    return getattr(plain, name)(*arguments)


def _identity(plain: type[keras.Layer]) -> dict[str, str]:
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


def _check_applied(owner: keras.Layer) -> None:
    waiting: Conversions | None = getattr(owner, "_graph_attention", None)
    if waiting is not None:
        raise ValueError(
            f"{type(owner).__name__} '{owner.name}' was saved with {waiting.num_slots} "
            "self-attention layers, some of them converted. It has "
            f"{len(attention_slots(owner))} now that it has been called, so the conversion cannot "
            "be made again."
        )


def compile_methods(plain: type[keras.Layer]) -> Namespace:
    """`compile` gives the optimizer the coefficients' own rates."""
    if not issubclass(plain, keras.Model):
        return {}

    @functools.wraps(plain.compile)
    def compile(self: keras.Layer, *args: Any, **kwargs: Any) -> None:
        plain.compile(self, *args, **kwargs)
        if self.optimizer is not None:
            apply_rates(self.optimizer)

    if plain.compile is not keras.Model.compile:
        return {"compile": compile}  # such models Keras loads without compiling them

    @functools.wraps(plain.compile_from_config)
    def compile_from_config(self: keras.Layer, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    return {"compile": compile, "compile_from_config": compile_from_config}


def settle_optimizer(model: keras.Model) -> None:
    """Brings the optimizer of a compiled model up to date with the layers that it has now."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    if any(is_ours(layer) for layer in walk(model)):
        apply_rates(optimizer)
    else:
        without_coefficient_rates(optimizer)


def weight_methods(plain: type[keras.Layer]) -> Namespace:
    """The original cannot read the file of weights of a converted model.

    Keras reports a layer whose weights do not fit, unless it meets the layer a second time, at a
    place that the file has nothing for. In many backbones it does, and so the original would read
    the file without the coefficients, and say nothing. Keras meets a model itself only once. So a
    converted model saves one number more, which only a converted one takes.
    """
    if not issubclass(plain, keras.Model):
        return {}

    @functools.wraps(plain.save_own_variables)
    def save_own_variables(self: keras.Layer, store: Any) -> None:
        plain.save_own_variables(self, store)
        store[KEY] = np.ones((), "int32")

    @functools.wraps(plain.load_own_variables)
    def load_own_variables(self: keras.Layer, store: Mapping[str, Any]) -> None:
        plain.load_own_variables(self, {key: store[key] for key in set(store.keys()) - {KEY}})

    return {"save_own_variables": save_own_variables, "load_own_variables": load_own_variables}


FACTORS, COEFFICIENTS = "lora", "coefficients"  # the first is KerasHub's name


def lora_methods(plain: type[keras.Layer]) -> Namespace:
    """LoRA leaves the coefficients trainable, and its files have them beside the factors.

    Both stand in a group of the file that the original does not know: it refuses the file, where it
    would read the factors without the coefficients. (Biases that train are not in KerasHub's file
    either way.)
    """
    methods: Namespace = {}
    if hasattr(plain, "enable_lora"):

        @functools.wraps(plain.enable_lora)
        def enable_lora(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
            layers = [slot.layer for slot in attention_slots(self) if slot.is_converted]
            kept = [v for layer in layers for v in added_variables(layer) if v.trainable]
            result = plain.enable_lora(self, *args, **kwargs)
            for variable in kept:
                variable.trainable = True
            return result

        methods["enable_lora"] = enable_lora
    if not hasattr(plain, "save_lora_weights"):
        return methods

    @functools.wraps(plain.save_lora_weights)
    def save_lora_weights(self: keras.Layer, filepath: str | os.PathLike[str]) -> None:
        import h5py

        if not str(filepath).endswith(".lora.h5"):
            plain.save_lora_weights(self, filepath)  # its error says what the name must be
        with whole_file(Path(filepath)) as scratch:
            plain.save_lora_weights(self, str(scratch))
            with h5py.File(scratch, "a") as file:
                group = file.create_group(KEY)
                file.move(FACTORS, f"{KEY}/{FACTORS}")
                for name, variable in _numbered_variables(self).items():
                    array = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
                    group[f"{COEFFICIENTS}/{name}"] = array

    @functools.wraps(plain.load_lora_weights)
    def load_lora_weights(self: keras.Layer, filepath: str | os.PathLike[str]) -> None:
        import h5py

        with h5py.File(filepath, "r") as file, tempfile.TemporaryDirectory() as folder:
            if KEY not in file:  # of a model that is not converted
                plain.load_lora_weights(self, filepath)
                return
            layers = file[KEY].get(COEFFICIENTS, {})
            values = {f"{i}/{j}": layers[i][j][()] for i in layers for j in layers[i]}
            added = _numbered_variables(self)
            shapes, expected = (
                {name: tuple(x.shape) for name, x in each.items()} for each in (values, added)
            )
            if shapes != expected:
                raise ValueError(
                    "The model must be converted as the one whose LoRA weights were saved. "
                    f"Received: a file with coefficients of shapes {shapes}, for a model with "
                    f"coefficients of shapes {expected}: filepath={str(filepath)!r}"
                )
            scratch = str(Path(folder) / Path(filepath).name)
            with h5py.File(scratch, "w") as factors:
                file.copy(f"{KEY}/{FACTORS}", factors)
            try:
                plain.load_lora_weights(self, scratch)
            except ValueError as error:  # it names the file
                raise ValueError(str(error).replace(scratch, str(filepath))) from None
            for name, variable in added.items():
                variable.assign(values[name])

    return {
        **methods,
        "save_lora_weights": save_lora_weights,
        "load_lora_weights": load_lora_weights,
    }


def _numbered_variables(backbone: keras.Layer) -> dict[str, Any]:
    """The weights that the conversion added, by the number of their slot and their own."""
    return {
        f"{index}/{number}": variable
        for index, slot in enumerate(attention_slots(backbone))
        if slot.is_converted
        for number, variable in enumerate(added_variables(slot.layer))
    }


def preset_methods(plain: type[keras.Layer]) -> Namespace:
    """A preset's task is found by the class of its backbone.

    KerasHub looks for the class of tasks that goes with the class of the backbone. Where it finds
    another class in `task.json`, it makes a new task, whose own weights are random. A task that was
    made around a converted backbone is of the plain class. So its name in `task.json` becomes that
    of its carrier. A task of another backbone, as an older file may hold, stays as it is.
    """
    if not hasattr(plain, "save_to_preset"):
        return {}

    @functools.wraps(plain.save_to_preset)
    def save_to_preset(self: keras.Layer, preset_dir: str, *args: Any, **kwargs: Any) -> None:
        plain.save_to_preset(self, preset_dir, *args, **kwargs)
        path = Path(preset_dir) / "task.json"
        config = json.loads(path.read_text()) if path.exists() else {}
        backbone = config.get("config", {}).get("backbone") or {}
        if backbone.get("registered_name") != keras.saving.get_registered_name(type(self)):
            return
        task: Any = keras.saving.get_registered_object(config.get("registered_name"))
        if task is None or getattr(task, "backbone_cls", None) is type(self):
            return
        new = task_carrier(task)
        config |= {"module": new.__module__, "class_name": new.__name__}
        config["registered_name"] = keras.saving.get_registered_name(new)
        with whole_file(path) as scratch:
            scratch.write_text(json.dumps(config, indent=4))

    return {"save_to_preset": save_to_preset}


carrier(keras.layers.Layer)  # the shared name is known from the start, whatever is imported later
