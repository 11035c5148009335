"""The base of adapters for KerasHub's encoders, which attend in place and have no cache."""

from typing import Any

from keras_graphattn.hub.adapters.decoder import usual_projections
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.logits import Logits

Tensor = Any


class EncoderAdapter(InPlaceAdapter):
    """Base of the adapters of attention that sees all tokens. A subclass sets the names.

    What the hook hands on as `given` is the bias of the scores, (B or 1, N, T or 1, S).
    """

    module = "keras_hub."

    def is_causal(self, parent: Any, layer: Any) -> bool:
        return False

    def projections(self, layer: Any) -> dict[str, Any]:
        return usual_projections(layer)

    def logits(self, layer: Any, length: Any, given: Tensor | None = None) -> Logits:
        return Logits(bias=given)
