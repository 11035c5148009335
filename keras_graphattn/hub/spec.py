"""Conversions as plain data: what the configuration of a converted model carries."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

KEY = "graph_attention"  # what is kept of conversions in configurations and files


class Request(NamedTuple):
    """What one call of `convert` asks for."""

    attention: str
    options: dict[str, Any]

    def own_options(self) -> dict[str, Any]:
        """The options in objects of their own: a mask with weights is not shared by layers."""
        config = _unshared(keras.saving.serialize_keras_object(dict(self.options)))
        options: dict[str, Any] = keras.saving.deserialize_keras_object(config)
        return options


def _unshared(config: Any) -> Any:
    """A configuration without the marks by which Keras makes an object of a file only once."""
    if isinstance(config, dict):
        return {key: _unshared(x) for key, x in config.items() if key != "shared_object_id"}
    return [_unshared(x) for x in config] if isinstance(config, list) else config


class Conversion(NamedTuple):
    """A request, and the indices of the self-attention layers that it was made for."""

    request: Request
    sites: list[int]

    def get_config(self) -> dict[str, Any]:
        """The conversion as JSON can hold it."""
        return {
            "attention": self.request.attention,
            "sites": list(self.sites),
            "options": keras.saving.serialize_keras_object(self.request.options),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Conversion":
        """The conversion that `get_config` described."""
        options = keras.saving.deserialize_keras_object(config["options"])
        return cls(Request(config["attention"], options), list(config["sites"]))


def joined(conversions: Sequence[Conversion]) -> list[Conversion]:
    """The same conversions, with one entry for all layers whose requests are equal."""
    if len(conversions) < 2:
        return list(conversions)
    found: dict[str, tuple[Request, list[int]]] = {}
    for entry in conversions:
        told = repr({**entry.get_config(), "sites": None})
        found.setdefault(told, (entry.request, []))[1].extend(entry.sites)
    return [Conversion(request, sorted(sites)) for request, sites in found.values()]


class Conversions:
    """The conversions in one layer. Keras does not track it, since it is not a list to Keras.

    Args:
        entries: The conversions.
        num_sites: The number of self-attention layers in the layer, converted or not.
    """

    def __init__(self, entries: Sequence[Conversion], num_sites: int) -> None:
        self.entries = list(entries)
        self.num_sites = num_sites

    def get_config(self) -> dict[str, Any]:
        """The conversions as JSON can hold them."""
        return {
            "num_sites": self.num_sites,
            "conversions": [entry.get_config() for entry in self.entries],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Conversions":
        """The conversions that `get_config` described."""
        entries = [Conversion.from_config(entry) for entry in config["conversions"]]
        return cls(entries, config["num_sites"])
