"""The base of adapters for KerasHub's encoders, which attend in place and have no cache."""

from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.decoder import usual_projections
from keras_graphattn.hub.adapters.in_place import InPlaceAdapter
from keras_graphattn.hub.logits import Logits

Tensor = Any


def in_heads(x: Tensor, num_heads: int) -> Tensor:
    """Projected tokens (B, T, N * H) as heads, (B, T, N, H)."""
    return ops.reshape(x, (*ops.shape(x)[:2], num_heads, x.shape[-1] // num_heads))


def fused_in_heads(x: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, T, N, H) of one projection, (B, T, 3 * N * H)."""
    x = ops.reshape(x, (*ops.shape(x)[:2], 3, num_heads, x.shape[-1] // (3 * num_heads)))
    query, key, value = ops.unstack(x, 3, axis=2)
    return query, key, value


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
