"""Saves and loads converted models: the carriers of conversions.

A configuration in Keras holds the arguments of the constructor. A layer that makes its own
attention would be restored from it with the original attention. So `convert` changes, in place, the
class of every layer that contains a converted attention layer. The new class is a subclass, its
carrier: `get_config` lists the conversions, and `from_config` makes them again. Keras' own models
and wrappers save the layers in them as objects, and need no carrier.

A carrier also writes the coefficients into files of LoRA weights, marks its files of weights, names
its tasks in presets, and compiles with the coefficients' own learning rates.
"""

import functools
import importlib
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_graphattn.files import whole_file
from keras_graphattn.hub.families import Config, is_attention, is_ours, parent_config
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

PAIRS = ("decoder_attention_mask", "use_causal_mask")  # not all attention in a decoder follows them

Namespace = dict[str, Any]
Part: Any = object  # base of the methods of carriers; the plain class of layers follows it


class Conversions:
    """The conversions in one layer: requests, each with the indices of its slots.

    Keras does not track it, since it is not a list to Keras.
    """

    def __init__(self, entries: Iterable[tuple[Request, list[int]]], num_slots: int) -> None:
        self.entries = list(entries)
        self.num_slots = num_slots

    def get_config(self) -> Config:
        """The conversions as JSON can hold them: one for all slots whose requests are equal."""
        configs: dict[str, Config] = {}
        for request, indices in self.entries:
            options = keras.saving.serialize_keras_object(request.options)
            config = {"attention": request.attention, "sites": [], "options": options}
            same = configs.setdefault(repr(config), config)  # "sites": the name in older files
            same["sites"] = sorted([*same["sites"], *indices])
        return {"num_sites": self.num_slots, "conversions": list(configs.values())}

    @classmethod
    def from_config(cls, config: Config) -> "Conversions":
        """The conversions that `get_config` described.

        Raises:
            ValueError: For anything else, such as what is left of a damaged file.
        """
        try:
            count, found = config["num_sites"], config["conversions"]
            parts = [(x["attention"], x["options"], list(x["sites"])) for x in found]
            is_right = all(i in range(count) for _, _, sites in parts for i in sites)
        except (KeyError, TypeError):
            is_right = False
        if not is_right:
            raise ValueError(
                "The file does not say which layers were converted: it is damaged or was changed. "
                "Expected `num_sites` and a list `conversions` of `attention`, `options` and "
                f"`sites`, which are below `num_sites`. Received: {config!r}"
            )
        entries = []
        for attention, options, sites in parts:
            restored = keras.saving.deserialize_keras_object(options)
            entries.append((Request(attention, restored), sites))
        return cls(entries, count)


def waiting_in(layer: keras.Layer) -> Conversions | None:
    """The conversions that wait until the layer is built."""
    return getattr(layer, "_graph_attention", None)


def conversions_of(owner: keras.Layer) -> Conversions:
    """The conversions in a layer, or those that wait until it is built."""
    waiting = waiting_in(owner)
    if waiting is not None:
        return waiting
    slots = attention_slots(owner)
    entries: dict[int, tuple[Request, list[int]]] = {}
    for index, slot in enumerate(slots):
        if slot.is_converted:
            request = slot.layer.converted_from.request
            entries.setdefault(id(request), (request, []))[1].append(index)
    return Conversions(entries.values(), len(slots))


def forget_conversions(model: keras.Layer) -> None:
    """Drops conversions that wait until a layer is built."""
    for layer in walk(model):
        if waiting_in(layer) is not None:
            remove_attribute(layer, "_graph_attention")


def apply_conversions(owner: keras.Layer) -> None:
    """Makes the conversions that wait in a layer, once all its attention layers are built."""
    waiting = waiting_in(owner)
    if waiting is None:
        return
    slots = attention_slots(owner)
    is_built = all(slot.is_converted or slot.layer.built for slot in slots)
    if len(slots) < waiting.num_slots or not is_built:
        return
    for request, indices in waiting.entries:
        convert_slots([slots[i] for i in indices if not slots[i].is_converted], request)
    remove_attribute(owner, "_graph_attention")
    align_caches(owner, slots)
    settle_classes(walk(owner))


REACHED: set[type] = set()  # the plain classes in whose instances `convert` looks for attention
_CARRIERS: dict[type, type] = {}
_PLAIN: dict[type, type] = {}


def carrier(plain: type[keras.Layer], is_named: bool = False) -> type:
    """The subclass of a class of layers that carries conversions.

    Most carriers share one registered name, and their configuration names the plain class: to
    load one, a program needs no more than that class and this package. They also share the
    name of their plain class, since the paths in a file of weights are made of the names of
    classes: the files of plain and of converted layers then fit each other. A carrier has a name
    of its own where KerasHub's presets look for the class by its name (`is_named`).
    """
    if plain not in _CARRIERS:
        name = PREFIX + plain.__name__ if is_named else plain.__name__
        register(plain, _subclass(plain, name), None if is_named else SHARED_NAME)
    return _CARRIERS[plain]


def task_carrier(plain: type[keras.Layer]) -> type:
    """The class of a KerasHub task whose backbone is converted, and tells so."""
    if plain not in _CARRIERS:
        cls = plain.backbone_cls
        namespace = {
            "backbone_cls": None if cls is None else carrier(cls, is_named=True),
            "__reduce__": reducer(plain),
            **about(plain),
        }
        parts = [Compiled, *([Reverted] if hasattr(plain, "export_to_transformers") else [])]
        register(plain, type(PREFIX + plain.__name__, (*parts, plain), namespace))
    return _CARRIERS[plain]


def register(plain: type[keras.Layer], new: type, name: str | None = None) -> None:
    """Registers a class as the carrier of `plain`: converted instances of `plain` get it."""
    _CARRIERS[plain] = keras.saving.register_keras_serializable(PACKAGE, name)(new)
    _PLAIN[new] = plain


def is_known(plain: type[keras.Layer]) -> bool:
    """Whether this class has a carrier, or is one."""
    return plain in _CARRIERS or plain in _PLAIN


def plain_class(cls: type) -> type:
    """The plain class of a carrier; any other class unchanged."""
    return _PLAIN.get(cls, cls)


def is_reachable(layer: keras.Layer) -> bool:
    """Whether the layer is of a class, plain or converted, that was reached."""
    return plain_class(type(layer)) in REACHED


def settle_classes(layers: Iterable[keras.Layer]) -> None:
    """Gives carrier classes to layers with converted attention in them, plain classes to others.

    Keras' own containers save the layers in them as objects and stay as they are.
    """
    layers = [layer for layer in layers if not is_attention(layer)]
    above: dict[int, bool] = {}

    def carries(layer: keras.Layer) -> bool:
        if id(layer) not in above:
            is_converted = "converted_from" in vars(layer)
            above[id(layer)] = is_converted or any(carries(x) for x in sublayers(layer))
        return above[id(layer)]

    for layer in layers:
        plain, waiting = plain_class(type(layer)), waiting_in(layer)
        if plain.__module__.startswith("keras."):
            continue
        new: type = plain
        if carries(layer) or (waiting is not None and waiting.entries):
            new = task_carrier(plain) if is_task_class(plain) else carrier(plain)
        change_class(layer, new)


def _subclass(plain: type[keras.Layer], name: str) -> type:
    """A subclass that carries conversions in its configuration."""

    names = list(inspect.signature(plain.call).parameters)[1:]
    takes_pairs = PAIRS[0] in names

    # A mark on the method tells Keras whether a class has its own method: `wraps` keeps it.
    @functools.wraps(plain.get_config)
    def get_config(self: keras.Layer) -> Config:
        carried = {"of": _identity(plain), **conversions_of(self).get_config()}
        return {**parent_config(plain, self), KEY: carried}

    def from_config(
        cls: type[keras.Layer], /, config: Config, *args: object, **kwargs: object
    ) -> keras.Layer:
        config = dict(config)
        carried = config.pop(KEY, None)
        owner: keras.Layer = cls if carried is None else _carrier_named(carried["of"])
        layer = super(owner, owner).from_config(config, *args, **kwargs)
        if carried is not None:
            layer._graph_attention = Conversions.from_config(carried)
            apply_conversions(layer)
        return layer

    def then_converting(build: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(build)
        def wrapped(self: keras.Layer, *args: object, **kwargs: object) -> None:
            build(self, *args, **kwargs)
            apply_conversions(self)

        return wrapped

    @functools.wraps(plain.__call__)
    def __call__(self: keras.Layer, *args: object, **kwargs: object) -> object:
        if takes_pairs and (len(args) > 1 or not set(kwargs).isdisjoint(PAIRS)):
            _check_decoder_call(self, dict(zip(names, args, strict=False)) | kwargs)
        outputs = plain.__call__(self, *args, **kwargs)
        waiting = waiting_in(self)
        if waiting is None:
            return outputs
        # The sublayers have been built by this call, with their original attention.
        apply_conversions(self)
        if waiting_in(self) is not None:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' was saved with {waiting.num_slots} "
                "self-attention layers, some of them converted. It has "
                f"{len(attention_slots(self))} now that it has been called, so the conversion "
                "cannot be made again."
            )
        is_symbolic = any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(outputs))
        return outputs if is_symbolic else plain.__call__(self, *args, **kwargs)

    namespace = {
        "get_config": get_config,
        "from_config": classmethod(from_config),
        "build": then_converting(plain.build),
        "build_from_config": then_converting(plain.build_from_config),
        "__call__": __call__,
        "__reduce__": reducer(plain),
        **about(plain),
    }
    parts = [part for method, part in BY_METHOD.items() if hasattr(plain, method)]
    return type(name, (*parts, plain), namespace)


def _check_decoder_call(decoder: keras.Layer, given: Mapping[str, object]) -> None:
    """Refuses arguments that a decoder's attention cannot follow: `CachedCall.of_decoder`."""
    for slot in direct_slots(decoder):
        for name, only in getattr(slot.layer, "of_decoder", {}).items():
            if given.get(name, only) is not only:
                raise ValueError(
                    f"{type(slot.layer).__name__} in a {type(decoder).__name__} follows causality "
                    f"and padding only. Received: {name}={given[name]!r}. Leave it out, or convert "
                    'to "graph_filter" or "p_laplacian".'
                )


def about(plain: type[keras.Layer]) -> Namespace:
    """Module and docstring of a class that stands in for `plain`."""
    return {
        "__module__": __name__,
        "__doc__": f"`{plain.__name__}` as `keras_graphattn.convert` makes it.",
    }


def reducer(plain: Any) -> Callable[[keras.Layer], tuple[object, ...]]:
    """The `__reduce__` of a class made here, which pickle cannot find by its name.

    Keras pickles a layer as the bytes of its file and the class that reads them. Any class of
    Keras layers reads them alike, so the plain one stands in.
    """

    def __reduce__(self: keras.Layer) -> tuple[object, ...]:
        function, arguments, *rest = plain.__reduce__(self)
        if getattr(function, "__self__", None) is not type(self):
            return (function, arguments, *rest)  # the plain class pickles in a way of its own
        return (_call_of_class, (plain, function.__name__, *arguments), *rest)

    return __reduce__


def _call_of_class(plain: type[keras.Layer], name: str, *arguments: object) -> object:
    """Calls a class method; unpickling this function imports this package."""
    return getattr(plain, name)(*arguments)


def _identity(plain: type[keras.Layer]) -> dict[str, str]:
    return {"module": plain.__module__, "name": keras.saving.get_registered_name(plain)}


def _carrier_named(identity: dict[str, str]) -> type:
    """The carrier of the class that a configuration names."""
    plain = keras.saving.get_registered_object(identity["name"])
    if plain is None and identity["module"].startswith("keras_hub."):
        with suppress(ImportError):
            importlib.import_module(identity["module"])
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


class Compiled(Part):  # type: ignore[misc]
    """`compile` gives the optimizer the coefficients' own rates."""

    def compile(self, *args: object, **kwargs: object) -> None:
        super().compile(*args, **kwargs)
        if self.optimizer is not None:
            apply_rates(self.optimizer)

    def compile_from_config(self, config: Config) -> None:
        plain: Any = plain_class(type(self))
        if plain.compile is not keras.Model.compile:
            super().compile_from_config(config)  # Keras loads such models without compiling them
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)


def settle_optimizer(model: keras.Model) -> None:
    """Brings the optimizer of a compiled model up to date with the layers that it has now."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        is_converted = any(is_ours(layer) for layer in walk(model))
        (apply_rates if is_converted else without_coefficient_rates)(optimizer)


class Weighted(Part):  # type: ignore[misc]
    """The original cannot read the file of weights of a converted model.

    Keras does not report weights that do not fit when it meets a layer a second time, which it does
    in many backbones. So a converted model saves one more number, which only a converted model can
    load.
    """

    def save_own_variables(self, store: MutableMapping[str, object]) -> None:
        super().save_own_variables(store)
        store[KEY] = np.ones((), "int32")

    def load_own_variables(self, store: Mapping[str, object]) -> None:
        super().load_own_variables({key: store[key] for key in set(store.keys()) - {KEY}})


class Adapted(Part):  # type: ignore[misc]
    """LoRA leaves the coefficients trainable."""

    def enable_lora(self, *args: object, **kwargs: object) -> object:
        layers = [slot.layer for slot in attention_slots(self) if slot.is_converted]
        kept = [v for layer in layers for v in added_variables(layer) if v.trainable]
        result = super().enable_lora(*args, **kwargs)
        for variable in kept:
            variable.trainable = True
        return result


FACTORS, COEFFICIENTS = "lora", "coefficients"  # the first is KerasHub's name


class AdaptedFiles(Part):  # type: ignore[misc]
    """Files of LoRA weights have the coefficients in addition to the factors.

    Both are in a group of the file that the original model does not know, so it refuses the file.
    """

    def save_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        import h5py

        if not str(filepath).endswith(".lora.h5"):
            super().save_lora_weights(filepath)  # its error says what the name must be
        with whole_file(Path(filepath)) as scratch:
            super().save_lora_weights(str(scratch))
            with h5py.File(scratch, "a") as file:
                group = file.create_group(KEY)
                file.move(FACTORS, f"{KEY}/{FACTORS}")
                for name, variable in _numbered_variables(self).items():
                    array = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
                    group[f"{COEFFICIENTS}/{name}"] = array

    def load_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        import h5py

        try:
            opened = h5py.File(filepath, "r")
        except FileNotFoundError:
            raise
        except OSError as error:  # it does not name the file
            raise OSError(
                "`filepath` must be a whole file of LoRA weights. Received: "
                f"filepath={str(filepath)!r}. The cause: {error}"
            ) from error
        with opened as file, tempfile.TemporaryDirectory() as folder:
            if KEY not in file:  # of a model that is not converted
                super().load_lora_weights(filepath)
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
                super().load_lora_weights(scratch)
            except ValueError as error:  # it names the file
                raise ValueError(str(error).replace(scratch, str(filepath))) from None
            for name, variable in added.items():
                variable.assign(values[name])


def _numbered_variables(backbone: keras.Layer) -> dict[str, keras.Variable]:
    """The weights that the conversion added, by the number of the slot and of the weight."""
    return {
        f"{index}/{number}": variable
        for index, slot in enumerate(attention_slots(backbone))
        if slot.is_converted
        for number, variable in enumerate(added_variables(slot.layer))
    }


class Preset(Part):  # type: ignore[misc]
    """A preset names the carrier of its task.

    KerasHub looks for the class of tasks that goes with the class of the backbone. Where it finds
    another class in `task.json`, it makes a new task, whose own weights are random. A task that was
    made around a converted backbone is of the plain class.
    """

    def save_to_preset(self, preset_dir: str, *args: object, **kwargs: object) -> None:
        super().save_to_preset(preset_dir, *args, **kwargs)
        path = Path(preset_dir) / "task.json"
        config = json.loads(path.read_text()) if path.exists() else {}
        backbone = config.get("config", {}).get("backbone") or {}
        if backbone.get("registered_name") != keras.saving.get_registered_name(type(self)):
            return
        task = keras.saving.get_registered_object(config.get("registered_name"))
        if task is None or getattr(task, "backbone_cls", None) is type(self):
            return
        new = task_carrier(task)
        config |= {"module": new.__module__, "class_name": new.__name__}
        config["registered_name"] = keras.saving.get_registered_name(new)
        with whole_file(path) as scratch:
            scratch.write_text(json.dumps(config, indent=4))


class Reverted(Part):  # type: ignore[misc]
    """Transformers knows only the original attention."""

    def export_to_transformers(self, path: str | os.PathLike[str]) -> None:
        raise ValueError(
            f"Transformers has only the original attention of {plain_class(type(self)).__name__}. "
            f"Received: the converted model '{self.name}'. First call "
            "keras_graphattn.revert(model), which leaves the coefficients out: or write the "
            "converted model with `save_to_preset`, or with `export`."
        )


BY_METHOD: dict[str, type] = {  # for plain classes that have the method; two are of models
    "compile_from_config": Compiled,
    "save_weights": Weighted,
    "enable_lora": Adapted,
    "save_lora_weights": AdaptedFiles,
    "save_to_preset": Preset,
    "export_to_transformers": Reverted,
}
carrier(keras.layers.Layer)  # the shared name is known from the start, whatever is imported later
