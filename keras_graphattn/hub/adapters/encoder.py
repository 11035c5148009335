"""The base of adapters for KerasHub's encoders, which attend in place and have no cache."""

from typing import Any

from keras_graphattn.hub.adapters.in_place import InPlaceAdapter


class EncoderAdapter(InPlaceAdapter):
    """Base of the adapters of attention that sees all tokens. A subclass sets the names."""

    module = "keras_hub."

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return False
