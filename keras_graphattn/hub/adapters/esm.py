"""The adapter of the attention of ESM and ESM-2: as RoFormer's, with another rotary embedding.

Backbones with absolute positions (ESM-1) do not rotate. What padding hides depends on the backend
in the same way: see `roformer.py`.
"""

from collections.abc import Sequence
from typing import Any

from keras_graphattn.hub.adapters.roformer import RoformerAdapter

Tensor = Any


class EsmAdapter(RoformerAdapter):
    """For `EsmSelfAttention`."""

    classes: Sequence[str] = ("EsmSelfAttention",)
    backbones: Sequence[str] = ("ESMBackbone",)
    inner_layers: Sequence[str] = ("ESMEncoder",)

    def both_rotated(self, layer: Any, query: Tensor, key: Tensor) -> Sequence[Tensor]:
        if not layer.use_rotary:
            return query, key
        rotated: Sequence[Tensor] = layer.rotary_embedding_layer(query, key)
        return rotated
