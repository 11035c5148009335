"""The conversions of one owner as plain data: what its configuration carries."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras


class Conversion(NamedTuple):
    """One call of `convert`, as far as it concerns one owner."""

    attention: str
    sites: list[int]  # indices among the owner's self-attention layers
    options: dict[str, Any]


class Conversions:
    """A list that Keras does not track, since it is not a list to Keras."""

    def __init__(self, entries: Sequence[Conversion]) -> None:
        self.entries = list(entries)

    def get_config(self) -> list[dict[str, Any]]:
        """The conversions as JSON can hold them."""
        return [
            {
                "attention": entry.attention,
                "sites": list(entry.sites),
                "options": keras.saving.serialize_keras_object(entry.options),
            }
            for entry in self.entries
        ]

    @classmethod
    def from_config(cls, config: Sequence[dict[str, Any]]) -> "Conversions":
        """The conversions that `get_config` described."""
        return cls(
            [
                Conversion(
                    entry["attention"],
                    list(entry["sites"]),
                    keras.saving.deserialize_keras_object(entry["options"]),
                )
                for entry in config
            ]
        )
