"""Undoes the build of a layer if its first call raises, so that the next call builds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras


class _State(NamedTuple):
    """A layer, whether it was built, and the objects that Keras tracked in it."""

    layer: Any
    built: bool
    tracked: dict[str, list[Any]]


def _state(layer: Any) -> _State:
    stores = layer._tracker.config.items()
    return _State(layer, layer.built, {name: list(store) for name, (_, store) in stores})


def _restore(state: _State) -> None:
    """Removes variables and sublayers that the layer did not have before."""
    layer = state.layer
    layer._tracker.unlock()
    new: dict[int, Any] = {}
    for name, (_, store) in layer._tracker.config.items():
        before = {id(value) for value in state.tracked[name]}
        new.update({id(value): value for value in store if id(value) not in before})
    on_torch = vars(layer).get("_modules", {})  # sublayers are there on torch
    for name, value in [*vars(layer).items(), *on_torch.items()]:
        if id(value) in new:
            delattr(layer, name)
    for value in new.values():
        if isinstance(value, keras.Variable):
            layer._untrack_variable(value)  # torch forgets it as well
        else:
            layer._tracker.untrack(value)
    layer.built = state.built


@contextmanager
def undone_if_refused(layer: Any) -> Iterator[None]:
    """If the body raises, undoes the build of a layer and of the layers in it.

    Otherwise weights that were made before the error would stay, and the next call would make a
    second set of them.

    Args:
        layer: The layer that the body calls. A built layer stays as it is.
    """
    if layer.built:
        yield
        return
    states = [_state(inner) for inner in layer._flatten_layers()]
    try:
        yield
    except Exception:
        for state in states:
            if not state.built:
                _restore(state)
        raise
