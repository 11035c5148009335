"""The private attributes of Keras and KerasHub that conversion needs. They are only in here.

Keras has no public way to replace a sublayer of a built layer (keras#18601). Each function names
what it relies on; tests/hub/test_internals.py shows which of them a new release has broken.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask

from keras_graphattn.types import Float, Num, Tensor


def sublayers(layer: keras.Layer) -> list[Any]:
    """The direct sublayers in the order in which Keras tracks them; a model's in graph order."""
    if isinstance(layer, keras.Model):
        return [child for child in layer.layers if child is not getattr(layer, "preprocessor", 0)]
    return list(layer._layers)


def walk(layer: keras.Layer) -> list[Any]:
    """The layer and all layers in it, depth first, each once."""
    layers: dict[int, keras.Layer] = {}

    def visit(layer: keras.Layer) -> None:
        if id(layer) not in layers:
            layers[id(layer)] = layer
            for child in sublayers(layer):
                visit(child)

    visit(layer)
    return list(layers.values())


def living_layers_above(held: set[int], inside: set[int]) -> list[Any]:
    """The layers of this process that contain a layer, by id; the nearest first, not `inside`."""
    # `type`, because a stand-in object may load a module if code reads its `__class__`
    living = [x for x in gc.get_objects() if issubclass(type(x), keras.Layer)]
    children = {}
    for layer in living:
        with suppress(AttributeError):  # its constructor has not run to its end
            if id(layer) not in inside:
                children[id(layer)] = layer, {id(child) for child in sublayers(layer)}
    held, above = set(held), []
    while new := [x for key, (x, below) in children.items() if key not in held and below & held]:
        above += new
        held |= {id(layer) for layer in new}
    return above


# What Keras keeps in lists and dictionaries of its own, beside those of the user
_OF_KERAS = ("_layers", "_modules", "_operations", "_operations_by_depth")


def layer_attributes(layer: keras.Layer) -> dict[str, keras.Layer]:
    """The sublayers that are attributes, by name. On torch they are in `_modules`.

    Those in lists, tuples and dictionaries come after the others, as "blocks.0.attention".
    """
    attributes = vars(layer) | vars(layer).get("_modules", {})
    single = {name: x for name, x in attributes.items() if isinstance(x, keras.Layer)}
    others = {
        name: x
        for name, x in attributes.items()
        if name not in (*single, *_OF_KERAS) and not name.startswith("_self_")  # of TensorFlow
    }
    return single | dict(_layers_inside("", others))


def _layers_inside(name: str, value: object) -> Iterator[tuple[str, keras.Layer]]:
    if isinstance(value, keras.Layer):
        yield name.removeprefix("."), value
    elif isinstance(value, (list, tuple, dict)):
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _layers_inside(f"{name}.{key}", x)


def scale_of(attention: keras.layers.MultiHeadAttention) -> float:
    """The factor of the scores of Keras' multi-head attention."""
    return float(attention._inverse_sqrt_key_dim)


def scope_of(layer: keras.Layer) -> AbstractContextManager[object]:
    """The name scope in which `layer` was built, so that a layer built now gets paths like it."""
    parent_path = layer.path.rpartition("/")[0] if layer.path else ""
    if not parent_path:
        return nullcontext()
    above, _, name = parent_path.rpartition("/")
    scope: AbstractContextManager[object] = keras.name_scope(name, override_parent=above)
    return scope


def move(layer: keras.Layer, parent: keras.Layer) -> None:
    """Gives a built layer and its weights the paths that they have if `parent` builds the layer."""
    layer._path = f"{parent.path}/{layer.name}"
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        variable._path = f"{layer.path}/{variable.name}"
    for child in sublayers(layer):
        move(child, layer)
    track_again(layer)


def change_class(layer: object, new_class: type) -> None:
    """Changes the class of an instance in place; everything that points at it stays valid."""
    object.__setattr__(layer, "__class__", new_class)


@contextmanager
def growing(layer: keras.Layer, trains: bool) -> Iterator[None]:
    """Lets a built layer get further weights; with `trains`, trainable ones in a frozen layer."""
    was_locked, was_trainable = layer._tracker.locked, layer._trainable
    layer._tracker.unlock()
    layer._trainable = was_trainable or trains
    try:
        yield
    finally:
        layer._trainable = was_trainable
        if was_locked:
            layer._tracker.lock()


def remove_attribute(layer: keras.Layer, name: str) -> None:
    """Removes an attribute of a layer, also from what Keras and the backend track."""
    value = getattr(layer, name)
    if isinstance(value, keras.Variable):
        layer._untrack_variable(value)
    elif isinstance(value, keras.Layer):
        layer._tracker.unlock()
        layer._tracker.untrack(value)
    super(keras.Layer, layer).__delattr__(name)  # Keras' own collects garbage for each weight


# its places in graphs of layers, and what its user has set
_OF_THE_OBJECT = ("_inbound_nodes", "_outbound_nodes", "_trainable", "_remat_mode")
_BOUND = ("build", "quantize")  # Keras wraps them in each instance, bound to that instance


def exchange(first: keras.Layer, second: keras.Layer) -> None:
    """Exchanges the contents of two built layers: class, weights, sublayers, settings.

    So the class of `first` changes in place, and everything that points at it stays valid. A second
    exchange undoes the first one.
    """
    bodies = vars(first), vars(second)
    classes = type(first), type(second)
    kept = [{name: body[name] for name in _OF_THE_OBJECT if name in body} for body in bodies]
    for layer, body, new_class, own in zip(
        (first, second), reversed(bodies), reversed(classes), kept, strict=True
    ):
        object.__setattr__(layer, "__dict__", {**body, **own})
        change_class(layer, new_class)
        for name in _BOUND:
            vars(layer)[name] = getattr(new_class, name).__get__(layer)


# Gemma 4 also keeps the sampler and the function for generation with an assistant.
COMPILED = (
    *("train_function", "test_function", "predict_function", "generate_function"),
    *("_cached_spec_sampler", "_cached_spec_generate_fn"),
)


def forget_compiled(model: keras.Layer) -> None:
    """Drops compiled functions, which hold the old graph, and the slots of a built optimizer."""
    for name in COMPILED:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    optimizer = fresh_optimizer(model)
    if optimizer is not None:
        model.optimizer = optimizer


def fresh_optimizer(model: keras.Layer) -> keras.optimizers.Optimizer | None:
    """A new optimizer like the model's, if that is built: the slots of that fit the old weights."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        return None
    new: keras.optimizers.Optimizer = type(optimizer).from_config(optimizer.get_config())
    pairs = [(optimizer, new)]
    for old, like in pairs:  # the configuration does not have these
        for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
            if hasattr(old, name):
                setattr(like, name, getattr(old, name))
        if hasattr(old, "inner_optimizer"):
            pairs.append((old.inner_optimizer, like.inner_optimizer))
    return new


def track_again(model: keras.Layer) -> None:
    """On torch, gathers the parameters of every layer again, as Keras does after quantising."""
    if keras.backend.backend() == "torch":
        for layer in model._flatten_layers():
            if layer.built:
                layer._track_variables()


def is_distributed(variable: keras.Variable) -> bool:
    """Whether the variable was made for several devices, under a distribution or a strategy."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return isinstance(variable._value, tf.distribute.DistributedValues)
    return getattr(variable, "_layout", None) is not None


def makes_distributed() -> bool:
    """Whether variables made now are for several devices."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.distribute.has_strategy())
    return keras.distribution.distribution() is not None


def layouts_of(distribution: object) -> keras.distribution.LayoutMap | None:
    """The layout map of a `keras.distribution.ModelParallel`; `None` for other distributions."""
    return getattr(distribution, "_layout_map", None)


def place_again(variable: keras.Variable, distribution: keras.distribution.ModelParallel) -> None:
    """Gives a variable the layout that Keras would have set when it made the variable."""
    variable._layout = None
    variable._layout = distribution.get_variable_layout(variable)
    variable.assign(variable.value)


def compiled_metrics(model: keras.Layer) -> list[keras.metrics.Metric]:
    """The metrics of `compile`: the model does not list them before they have seen data."""
    compiled = getattr(model, "_compile_metrics", None)
    names = ("_user_metrics", "_user_weighted_metrics")
    return [m for name in names for m in keras.tree.flatten(getattr(compiled, name, None))]


def subclasses_of(cls: type) -> list[type]:
    """All direct and indirect subclasses of a class that exist now."""
    children: list[type] = list(cls.__subclasses__())
    return children + [below for child in children for below in subclasses_of(child)]


@contextmanager
def replaced_attributes(replacements: Iterable[tuple[object, str, object]]) -> Iterator[None]:
    """Replaces attributes of instances, by name, and restores them afterwards.

    Keras and the backend do not notice it: nothing is tracked or untracked.
    """
    missing = object()
    done: list[tuple[dict[str, object], str, object]] = []
    try:
        for owner, name, value in replacements:
            body = vars(owner)
            done.append((body, name, body.get(name, missing)))
            body[name] = value
        yield
    finally:
        for body, name, value in reversed(done):
            if value is missing:
                del body[name]
            else:
                body[name] = value


def without_rematerialisation(layer: keras.Layer) -> list[tuple[object, str, object]]:
    """The attributes to hide so that a layer runs its `call` once, without tracing."""
    is_rematerialised = getattr(layer, "_remat_mode", None) is not None
    return [(layer, "_remat_mode", None)] if is_rematerialised else []


def keras_mask_of(tensor: Float[Tensor, "..."]) -> Num[Tensor, "B ..."] | None:
    """The mask that Keras has attached to a tensor, or `None`."""
    return get_keras_mask(tensor)
